"""The terminal, and files named by the user."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from transom.errors import ConfigError


def screen() -> Console:
    """A console on standard output. Without a terminal it is wide enough for all tables."""
    # No markup: names of models and servers may contain brackets.
    width = None if sys.stdout.isatty() else 160
    return Console(soft_wrap=True, highlight=False, markup=False, width=width)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns OSError inside the block into ConfigError that names `path`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def write_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes texts by file name into a folder, created if missing. Returns the paths. ConfigError."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
