"""The cliff: with one conversation more, a cache that evicts windows by age has no hits any more."""

from collections import OrderedDict

import numpy as np

from transom.kv.cache import CacheLayout, HybridCache
from transom.kv.component_specs import Full, Window
from transom.values import RequestId, Tokens
from transom_lab.story import drawing
from transom_lab.story.other import labels
from transom_lab.story.scene import (
    FREE,
    HOLE,
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
from transom_lab.story.stage import LETTERS, PAGE, WINDOW, Stage, small, text

WIDTH, WINDOW_PAGES, FIRST_PAGES = 8, 20, 6
"""In the scenes: tokens that a query reads, pages of the window pool, pages of a first prompt."""

CHART_WINDOW_PAGES, CHART_FIRST_PAGES, CHART_TURNS = 60, 14, 3
CHART_CONVERSATIONS = tuple(range(2, 29, 2))


class Ours:
    """Owns our side of the scenes. Mutable. Each turn sends the whole conversation and one page more."""

    def __init__(self) -> None:
        layout = small(full=60, window=WINDOW_PAGES, width=WIDTH, rows=2)
        self.stage = Stage(layout, chunk=64)
        self._turns: dict[str, int] = {}

    def ask(self, letter: str) -> tuple[int, int]:
        """Sends the next turn of a conversation, and leaves it running. Returns (hit, prompt) in tokens."""
        for other in self._turns:
            self.stage.finish(other)
        turns = self._turns[letter] = self._turns.get(letter, 0) + 1
        prompt = text(letter, 0, PAGE * (FIRST_PAGES + turns - 1))
        self.stage.ask(letter, prompt, 2)
        self.stage.iterate()
        holding = self.stage.holding(letter)
        assert holding is not None
        return holding.start, len(prompt)

    def scene(self, event: str) -> Scene:
        tree = drawing.tree(self.stage, "ABCD")
        return Scene((drawing.pool(self.stage, WINDOW), *tree), event)


class WindowsByAge:
    """Owns the other side: a pool of window pages with least-recently-used eviction. Mutable.

    All full pages are cached. A hit needs the pages that the next token's window reads. A turn touches every
    cached page of its conversation in order, so the pages at its beginning are evicted first.
    """

    def __init__(self, pages: int) -> None:
        self._free = list(range(pages - 1, -1, -1))
        self._slots: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._lengths: dict[str, int] = {}

    def ask(self, name: str, pages: int) -> int:
        """Serves and caches a prompt of whole pages. Returns the length of its hit in pages."""
        found = self._found(name, min(self._lengths.get(name, 0), pages - 1))
        for page in range(pages):
            if (name, page) in self._slots:
                self._slots.move_to_end((name, page))
            elif page >= found:
                self._slots[name, page] = self._allocate()
        self._lengths[name] = pages
        return found

    def scene(self, user: str, event: str, fate: Fate) -> Scene:
        """Draws a turn of the conversation `user`."""
        cells = [FREE] * (len(self._slots) + len(self._free))
        for (name, page), slot in self._slots.items():
            cells[slot] = Cell(Look[name] if name == user else Look.TREE, f"{name}{page}")
        names = ["tree", *[""] * len(self._lengths)]
        tree = [
            Strip(head, self._branch(name, user)) for head, name in zip(names, self._lengths, strict=False)
        ]
        return Scene((Strip("window", tuple(cells)), *tree), event, fate)

    def _found(self, name: str, most: int) -> int:
        """The longest prefix, in pages, with a cached window before its end."""
        read = -(-(WIDTH - 1) // PAGE)
        for end in range(most, 0, -1):
            if all((name, page) in self._slots for page in range(max(0, end - read), end)):
                return end
        return 0

    def _allocate(self) -> int:
        return self._free.pop() if self._free else self._slots.popitem(last=False)[1]

    def _branch(self, name: str, user: str) -> tuple[Cell, ...]:
        look = Look[name] if name == user else Look.TREE
        names = enumerate(labels(name, 0, self._lengths[name]))
        return tuple(Cell(look, text) if (name, page) in self._slots else HOLE for page, text in names)


# ---------------------------------------------------------------- hit rates


def our_hit_rate(conversations: int, layers: tuple[int, ...]) -> float:
    """Hit tokens / prompt tokens from the second turn on, with the real cache."""
    longest = CHART_FIRST_PAGES + CHART_TURNS
    layout = CacheLayout(
        components=(Full(), Window(WIDTH)),
        pages=(conversations * longest, CHART_WINDOW_PAGES),
        page_size=PAGE,
        rows=1,
        context=longest * PAGE,
        layers=layers,
    )
    cache = HybridCache(layout)
    hits = sent = 0
    for turn in range(CHART_TURNS):
        for conversation in range(conversations):
            tokens = np.arange((CHART_FIRST_PAGES + turn) * PAGE, dtype=np.int32) + conversation * LETTERS
            start = _serve(cache, RequestId(1 + turn * conversations + conversation), tokens)
            hits, sent = (hits + start, sent + len(tokens)) if turn else (0, 0)
    return hits / sent


def _serve(cache: HybridCache, request: RequestId, tokens: Tokens) -> int:
    """Serves one request in one chunk. Returns its hit in tokens."""
    namespace = cache.namespace(request, "")
    holding = cache.admit(request, namespace, tokens, cache.offer(namespace, tokens))
    cache.extend(holding, len(tokens))
    cache.copies_done()
    cache.advance(holding, len(tokens))
    cache.publish(holding, tokens)
    cache.drop(holding)
    return holding.start


def their_hit_rate(conversations: int) -> float:
    """The same with windows evicted by age."""
    model = WindowsByAge(CHART_WINDOW_PAGES)
    hits = sent = 0
    for turn in range(CHART_TURNS):
        for conversation in range(conversations):
            pages = CHART_FIRST_PAGES + turn
            hit = model.ask(str(conversation), pages)
            hits, sent = (hits + hit, sent + pages) if turn else (0, 0)
    return hits / sent


# ---------------------------------------------------------------- the frames


def story() -> Story:
    """Five frames: the same conversations on two window pools of one size, and then a measurement."""
    ours, theirs = Ours(), WindowsByAge(WINDOW_PAGES)
    frames = [
        _three(ours, theirs),
        _fourth(ours, theirs),
        _return(ours, theirs),
        _next(ours, theirs),
        _chart(),
    ]
    return Story(
        name="cliff",
        other="a cache that evicts windows by age, a model",
        source="The other side is our model. Reported falls: vLLM issue 48435, SGLang PR 26907.",
        frames=tuple(frames),
    )


def _three(ours: Ours, theirs: WindowsByAge) -> Frame:
    for letter in "ABC":
        ours.ask(letter)
        theirs.ask(letter, FIRST_PAGES)
    for letter in "ABC":
        hit, sent = ours.ask(letter)
        pages = theirs.ask(letter, FIRST_PAGES + 1)
    return Beside(
        "Three conversations take turns",
        "Each turn sends the whole conversation and a page more. All full pages stay cached (that pool is "
        f"large and not drawn). A hit also needs the window before its end: the last {WIDTH - 1} tokens, 2 "
        "pages.",
        ours.scene(f"C sends {sent} tokens: {hit} are cached, {sent - hit} are computed."),
        theirs.scene("C", f"C sends {sent} tokens: {pages * PAGE} are cached. No difference yet.", Fate.WELL),
    )


def _fourth(ours: Ours, theirs: WindowsByAge) -> Frame:
    ours.ask("D")
    theirs.ask("D", FIRST_PAGES)
    return Beside(
        "A fourth conversation",
        "The window pool is full, so pages have to be evicted. The whole difference is which ones.",
        ours.scene(
            "Pages that no hit would need are evicted first: beginnings. Each conversation keeps its last "
            "window."
        ),
        theirs.scene("D", "The oldest pages are evicted: all of A's. And A's turn is next.", Fate.WELL),
    )


def _return(ours: Ours, theirs: WindowsByAge) -> Frame:
    hit, sent = ours.ask("A")
    pages = theirs.ask("A", FIRST_PAGES + 2)
    return Beside(
        "A comes back",
        "All full pages of A are cached on both sides.",
        ours.scene(
            f"{hit} of {sent} tokens are cached. A needs one page more, which is evicted from a beginning."
        ),
        theirs.scene(
            "A",
            f"A's window is gone: {pages * PAGE} of {sent} tokens are cached. A computes everything again, "
            "and to do so evicts the window pages of B, whose turn is next.",
            Fate.HARMED,
        ),
    )


def _next(ours: Ours, theirs: WindowsByAge) -> Frame:
    hit = sent = pages = 0
    for letter, count in (("B", 2), ("C", 2), ("D", 1)):
        start, length = ours.ask(letter)
        hit, sent = hit + start, sent + length
        pages += theirs.ask(letter, FIRST_PAGES + count)
    return Beside(
        "And so on, turn by turn",
        "Every conversation comes back just after its window was evicted. One conversation more, and there "
        "are no hits.",
        ours.scene(f"B, C and D: {hit} of {sent} tokens cached."),
        theirs.scene("D", f"B, C and D: {pages * PAGE} of {sent} tokens cached.", Fate.HARMED),
    )


def _chart() -> Frame:
    """Measures three caches, each with every number of conversations."""
    plain, repairing = (), (1, 0, 1)
    rates = [
        Series("Transom", Look.OURS, _percent([our_hit_rate(n, repairing) for n in CHART_CONVERSATIONS])),
        Series(
            "without repair", Look.THEIRS, _percent([our_hit_rate(n, plain) for n in CHART_CONVERSATIONS])
        ),
        Series("windows by age", Look.BAD, _percent([their_hit_rate(n) for n in CHART_CONVERSATIONS])),
    ]
    return Charted(
        "The cliff, measured just now",
        f"Prompts of {CHART_FIRST_PAGES} to {CHART_FIRST_PAGES + CHART_TURNS - 1} pages, a window pool of "
        f"{CHART_WINDOW_PAGES} pages. Keeping only the windows before the ends of prompts moves the cliff to "
        "where not even those fit. Beyond it, repair helps (transom story repair).",
        Chart(
            CHART_CONVERSATIONS,
            tuple(rates),
            100,
            "%",
            "conversations that take turns; share of prompt tokens that hit",
        ),
    )


def _percent(rates: list[float]) -> tuple[float, ...]:
    return tuple(100 * rate for rate in rates)
