"""The memory that this process may still use, and whether the KV pools fit into it."""

import logging
from pathlib import Path

from transom.errors import ConfigError

log = logging.getLogger("transom.engine")

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
WARN_SHARE = 0.8
"""Above this share of the available memory, other programs may bring the kernel to kill the engine."""


def memory_available(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int | None:
    """Bytes: the machine's available memory, or what the control group has left if that is less.

    None if the system does not say.
    """
    known = [kib << 10 for kib in _available_kib(_text(meminfo))]
    limit, used = _text(cgroup / "memory.max").strip(), _text(cgroup / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        known.append(max(0, int(limit) - int(used)))
    return min(known, default=None)


def check_pools(pools: int, available: int | None) -> None:
    """ConfigError if the pools' bytes exceed the available memory; a warning if they come near it.

    The pools take memory only as they fill: without this check, a start with far too large pools succeeds,
    and the engine is killed under load. It precedes all tables, whose sizes are in proportion to the pools.
    """
    if available is None or pools <= WARN_SHARE * available:
        return
    mib, free = pools >> 20, available >> 20
    if pools > available:
        raise ConfigError(
            f"the KV pools may take {mib} MiB, and {free} MiB of memory are available; "
            f"--kv-bytes and --max-total-tokens make them smaller"
        )
    log.warning("the KV pools may take %d of %d MiB of available memory; --kv-bytes bounds them", mib, free)


def _available_kib(text: str) -> list[int]:
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith("MemAvailable:")]


def _text(path: Path) -> str:
    """The text of a system file; empty if the system does not have the file."""
    try:
        return path.read_text()
    except OSError:
        return ""
