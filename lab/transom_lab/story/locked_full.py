"""Report B retold: recovering a lost window replaced full pages that a running request was reading."""

from collections.abc import Iterable

from transom.kv.check import inside
from transom_lab.story import drawing
from transom_lab.story.other import OtherPool, labels
from transom_lab.story.scene import HOLE, Beside, Cell, Fate, Frame, Look, Scene, Story, Strip, one_cell
from transom_lab.story.stage import FULL, PAGE, WINDOW, Stage, small, text

FULL_PAGES, WINDOW_PAGES, WIDTH = 20, 10, 8
PREFIX, OWN_B, OWN_C, OTHERS_D, OTHERS_E = 16, 8, 4, 28, 8
"""Tokens of the shared beginning, and of what each request brings besides."""
PREFIX_PAGES = PREFIX // PAGE


class Ours:
    """Owns our side of the story. Mutable."""

    def __init__(self) -> None:
        self.stage = Stage(small(full=FULL_PAGES, window=WINDOW_PAGES, width=WIDTH), chunk=64)
        self.prefix = text("P", 0, PREFIX)
        self.stage.serve("A", self.prefix)

    def ask(self, letter: str, prompt: list[int], outputs: int) -> None:
        """And its first step."""
        self.stage.ask(letter, prompt, outputs)
        self.stage.iterate()

    def locked(self) -> list[int]:
        """The full pages under the beginning of B."""
        holding = self.stage.holding("B")
        assert holding is not None
        return [
            int(page) for page in inside(self.stage.cache).tables[FULL].read(holding.row, 0, PREFIX_PAGES)
        ]

    def contents(self) -> list[list[int]]:
        """What is stored in them."""
        return [self.stage.runner.page(FULL, page) for page in self.locked()]

    def scene(self, letters: str, event: str) -> Scene:
        stage = self.stage
        rows = [drawing.row(stage, letter) for letter in letters]
        pools = (drawing.pool(stage, FULL), drawing.pool(stage, WINDOW))
        return Scene((*pools, *rows, *drawing.tree(stage, "P")), event)


