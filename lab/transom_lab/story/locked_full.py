"""Report B retold: recovering an evicted window replaces full pages that a running request reads."""

from collections.abc import Iterable

from transom.kv.check import inside
from transom_lab.story import drawing
from transom_lab.story.other import OtherPool, labels
from transom_lab.story.scene import HOLE, Beside, Cell, Fate, Frame, Look, Scene, Story, Strip, one_cell
from transom_lab.story.stage import FULL, PAGE, WINDOW, Stage, small, text

FULL_PAGES, WINDOW_PAGES, WIDTH = 20, 10, 8
PREFIX, OWN_B, OWN_C, OTHERS_D, OTHERS_E = 16, 8, 4, 28, 8
"""Tokens of the shared prefix, and of the rest of each prompt."""
PREFIX_PAGES = PREFIX // PAGE


class Ours:
    """Owns our side of the story. Mutable."""

    def __init__(self) -> None:
        self.stage = Stage(small(full=FULL_PAGES, window=WINDOW_PAGES, width=WIDTH), chunk=64)
        self.prefix = text("P", 0, PREFIX)
        self.stage.serve("A", self.prefix)

    def ask(self, letter: str, prompt: list[int], outputs: int) -> None:
        """Sends a request, and computes its first step."""
        self.stage.ask(letter, prompt, outputs)
        self.stage.iterate()

    def locked(self) -> list[int]:
        """The full pages of B's prefix."""
        holding = self.stage.holding("B")
        assert holding is not None
        return [
            int(page) for page in inside(self.stage.cache).tables[FULL].read(holding.row, 0, PREFIX_PAGES)
        ]

    def contents(self) -> list[list[int]]:
        """The tokens that these pages hold."""
        return [self.stage.page(FULL, page) for page in self.locked()]

    def scene(self, letters: str, event: str) -> Scene:
        stage = self.stage
        rows = [drawing.row(stage, letter) for letter in letters]
        pools = (drawing.pool(stage, FULL), drawing.pool(stage, WINDOW))
        return Scene((*pools, *rows, *drawing.tree(stage, "P")), event)


