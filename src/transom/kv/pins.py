"""Pins: prefixes that are evicted last, for a number of steps. A pin changes the order and holds no page.

`HybridCache.pin` is for an endpoint that lets clients keep a prompt cached in a pause. It does not exist yet.
"""

from dataclasses import dataclass

from transom.errors import NoSpace
from transom.kv.events import EventLog
from transom.kv.holding import Namespace
from transom.kv.journal import Journal
from transom.kv.node import TOKEN_BYTES
from transom.kv.radix_tree import RadixTree


@dataclass(frozen=True, slots=True)
class Pin:
    namespace: Namespace
    key: bytes
    until: int
    """The last step in which the pin has an effect."""

    @property
    def tokens(self) -> int:
        return len(self.key) // TOKEN_BYTES


class Pins:
    """Owns the pins. Mutable; at most `tokens_max` tokens in all. Tokens under two pins count twice."""

    __slots__ = ("_journal", "_log", "_tree", "pins", "tokens_max")

    def __init__(self, tree: RadixTree, log: EventLog, tokens_max: int, journal: Journal) -> None:
        assert tokens_max >= 0, tokens_max
        self.pins: tuple[Pin, ...] = ()
        self.tokens_max = tokens_max
        self._tree = tree
        self._log = log
        self._journal = journal

    def add(self, namespace: Namespace, key: bytes, steps: int) -> int:
        """Pins the cached prefix of `key`, in whole pages. Returns its tokens. Raises NoSpace (`pins`)."""
        assert steps > 0, steps
        path = self._tree.walk(namespace, key)
        pin = Pin(namespace, key[: path.pages * self._tree.page_bytes], self._log.step + steps)
        # Pinning the same prefix again replaces its pin, so it does not count twice.
        other_pins = tuple(p for p in self.pins if (p.namespace, p.key) != (namespace, pin.key))
        left = self.tokens_max - sum(p.tokens for p in other_pins)
        if pin.tokens > left:
            raise NoSpace("pins", pin.tokens, left)
        if not path.nodes:
            return 0
        # Nodes are pinned as a whole, so the pin must end where a node ends.
        if path.within < path.end.size:
            path.cut_last(self._tree.split(path.end, path.within))
        for node in path.nodes:
            self._tree.pin(node, max(node.pinned, pin.until))
        self._journal.assign(self, "pins", (*other_pins, pin))
        return pin.tokens

    def expire(self) -> None:
        """Ends the pins that have passed their last step. Their nodes return to the usual order."""
        ended = [pin for pin in self.pins if pin.until <= self._log.step]
        if not ended:
            return
        self._journal.assign(self, "pins", tuple(pin for pin in self.pins if pin not in ended))
        for pin in ended:
            self._tree.unpin(self._tree.walk(pin.namespace, pin.key))