class RecoveringTree:
    """Owns the other side: one node of the tree, the rows that read it, two pools. Mutable."""

    def __init__(self) -> None:
        self.full, self.window = OtherPool("full", FULL_PAGES), OtherPool("window", WINDOW_PAGES)
        names = labels("P", 0, PREFIX_PAGES)
        self.node = self.full.take("A", names)
        self.node_window: list[int] = self.window.take("A", names)
        self.full.file(self.node)
        self.window.file(self.node_window)
        self.rows: dict[str, list[int]] = {}
        """Full pages of each running request."""
        self.windows: dict[str, list[int]] = {}
        """Its own window pages."""

    def hit(self, letter: str, tokens: int) -> None:
        """A request begins behind the node: it reads its full pages, which locks them."""
        self.full.read(letter, self.node)
        own = labels(letter, PREFIX_PAGES, PREFIX_PAGES + tokens // PAGE)
        self.rows[letter] = [*self.node, *self.full.take(letter, own)]
        self.windows[letter] = self.window.take(letter, own)

    def grow(self, letter: str, name: str) -> None:
        self.rows[letter] += self.full.take(letter, [name])
        self.windows[letter] += self.window.take(letter, [name])

    def serve(self, letter: str, tokens: int) -> None:
        """A request with a text of its own from beginning to end, filed behind nothing of ours.

        Window pages it lacks are those of the node, which nobody reads any more.
        """
        names = labels(letter, 0, tokens // PAGE)
        if len(self.window.free) < len(names):
            self.window.give(self.node_window)
            self.node_window = []
        self.full.file(self.full.take(letter, names))
        self.window.file(self.window.take(letter, names))

    def compute(self, letter: str, tokens: int) -> None:
        """Without a window no hit: the beginning is computed anew, on pages of the request's own."""
        names = [*labels("P", 0, PREFIX_PAGES), *labels(letter, PREFIX_PAGES, PREFIX_PAGES + tokens // PAGE)]
        self._make_room(len(names))
        self.rows[letter] = self.full.take(letter, names)
        self.windows[letter] = self.window.take(letter, names)

    def recover(self, letter: str) -> None:
        """The request files what it computed: the node takes its pages, and gives back the full ones it had.

        Nobody asks whether somebody reads them.
        """
        self.full.give(self.node)
        self.node, self.node_window = self.rows[letter][:PREFIX_PAGES], self.windows[letter][:PREFIX_PAGES]
        self.full.file(self.rows[letter])
        self.window.file(self.windows[letter])
        del self.rows[letter]

    def begin(self, letter: str, tokens: int) -> None:
        """A request with a text of its own takes pages and writes to them."""
        names = labels(letter, 0, tokens // PAGE)
        self._make_room(len(names))
        self.rows[letter] = self.full.take(letter, names)
        self.windows[letter] = self.window.take(letter, names)

    def reads(self, letter: str) -> list[str]:
        """What lies in the pages that the row of a request names."""
        return [self.full.labels[page] for page in self.rows[letter]]

    def lost(self, letter: str) -> list[int]:
        """Which of them are no longer what it reads them for."""
        return [i for i, page in enumerate(self.rows[letter]) if not self._is_held(letter, page)]

    def scene(self, letters: str, event: str) -> Scene:
        rows = [self._row(letter) for letter in letters]
        fate = Fate.HARMED if any(self.lost(letter) for letter in letters) else Fate.WELL
        return Scene((self.full.strip(), self.window.strip(), *rows, self._tree()), event, fate)

    def _make_room(self, pages: int) -> None:
        """Window pages of what was served before, the oldest first."""
        for page, owner in enumerate(self.window.owners):
            if len(self.window.free) >= pages:
                return
            if owner == "tree" and page not in self.node_window:
                self.window.give([page])

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
    frames += [_filed(ours, theirs), _taken(ours, theirs), _answer(ours, theirs)]
    return Story(
        name="locked-full",
        other="another engine, retold",
        source="The other side is a retelling in our words: SGLang pull request 29352.",
        frames=tuple(frames),
    )


def _cached(ours: Ours, theirs: RecoveringTree) -> Frame:
    event = f"{PREFIX} tokens, {PREFIX_PAGES} pages, in both memories. Nobody reads them now."
    return Beside(
        "A beginning worth keeping",
        "A, who asked first, is answered. Keys and values of its prompt P stay cached, for layers with "
        f"full attention (they read everything) and for layers with a window (they read the last {WIDTH} "
        "tokens).",
        ours.scene("", event),
        theirs.scene("", event),
    )


def _read(ours: Ours, theirs: RecoveringTree) -> Frame:
    ours.ask("B", [*ours.prefix, *text("B", PREFIX, PREFIX + OWN_B)], 9)
    theirs.hit("B", OWN_B)
    return Beside(
        "B begins with P too",
        "The next token would read all full pages of P and its last window. They are there: a hit. B reads "
        "the cached pages where they lie, and computes only what is its own.",
        ours.scene("B", "B refers to the full pages P0 to P3. While it does, they stay."),
        theirs.scene("B", "The same: P0 to P3 are locked by B."),
    )


def _tombstone(ours: Ours, theirs: RecoveringTree) -> Frame:
    ours.stage.serve("D", text("D", 0, OTHERS_D))
    theirs.grow("B", "B6")
    theirs.serve("D", OTHERS_D)
    event = "The tree keeps P's full pages, whose window is gone: holes."
    return Beside(
        "The window is lost",
        "B has moved on, and no longer reads P's window pages. D, a long prompt about something else, "
        "needs window pages and takes them. The full pages stay: B reads them.",
        ours.scene("B", event),
        theirs.scene("B", f"{event} It calls such a node a tombstone."),
    )


def _again(ours: Ours, theirs: RecoveringTree) -> Frame:
    ours.ask("C", [*ours.prefix, *text("C", PREFIX, PREFIX + OWN_C)], 2)
    theirs.compute("C", OWN_C)
    return Beside(
        "C begins with P as well",
        "Full pages are there, windows are not: no hit. P's tokens have to be computed once more.",
        ours.scene(
            "BC", "C reads the same full pages, and computes P for its windows only. They fill the holes."
        ),
        theirs.scene(
            "BC", "C computes P on pages of its own: P0 to P3 are there twice, with the same contents."
        ),
    )


def _filed(ours: Ours, theirs: RecoveringTree) -> Frame:
    ours.stage.finish("C")
    theirs.recover("C")
    return Beside(
        "C is answered, and filed",
        "The node of P gets its window back from what C computed. What of the full pages, which are there "
        "twice?",
        ours.scene("B", "There was nothing to exchange. A page goes into the tree only where it has none."),
        theirs.scene(
            "B",
            "The node takes C's full pages and frees the ones it had. Nobody asks who reads those: B does, "
            "and its row still names them.",
        ),
    )


def _taken(ours: Ours, theirs: RecoveringTree) -> Frame:
    ours.ask("E", text("E", 0, OTHERS_E), 3)
    theirs.begin("E", OTHERS_E)
    return Beside(
        "E needs two pages",
        "Another user, another text. It is given free pages.",
        ours.scene("BE", "E gets pages that are nobody's."),
        theirs.scene("BE", "E gets the pages freed last, and writes its keys and values to them."),
    )


def _answer(ours: Ours, theirs: RecoveringTree) -> Frame:
    ours.stage.iterate()
    read = " ".join(theirs.reads("B")[:PREFIX_PAGES])
    return Beside(
        "B's next token",
        "The fix there keeps a locked node's full pages, and had to be made in two caches. Here no code "
        "exchanges a page: fill holes, never replace. And the bits of a token are the same whoever "
        "computes it.",
        ours.scene("BE", "B reads P0 to P3, the pages it has read from the beginning."),
        theirs.scene(
            "BE",
            f"B's row finds {read}: one user's answer continues another user's text. Nothing crashes; "
            "nobody is told.",
        ),
    )
