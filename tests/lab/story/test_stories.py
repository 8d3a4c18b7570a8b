"""Our side of each story is the real cache and scheduler; the other side fails as its report says."""

from collections.abc import Iterator

import numpy as np
import pytest

from transom.kv.cache import HybridCache
from transom.kv.check import inside
from transom.values import RequestId
from transom_lab.story import cliff, deferred_chunk, drawing, locked_full, repair
from transom_lab.story.scene import Beside, Charted, Fate, Look, Scene, Story, Strip
from transom_lab.story.stage import FULL, PAGE, WINDOW, Stage, label, small, text

OWNERS = {"A": 0, "B": 0, "C": 0, "D": 0, "E": 0}


def strip(scene: Scene, name: str) -> Strip:
    return next(found for found in scene.strips if found.name == name)


def labels(drawn: Strip) -> list[str]:
    return [cell.label for cell in drawn.cells]


def beside(story: Story, index: int) -> Beside:
    frame = story.frames[index]
    assert isinstance(frame, Beside)
    return frame


def hit(cache: HybridCache, tokens: list[int]) -> int:
    """The hit of a request for `tokens` and one token more."""
    namespace = cache.namespace(RequestId(10_000), "")
    return cache.offer(namespace, np.array([*tokens, 1], np.int32)).begin.start


# ---------------------------------------------------------------- drawing


def played() -> Iterator[Stage]:
    """A stage after each of many iterations, with hits, holes and requests that end."""
    stage = Stage(small(full=20, window=8, width=6), chunk=9)
    for letter, prompt, outputs in (
        ("A", text("P", 0, 16), 1),
        ("B", [*text("P", 0, 16), *text("B", 16, 21)], 9),
        ("C", [*text("P", 0, 12), *text("C", 12, 20)], 6),
        ("D", text("D", 0, 20), 4),
        ("E", [*text("P", 0, 16), *text("E", 16, 18)], 3),
    ):
        stage.ask(letter, prompt, outputs)
        for _ in range(4):
            stage.iterate()
            yield stage
    for letter in OWNERS:
        stage.finish(letter)
        yield stage


def test_a_cell_shows_the_contents_and_the_owner_of_its_page() -> None:
    looks = set()
    for stage in played():
        for component in (FULL, WINDOW):
            pool = inside(stage.cache).pools[component]
            free = set(pool.free_pages().tolist())
            for page, cell in enumerate(drawing.pool(stage, component).cells, start=1):
                looks.add(cell.look)
                assert (cell.look is Look.FREE) == (page in free)
                if page in free:
                    continue
                assert cell.label.upper() == label(stage.page(component, page)[0])
                assert cell.label[0].isupper() == pool.is_of_tree(page)
                readers = int(pool.references([page])[0])
                assert (cell.look is Look.SHARED) == (readers > 1)
                assert (cell.look is Look.TREE) == (pool.is_of_tree(page) and readers == 0)
    assert {Look.FREE, Look.TREE, Look.SHARED, Look.B, Look.C} <= looks


def test_a_hole_is_drawn_where_the_full_page_is_cached_and_the_window_page_is_not() -> None:
    holes = 0
    for stage in played():
        drawn = [cell for line in drawing.tree(stage, "PD") for cell in line.cells]
        full, window = (inside(stage.cache).pools[component].tree for component in (FULL, WINDOW))
        pages = [cell for cell in drawn if cell.look not in (Look.BLANK, Look.FAINT)]
        assert len(pages) == full
        assert sum(cell.look is Look.HOLE for cell in pages) == full - window
        holes += full - window
    assert holes > 0


