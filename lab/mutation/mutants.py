"""Mutation testing of `kv/` and `sched/`: applies wrong edits one at a time and asks which tests notice them.

    python lab/mutation/mutants.py                    40 generated edits, as many of each kind
    python lab/mutation/mutants.py --count 200 --seed 3 --module kv.pool
    python lab/mutation/mutants.py --curated          the bugs of the two reports and other instructive edits
    python lab/mutation/mutants.py --only ID ...      these edits, by the ids that a run prints
    python lab/mutation/mutants.py --log lab/LOG.md   the result becomes an entry of the page

Every edit runs in a copy of the tree, under limits of memory and of CPU time (a limit of wall time would
depend on the load). A run that passes a limit has noticed the edit too. Likely tests run first.
"""

import argparse
import datetime
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lab.mutation.curated import CURATED
from lab.mutation.edits import ROOT, Edit, generated, modules, path_of, source_of

COPIED = ("src", "lab", "tests", "docs", "pyproject.toml", "README.md")
HEADING = "## Mutation testing"
COUNT, SEED = 40, 0
LIMIT_SECONDS = 900
"""Of CPU time: the tests of one edit take about 300 where they notice nothing."""
LIMIT_GIB = 4
"""Of address space: an edit may let a loop grow a list until the machine has no memory left."""

SUITES = {
    "kv": ("tests/kv", "tests/lab/fuzz", "tests/reports", "tests/faults", "tests/exhaustive", "tests/sched"),
    "sched": ("tests/sched", "tests/lab/faults", "tests/reports", "tests/faults"),
}
LIKELY = {
    "kv": ("tests/lab/fuzz/test_fuzz.py",),
    "sched": ("tests/sched/test_no_idle.py", "tests/lab/faults/test_faults.py"),
}
"""Simulated lifetimes notice most edits in seconds. They run first, with the tests of the edited module."""
LAST = ("test_machine.py", "test_small_scope.py", "test_worlds.py")
"""The slowest files: with -x the first failure ends the run."""
LEFT_OUT = ("test_http_retraction.py", "test_faults_seen.py")
"""A slow twin of faster tests, and a test that makes wrong edits of its own."""


@dataclass(frozen=True, slots=True)
class Verdict:
    edit: Edit
    noticed_by: str
    """The test that failed, or the limit that was passed; empty if the edit survived."""


# ---------------------------------------------------------------- choosing edits


def sample(edits: Iterable[Edit], count: int, seed: int) -> list[Edit]:
    """`count` edits in an order drawn from `seed`, the kinds in turns: most edits swap arguments."""
    rng = random.Random(seed)
    by_kind: dict[str, list[Edit]] = {}
    for edit in edits:
        by_kind.setdefault(edit.kind, []).append(edit)
    for kind in sorted(by_kind):
        rng.shuffle(by_kind[kind])
    turns = itertools.zip_longest(*(by_kind[kind] for kind in sorted(by_kind)))
    return [edit for turn in turns for edit in turn if edit is not None][:count]


COPY_FIRST = """\
import sys
sys.meta_path.sort(key=lambda finder: type(finder).__name__ == "ScikitBuildRedirectingFinder")
"""
"""sitecustomize.py of a copy. The finders of an editable install come before PYTHONPATH and would import the
checkout, without the edit. They stay, but last: the compiled extension is only where they find it."""


# ---------------------------------------------------------------- judging


def judge(edit: Edit, suites: Sequence[str] = ()) -> Verdict:
    """Runs tests with the edit until one fails: its package's, or `suites`."""
    likely, others = files_to_run(edit.module, suites)
    return Verdict(edit, first_failure(edit, likely) or first_failure(edit, others))


def first_failure(edit: Edit, files: Sequence[str]) -> str:
    """The test of `files` that failed first on a copy of the tree with the edit, or a limit, or nothing."""
    if not files:
        return ""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        (tree / "sitecustomize.py").write_text(COPY_FIRST, encoding="utf-8")
        (tree / edit.path).write_text(edit.apply(source_of(edit.module)), encoding="utf-8")
        return run_tests(tree, files)


def copy_tree(tree: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree / name)


def files_to_run(module: str, suites: Sequence[str] = ()) -> tuple[Sequence[str], Sequence[str]]:
    """Test files in the order in which they run: likely ones, then the rest with the slowest last.

    `suites` are folders or files; the default is the suites of the module's package.
    """
    package, _, name = module.partition(".")
    found: list[Path] = []
    for suite in suites or SUITES[package]:
        path = ROOT / suite
        found += [path] if path.is_file() else sorted(path.glob("test_*.py"))
    files = [str(path.relative_to(ROOT)) for path in found if path.name not in LEFT_OUT]
    assert files, suites
    likely = [file for file in files if name in Path(file).stem or file in LIKELY[package]]
    others = [file for file in files if file not in likely]
    return likely, sorted(others, key=lambda file: Path(file).name in LAST)


