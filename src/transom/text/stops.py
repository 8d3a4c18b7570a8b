"""Stop strings on a stream of text, however the stream is cut into pieces."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from transom.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Released:
    """`text` may be sent. `stop` is the string that ended the stream, or None while it goes on."""

    text: str
    stop: str | None


class StopMatcher:
    """Mutable: the end of a stream's text that may be the beginning of a stop string.

    The stream ends with the first character that completes a stop string; of several completed by it the
    longest counts, as it starts earliest. Text before it is released, it is not. Time per character does not
    depend on how many stop strings there are (Aho and Corasick, 1975).
    """

    __slots__ = ("_held", "_state", "_stopped", "_trie")

    def __init__(self, stops: Iterable[str]) -> None:
        """Raises `BadRequest` for an empty stop string."""
        self._trie = _build(stops)
        self._state = 0
        self._held = ""
        self._stopped = False

    def feed(self, text: str) -> Released:
        assert not self._stopped, "the stream has ended"
        trie = self._trie
        whole = self._held + text
        for i, character in enumerate(text):
            self._state = trie.step(self._state, character)
            stop = trie.found[self._state]
            if stop is not None:
                self._stopped = True
                end = len(self._held) + i + 1
                return Released(whole[: end - len(stop)], stop)
        keep = len(whole) - trie.depth[self._state]
        self._held = whole[keep:]
        return Released(whole[:keep], None)

    def finish(self) -> str:
        """The text held back, when the stream ends without a stop string."""
        assert not self._stopped, "nothing is left behind a stop string"
        held, self._held, self._state = self._held, "", 0
        return held


@dataclass(frozen=True, slots=True)
class _Trie:
    """States are prefixes of stop strings, 0 the empty one: the longest that the text so far ends with."""

    next: list[dict[str, int]]
    depth: list[int]
    fallback: list[int]
    """The longest proper suffix that is a prefix, too."""
    found: list[str | None]
    """The longest stop string that the prefix ends with."""

    def step(self, state: int, character: str) -> int:
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
    """Fallbacks breadth first: those of shorter prefixes are needed for longer ones."""
    waiting = deque(trie.next[0].values())
    while waiting:
        state = waiting.popleft()
        for character, child in trie.next[state].items():
            trie.fallback[child] = trie.step(trie.fallback[state], character)
            waiting.append(child)
        if trie.found[state] is None:
            trie.found[state] = trie.found[trie.fallback[state]]
