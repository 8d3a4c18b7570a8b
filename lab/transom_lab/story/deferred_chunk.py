"""Report A retold: a chunk that found no room was filed as if it had been computed."""

from transom_lab.story import drawing
from transom_lab.story.other import OtherPool, labels
from transom_lab.story.scene import NOT_YET, Beside, Cell, Fate, Frame, Look, Scene, Story, Strip
from transom_lab.story.stage import FULL, PAGE, WINDOW, Stage, small, text

FULL_PAGES, WINDOW_PAGES, WIDTH, CHUNK = 20, 5, 8, 16
PROMPT_A, PROMPT_B, OUTPUTS_A = 6, 32, 12
ARRIVAL_B = 1
"""Turns taken when B arrives."""


class Ours:
    """Owns our side of the story. Mutable."""

    def __init__(self) -> None:
        layout = small(full=FULL_PAGES, window=WINDOW_PAGES, width=WIDTH)
        self.stage = Stage(layout, chunk=1 + CHUNK)  # one token for A's answer beside a chunk of B's prompt
        self.stage.ask("A", text("A", 0, PROMPT_A), OUTPUTS_A)
        for _ in range(ARRIVAL_B):
            self.stage.iterate()
        self.stage.ask("B", text("B", 0, PROMPT_B), 2)

    def computed(self) -> int:
        """Tokens of B that are computed."""
        holding = self.stage.holding("B")
        return holding.computed if holding else 0

    def iterate(self) -> tuple[int, int] | None:
        """B's span in the next step, if it has one."""
        before = len(self.stage.spans("B"))
        self.stage.iterate()
        spans = self.stage.spans("B")
        return spans[-1] if len(spans) > before else None

    def scene(self, event: str) -> Scene:
        stage = self.stage
        rows = [drawing.row(stage, letter) for letter in "AB"]
        tree = drawing.tree(stage, "B") or (Strip("tree", ()),)
        return Scene((drawing.pool(stage, FULL), drawing.pool(stage, WINDOW), *rows, *tree), event)