def test_a_row_shows_the_pages_that_the_request_reads() -> None:
    for stage in played():
        for letter in stage.requests:
            holding = stage.holding(letter)
            if holding is None:
                continue
            there = max(holding.computed, holding.full_until)
            pages = stage.cache.page_tables[FULL][holding.row, : -(-there // PAGE)]
            names = [label(stage.page(FULL, page)[0]) for page in pages.tolist()]
            drawn = labels(drawing.row(stage, letter))
            assert [name.upper() for name in drawn[: len(names)]] == names
            assert set(drawn[len(names) :]) <= {"__"}


# ---------------------------------------------------------------- deferred-chunk


def test_our_deferred_chunk_leaves_the_request_unchanged_until_pages_are_free() -> None:
    ours = deferred_chunk.Ours()
    spans = [ours.iterate(), ours.iterate()]
    holding = ours.stage.holding("B")
    assert holding is not None
    prompt = text("B", 0, deferred_chunk.PROMPT_B)
    tables = [rows.table[holding.row].tolist() for rows in inside(ours.stage.cache).tables]
    waited = 0
    while (span := ours.iterate()) is None:
        waited += 1
        assert [rows.table[holding.row].tolist() for rows in inside(ours.stage.cache).tables] == tables
        assert holding.computed == hit(ours.stage.cache, prompt) == 16
    assert waited >= 5
    spans.append(span)
    ours.stage.finish("B")
    assert ours.stage.spans("B")[:3] == spans
    ends = [end for _, end in ours.stage.spans("B")]
    assert [start for start, _ in ours.stage.spans("B")] == [0, *ends[:-1]]
    assert ours.stage.scheduler.stats().retractions == 0


def test_their_deferred_chunk_is_cached_and_crashes_the_server() -> None:
    theirs = deferred_chunk.ChunkedServer()
    for _ in range(deferred_chunk.ARRIVAL_B):
        theirs.answer()
    rounds = 0
    while theirs.is_alive:
        theirs.stash()
        theirs.schedule()
        rounds += 1
        assert theirs.cached <= theirs.computed["B"] or not theirs.is_alive
    assert rounds == 4, "two chunks, one deferred, and the crash"
    assert (theirs.cached, theirs.computed["B"]) == (32, 16)


def test_with_free_pages_their_chunks_are_cached_as_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault needs a shortage: with a larger pool the same code is right to the last chunk."""
    monkeypatch.setattr(deferred_chunk, "WINDOW_PAGES", 12)
    theirs = deferred_chunk.ChunkedServer()
    theirs.answer()
    for _ in range(2):
        theirs.stash()
        assert theirs.cached == theirs.computed["B"]
        theirs.schedule()
    assert theirs.computed["B"] == deferred_chunk.PROMPT_B and theirs.is_alive


def test_the_frames_of_deferred_chunk_show_the_fault() -> None:
    story = deferred_chunk.story()
    fates = [beside(story, index).theirs.fate for index in range(7)]
    assert fates == [Fate.WELL] * 4 + [Fate.DEAD] * 3
    assert all(beside(story, index).ours.fate is Fate.WELL for index in range(7))
    cached = strip(beside(story, 3).theirs, "tree")
    assert [cell.look is Look.WRONG for cell in cached.cells] == [False] * 4 + [True] * 4
    for index in (2, 3, 4):
        assert labels(strip(beside(story, index).ours, "B")) == ["B0", "B1", "B2", "B3", *["__"] * 4]
    assert strip(beside(story, 6).ours, "A").note == strip(beside(story, 6).ours, "B").note == "answered"


# ---------------------------------------------------------------- locked-full


def test_in_our_locked_full_the_reader_keeps_its_pages_and_their_contents() -> None:
    ours = locked_full.Ours()
    ours.ask("B", [*ours.prefix, *text("B", 16, 24)], 9)
    pages, contents = ours.locked(), ours.contents()
    ours.stage.serve("D", text("D", 0, 28))
    assert hit(ours.stage.cache, ours.prefix) == 0, "no window of the prefix is left"
    ours.ask("C", [*ours.prefix, *text("C", 16, 20)], 2)
    assert ours.stage.spans("C") == [(0, 20)], "computed again, for its windows"
    assert hit(ours.stage.cache, ours.prefix) == 16, "so the holes are filled"
    ours.stage.finish("C")
    ours.ask("E", text("E", 0, 8), 3)
    ours.stage.iterate()
    assert (ours.locked(), ours.contents()) == (pages, contents)
    assert [token for page in contents for token in page] == ours.prefix
    stats = ours.stage.cache.stats().components
    assert (stats[FULL].duplicates_returned, stats[WINDOW].holes_filled) == (0, 4)


def test_in_their_locked_full_the_reader_reads_another_text() -> None:
    story = locked_full.story()
    reads = [labels(strip(beside(story, index).theirs, "B"))[:4] for index in range(1, 7)]
    assert reads[:3] == [["P0", "P1", "P2", "P3"]] * 3
    assert reads[4] == reads[5] == ["e0", "e1", "p2", "p3"]
    for index, wrong in ((3, 0), (4, 4), (5, 4), (6, 4)):
        cells = strip(beside(story, index).theirs, "B").cells
        assert sum(cell.look is Look.WRONG for cell in cells) == wrong
    for index in range(1, 7):
        assert labels(strip(beside(story, index).ours, "B"))[:4] == ["P0", "P1", "P2", "P3"]
    fates = [beside(story, index).theirs.fate for index in range(7)]
    assert fates == [Fate.WELL] * 4 + [Fate.HARMED] * 3


def test_both_sides_of_a_frame_have_pools_of_one_size() -> None:
    for story in (deferred_chunk.story(), locked_full.story()):
        for index in range(len(story.frames)):
            frame = beside(story, index)
            for name in ("full", "window"):
                assert len(strip(frame.ours, name).cells) == len(strip(frame.theirs, name).cells)


# ---------------------------------------------------------------- cliff


def test_windows_by_age_lose_all_hits_with_one_conversation_more() -> None:
    rates = [cliff.their_hit_rate(n) for n in range(1, 9)]
    last = max(n for n, rate in enumerate(rates) if rate > 0)
    assert all(rate > 0.93 for rate in rates[: last + 1])
    assert rates[last + 1 :] == [0.0] * (len(rates) - last - 1) and last + 1 < len(rates)


@pytest.fixture(scope="module")
def the_cliff() -> Story:
    return cliff.story()


def test_the_real_cache_hits_where_windows_by_age_do_not(the_cliff: Story) -> None:
    frame = the_cliff.frames[-1]
    assert isinstance(frame, Charted)
    ours, plain, theirs = (series.values for series in frame.chart.series)
    assert all(a >= b >= c for a, b, c in zip(ours, plain, theirs, strict=True))
    assert theirs[-1] == 0 and min(ours) > 60
    held = [sum(rate > 93 for rate in rates) for rates in (ours, plain, theirs)]
    assert held[1] >= 3 * held[2]


def test_the_scenes_of_the_cliff_count_hits(the_cliff: Story) -> None:
    back, others = beside(the_cliff, 2), beside(the_cliff, 3)
    assert back.ours.event.startswith("28 of 32 tokens are cached")
    assert ": 0 of 32 tokens are cached" in back.theirs.event
    assert others.ours.event == "B, C and D: 80 of 92 tokens cached."
    assert others.theirs.event == "B, C and D: 0 of 92 tokens cached."
    assert len(strip(back.ours, "window").cells) == len(strip(back.theirs, "window").cells)


# ---------------------------------------------------------------- repair


def test_our_repair_computes_a_few_tokens_and_caches_only_exact_keys() -> None:
    ours = repair.Ours()
    assert hit(ours.stage.cache, ours.prefix) == 29, "where a repair starts"
    ours.ask("B", 2)
    span = ours.step()
    assert (span.start, span.end, span.store_from) == (29, 40, 36)
    exact = [mask.tolist() for mask in ours.stage.runner.exact[-1]]
    assert exact[2] == [False] * 3 + [True] * 8, "the last layer's keys"
    assert exact[3] == [False] * 6 + [True] * 5, "outputs: the whole window must be exact"
    ours.stage.finish("B")
    for component in (FULL, WINDOW):
        pool = inside(ours.stage.cache).pools[component]
        for page in range(1, pool.capacity + 1):
            if pool.is_of_tree(page):
                assert min(ours.stage.page(component, page)) > 0
    ours.ask("C", 2)
    assert ours.step().start == repair.PREFIX


def test_a_repair_costs_a_window_for_each_window_layer_however_long_the_prompt_is() -> None:
    layers = sum(component == WINDOW for component in repair.GEMMA_LAYERS)
    for tokens in (16_384, 32_768):
        price = tokens - repair.start_of_repair(tokens)
        assert layers * (repair.GEMMA_WIDTH - 1) <= price < layers * repair.GEMMA_WIDTH
    assert repair.start_of_repair(2048) == 0


def test_the_other_side_of_repair_computes_every_token() -> None:
    story = repair.story()
    assert "All 40 tokens" in beside(story, 1).theirs.event
    assert "11 tokens computed, not 40" in beside(story, 2).ours.event
    assert beside(story, 3).ours.event == "C hits 36 tokens and computes 4."
