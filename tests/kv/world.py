"""A cache, a fake runner whose KV says what it is, and an oracle. Nothing here uses the core's formulas.

Content of a slot: (namespace, all tokens up to and including its own, component). A read that meets any
other content is stale or somebody else's KV.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from transom.kv.cache import CacheLayout, Holding, HybridCache, Namespace, Offer, PrefixCaching
from transom.kv.journal import Journal
from transom.kv.tree import Node
from transom.values import Chunked, Full, RequestId, State, Window

PAGE_SIZES = (1, 3, 4, 16)
WINDOWS = (1, 2, 4, 7, 16)
MIXES = ("F", "W", "FW", "FWV", "WLF", "FS", "FWS", "S", "WS", "C", "FC", "CFW")

Kind = Full | Window | Chunked | State
Slot = tuple[Namespace, tuple[int, ...], int]


def components(mix: str, window: int) -> tuple[Kind, ...]:
    """`V` is a second window, of another size; `L` one longer than any context."""
    kinds: dict[str, Kind] = {
        "C": Chunked(2 * window + 1),
        "S": State(min(window, 4)),
        "F": Full(),
        "W": Window(window),
        "V": Window(window + 3, name="wide"),
        "L": Window(1000, name="long"),
    }
    return tuple(kinds[letter] for letter in mix)


def reads(kind: Kind, query: int, key: int) -> bool:
    """Whether the query at `query` reads the key at `key`, which is before it."""
    match kind:
        case Full():
            return True
        case Window():
            return query - kind.window < key
        case Chunked():
            return query // kind.chunk == key // kind.chunk
        case State():
            return False


class Fault(Exception):
    """Injected."""


class FaultyJournal(Journal):
    """Refuses the primitive after `fuse` more, while a fuse is set."""

    __slots__ = ("fuse",)

    def __init__(self) -> None:
        super().__init__()
        self.fuse: int | None = None

    def log(self, undo: Any, *arguments: Any) -> None:
        if self.fuse is not None:
            if self.fuse == 0:
                self.fuse = None
                raise Fault
            self.fuse -= 1
        super().log(undo, *arguments)


@dataclass(eq=False)
class Job:
    """One request and its holding."""

    holding: Holding
    tokens: np.ndarray

    def content(self, position: int, component: int) -> Slot:
        return self.holding.namespace, tuple(self.tokens[: position + 1].tolist()), component


class World:
    """Owns a cache and what its pages hold."""

    def __init__(
        self,
        kinds: tuple[Kind, ...],
        pages: tuple[int, ...],
        page_size: int,
        *,
        rows: int = 4,
        context: int = 64,
        caching: PrefixCaching = PrefixCaching.ON,
    ) -> None:
        with patch("transom.kv.cache.Journal", FaultyJournal):
            self.cache = HybridCache(CacheLayout(kinds, pages, page_size, rows, context, caching))
        self.page_size = page_size
        self.kinds = kinds
        self.slots: list[list[list[Slot | None]]] = [
            [[None] * page_size for _ in range(n + 1)] for n in pages
        ]
        self.jobs: list[Job] = []
        self.next_id = 0

    # ---------------------------------------------------------------- a request's life

    def offer(self, tokens: Any, salt: str = "") -> tuple[Namespace, Offer]:
        namespace = self.cache.namespace(RequestId(self.next_id), salt)
        return namespace, self.cache.offer(namespace, np.asarray(tokens, dtype=np.int32))

    def admit(self, tokens: Any, salt: str = "", *, cold: bool = False) -> Job:
        array = np.asarray(tokens, dtype=np.int32)
        namespace, offer = self.offer(array, salt)
        chosen = self.cache.cold() if cold else offer
        job = Job(self.cache.admit(RequestId(self.next_id), namespace, array, chosen), array)
        self.next_id += 1
        self.jobs.append(job)
        return job

    def compute(self, job: Job, end: int) -> None:
        """Extend, run, advance."""
        self.cache.extend(job.holding, end)
        self.run(job, end)

    def run(self, job: Job, end: int) -> None:
        """Copies first, then the span; then the holding has advanced."""
        for copy in self.cache.pending_copies():
            source = self.slots[copy.component][copy.source][: copy.tokens]
            self.slots[copy.component][copy.target][: copy.tokens] = source
        self.cache.copies_done()
        for position in range(job.holding.computed, end):
            for component, kind in enumerate(self.kinds):
                if isinstance(kind, State):
                    self.change_state(job, position, component)
                else:
                    self.write(job, position, component)
            self.read(job, position)
        self.cache.advance(job.holding, end)

    def settle(self, job: Job) -> None:
        self.cache.publish(job.holding, job.tokens)
        self.cache.slide(job.holding)

    def drop(self, job: Job) -> None:
        self.cache.drop(job.holding)
        self.jobs.remove(job)

    def serve(self, tokens: Any, salt: str = "", *, chunk: int = 1 << 20, cold: bool = False) -> int:
        """A whole request alone: returns where it began."""
        job = self.admit(tokens, salt, cold=cold)
        self.finish(job, chunk)
        return job.holding.start

    def finish(self, job: Job, chunk: int = 1 << 20) -> None:
        self.prefill(job, chunk)
        self.drop(job)

    def prefill(self, job: Job, chunk: int = 1 << 20) -> None:
        while job.holding.computed < len(job.tokens):
            end = min(len(job.tokens), job.holding.computed + chunk)
            self.compute(job, self.cache.stop(job.holding.computed, end))
            self.settle(job)
            self.audit()

    # ---------------------------------------------------------------- content

    def write(self, job: Job, position: int, component: int) -> None:
        page = int(self.cache.rows[component].table[job.holding.row, position // self.page_size])
        assert page > 0, ("stored into the null page", job, position, component)
        self.slots[component][page][position % self.page_size] = job.content(position, component)

    def change_state(self, job: Job, position: int, component: int) -> None:
        """The request's own state, after the token before, becomes that after `position`."""
        self.expect_state(job, component, position)
        page = int(self.cache.rows[component].table[job.holding.row, 0])
        self.slots[component][page][0] = job.content(position, component)

    def expect_state(self, job: Job, component: int, computed: int) -> None:
        page = int(self.cache.rows[component].table[job.holding.row, 0])
        assert page > 0, job
        if computed:
            found = self.slots[component][page][0]
            assert found == job.content(computed - 1, component), (job, computed, found)

    def read(self, job: Job, query: int) -> None:
        """The query at `query` meets its own keys."""
        for component, kind in enumerate(self.kinds):
            if isinstance(kind, State):
                self.expect_state(job, component, query + 1)
                continue
            keys = [key for key in range(query) if reads(kind, query, key)]
            self.expect(job, component, [*keys, query])

    def expect(self, job: Job, component: int, positions: Iterable[int]) -> None:
        for position in positions:
            page = int(self.cache.rows[component].table[job.holding.row, position // self.page_size])
            found = self.slots[component][page][position % self.page_size] if page else None
            assert found == job.content(position, component), (job, component, position, page, found)

    def resident(self) -> list[set[tuple[Namespace, tuple[int, ...]]]]:
        """Per component: pages in the tree, each as all tokens up to its end."""
        found: list[set[tuple[Namespace, tuple[int, ...]]]] = [set() for _ in self.kinds]
        for namespace, prefix, node in self.nodes():
            for component, pages in enumerate(node.pages):
                for index, page in enumerate(pages.tolist()):
                    if page:
                        end = len(prefix) - (len(pages) - 1 - index) * self.page_size
                        found[component].add((namespace, prefix[:end]))
        return found

    def nodes(self) -> Iterator[tuple[Namespace, tuple[int, ...], Node]]:
        for namespace, root in self.cache.tree.roots.items():
            ahead: list[tuple[tuple[int, ...], Node]] = [((), child) for child in root.children.values()]
            while ahead:
                before, node = ahead.pop()
                prefix = before + tuple(np.frombuffer(node.key, np.int32).tolist())
                yield namespace, prefix, node
                ahead.extend((prefix, child) for child in node.children.values())

    def audit(self) -> None:
        """All invariants, all contents of the tree, and all that running requests will read next."""
        self.cache.check()
        for namespace, prefix, node in self.nodes():
            first = len(prefix) - len(node.pages[0]) * self.page_size
            for component, pages in enumerate(node.pages):
                state = isinstance(self.kinds[component], State)
                step = self.page_size if state else 1
                for position in range(first + step - 1, len(prefix), step):
                    page = int(pages[(position - first) // self.page_size])
                    if page and not self.is_to_come(component, page):
                        found = self.slots[component][page][0 if state else position % self.page_size]
                        assert found == (namespace, prefix[: position + 1], component), (
                            node,
                            position,
                            found,
                        )
        if not self.cache.pending:
            for job in self.jobs:
                self.audit_row(job)

    def is_to_come(self, component: int, page: int) -> bool:
        """Whether a copy that has not run yet will write it."""
        copies = self.cache.pending_copies()
        return any((copy.component, copy.target) == (component, page) for copy in copies)

    def audit_row(self, job: Job) -> None:
        computed = job.holding.computed
        for component, kind in enumerate(self.kinds):
            if isinstance(kind, State):
                self.expect_state(job, component, computed)
            else:
                self.expect(job, component, [key for key in range(computed) if reads(kind, computed, key)])

    # ---------------------------------------------------------------- oracle

    def longest_hit(self, namespace: Namespace, tokens: list[int]) -> int:
        """Rule 8 by brute force: every end, every page of the tree, every key that a query there reads."""
        resident = self.resident()
        known = {prefix for space, prefix in self.known() if space == namespace}
        for end in range(len(tokens) - 1, 0, -1):
            below = tuple(tokens[:end])
            for beginning in known:
                beginning = beginning[: -(-end // self.page_size) * self.page_size]
                if beginning[:end] == below and self._allows(namespace, beginning, end, resident):
                    return end
        return 0

    def known(self) -> set[tuple[Namespace, tuple[int, ...]]]:
        """All pages that the tree has a place for, resident or not, each as all tokens up to its end."""
        return {
            (namespace, prefix[:end])
            for namespace, prefix, _ in self.nodes()
            for end in range(self.page_size, len(prefix) + 1, self.page_size)
        }

    def _allows(
        self,
        namespace: Namespace,
        beginning: tuple[int, ...],
        end: int,
        resident: list[set[tuple[Namespace, tuple[int, ...]]]],
    ) -> bool:
        """Whether the keys a query at `end` reads are there, along the pages of `beginning`."""
        for component, kind in enumerate(self.kinds):
            there = resident[component]
            if isinstance(kind, State):
                if end % self.page_size or (namespace, beginning[:end]) not in there:
                    return False
                continue
            for key in range(end):
                page_end = (key // self.page_size + 1) * self.page_size
                if reads(kind, end, key) and (namespace, beginning[:page_end]) not in there:
                    return False
            if end % self.page_size and (namespace, beginning) not in there:
                # A page begun in its middle, its beginning missing, must be of no use at its own end.
                page_end = end - end % self.page_size + self.page_size
                if any(reads(kind, page_end, key) for key in range(page_end - self.page_size, page_end)):
                    return False
        return True

    # ---------------------------------------------------------------- faults

    def set_fuse(self, fuse: int | None) -> None:
        journal = self.cache._journal
        assert isinstance(journal, FaultyJournal)
        journal.fuse = fuse

    def snapshot(self) -> dict[str, Any]:
        """Everything the cache knows, comparable."""
        cache = self.cache
        names = {id(node): (space, prefix) for space, prefix, node in self.nodes()}
        return {
            "pools": [
                (p.free_pages().tolist(), p.owners().tolist(), p._references.tolist(), p.free, p.tree, p.idle)
                for p in cache.pools
            ],
            "rows": [rows.table.tolist() for rows in cache.rows],
            "tree": {
                (space, prefix): (
                    [p.tolist() for p in node.pages],
                    node.resident,
                    sorted(node.children),
                    node.order,
                )
                for space, prefix, node in self.nodes()
            },
            "roots": {
                space: (sorted(root.children), list(root.order)) for space, root in cache.tree.roots.items()
            },
            "orders": [[names[id(node)] for node in order.items()] for order in cache.tree.orders],
            "holdings": [None if h is None else replace(h) for h in cache.holdings],
            "pending": [pending.copy for pending in cache.pending],
            "epoch": cache.epoch,
            "counts": (cache.counters.traffic, cache.counters.admissions),
        }


def same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Field by field, so that a difference is readable."""
    for name, value in before.items():
        if name == "holdings":
            value, after[name] = map(fields, value), map(fields, after[name])
            assert list(value) == list(after[name])
        else:
            assert value == after[name], (name, value, after[name])


def fields(holding: Holding | None) -> Any:
    if holding is None:
        return None
    return tuple(getattr(holding, name) for name in Holding.__dataclass_fields__)


@contextmanager
def unchanged(world: World) -> Iterator[None]:
    """Whatever happens inside leaves the cache as it was."""
    before = world.snapshot()
    yield
    same(before, world.snapshot())
