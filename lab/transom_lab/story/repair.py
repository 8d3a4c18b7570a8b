"""Repair: an evicted window is recomputed from the full pages, in a bounded number of tokens."""

from transom.kv.component_specs import Full, Window
from transom.kv.match import repair_start
from transom.kv.page_rules import page_rule
from transom.steps import SpanWork
from transom_lab.story import drawing
from transom_lab.story.other import labels
from transom_lab.story.scene import (
    BLANK,
    HOLE,
    NOT_YET,
    Beside,
    Cell,
    Chart,
    Charted,
    Fate,
    Frame,
    Look,
    Scene,
    Series,
    Story,
    Strip,
)
from transom_lab.story.stage import FULL, PAGE, WINDOW, Stage, small, text

WIDTH, FULL_PAGES, WINDOW_PAGES = 4, 20, 10
LAYERS = (WINDOW, FULL, WINDOW)
PREFIX, OWN = 36, 4
PREFIX_PAGES, PROMPT_PAGES = PREFIX // PAGE, (PREFIX + OWN) // PAGE
READ, EXACT, INEXACT = Cell(Look.TREE, "P "), Cell(Look.B, "b "), Cell(Look.A, "~ ")
DRAWN = 24
"""The first position that the drawing by layers shows."""

GEMMA_WIDTH, GEMMA_PAGE = 512, 16
GEMMA_LAYERS = tuple(FULL if layer % 6 == 5 else WINDOW for layer in range(18))
"""Gemma 3 270M: every sixth layer has full attention."""
THOUSANDS = tuple(range(2, 33, 2))


class Ours:
    """Owns our side of the story. Mutable."""

    def __init__(self) -> None:
        layout = small(full=FULL_PAGES, window=WINDOW_PAGES, width=WIDTH, layers=LAYERS)
        self.stage = Stage(layout, chunk=64)
        self.prefix = text("P", 0, PREFIX)
        self.stage.serve("A", self.prefix)
        self.stage.serve("D", text("D", 0, WINDOW_PAGES * PAGE))

    def ask(self, letter: str, outputs: int) -> None:
        """Sends the prefix and a page more. The request is admitted in the next iteration."""
        self.stage.ask(letter, [*self.prefix, *text(letter, PREFIX, PREFIX + OWN)], outputs)

    def step(self) -> SpanWork:
        """Runs an iteration. Returns the span that it computed."""
        self.stage.iterate()
        return self.stage.runner.steps[-1].spans[-1]

    def scene(self, letters: str, event: str) -> Scene:
        stage = self.stage
        rows = [drawing.row(stage, letter) for letter in letters]
        pools = (drawing.pool(stage, FULL), drawing.pool(stage, WINDOW))
        return Scene((*pools, *rows, *drawing.tree(stage, "P")), event)

    def layers(self, span: SpanWork, event: str) -> Scene:
        """The runner's view by layer and position: keys read, missing, exact or inexact, and the outputs."""
        numbers = tuple(Cell(Look.FAINT, f"{position:02}") for position in range(DRAWN, span.end))
        strips = [Strip("token", numbers)]
        for layer, component in enumerate(LAYERS):
            kind = "full" if component == FULL else "window"
            strips.append(Strip(f"layer {layer + 1}", self._keys(span, layer), f"keys, {kind}"))
        outputs = (*(BLANK,) * (span.start - DRAWN), *self._marks(layer=len(LAYERS)))
        return Scene((*strips, Strip("output", outputs)), event)

    def _keys(self, span: SpanWork, layer: int) -> tuple[Cell, ...]:
        if LAYERS[layer] == WINDOW:
            return (*(HOLE,) * (span.start - DRAWN), *self._marks(layer))
        return (*(READ,) * (span.store_from - DRAWN), *self._marks(layer)[span.store_from - span.start :])

    def _marks(self, layer: int) -> list[Cell]:
        return [EXACT if exact else INEXACT for exact in self.stage.runner.exact[-1][layer]]


def by_the_book(event: str, done: int, fate: Fate = Fate.WELL) -> Scene:
    """The other side: no window, no hit. B computes every page on its own; `done` pages are computed."""
    own = tuple(Cell(Look.B, name.lower()) for name in (*labels("P", 0, PREFIX_PAGES), f"B{PREFIX_PAGES}"))
    row = Strip(
        "B", (*own[:done], *(NOT_YET,) * (PROMPT_PAGES - done)), f"{done * PAGE} of {PREFIX + OWN} tokens"
    )
    return Scene((row, Strip("tree", (HOLE,) * PREFIX_PAGES)), event, fate)


