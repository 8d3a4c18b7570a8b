"""Repair: a window that is gone is computed anew from full pages that are not, a bounded number of tokens."""

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
"""The first position whose keys are drawn by layer."""

GEMMA_WIDTH, GEMMA_PAGE = 512, 16
GEMMA_LAYERS = tuple(FULL if layer % 6 == 5 else WINDOW for layer in range(18))
"""Gemma 3 270M: every sixth layer is a full one."""
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
        """The beginning, and a question. It waits."""
        self.stage.ask(letter, [*self.prefix, *text(letter, PREFIX, PREFIX + OWN)], outputs)

    def step(self) -> SpanWork:
        """What the next step computed."""
        self.stage.iterate()
        return self.stage.runner.steps[-1].spans[-1]

    def scene(self, letters: str, event: str) -> Scene:
        stage = self.stage
        rows = [drawing.row(stage, letter) for letter in letters]
        pools = (drawing.pool(stage, FULL), drawing.pool(stage, WINDOW))
        return Scene((*pools, *rows, *drawing.tree(stage, "P")), event)

    def layers(self, span: SpanWork, event: str) -> Scene:
        """What the runner saw, by layer and position: keys read, missing, exact or not; and the outputs."""
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
        return [EXACT if exact else INEXACT for exact in self.stage.runner.exact[layer]]


def by_the_book(event: str, done: int, fate: Fate = Fate.WELL) -> Scene:
    """The other side: no window, no hit. B's pages as far as it has computed, all of them its own."""
    own = tuple(Cell(Look.B, name.lower()) for name in (*labels("P", 0, PREFIX_PAGES), f"B{PREFIX_PAGES}"))
    row = Strip(
        "B", (*own[:done], *(NOT_YET,) * (PROMPT_PAGES - done)), f"{done * PAGE} of {PREFIX + OWN} tokens"
    )
    return Scene((row, Strip("tree", (HOLE,) * PREFIX_PAGES)), event, fate)


def filed(event: str) -> Scene:
    """The other side, after what B computed has filled the holes."""
    cells = tuple(Cell(Look.C, name) for name in labels("P", 0, PREFIX_PAGES))
    return Scene((Strip("C", (*cells, Cell(Look.C, f"C{PREFIX_PAGES}"))), Strip("tree", cells)), event)


def start_of_repair(until: int) -> int:
    """Where a repair would begin in Gemma 3 270M, when `until` tokens have full pages and no window."""
    rules = tuple(page_rule(part, GEMMA_PAGE, until) for part in (Full(), Window(GEMMA_WIDTH)))
    return max(0, repair_start(rules, GEMMA_LAYERS, until))


# ---------------------------------------------------------------- the frames


def story() -> Story:
    """Five frames: a prompt whose window is gone, and what it costs to begin with it."""
    ours = Ours()
    frames = [_lost(ours), _how_far(ours), _layers(ours), _island(ours), _chart()]
    return Story(
        name="repair",
        other="no window, no hit",
        source="The other side: a hit needs full pages and the window before its end.",
        frames=tuple(frames),
    )


def _lost(ours: Ours) -> Frame:
    scene = ours.scene("", "All full pages of P are there, and none of its window pages.")
    return Beside(
        "A prompt is cached, its window is not",
        f"This model has three layers: window, full, window; a window reads {WIDTH} tokens. P, {PREFIX} "
        "tokens, was computed once. Then D, a long text about something else, needed window pages and took "
        "P's.",
        scene,
        scene,
    )


def _how_far(ours: Ours) -> Frame:
    ours.ask("B", 2)
    return Beside(
        "B asks with P. Where may it begin?",
        f"B's own tokens are {PREFIX} to {PREFIX + OWN}. To compute token {PREFIX} right, each layer must "
        "read right keys: full layers all of them, window layers the last few.",
        ours.scene(
            "B",
            f"Layer 3 needs its window before {PREFIX}: keys from 32, where the page begins. They come from "
            "layer 1's window before 32: from 29. Layer 2 reads what is there. So: 29.",
        ),
        by_the_book(f"The window is gone, so nothing is found. All {PREFIX + OWN} tokens are computed.", 0),
    )


def _layers(ours: Ours) -> Frame:
    span = ours.step()
    outputs = ours.stage.runner.exact[-1].tolist()
    first = span.start + outputs.index(True)
    return Beside(
        "What is wrong at first, and known to be",
        f"B computes tokens {span.start} to {span.end}. The first of them lack keys, so what they give is "
        "not exact (~). It is read by nobody that matters, slides out of the window, and is never kept.",
        ours.layers(
            span,
            f"Outputs are exact (b) from {first} on, to the bit. {len(span.tokens)} tokens computed, not "
            f"{PREFIX + OWN}; full keys before {span.store_from} are read (P).",
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
        "The window before P's end is back, and exact; the rest of the windows is not needed. C asks with "
        "P as well.",
        ours.scene("C", f"C finds {span.start} tokens and computes {len(span.tokens)}."),
        filed(f"It finds {span.start} tokens as well, now that B has paid for them."),
    )


def _chart() -> Frame:
    repaired = tuple((1024 * n - start_of_repair(1024 * n)) / 1024 for n in THOUSANDS)
    series = (
        Series("Transom", Look.OURS, repaired),
        Series("no window, no hit", Look.BAD, tuple(float(n) for n in THOUSANDS)),
    )
    most = 1024 * THOUSANDS[-1] - start_of_repair(1024 * THOUSANDS[-1])
    return Charted(
        "However long the prompt is",
        f"Gemma 3 270M has 15 window layers of {GEMMA_WIDTH} tokens: each moves the beginning back by a "
        f"window, and no further. {most:,} tokens bring a cached prompt of any length back to life.",
        Chart(THOUSANDS, series, THOUSANDS[-1], "k", "prompt, in thousands of tokens; tokens to compute"),
    )
