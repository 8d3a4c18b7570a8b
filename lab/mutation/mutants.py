"""Small wrong edits to kv/, one at a time: which of them do the tests notice?

  python lab/mutation/mutants.py              all; a table on standard output
  python lab/mutation/mutants.py NAME ...     these
  python lab/mutation/mutants.py --docs FILE  all, and the table into that page's section; who noticed
                                              last time, as that page has it, is asked first

Each runs in a copy of the tree, under limits of CPU time, lest a busy machine seem to notice, and of memory;
a test that never ends has noticed too.
"""

import argparse
import datetime
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lab.mutation.wrong_edits import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests", "docs", "pyproject.toml", "README.md")
HEADING = "## Mutants of kv/"
LIMIT_SECONDS = 900
"""Of CPU time."""
LIMIT_GIB = 4
"""Of address space: an edit may let a loop grow a list until the machine has nothing left."""

SUITE = ("tests/kv", "tests/fuzz", "tests/reports", "tests/faults", "tests/exhaustive")
LAST = "test_machine.py"
"""The slowest of tests/kv: with -x, what notices first ends the run."""

NO_SUCH_TEST = 4
"""Exit status of pytest where a file or a test that was named is not there."""

LEFT_OUT = "test_http_retraction.py"
"""Slow to say what others say at once."""


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    suite: tuple[str, ...]
    killer: str
    """The test that noticed, or the limit that was passed; empty if none did."""
    seconds: float


# ---------------------------------------------------------------- judging


def judge(mutant: Mutant, suite: tuple[str, ...], noticed_before: str | None = None) -> Verdict:
    """Runs a test, then the files of `suite`, on a copy of the tree with the edit: until one notices."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        mutant.apply(tree)
        start = time.monotonic()
        killer = _run(tree, [noticed_before]) if noticed_before else ""
        killer = killer or _run(tree, _files(tree, suite))
        return Verdict(mutant, suite, killer, time.monotonic() - start)


def copy_tree(tree: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=ignored)
        else:
            shutil.copy(source, tree / name)


def _run(tree: Path, tests: list[str]) -> str:
    """The test that failed first, or the limit passed, or nothing: also where there is no such test."""
    options = ("-x", "-q", "-m", "not slow and not model", "-p", "no:cacheprovider")
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    limited = ("sh", "-c", f'ulimit -t {LIMIT_SECONDS}; ulimit -v {LIMIT_GIB << 20}; exec "$@"', "sh")
    done = subprocess.run(
        [*limited, sys.executable, "-m", "pytest", *options, "--timeout=0", *tests],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode < 0:
        return f"a limit was passed ({signal.Signals(-done.returncode).name})"
    if done.returncode in (0, NO_SUCH_TEST):
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return found[1] if found else f"exit status {done.returncode}"


def _files(tree: Path, suite: tuple[str, ...]) -> list[str]:
    """Test files in the order of the suite."""
    found = [path for folder in suite for path in sorted((tree / folder).glob("test_*.py"))]
    found = [path for path in found if path.name != LEFT_OUT]
    return [str(path.relative_to(tree)) for path in sorted(found, key=lambda path: path.name == LAST)]


def verdicts(names: list[str], jobs: int, before: Mapping[str, str]) -> list[Verdict]:
    """One per mutant and suite that must notice; those asked for, or all. Printed as they come."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    work = [(mutant, suite) for mutant in chosen for suite in (SUITE, *((alone,) for alone in mutant.alone))]
    found: list[Verdict] = []
    with ThreadPoolExecutor(jobs) as pool:
        for verdict in pool.map(lambda pair: judge(*pair, before.get(told_name(*pair))), work):
            found.append(verdict)
            said = f"noticed by {verdict.killer}" if verdict.killer else "SURVIVED"
            print(
                f"{told_name(verdict.mutant, verdict.suite):32} {verdict.seconds:6.1f} s  {said}", flush=True
            )
    return found


# ---------------------------------------------------------------- telling


def told_name(mutant: Mutant, suite: tuple[str, ...]) -> str:
    """As the table has it."""
    return mutant.name if suite == SUITE else f"{mutant.name} ({suite[0]} alone)"


def noticed_before(page: str) -> dict[str, str]:
    """By the name in its table: the test that noticed."""
    return dict(re.findall(r"^\| ([^|]+?) \| \S+\.py \| `(tests/[^`]+)` \|$", page, re.MULTILINE))


def section(found: list[Verdict], commit: str, day: datetime.date) -> str:
    """The section of docs/proof.md."""
    whole = [verdict for verdict in found if verdict.suite == SUITE]
    killed = sum(bool(verdict.killer) for verdict in whole)
    lines = [
        HEADING,
        "",
        f"{day.isoformat()}, commit {commit}: {killed} of {len(whole)} small wrong edits are noticed by",
        f"fast tests ({killed / len(whole):.1%}). `make mutants` tries them;",
        "`lab/mutation/wrong_edits.py` has them.",
        "",
        "| edit | file | noticed by |",
        "|---|---|---|",
    ]
    for verdict in found:
        name = told_name(verdict.mutant, verdict.suite)
        why = verdict.mutant.survives or "to be explained"
        told = f"`{verdict.killer}`" if verdict.killer else f"nobody: {why}"
        lines.append(f"| {name} | {verdict.mutant.file} | {told} |")
    return "\n".join(lines) + "\n"


def replace_section(page: str, text: str) -> str:
    """`page` with its section of that heading replaced, or appended."""
    pattern = re.compile(rf"^{re.escape(HEADING)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if pattern.search(page):
        return pattern.sub(lambda _: text + "\n", page).rstrip("\n") + "\n"
    return page.rstrip("\n") + "\n\n" + text


def main() -> int:
    parser = argparse.ArgumentParser(description="wrong edits to kv/, and which tests notice")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--docs", type=Path, help="page whose section is rewritten")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    page = options.docs.read_text(encoding="utf-8") if options.docs else ""
    found = verdicts(options.names, options.jobs, noticed_before(page))
    unexplained = [v.mutant.name for v in found if not v.killer and not v.mutant.survives]
    if options.docs:
        git = ("git", "rev-parse", "--short", "HEAD")
        commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip()
        text = section(found, commit, datetime.date.today())
        options.docs.write_text(replace_section(page, text), encoding="utf-8")
    noticed = sum(bool(verdict.killer) for verdict in found)
    print(f"{noticed} of {len(found)} noticed; unexplained: {unexplained or 'none'}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
