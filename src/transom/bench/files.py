"""What a user is shown, and files asked for by name."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from transom.errors import ConfigError


def screen() -> Console:
    """Where no terminal says how wide it is, wide enough for all tables. Names and texts are no markup."""
    width = None if sys.stdout.isatty() else 160
    return Console(soft_wrap=True, highlight=False, markup=False, width=width)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What cannot be written within is a ConfigError that names `path`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def write_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Into a folder, which is made; by name. Returns their paths. ConfigError."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
