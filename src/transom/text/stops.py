"""Finds stop strings in a stream of text, also across its pieces."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from transom.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Released:
    """`text` can be delivered. `stop` is the stop string that ended the stream; None if it continues."""

    text: str
    stop: str | None


class StopStrings:
    """An automaton over characters that finds stop strings. Immutable: all answers of a request share one.

    A state is a prefix of a stop string; state 0 is the empty prefix. After each character, the state is the
    longest prefix that the text ends with. The time per character does not depend on the number of stop
    strings (Aho and Corasick, 1975).
    """

    __slots__ = ("_fallback", "_next", "depth", "found")

    def __init__(self, stops: Iterable[str] = ()) -> None:
        """Raises `BadRequest` for an empty stop string."""
        self._next: dict[tuple[int, str], int] = {}
        """One table for all states: a table for each would take ten times the memory."""
        self._fallback = [0]
        """The state of the longest proper suffix that is also a prefix of a stop string."""
        self.depth = [0]
        """Characters of each state's prefix."""
        self.found: list[str | None] = [None]
        """The longest stop string that each state's text ends with."""
        for stop in stops:
            if not stop:
                raise BadRequest("a stop string is empty", param="stop")
            self._add(stop)
        self._link()

    @property
    def is_empty(self) -> bool:
        return not self._next

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        # Each fallback shortens the prefix by at least one character, and each step adds only one. A stream
        # therefore has at most as many fallbacks as characters.
        while (following := self._next.get((state, character))) is None and state:
            state = self._fallback[state]
        return following or 0

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._next.get((state, character))
            if following is None:
                following = self._next[state, character] = len(self.depth)
                self.depth.append(self.depth[state] + 1)
                self._fallback.append(0)
                self.found.append(None)
            state = following
        self.found[state] = stop

    def _link(self) -> None:
        """Sets the fallbacks, breadth first: each is computed from the fallbacks of shorter prefixes."""
        children: list[list[tuple[str, int]]] = [[] for _ in self.depth]
        for (parent, character), child in self._next.items():
            children[parent].append((character, child))
        waiting = deque(child for _, child in children[0])
        while waiting:
            state = waiting.popleft()
            for character, child in children[state]:
                self._fallback[child] = self.step(self._fallback[state], character)
                waiting.append(child)
            # A longer stop string at this state hides the shorter one that ends at the same character.
            if self.found[state] is None:
                self.found[state] = self.found[self._fallback[state]]


NO_STOPS = StopStrings()


class StopMatcher:
    """Passes a stream of text through, up to the first stop string. Mutable: a cursor in the automaton.

    Text that may be the beginning of a stop string is held back. The stream ends with the first character
    that completes a stop string; if it completes several, the longest one counts, because it starts earliest.
    The text before the stop string is released, the stop string is not.
    """

    __slots__ = ("_held", "_state", "_stopped", "_stops")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = 0
        # The held text is always the text of the state: the longest suffix that may begin a stop string.
        self._held = ""
        self._stopped = False

    def feed(self, text: str) -> Released:
        """The text that can be delivered after `text` has arrived. Must not be called after a stop string."""
        assert not self._stopped, "the stream has ended"
        stops = self._stops
        if stops.is_empty:
            return Released(text, None)
        whole = self._held + text
        for i, character in enumerate(text):
            self._state = stops.step(self._state, character)
            stop = stops.found[self._state]
            if stop is not None:
                self._stopped = True
                # The stop string may have begun in the held text, so positions count from its start.
                end = len(self._held) + i + 1
                return Released(whole[: end - len(stop)], stop)
        keep = len(whole) - stops.depth[self._state]
        self._held = whole[keep:]
        return Released(whole[:keep], None)

    def finish(self) -> str:
        """The text that was held back. Call it when the stream ends without a stop string."""
        assert not self._stopped, "the stream has ended at a stop string"
        held, self._held, self._state = self._held, "", 0
        return held