def cached_again(event: str) -> Scene:
    """The other side after B's window pages have filled the holes."""
    cells = tuple(Cell(Look.C, name) for name in labels("P", 0, PREFIX_PAGES))
    return Scene((Strip("C", (*cells, Cell(Look.C, f"C{PREFIX_PAGES}"))), Strip("tree", cells)), event)


def start_of_repair(until: int) -> int:
    """Where a repair starts in Gemma 3 270M, if `until` tokens have full pages and no window pages."""
    rules = tuple(page_rule(part, GEMMA_PAGE, until) for part in (Full(), Window(GEMMA_WIDTH)))
    return max(0, repair_start(rules, GEMMA_LAYERS, until))


# ---------------------------------------------------------------- the frames


def story() -> Story:
    """Five frames: a prompt without its window pages, and the cost of a hit on it."""
    ours = Ours()
    frames = [_lost(ours), _how_far(ours), _layers(ours), _island(ours), _chart()]
    return Story(
        name="repair",
        other="no window, no hit",
        source="The other side: a hit needs full pages and the window before its end.",
        frames=tuple(frames),
    )


def _lost(ours: Ours) -> Frame:
    scene = ours.scene("", "All full pages of P are cached, and none of its window pages.")
    return Beside(
        "A prompt is cached, its window is not",
        f"This model has three layers: window, full, window. A window layer reads {WIDTH} tokens. P, a "
        f"prompt of {PREFIX} tokens, was computed once. Then D, a long unrelated prompt, needed window pages "
        "and evicted P's.",
        scene,
        scene,
    )


def _how_far(ours: Ours) -> Frame:
    ours.ask("B", 2)
    return Beside(
        "B begins with P. Where may it start to compute?",
        f"B's own tokens are {PREFIX} to {PREFIX + OWN}. To compute token {PREFIX}, each layer must read "
        "correct keys: a full layer reads all of them, a window layer the last few.",
        ours.scene(
            "B",
            f"Layer 3 needs its window before {PREFIX}: keys from 32, where a page begins. They depend on "
            "layer 1's window before 32: keys from 29. Layer 2 is cached. So B starts at 29.",
        ),
        by_the_book(f"No window, so no hit. All {PREFIX + OWN} tokens are computed.", 0),
    )


def _layers(ours: Ours) -> Frame:
    span = ours.step()
    outputs = ours.stage.runner.exact[-1][-1].tolist()
    first = span.start + outputs.index(True)
    return Beside(
        "Inexact keys, and where they end",
        f"B computes tokens {span.start} to {span.end}. The first ones lack keys, so their results are "
        "inexact (~). No result that counts depends on them; they leave the window and are never cached.",
        ours.layers(
            span,
            f"Outputs are exact (b) from {first} on, to the bit. {len(span.tokens)} tokens computed, not "
            f"{PREFIX + OWN}. Full keys before {span.store_from} are cached (P).",
        ),
        by_the_book(
            f"{PREFIX + OWN} tokens computed, {PREFIX} of them for the second time.",
            PROMPT_PAGES,
            Fate.HARMED,
        ),
    )


def _island(ours: Ours) -> Frame:
    ours.stage.finish("B")
    ours.ask("C", 2)
    span = ours.step()
    return Beside(
        "The end of P is a hit again",
        "The window before P's end is cached again, and exact. The rest of P's windows is not needed. C "
        "begins with P as well.",
        ours.scene("C", f"C hits {span.start} tokens and computes {len(span.tokens)}."),
        cached_again(f"C hits {span.start} tokens as well, now that B has computed all of P."),
    )


def _chart() -> Frame:
    repaired = tuple((1024 * n - start_of_repair(1024 * n)) / 1024 for n in THOUSANDS)
    series = (
        Series("Transom", Look.OURS, repaired),
        Series("no window, no hit", Look.BAD, tuple(float(n) for n in THOUSANDS)),
    )
    most = 1024 * THOUSANDS[-1] - start_of_repair(1024 * THOUSANDS[-1])
    return Charted(
        "The cost does not grow with the prompt",
        f"Gemma 3 270M has 15 window layers of {GEMMA_WIDTH} tokens. Each of them moves the start back by "
        f"one window. Recomputing {most:,} tokens makes a cached prompt of any length hit again.",
        Chart(THOUSANDS, series, THOUSANDS[-1], "k", "prompt, in thousands of tokens; tokens to compute"),
    )
