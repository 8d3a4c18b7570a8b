"""The console for results, and files that the user names."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from transom.errors import ConfigError


def screen() -> Console:
    """A console on stdout, 160 columns wide if piped. No markup: names and texts may contain brackets."""
    width = None if sys.stdout.isatty() else 160
    return Console(soft_wrap=True, highlight=False, markup=False, width=width)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError within the block into a ConfigError that names `path`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def write_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes `texts`, by file name, into a new or old `folder`. Returns the paths. Raises ConfigError."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
