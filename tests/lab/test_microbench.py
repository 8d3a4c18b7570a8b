"""`transom bench micro`, `kv` and `sched` at tiny sizes: they run, print tables and write files."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from transom.bench.sheet import ResultFiles
from transom.errors import ConfigError
from transom.ops.native import info, set_isa
from transom_lab.microbench.kernels import PARTS, Sizes, bench_micro
from transom_lab.microbench.memory import CacheLoad, bench_kv
from transom_lab.microbench.scheduling import SchedulerLoad, bench_sched

SIZES = Sizes(
    dim=64, hidden=64, heads=2, head_dim=32, vocabulary=512, layers=2, window=8, tokens=16, seconds=0.0
)
CACHE_LOAD = CacheLoad(
    prefixes=3,
    sequences=200,
    prefix=128,
    suffix=64,
    fresh=4,
    published=32,
    evicted=8,
    rounds=20,
    pools=(128, 256),
)
SCHEDULER_LOAD = SchedulerLoad(running=4, prompt=20, cached=32, fresh=4, rounds=10, pages_short=1000)


@pytest.mark.parametrize(
    ("bench", "sheets"),
    [
        (lambda files: bench_micro((), files, sizes=SIZES), tuple(PARTS)),
        (lambda files: bench_kv(files, CACHE_LOAD), ("operations",)),
        (lambda files: bench_sched(files, SCHEDULER_LOAD), ("steps",)),
    ],
    ids=["micro", "kv", "sched"],
)
def test_it_prints_a_table_and_writes_figures_and_pictures(
    bench: Callable[[ResultFiles], None],
    sheets: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, folder = tmp_path / "figures.json", tmp_path / "pictures"
    bench(ResultFiles(file, folder))
    shown, figures = capsys.readouterr().out, json.loads(file.read_text())
    for name in sheets:
        rows = figures[name]["rows"]
        assert rows and all(row["name"] in shown for row in rows)
        assert all(
            value is None or isinstance(value, float) for r in rows for k, value in r.items() if k != "name"
        )
        (picture,) = folder.glob(f"*-{name}.svg")
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_instruction_sets_are_compared_with_the_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before, isas = info().isa, ("portable", info().isas[0])
    bench_micro(["small"], ResultFiles(tmp_path / "figures.json"), sizes=replace(SIZES, isas=isas))
    set_isa(before)
    rows = json.loads((tmp_path / "figures.json").read_text())["small"]["rows"]
    assert rows and all(row[isas[1]] > 0 for row in rows) and isas[1] in capsys.readouterr().out
    with pytest.raises(ConfigError, match="portable"):
        bench_micro(["small"], ResultFiles(), sizes=replace(SIZES, isas=("sse9",)))


def test_a_folder_that_cannot_be_made_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        bench_kv(ResultFiles(svg=tmp_path / "file" / "pictures"), CACHE_LOAD)
