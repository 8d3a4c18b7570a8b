"""`transom fuzz-kv`: its output, and the exit status of a finding."""

import time
from collections import Counter
from pathlib import Path

from transom.errors import ConfigError, TransomError
from transom_lab.fuzz.campaign import EPISODE_OPERATIONS, Broken, Drawn, Tally, replay, run_episode
from transom_lab.fuzz.operations import read_script, write_script
from transom_lab.fuzz.shrink import shrink
from transom_lab.worlds.mixes import components

SECONDS_BETWEEN_LINES = 5


class CacheBroke(TransomError):
    """A script, drawn or replayed, that breaks the cache."""


def fuzz(drawn: Drawn, operations: int) -> None:
    """Runs `operations` and prints progress. CacheBroke after the shrunk script was printed."""
    _require_sane(drawn, operations)
    tally, start = Tally(Counter()), time.monotonic()
    last_line = start
    for number, first in enumerate(range(0, operations, EPISODE_OPERATIONS)):
        broken = run_episode(drawn, number, min(EPISODE_OPERATIONS, operations - first), tally)
        if broken is not None:
            _report(drawn, number, broken)
        if time.monotonic() - last_line > SECONDS_BETWEEN_LINES:
            last_line = time.monotonic()
            print(_progress(tally, last_line - start), flush=True)
    print(_progress(tally, time.monotonic() - start))
    print("  " + "  ".join(f"{name} {count:,}" for name, count in tally.operations.most_common()))
    print(f"  no space {tally.refused:,}, skipped {tally.skipped:,}; no fault found")


def replay_file(path: str) -> None:
    """Runs a script that was printed earlier. ConfigError if it cannot be read, CacheBroke if it breaks."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    setting, operations = read_script(text)
    broken = replay(setting, operations)
    if broken is not None:
        raise CacheBroke(f"operation {len(broken.script[1])} of {len(operations)}: {broken.error}")
    print(f"{len(operations)} operations, no fault found")


def _require_sane(drawn: Drawn, operations: int) -> None:
    for flag, value in (("--ops", operations), ("--page-size", drawn.page_size), ("--window", drawn.window)):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} is {value}; it must be at least 1")
    if drawn.mix is not None:
        try:
            components(drawn.mix, 1)
        except KeyError as unknown:
            raise ConfigError(f"--mix is {drawn.mix}; there is no component {unknown}") from None


def _report(drawn: Drawn, number: int, broken: Broken) -> None:
    print(f"# seed {drawn.seed}, episode {number}: {broken.error}", flush=True)
    print(f"# after {len(broken.script[1])} operations; shrinking", flush=True)
    small = shrink(broken)
    print(f"# {small.error}")
    print(write_script(small.script), end="")
    raise CacheBroke(f"broke after {len(small.script[1])} operations, printed above; replay with --replay")


def _progress(tally: Tally, seconds: float) -> str:
    return (
        f"{tally.total:>11,} operations  {tally.total / max(seconds, 1e-9):>7,.0f}/s  hits {tally.hits:,}"
        f" ({tally.hit_tokens:,} tokens)  repairs {tally.repairs:,}  holes filled {tally.holes_filled:,}"
        f"  duplicates returned {tally.duplicates_returned:,}  evicted {tally.evicted:,}"
    )
