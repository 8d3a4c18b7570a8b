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


class StopMatcher:
    """Passes a stream of text through, up to the first stop string. Mutable.

    Text that may be the beginning of a stop string is held back. The stream ends with the first character
    that completes a stop string; if it completes several, the longest one counts, because it starts earliest.
    The text before the stop string is released, the stop string is not.

    The time per character does not depend on the number of stop strings (Aho and Corasick, 1975).
    """

    __slots__ = ("_held", "_state", "_stopped", "_trie")

    def __init__(self, stops: Iterable[str]) -> None:
        """Raises `BadRequest` for an empty stop string."""
        self._trie = _build(stops)
        self._state = 0
        # The held text is always the text of the state: the longest suffix that may begin a stop string.
        self._held = ""
        self._stopped = False

    def feed(self, text: str) -> Released:
        """The text that can be delivered after `text` has arrived. Must not be called after a stop string."""
        assert not self._stopped, "the stream has ended"
        trie = self._trie
        whole = self._held + text
        for i, character in enumerate(text):
            self._state = trie.step(self._state, character)
            stop = trie.found[self._state]
            if stop is not None:
                self._stopped = True
                # The stop string may have begun in the held text, so positions count from its start.
                end = len(self._held) + i + 1
                return Released(whole[: end - len(stop)], stop)
        keep = len(whole) - trie.depth[self._state]
        self._held = whole[keep:]
        return Released(whole[:keep], None)

    def finish(self) -> str:
        """The text that was held back. Call it when the stream ends without a stop string."""
        assert not self._stopped, "the stream has ended at a stop string"
        held, self._held, self._state = self._held, "", 0
        return held


@dataclass(frozen=True, slots=True)
class _Trie:
    """An automaton over characters. A state is a prefix of a stop string; state 0 is the empty prefix.

    After each character the state is the longest prefix that the text ends with.
    """

    next: list[dict[str, int]]
    depth: list[int]
    fallback: list[int]
    """The state of the longest proper suffix that is also a prefix of a stop string."""
    found: list[str | None]
    """The longest stop string that the state's text ends with."""

    def step(self, state: int, character: str) -> int:
        # Each fallback shortens the prefix by at least one character, and each step adds only one. A stream
        # therefore has at most as many fallbacks as characters.
        while state and character not in self.next[state]:
            state = self.fallback[state]
        return self.next[state].get(character, 0)


def _build(stops: Iterable[str]) -> _Trie:
    trie = _Trie([{}], [0], [0], [None])
    for stop in stops:
        if not stop:
            raise BadRequest("a stop string is empty", param="stop")
        _add(trie, stop)
    _link(trie)
    return trie


def _add(trie: _Trie, stop: str) -> None:
    state = 0
    for character in stop:
        if character not in trie.next[state]:
            trie.next[state][character] = len(trie.next)
            trie.next.append({})
            trie.depth.append(trie.depth[state] + 1)
            trie.fallback.append(0)
            trie.found.append(None)
        state = trie.next[state][character]
    trie.found[state] = stop


def _link(trie: _Trie) -> None:
    """Sets the fallbacks, breadth first: a fallback is computed from the fallbacks of shorter prefixes."""
    waiting = deque(trie.next[0].values())
    while waiting:
        state = waiting.popleft()
        for character, child in trie.next[state].items():
            trie.fallback[child] = trie.step(trie.fallback[state], character)
            waiting.append(child)
        # A longer stop string at this state hides the shorter one that ends at the same character.
        if trie.found[state] is None:
            trie.found[state] = trie.found[trie.fallback[state]]