def run_tests(tree: Path, files: Sequence[str]) -> str:
    options = ("-x", "-q", "-m", "not slow and not model", "-p", "no:cacheprovider", "--timeout=0")
    path = os.pathsep.join(str(tree / folder) for folder in ("", "src", "lab"))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    limited = ("sh", "-c", f'ulimit -t {LIMIT_SECONDS}; ulimit -v {LIMIT_GIB << 20}; exec "$@"', "sh")
    done = subprocess.run(
        [*limited, sys.executable, "-m", "pytest", *options, *files],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode < 0:
        return f"a limit ({signal.Signals(-done.returncode).name})"
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return found[1] if found else f"exit status {done.returncode}"


def verdicts(edits: Sequence[Edit], jobs: int) -> list[Verdict]:
    """One for each edit, printed as soon as it is known.

    Likely tests try all edits before the other tests try the rest, which take minutes for each.
    """
    files = {edit: files_to_run(edit.module) for edit in edits}

    def likely(edit: Edit) -> str:
        noticed_by = first_failure(edit, files[edit][0])
        print(f"{edit.id}  {noticed_by or '...'}", flush=True)
        return noticed_by

    def other(edit: Edit) -> str:
        noticed_by = first_failure(edit, files[edit][1])
        print(f"{edit.id}  {noticed_by or 'SURVIVED'}", flush=True)
        return noticed_by

    with ThreadPoolExecutor(jobs) as pool:
        found = dict(zip(edits, pool.map(likely, edits), strict=True))
        left = [edit for edit in edits if not found[edit]]
        found.update(zip(left, pool.map(other, left), strict=True))
    return [Verdict(edit, found[edit]) for edit in edits]


# ---------------------------------------------------------------- reporting


def share(found: Sequence[Verdict]) -> str:
    noticed = sum(bool(verdict.noticed_by) for verdict in found)
    return f"{noticed} of {len(found)}"


def table(name: str, groups: dict[str, list[Verdict]]) -> list[str]:
    rows = [f"| {group} | {share(found)} |" for group, found in sorted(groups.items())]
    return [f"| {name} | noticed |", "|---|---|", *rows]


def entry(found: Sequence[Verdict], what: str, commit: str, day: datetime.date) -> str:
    """The entry of the log: shares by kind and module, and the survivors."""
    kinds: dict[str, list[Verdict]] = {}
    by_module: dict[str, list[Verdict]] = {}
    for verdict in found:
        kinds.setdefault(verdict.edit.kind, []).append(verdict)
        by_module.setdefault(verdict.edit.module, []).append(verdict)
    survivors = [verdict.edit for verdict in found if not verdict.noticed_by]
    lines = [f"{day.isoformat()}, {commit}, {what}: fast tests notice {share(found)} edits.", ""]
    lines += [*table("kind", kinds), "", *table("module", by_module)]
    if survivors:
        lines += ["", "Survivors:", "", *(f"- `{edit.id}`, {described(edit)}" for edit in survivors)]
    return "\n".join(lines) + "\n"


def described(edit: Edit) -> str:
    """The line of the edit, before and after."""
    before = source_of(edit.module)
    line = edit.line - 1
    lines = before.splitlines()[line].strip(), edit.apply(before).splitlines()[line].strip()
    return (
        f"line {edit.line}: `{lines[0]}` becomes `{lines[1]}`"
        if lines[0] != lines[1]
        else f"line {edit.line}"
    )


def with_entry(page: str, text: str) -> str:
    """`page` with an entry at the end of its section on mutation testing, which is appended if missing."""
    if not re.search(rf"^{re.escape(HEADING)}$", page, re.MULTILINE):
        return f"{page.rstrip()}\n\n{HEADING}\n\n{text}"
    before, _, rest = page.partition(f"{HEADING}\n")
    section, *following = re.split(r"^(?=## )", rest, maxsplit=1, flags=re.MULTILINE)
    return f"{before}{HEADING}\n{section.rstrip()}\n\n{text}" + "".join(f"\n{part}" for part in following)


def main() -> int:
    parser = argparse.ArgumentParser(description="wrong edits to kv/ and sched/, and which tests notice them")
    parser.add_argument("--count", type=int, default=COUNT, help=f"edits to try (default {COUNT})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the sample (default {SEED})")
    parser.add_argument("--module", action="append", help="such as kv.pool; may be repeated (default: all)")
    parser.add_argument("--only", nargs="+", metavar="ID", help="these generated edits")
    parser.add_argument("--curated", action="store_true", help="the curated edits, all of them")
    parser.add_argument("--jobs", type=int, default=2, help="edits tried at a time (default 2)")
    parser.add_argument("--log", type=Path, help="page that gets an entry with the result")
    options = parser.parse_args()
    if options.curated:
        chosen, what = [each.edit() for each in CURATED], f"all {len(CURATED)} curated edits"
    else:
        named = options.module or modules()
        if missing := [module for module in named if not (ROOT / path_of(module)).exists()]:
            parser.error(f"--module {missing[0]}: there is no {path_of(missing[0])}")
        edits = [edit for module in named for edit in generated(module, source_of(module))]
        chosen = sample(edits, options.count, options.seed)
        what = f"{len(chosen)} of {len(edits)} generated edits, seed {options.seed}"
        if options.only:
            chosen = [edit for edit in edits if edit.id in options.only]
            what = f"{len(chosen)} edits by id"
    found = verdicts(chosen, options.jobs)
    git = ("git", "rev-parse", "--short", "HEAD")
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    text = entry(found, what, commit, datetime.date.today())
    print(f"\n{text}")
    if options.log:
        page = options.log.read_text(encoding="utf-8") if options.log.exists() else ""
        options.log.write_text(with_entry(page, text), encoding="utf-8")
    return int(options.curated and not all(verdict.noticed_by for verdict in found))


if __name__ == "__main__":
    sys.exit(main())
