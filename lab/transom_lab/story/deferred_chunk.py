"""Report A retold: a prompt chunk that was not scheduled is cached as if it had been computed."""

from transom_lab.story import drawing
from transom_lab.story.other import OtherPool, labels
from transom_lab.story.scene import NOT_YET, Beside, Cell, Fate, Frame, Look, Scene, Story, Strip
from transom_lab.story.stage import FULL, PAGE, WINDOW, Stage, small, text

FULL_PAGES, WINDOW_PAGES, WIDTH, CHUNK = 20, 5, 8, 16
PROMPT_A, PROMPT_B, OUTPUTS_A = 6, 32, 12
ARRIVAL_B = 1
"""Iterations before B arrives."""


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
        """Tokens of B that have been computed."""
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
    """Owns the other side: an engine that computes B's prompt in chunks. Mutable.

    Each iteration runs in the order that the report describes: insert B's input list into the tree, set the
    list to the whole prompt, ask for pages, and cut the list to a chunk only if there are pages.
    """

    def __init__(self) -> None:
        self.full, self.window = OtherPool("full", FULL_PAGES), OtherPool("window", WINDOW_PAGES)
        self.computed = {"A": 0, "B": 0}
        """Tokens that were computed, per request."""
        self.listed = 0
        """Length of B's input list. The next iteration takes this for the number of computed tokens."""
        self.cached = 0
        """Tokens of B in the tree."""
        self.is_alive = True
        self._full_rows: dict[str, list[int]] = {"A": [], "B": []}
        self._window_rows: dict[str, list[int]] = {"A": [], "B": []}

    def answer(self) -> None:
        """Computes A's prompt, or the next token of its answer."""
        self._compute("A", 1 if self.computed["A"] else PROMPT_A)

    def stash(self) -> None:
        """Inserts B's input list into the tree. No state says whether its tokens were computed."""
        self.cached = self.listed
        for pool, rows in ((self.full, self._full_rows), (self.window, self._window_rows)):
            private = [page for page in rows["B"] if page >= 0 and pool.owners[page] == "B"]
            pool.insert(private)
            pool.read("B", private)

    def schedule(self) -> None:
        """Computes A's next token, and B's next chunk if there are pages. An empty batch ends the process."""
        self.listed = PROMPT_B
        if self.cached == self.listed:
            self.is_alive = False
            return
        self.answer()
        chunk = min(self.listed - self.cached, CHUNK, len(self.window.free) * PAGE)
        if chunk == 0:
            return  # the fault: B's input list still has the whole prompt
        self.listed = self.cached + chunk
        self._compute("B", chunk)

    def scene(self, event: str) -> Scene:
        whole, done, cached = (n // PAGE for n in (PROMPT_B, self.computed["B"], self.cached))
        b = tuple(Cell(Look.B, name if index < cached else name.lower()) for index, name in _pages("B", done))
        a = tuple(Cell(Look.A, name.lower()) for _, name in _pages("A", -(-self.computed["A"] // PAGE)))
        tree = (*b[:cached], *(Cell(Look.WRONG, "??"),) * (cached - done))
        strips = (
            self.full.strip(),
            self.window.strip(),
            Strip("A", a, f"{self.computed['A']} tokens"),
            Strip("B", (*b, *(NOT_YET,) * (whole - done)), self._note()),
            Strip(
                "tree",
                tree,
                f"{self.cached - self.computed['B']} tokens never computed" if cached > done else "",
            ),
        )
        return Scene(strips, event, Fate.WELL if self.is_alive else Fate.DEAD)

    def _note(self) -> str:
        return f"{self.computed['B']} of {PROMPT_B} tokens" if self.computed["B"] else "waits"

    def _compute(self, letter: str, count: int) -> None:
        """Allocates pages for `count` more tokens, and frees the pages that left the window."""
        start = self.computed[letter]
        end = self.computed[letter] = start + count
        names = labels(letter, -(-start // PAGE), -(-end // PAGE))
        self._full_rows[letter] += self.full.allocate(letter, names)
        row = self._window_rows[letter]
        row += self.window.allocate(letter, names)
        keep = max(0, end - end % PAGE - (WIDTH - 1)) // PAGE
        gone = [page for page in row[:keep] if page >= 0]
        row[:keep] = [-1] * keep
        self.window.release(gone)
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
    frames += [_cached(ours, theirs), _empty(ours, theirs), _room(ours, theirs), _end(ours, theirs)]
    return Story(
        name="deferred-chunk",
        other="another engine, retold",
        source="The other side is our retelling of a bug report: SGLang pull request 24318.",
        frames=tuple(frames),
    )


def _arrival(ours: Ours, theirs: ChunkedServer) -> Frame:
    return Beside(
        "Two pools, and a prompt in chunks",
        "Layers with full attention keep the keys of every token. Layers with a window read only the last 8 "
        f"tokens, so their pool is small: {WINDOW_PAGES} pages of {PAGE} tokens. A is decoding. B arrives "
        f"with a prompt of {PROMPT_B} tokens, which is computed in chunks.",
        ours.scene("A decodes one token per step. B has just arrived."),
        theirs.scene("The same requests, the same pools."),
    )


def _first_chunks(ours: Ours, theirs: ChunkedServer) -> Frame:
    spans = [ours.iterate(), ours.iterate()]
    for _ in spans:
        theirs.stash()
        theirs.schedule()
    computed = ", then ".join(f"tokens {span[0]} to {span[1]}" for span in spans if span)
    return Beside(
        "B's first chunks",
        "Pages that have left the window are freed at once, so a long prompt needs few window pages. After "
        "each chunk its pages are inserted into a radix tree, where later requests with the same prefix find "
        "them.",
        ours.scene(f"B's chunks: {computed}. Pages with capital letters are in the tree."),
        theirs.scene("The same chunks. B's input list is cut to the chunk that was scheduled."),
    )


def _deferred(ours: Ours, theirs: ChunkedServer) -> Frame:
    span = ours.iterate()
    theirs.stash()
    theirs.schedule()
    assert span is None and theirs.computed["B"] == ours.computed(), "both engines defer B's chunk"
    return Beside(
        "No window page for B's next chunk",
        "A's answer has crossed a page boundary and has taken the last window page, so B has to wait. That "
        "is ordinary. What matters is the state in which a request waits.",
        ours.scene(
            f"B is not in this step, and its state is unchanged: {ours.computed()} tokens, the same pages."
        ),
        theirs.scene(
            f"The scheduler first set B's input list to all {theirs.listed} tokens, and would have cut it to "
            "a chunk. It found no page and returned early."
        ),
    )


def _cached(ours: Ours, theirs: ChunkedServer) -> Frame:
    ours.iterate()
    theirs.stash()
    return Beside(
        "The next iteration begins",
        "Which tokens of B are computed? One engine looks at what was scheduled, the other at the request's "
        "input list. After a chunk that was deferred, the two differ.",
        ours.scene("There is still no page, and B is not in the step. Only scheduled tokens advance."),
        theirs.scene(
            f"It caches B's input list: {theirs.cached} tokens, of which only {theirs.computed['B']} were "
            "computed. A request with the same prefix would now read arbitrary memory."
        ),
    )


def _empty(ours: Ours, theirs: ChunkedServer) -> Frame:
    ours.iterate()
    left = PROMPT_B - theirs.cached
    theirs.schedule()
    return Beside(
        "An empty batch",
        "B now looks like a request with nothing left to compute, and is scheduled all the same.",
        ours.scene("A's answer continues. A step without tokens cannot be expressed: no span is ever empty."),
        theirs.scene(
            f"{PROMPT_B} listed - {theirs.cached} cached = {left} to compute. The rope and KV-store kernels "
            "get an empty batch, and the server crashes. A's answer is lost as well."
        ),
    )


def _room(ours: Ours, theirs: ChunkedServer) -> Frame:
    while (span := ours.iterate()) is None:
        pass
    return Beside(
        "Pages again",
        "A's answer is complete, and its window pages are free.",
        ours.scene(f"B continues exactly where it stopped: tokens {span[0]} to {span[1]} are in this step."),
        theirs.scene("The server is down."),
    )


def _end(ours: Ours, theirs: ChunkedServer) -> Frame:
    ours.stage.finish("B")
    return Beside(
        "Where the difference lies",
        "The fix there is a flag, set when a chunk is scheduled and tested before caching; every code path "
        "has to keep it right. Here there is no flag: Waiting, Running and Scheduled are types, and only "
        "a Scheduled request can advance.",
        ours.scene("Both requests are answered, each with the tokens it would have got alone."),
        theirs.scene("The server is down."),
    )