class ChunkedServer:
    """Owns the other side: one request in chunks, of which it is noted what its next round names. Mutable.

    The report's order of a round: file in the tree what the chunked request names; let it name its whole
    prompt; ask for room; only where there is room, cut what it names to the chunk.
    """

    def __init__(self) -> None:
        self.full, self.window = OtherPool("full", FULL_PAGES), OtherPool("window", WINDOW_PAGES)
        self.computed = {"A": 0, "B": 0}
        """Tokens that were computed."""
        self.named = 0
        """Tokens of B that its next round takes for computed."""
        self.filed = 0
        """Tokens of B in the tree."""
        self.is_alive = True
        self._full_rows: dict[str, list[int]] = {"A": [], "B": []}
        self._window_rows: dict[str, list[int]] = {"A": [], "B": []}

    def answer(self) -> None:
        """A's prompt, then a token of its answer."""
        self._compute("A", 1 if self.computed["A"] else PROMPT_A)

    def stash(self) -> None:
        """What B names is filed in the tree. Nothing says whether it was ever computed."""
        self.filed = self.named
        for pool, rows in ((self.full, self._full_rows), (self.window, self._window_rows)):
            private = [page for page in rows["B"] if page >= 0 and pool.owners[page] == "B"]
            pool.file(private)
            pool.read("B", private)

    def schedule(self) -> None:
        """A's next token, and B's next chunk if there is room. A batch of no tokens ends the process."""
        self.named = PROMPT_B
        if self.filed == self.named:
            self.is_alive = False
            return
        self.answer()
        chunk = min(self.named - self.filed, CHUNK, len(self.window.free) * PAGE)
        if chunk == 0:
            return  # no room: and B goes on naming all of its prompt
        self.named = self.filed + chunk
        self._compute("B", chunk)

    def scene(self, event: str) -> Scene:
        whole, done, filed = (n // PAGE for n in (PROMPT_B, self.computed["B"], self.filed))
        b = tuple(Cell(Look.B, name if index < filed else name.lower()) for index, name in _pages("B", done))
        a = tuple(Cell(Look.A, name.lower()) for _, name in _pages("A", -(-self.computed["A"] // PAGE)))
        tree = (*b[:filed], *(Cell(Look.WRONG, "??"),) * (filed - done))
        strips = (
            self.full.strip(),
            self.window.strip(),
            Strip("A", a, f"{self.computed['A']} tokens"),
            Strip("B", (*b, *(NOT_YET,) * (whole - done)), self._note()),
            Strip(
                "tree",
                tree,
                f"{self.filed - self.computed['B']} tokens nobody computed" if filed > done else "",
            ),
        )
        return Scene(strips, event, Fate.WELL if self.is_alive else Fate.DEAD)

    def _note(self) -> str:
        return f"{self.computed['B']} of {PROMPT_B} tokens" if self.computed["B"] else "waits"

    def _compute(self, letter: str, count: int) -> None:
        """Pages for `count` more tokens, and back goes what has left the window."""
        start = self.computed[letter]
        end = self.computed[letter] = start + count
        names = labels(letter, -(-start // PAGE), -(-end // PAGE))
        self._full_rows[letter] += self.full.take(letter, names)
        row = self._window_rows[letter]
        row += self.window.take(letter, names)
        keep = max(0, end - end % PAGE - (WIDTH - 1)) // PAGE
        gone = [page for page in row[:keep] if page >= 0]
        row[:keep] = [-1] * keep
        self.window.give(gone)
        for page in gone:
            self.window.readers[page] = []


def _pages(letter: str, count: int) -> list[tuple[int, str]]:
    return list(enumerate(labels(letter, 0, count)))


# ---------------------------------------------------------------- the frames


def story() -> Story:
    """Seven frames. Both engines have the same two requests, the same pools and the same shortage."""
    ours, theirs = Ours(), ChunkedServer()
    for _ in range(ARRIVAL_B):
        theirs.answer()
    frames = [_arrival(ours, theirs), _first_chunks(ours, theirs), _deferred(ours, theirs)]
    frames += [_filed(ours, theirs), _empty(ours, theirs), _room(ours, theirs), _end(ours, theirs)]
    return Story(
        name="deferred-chunk",
        other="another engine, retold",
        source="The other side is a retelling in our words: SGLang pull request 24318.",
        frames=tuple(frames),
    )


def _arrival(ours: Ours, theirs: ChunkedServer) -> Frame:
    return Beside(
        "Two memories, and a prompt in chunks",
        "Layers with full attention keep every token. Layers with a window read the last 8, so their pool "
        f"is small: {WINDOW_PAGES} pages of {PAGE} tokens. A is being answered; B brings a prompt of "
        f"{PROMPT_B}, which is computed a chunk at a time.",
        ours.scene("A is being answered, one token per step. B has just arrived."),
        theirs.scene("The same requests, the same pools."),
    )


def _first_chunks(ours: Ours, theirs: ChunkedServer) -> Frame:
    spans = [ours.iterate(), ours.iterate()]
    for _ in spans:
        theirs.stash()
        theirs.schedule()
    told = ", then ".join(f"tokens {span[0]} to {span[1]}" for span in spans if span)
    return Beside(
        "B's first chunks",
        "What has left the window goes back to the pool at once, so a long prompt needs few window pages. "
        "After each chunk, what was computed is filed in a tree, for whoever asks with the same beginning.",
        ours.scene(f"B's chunks: {told}. Capital letters are in the tree."),
        theirs.scene("The same chunks. What B names is cut to the chunk that was scheduled."),
    )


def _deferred(ours: Ours, theirs: ChunkedServer) -> Frame:
    span = ours.iterate()
    theirs.stash()
    theirs.schedule()
    assert span is None and theirs.computed["B"] == ours.computed(), "both put B off"
    return Beside(
        "No window page for B's next chunk",
        "A's answer has crossed a page boundary and taken the last window page. B has to wait for one. "
        "That is ordinary; what counts is what a request looks like while it waits.",
        ours.scene(
            f"B is not in this step. Nothing of it has changed: {ours.computed()} tokens, the same pages."
        ),
        theirs.scene(
            f"The round first let B name all its {theirs.named} tokens, to be cut to a chunk once there is "
            "room. There is none: it returns early."
        ),
    )


def _filed(ours: Ours, theirs: ChunkedServer) -> Frame:
    ours.iterate()
    theirs.stash()
    return Beside(
        "The next round begins",
        "One engine asks what was scheduled, the other what the request names. After a chunk that was put "
        "off these are not the same.",
        ours.scene("Still no page, and B still is not in the step. Only what was scheduled can advance."),
        theirs.scene(
            f"It files what B names: {theirs.filed} tokens, of which {theirs.computed['B']} exist. Whoever "
            "asks with this beginning now reads whatever lies there."
        ),
    )


def _empty(ours: Ours, theirs: ChunkedServer) -> Frame:
    ours.iterate()
    left = PROMPT_B - theirs.filed
    theirs.schedule()
    return Beside(
        "A batch of nothing",
        "B is taken for a request with nothing left to compute, and is scheduled all the same.",
        ours.scene(
            "A's answer goes on. A step without tokens cannot be written down here: a span is never empty."
        ),
        theirs.scene(
            f"{PROMPT_B} named - {theirs.filed} filed = {left} to compute. Rope and KV store get an empty "
            "batch, and the server dies. A's answer dies with it."
        ),
    )


def _room(ours: Ours, theirs: ChunkedServer) -> Frame:
    while (span := ours.iterate()) is None:
        pass
    return Beside(
        "Room again",
        "A's answer is complete and its window pages are to be had.",
        ours.scene(f"B goes on exactly where it stood: tokens {span[0]} to {span[1]} in this step."),
        theirs.scene("Gone."),
    )


def _end(ours: Ours, theirs: ChunkedServer) -> Frame:
    ours.stage.finish("B")
    return Beside(
        "What the difference is",
        "The fix there is a flag: set where a chunk is scheduled, asked before filing, and every path has "
        "to keep it right. Here there is no flag: Waiting, Running and Scheduled are types, and only "
        "Scheduled advances.",
        ours.scene("Both are answered, with the tokens each would have got alone."),
        theirs.scene("Gone."),
    )