class RecoveringTree:
    """Owns the other side: two pools, one node of the tree, and the rows that read it. Mutable."""

    def __init__(self) -> None:
        self.full, self.window = OtherPool("full", FULL_PAGES), OtherPool("window", WINDOW_PAGES)
        names = labels("P", 0, PREFIX_PAGES)
        self.node = self.full.allocate("A", names)
        self.node_window: list[int] = self.window.allocate("A", names)
        self.full.insert(self.node)
        self.window.insert(self.node_window)
        self.rows: dict[str, list[int]] = {}
        """The full pages of each running request."""
        self.windows: dict[str, list[int]] = {}
        """The window pages that each running request owns."""

    def hit(self, letter: str, tokens: int) -> None:
        """Admits a request that hits the node: it reads the node's full pages, which locks them."""
        self.full.read(letter, self.node)
        own = labels(letter, PREFIX_PAGES, PREFIX_PAGES + tokens // PAGE)
        self.rows[letter] = [*self.node, *self.full.allocate(letter, own)]
        self.windows[letter] = self.window.allocate(letter, own)

    def grow(self, letter: str, name: str) -> None:
        self.rows[letter] += self.full.allocate(letter, [name])
        self.windows[letter] += self.window.allocate(letter, [name])

    def serve(self, letter: str, tokens: int) -> None:
        """Serves a request with a text of its own, from beginning to end.

        If it needs more window pages than are free, the node's are evicted: no request reads them.
        """
        names = labels(letter, 0, tokens // PAGE)
        if len(self.window.free) < len(names):
            self.window.release(self.node_window)
            self.node_window = []
        self.full.insert(self.full.allocate(letter, names))
        self.window.insert(self.window.allocate(letter, names))

    def compute(self, letter: str, tokens: int) -> None:
        """Admits a request without a window, so without a hit: it computes the prefix on pages of its own."""
        names = [*labels("P", 0, PREFIX_PAGES), *labels(letter, PREFIX_PAGES, PREFIX_PAGES + tokens // PAGE)]
        self._make_room(len(names))
        self.rows[letter] = self.full.allocate(letter, names)
        self.windows[letter] = self.window.allocate(letter, names)

    def recover(self, letter: str) -> None:
        """Inserts a finished request. The node takes over its pages, and frees the full pages it had.

        The fault: these pages are freed even if another request reads them.
        """
        self.full.release(self.node)
        self.node, self.node_window = self.rows[letter][:PREFIX_PAGES], self.windows[letter][:PREFIX_PAGES]
        self.full.insert(self.rows[letter])
        self.window.insert(self.windows[letter])
        del self.rows[letter]

    def begin(self, letter: str, tokens: int) -> None:
        """Admits a request with a text of its own, which allocates pages and writes to them."""
        names = labels(letter, 0, tokens // PAGE)
        self._make_room(len(names))
        self.rows[letter] = self.full.allocate(letter, names)
        self.windows[letter] = self.window.allocate(letter, names)

    def reads(self, letter: str) -> list[str]:
        """The contents of the pages in a request's row."""
        return [self.full.labels[page] for page in self.rows[letter]]

    def lost(self, letter: str) -> list[int]:
        """Indices of the pages in a request's row that no longer belong to it or to the tree."""
        return [i for i, page in enumerate(self.rows[letter]) if not self._is_held(letter, page)]

    def scene(self, letters: str, event: str) -> Scene:
        rows = [self._row(letter) for letter in letters]
        fate = Fate.HARMED if any(self.lost(letter) for letter in letters) else Fate.WELL
        return Scene((self.full.strip(), self.window.strip(), *rows, self._tree()), event, fate)

    def _make_room(self, pages: int) -> None:
        """Evicts window pages of requests that were served before, the oldest first."""
        for page, owner in enumerate(self.window.owners):
            if len(self.window.free) >= pages:
                return
            if owner == "tree" and page not in self.node_window:
                self.window.release([page])

    def _is_held(self, letter: str, page: int) -> bool:
        return self.full.owners[page] in (letter, "tree")

    def _row(self, letter: str) -> Strip:
        if letter not in self.rows:
            return Strip(letter, (), "answered")
        return Strip(letter, tuple(self._cells(letter)))

    def _cells(self, letter: str) -> Iterable[Cell]:
        for page in self.rows[letter]:
            label, owner = self.full.labels[page], self.full.owners[page]
            if not self._is_held(letter, page):
                yield Cell(Look.WRONG, label.lower())
            elif owner == letter:
                yield Cell(Look[letter], label.lower())
            else:
                yield one_cell(self.full.readers[page], label)

    def _tree(self) -> Strip:
        if not self.node_window:
            return Strip("tree", (HOLE,) * PREFIX_PAGES)
        return Strip("tree", tuple(one_cell(self.full.readers[p], self.full.labels[p]) for p in self.node))


# ---------------------------------------------------------------- the frames


def story() -> Story:
    """Seven frames. Both engines have the same requests in the same order, and the same pools."""
    ours, theirs = Ours(), RecoveringTree()
    frames = [_cached(ours, theirs), _read(ours, theirs), _tombstone(ours, theirs), _again(ours, theirs)]
    frames += [_inserted(ours, theirs), _taken(ours, theirs), _answer(ours, theirs)]
    return Story(
        name="locked-full",
        other="another engine, retold",
        source="The other side is our retelling of a bug report: SGLang pull request 29352.",
        frames=tuple(frames),
    )


def _cached(ours: Ours, theirs: RecoveringTree) -> Frame:
    event = f"{PREFIX} tokens, {PREFIX_PAGES} pages, in both pools. No request reads them now."
    return Beside(
        "A cached prefix",
        "A has been answered. The keys and values of its prompt P stay cached: full pages for layers that "
        f"read every token, window pages for layers that read only the last {WIDTH} tokens.",
        ours.scene("", event),
        theirs.scene("", event),
    )


def _read(ours: Ours, theirs: RecoveringTree) -> Frame:
    ours.ask("B", [*ours.prefix, *text("B", PREFIX, PREFIX + OWN_B)], 9)
    theirs.hit("B", OWN_B)
    return Beside(
        "B begins with P too",
        "The next token reads all full pages of P and its last window pages. All of them are cached: a hit. "
        "B reads the cached pages in place, and computes only the rest of its prompt.",
        ours.scene("B", "B holds a reference to the full pages P0 to P3, so they cannot be evicted."),
        theirs.scene("B", "The same: B has locked P0 to P3."),
    )


def _tombstone(ours: Ours, theirs: RecoveringTree) -> Frame:
    ours.stage.serve("D", text("D", 0, OTHERS_D))
    theirs.grow("B", "B6")
    theirs.serve("D", OTHERS_D)
    event = "P's node keeps its full pages and has lost its window pages: holes."
    return Beside(
        "The window is evicted",
        "B's window has moved on, so no request reads P's window pages. D, a long unrelated prompt, needs "
        "window pages and evicts them. The full pages stay, because B reads them.",
        ours.scene("B", event),
        theirs.scene("B", f"{event} Such a node is called a tombstone there."),
    )


def _again(ours: Ours, theirs: RecoveringTree) -> Frame:
    ours.ask("C", [*ours.prefix, *text("C", PREFIX, PREFIX + OWN_C)], 2)
    theirs.compute("C", OWN_C)
    return Beside(
        "C begins with P as well",
        "The full pages are cached, the window pages are not: no hit. P has to be computed again.",
        ours.scene(
            "BC", "C shares the full pages and computes P only for its window pages. They fill the holes."
        ),
        theirs.scene(
            "BC", "C computes P on pages of its own: P0 to P3 now exist twice, with the same contents."
        ),
    )


def _inserted(ours: Ours, theirs: RecoveringTree) -> Frame:
    ours.stage.finish("C")
    theirs.recover("C")
    return Beside(
        "C ends, and is inserted into the tree",
        "P's node gets its window pages back from C. But which full pages should it keep, now that they "
        "exist twice?",
        ours.scene("B", "There is no choice to make: the tree takes a page only where it has none."),
        theirs.scene(
            "B",
            "The node takes over C's full pages and frees its old ones, without a check for readers. B reads "
            "them: its row still points to them.",
        ),
    )


def _taken(ours: Ours, theirs: RecoveringTree) -> Frame:
    ours.ask("E", text("E", 0, OTHERS_E), 3)
    theirs.begin("E", OTHERS_E)
    return Beside(
        "E allocates two pages",
        "Another user, another text. The pool allocates free pages for it.",
        ours.scene("BE", "E gets pages that no request and no node owns."),
        theirs.scene("BE", "E gets the pages that were freed last, and writes its keys and values to them."),
    )


def _answer(ours: Ours, theirs: RecoveringTree) -> Frame:
    ours.stage.iterate()
    read = " ".join(theirs.reads("B")[:PREFIX_PAGES])
    return Beside(
        "B's next token",
        "The fix there keeps the full pages of a locked node, and had to be made in two caches. Here no code "
        "replaces a page; it only fills holes. And a token's keys have the same bits whichever request "
        "computes them.",
        ours.scene("BE", "B reads P0 to P3, the same pages as at the start."),
        theirs.scene(
            "BE",
            f"B's row reads {read}: one user's answer continues another user's text. Nothing crashes, and no "
            "error is reported.",
        ),
    )
