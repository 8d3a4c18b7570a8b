"""What users have pinned: prefixes that give their pages last, for some steps. Order only, no reference."""

from dataclasses import dataclass

from transom.errors import NoSpace
from transom.kv.events import EventLog
from transom.kv.holding import Namespace
from transom.kv.journal import Journal
from transom.kv.radix_tree import TOKEN_BYTES, PrefixTree


@dataclass(frozen=True, slots=True)
class Pin:
    namespace: Namespace
    key: bytes
    until: int
    """The step after which it has no effect."""

    @property
    def tokens(self) -> int:
        return len(self.key) // TOKEN_BYTES


class Pins:
    """Owns the pins. Mutable; at most `tokens_max` tokens in all, counted once per pin."""

    __slots__ = ("_journal", "_log", "_tree", "pins", "tokens_max")

    def __init__(self, tree: PrefixTree, log: EventLog, tokens_max: int, journal: Journal) -> None:
        assert tokens_max >= 0, tokens_max
        self.pins: tuple[Pin, ...] = ()
        self.tokens_max = tokens_max
        self._tree = tree
        self._log = log
        self._journal = journal

    def add(self, namespace: Namespace, key: bytes, steps: int) -> int:
        """Pins what the tree has of `key`, in whole pages; returns how many tokens. Raises NoSpace."""
        assert steps > 0, steps
        path = self._tree.walk(namespace, key)
        pin = Pin(namespace, key[: path.pages * self._tree.page_bytes], self._log.step + steps)
        others = tuple(p for p in self.pins if (p.namespace, p.key) != (namespace, pin.key))
        left = self.tokens_max - sum(p.tokens for p in others)
        if pin.tokens > left:
            raise NoSpace("pins", pin.tokens, left)
        if not path.nodes:
            return 0
        if path.within < path.end.size:  # its end becomes a boundary
            path.cut_last(self._tree.split(path.end, path.within))
        for node in path.nodes:
            self._tree.pin(node, max(node.pinned, pin.until))
        self._journal.assign(self, "pins", (*others, pin))
        return pin.tokens

    def expire(self) -> None:
        """Ends those whose time is over: their nodes are asked like others again."""
        ended = [pin for pin in self.pins if pin.until <= self._log.step]
        if not ended:
            return
        self._journal.assign(self, "pins", tuple(pin for pin in self.pins if pin not in ended))
        for pin in ended:
            self._tree.reprice(self._tree.walk(pin.namespace, pin.key))
