"""Compares transom serve with llama.cpp's server, with the same model file and the same number of threads.

    make bench-peers ARGS="--workloads w3"

llama.cpp is built once in the cache folder ($TRANSOM_CACHE, by default ~/.cache/transom), from the sources in
the package llama-cpp-python. That takes a quarter of an hour on two cores. Then both servers are started on
local ports of this machine, `transom bench serve` plays its workloads against them in turns, and both are
stopped, also after errors and signals. Unknown flags are passed on to `transom bench serve`.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from transom.cli.model import find_model
from transom.config import cores_available
from transom.errors import TransomError
from transom.weights.builtin import cache_folder, resolve_model

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
ARCHIVE = f"llama_cpp_python-{VERSION}.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
INSIDE = f"llama_cpp_python-{VERSION}/vendor/llama.cpp"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    # The AMX kernels of this version end in a segmentation fault (llama.cpp #20824, #26954). The flags change
    # nothing on processors without AMX.
    "-DCMAKE_C_FLAGS=-U__AMX_INT8__",
    "-DCMAKE_CXX_FLAGS=-U__AMX_INT8__",
)
TARGETS = ("llama-server", "llama-bench", "llama-batched-bench")
READY_SECONDS, END_SECONDS = 300, 30
TERMINATED = 143
"""Exit status after SIGTERM, as shells report it: 128 + 15."""


def main() -> int:
    signal.signal(signal.SIGTERM, _terminated)
    options, rest = _parser().parse_known_args()
    try:
        find_model(options.model)
        model = resolve_model(options.model)
        llama_server = options.llama_server or built(options.jobs)
        return compare(model, llama_server, rest)
    except TransomError as error:
        print(f"transom: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lab/peers.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", metavar="MODEL", help="a GGUF file; default: Gemma 3 270M")
    parser.add_argument(
        "--llama-server", type=Path, metavar="FILE", help="use this server instead of building one"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="parallel build jobs; default %(default)s"
    )
    return parser


def _terminated(number: int, frame: object) -> None:
    """Turns SIGTERM into an exception, so that every `finally` runs and stops its process."""
    raise SystemExit(TERMINATED)


# ---------------------------------------------------------------- building


def built(jobs: int) -> Path:
    """The path of the server, which is built first if it was not. Raises TransomError."""
    folder = cache_folder() / "peers" / f"{PACKAGE}-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = folder / "build" / "bin" / TARGETS[0]
        if not _is_built(folder):
            _build(folder, jobs)
            (folder / "built").write_text(" ".join(OPTIONS))
    return server


def _is_built(folder: Path) -> bool:
    """Whether a build has completed with these `OPTIONS`. The stamp is written last."""
    stamp = folder / "built"
    return stamp.exists() and stamp.read_text() == " ".join(OPTIONS)


def _build(folder: Path, jobs: int) -> None:
    """Downloads, unpacks and builds. Continues where an interrupted build stopped."""
    if shutil.which("cmake") is None:
        raise TransomError("cmake is missing. Install with: sudo apt-get install -y cmake")
    if not (folder / "source").exists():
        _unpack(_downloaded(folder), folder)
    log = folder / "build.log"
    print(
        f"building llama.cpp's server, once: about a quarter of an hour on two cores; see {log}", flush=True
    )
    with log.open("wb") as output:
        configure = ["cmake", "-S", str(folder / "source"), "-B", str(folder / "build"), *OPTIONS]
        _run_to_end(configure, output)
        _run_to_end(["cmake", "--build", str(folder / "build"), f"-j{jobs}", "--target", *TARGETS], output)


def _run_to_end(words: Sequence[str], output: IO[bytes]) -> None:
    with running(["nice", "-n", "19", *words], output) as process:
        if process.wait() != 0:
            raise TransomError(f"{' '.join(words[:2])} failed: {_last_line(Path(output.name))}")


def _downloaded(folder: Path) -> Path:
    path = folder / ARCHIVE
    if not path.exists():
        print(f"fetching {PACKAGE} {VERSION}, 77 MB, once", flush=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        package = ["--no-deps", "--no-binary", PACKAGE, "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
        with (folder / "download.log").open("wb") as output, running([*pip, *package], output) as process:
            if process.wait() != 0:
                raise TransomError(f"pip download failed: {_last_line(folder / 'download.log')}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        path.unlink()
        raise TransomError(f"{path} had a wrong checksum (sha256 {found}) and was removed; try again")
    return path


def _unpack(archive: Path, folder: Path) -> None:
    """Unpacks llama.cpp's sources into `source`, which exists only if all of them are there."""
    print("unpacking", flush=True)
    partial = folder / "source.partial"
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as package:
        members = [member for member in package if member.name.startswith(f"{INSIDE}/")]
        package.extractall(partial, members, filter="data")
    # A submodule's .git file names a repository that does not exist here.
    (partial / INSIDE / ".git").unlink(missing_ok=True)
    (partial / INSIDE).rename(folder / "source")
    shutil.rmtree(partial)


# ---------------------------------------------------------------- comparing


def compare(model: Path, llama_server: Path, rest: Sequence[str]) -> int:
    """Runs `transom bench serve` with transom as A and llama-server as B. Returns its exit status.

    Raises TransomError if a server does not start.
    """
    ports = _free_port(), _free_port()
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    transom = [sys.executable, "-m", "transom"]
    ours = [*transom, "serve", str(model), "--port", str(ports[0]), "--log-level", "warning"]
    flags = ["-np", "8", "-t", str(cores_available()), "-c", "32768"]
    llama = [str(llama_server), "-m", str(model), *flags, "--host", "127.0.0.1", "--port", str(ports[1])]
    logs = cache_folder() / "peers"
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for words, url, name in ((ours, urls[0], "transom"), (llama, urls[1], "llama-server")):
            output = stack.enter_context((logs / f"{name}.log").open("wb"))
            server = stack.enter_context(running(words, output))
            _await_ready(server, url, logs / f"{name}.log")
        print(f"A is transom serve, B llama-server {' '.join(flags)}; logs in {logs}", flush=True)
        return _bench([*transom, "bench", "serve", urls[0], "--against", urls[1], *rest])


def _bench(words: Sequence[str]) -> int:
    """Runs the benchmark in this session, not in a new one: the terminal's Ctrl-C must reach it too."""
    bench = subprocess.Popen(words)
    try:
        return bench.wait()
    finally:
        if bench.poll() is None:
            bench.terminate()
            bench.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def _await_ready(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            raise TransomError(
                f"{log.stem} ended with {_end_of(server.returncode)}: {_last_line(log)}; see {log}"
            )
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TransomError(f"{url} is not ready after {READY_SECONDS} s: {_last_line(log)}")


def _end_of(status: int) -> str:
    """Names an exit status, or the signal that ended the process."""
    return f"status {status}" if status >= 0 else signal.Signals(-status).name


@contextmanager
def running(words: Sequence[str], output: IO[bytes]) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in a session of its own. The end of the block stops the whole session."""
    try:
        process = subprocess.Popen(words, stdout=output, stderr=output, start_new_session=True)
    except OSError as error:
        raise TransomError(f"{words[0]} cannot be started: {error.strerror}") from None
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"{log} is empty")


if __name__ == "__main__":
    sys.exit(main())
