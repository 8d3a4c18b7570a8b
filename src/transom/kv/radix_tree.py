"""The radix tree: runs of tokens with, per component, their pages or holes. Structure only, no policy.

A component that keeps everything has a page on every position of every node. Other components may have holes
anywhere: their windows are evicted independently, and a node without pages stays as long as it has children.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from transom.kv.children import child_of, refresh, with_child, without_child
from transom.kv.events import EventKind, EventLog
from transom.kv.eviction_policy import RANK_NEEDED, RANK_PINNED, Policy, Price
from transom.kv.eviction_queue import Clock, EvictionQueue
from transom.kv.holding import Namespace
from transom.kv.journal import Journal
from transom.kv.node import TOKEN_BYTES, Node, Path, Root, residency, shared_tokens
from transom.kv.numbers import Numbers
from transom.kv.page_rules import PageRule, sparse_of
from transom.kv.pool import ID_BYTES, PagePool, Run, as_pages, pages_of, without_holes

HOLE = b"\0"
"""One hole in `resident`; in runs a hole is ID_BYTES of it."""

Stretch = tuple[Node, int, int]
"""Pages [first, end) of a node."""


class RadixTree:
    """Owns the nodes and, through the pools, their pages. Mutable; every change is logged for rollback."""

    __slots__ = (
        "_costs",
        "_groups_of",
        "_journal",
        "_log",
        "clock",
        "evicts_whole",
        "groups",
        "inflates",
        "numbers",
        "page_bytes",
        "pools",
        "queues",
        "roots",
        "rules",
        "sparse",
    )

    def __init__(
        self,
        pools: tuple[PagePool, ...],
        rules: tuple[PageRule, ...],
        policy: Policy,
        costs: tuple[int, ...],
        log: EventLog,
        journal: Journal,
    ) -> None:
        """`costs`: bytes per page of each component, or 1 for all when pools do not share a budget."""
        self.pools = pools
        self.page_bytes = rules[0].page_size * TOKEN_BYTES
        self.roots: dict[Namespace, Root] = {}
        self.clock = Clock(journal)
        self.inflates = policy.knows_boundaries
        """Whether evictions inflate the value of later uses, see `LeastValuable`."""
        self.sparse = sparse_of(rules)
        """The components that may have holes. The others have all pages of every node."""
        self.evicts_whole = policy.knows_boundaries and bool(self.sparse)
        """Whether a stretch or an island is evicted as a whole, because a part of it makes no hit."""
        self.rules = rules
        self._costs = costs
        self._log = log
        full = [component for component in range(len(rules)) if component not in self.sparse]
        self.groups = (*self.sparse, *full[:1])
        """One component per eviction queue. Components without holes lose the same pages: they share one."""
        self._groups_of = tuple(self.groups.index(full[0] if c in full else c) for c in range(len(rules)))
        self.numbers: Numbers[Node] = Numbers(journal)
        self.queues: tuple[EvictionQueue[Node], ...] = tuple(
            EvictionQueue(policy, partial(self.price, component), self.clock, self.numbers, journal)
            for component in self.groups
        )
        self._journal = journal

    # ---------------------------------------------------------------- queries

    def walk(self, namespace: Namespace, key: bytes) -> Path:
        """The longest prefix of `key` in the tree, in whole pages, resident or not."""
        root = self.roots.get(namespace)
        # An empty root for an unknown namespace: a query adds nothing to the tree.
        node: Node = Root(namespace, len(self.pools)) if root is None else root
        top = node
        nodes: list[Node] = []
        starts: list[int] = []
        at, page_bytes = 0, self.page_bytes
        # At the end of `key` there may be a part of a page, with which no child begins.
        last = len(key) - page_bytes
        while at <= last and node.children:
            child = child_of(node.children, key[at : at + page_bytes])
            if child is None:
                break
            nodes.append(child)
            starts.append(at // page_bytes)
            # A node is a run of many pages, so one comparison of bytes covers it; mostly all of it is shared.
            known = child.key
            if not key.startswith(known, at):
                tokens = shared_tokens(known, key[at : at + len(known)])
                return Path(top, nodes, starts, starts[-1] + tokens * TOKEN_BYTES // page_bytes)
            at += len(known)
            node = child
        return Path(top, nodes, starts, at // page_bytes)

    def queue_of(self, component: int) -> EvictionQueue[Node]:
        return self.queues[self._groups_of[component]]

    # ---------------------------------------------------------------- prices of evictions

    def price(self, component: int, node: Node) -> Price:
        """The price of evicting `node` from a component."""
        price = self.rules[component].price(component, node, self._costs, self.evicts_whole)
        if not node.pinned:  # the price of a pinned node changes when the pin ends, so it is not cached
            self.queue_of(component).remember(node.number, price)
        elif node.pinned > self._log.step and price.rank == RANK_NEEDED:
            return price._replace(rank=RANK_PINNED)
        return price

    # ---------------------------------------------------------------- recency

    def use(self, path: Path, first: tuple[int, ...], *, hit: bool, priority: int) -> None:
        """A request has read the path now, in each component from page `first[component]` on."""
        assert len(first) == len(self.pools), first
        for group, component in enumerate(self.groups):
            # From the node that holds page `first` on; earlier nodes were not read, so they age.
            after = bisect_right(path.starts, first[component])
            nodes = path.nodes[after - 1 :] if after else path.nodes
            self.queues[group].use([node.number for node in nodes], hit=hit, priority=priority)

    def unpin(self, path: Path) -> None:
        """A pin on the path has ended, so keys of its nodes may be lower now."""
        for node in path.nodes:
            for queue in self.queues:
                queue.invalidate(node.number)

    def pin(self, node: Node, until: int) -> None:
        """Evicts `node` after all nodes that are not pinned, up to and including step `until`."""
        assert until >= node.pinned, (node, until)
        self._journal.log(self._set_pinned, node, node.pinned)
        self._set_pinned(node, until)

    def end_skips(self) -> None:
        """References have ended, so skipped nodes may have pages to evict again."""
        for queue in self.queues:
            queue.end_skips()

    # ---------------------------------------------------------------- growing

    def root(self, namespace: Namespace) -> Root:
        """The root of `namespace`, created if necessary. It must get a child in the same transaction."""
        root = self.roots.get(namespace)
        if root is None:
            root = Root(namespace, len(self.pools))
            self._journal.log(self.roots.pop, namespace)
            self.roots[namespace] = root
        return root

    def grow(self, end: Node, key: bytes, runs: tuple[Run, ...]) -> Node:
        """Adds a new child to `end`, no child of which shares its first page."""
        assert key and len(key) // self.page_bytes == len(runs[0]) // ID_BYTES, (len(key), runs)
        # A second child: from now on the end of `end` is where requests branched, even if children go.
        if end.children and not end.branched:
            self._journal.log(self._set_branched, end, False)
            self._set_branched(end, True)
        node = Node(end, end.namespace, key, runs)
        node.number = self.numbers.enter(node)
        self._journal.log(self._unlink, node)
        self._link(node)
        self._requeue(node)
        # `end` is no leaf any more, so components that keep everything cannot evict from it.
        self._requeue(end, cheaper=False)
        self._record_from(EventKind.STORED, node, 0)
        return node

    def lengthen(self, end: Node, key: bytes, runs: tuple[Run, ...]) -> Node:
        """Like `grow`, but a leaf at which no requests branched grows in place: its end is no boundary."""
        assert key and len(key) // self.page_bytes == len(runs[0]) // ID_BYTES, (len(key), runs)
        if end.parent is not None and not end.children and not end.branched:
            size = end.size
            self._set(end, end.key + key, tuple([a + b for a, b in zip(end.runs, runs, strict=True)]))
            self._record_from(EventKind.STORED, end, size)
            return end
        return self.grow(end, key, runs)

    def split(self, node: Node, at: int) -> Node:
        """Splits `node` before its page `at`. Returns the new upper part; `node` becomes the lower one."""
        parent, page_bytes = node.parent, self.page_bytes
        assert parent is not None and 0 < at < node.size, (node, at)
        runs = node.runs
        front = tuple([run[: at * ID_BYTES] for run in runs])
        upper = Node(parent, node.namespace, node.key[: at * page_bytes], front)
        upper.number = self.numbers.enter(upper)
        # A node is split where another request continues differently, or where a pin ends.
        upper.pinned, upper.branched = node.pinned, True
        for queue in self.queues:
            queue.split(upper.number, node.number)
        # `upper` takes the place of `node` among the parent's children: it has the same first page. This
        # comes before the key changes, because children are found by their keys.
        self._journal.log(self._link, node)
        self._link(upper)
        # `node` becomes the lower part, so its children keep their parent.
        self._journal.assign(node, "start", node.start + at)
        self._journal.assign(node, "above", (upper.above, upper.key))
        self._set(node, node.key[at * page_bytes :], tuple([run[at * ID_BYTES :] for run in runs]))
        self._journal.assign(node, "parent", upper)
        upper.children = (node,)
        self._requeue(upper)
        return upper

    def fill(self, node: Node, component: int, index: ArrayLike, pages: ArrayLike) -> None:
        """Puts `pages` into the holes `index` of `node`."""
        entries = pages_of(node.run(component)).copy()
        index = as_pages(index)
        assert not entries[index].any() and np.all(pages), (entries[index], pages)
        entries[index] = pages
        self._replace(node, component, entries.tobytes(), (entries != 0).tobytes())
        self._requeue(node)
        self._record(EventKind.STORED, node, component, (index + node.start).tolist())

    # ---------------------------------------------------------------- shrinking

    def evict_pages(self, node: Node, component: int, index: ArrayLike) -> None:
        """Evicts pages `index` of `node`, which leave holes. The caller calls `trim` afterwards."""
        entries = pages_of(node.run(component)).copy()
        index = as_pages(index)
        assert len(index) and entries[index].all(), (node, component, index)
        self.pools[component].free_evicted(entries[index])
        entries[index] = 0
        self._replace(node, component, entries.tobytes(), (entries != 0).tobytes())
        self._requeue(node, cheaper=False)
        self._record(EventKind.REMOVED, node, component, (index + node.start).tolist())

    def evict_stretches(self, component: int, stretches: Sequence[Stretch]) -> Run:
        """Evicts stretches of several nodes. Returns the page ids, which the caller gives to the pool.

        One log entry and one record for all of them: this is the fast path of `evict_pages`.
        """
        self._journal.log(self._restore_all, [(n, n.key, n.packed, n.resident) for n, _, _ in stretches])
        taken, records = [], []
        for node, first, end in stretches:
            taken.append(self._evict_stretch(node, component, first, end))
            pages = range(node.start + first, node.start + end)
            records.append((component, node.namespace, node.above, node.key, pages))
        self._log.record(EventKind.REMOVED, records)
        # Backwards, so that the free list is the same as if the stretches had been evicted one by one.
        return b"".join(taken[::-1])

    def _evict_stretch(self, node: Node, component: int, first: int, end: int) -> Run:
        """Replaces pages [first, end) of `node` by holes and returns their ids."""
        queue = self.queue_of(component)
        packed, resident = node.packed, node.resident[component]
        assert first < end and resident.count(1, first, end) == end - first, (node, component, first, end)
        price, tail = queue.prices.get(node.number), len(resident) - first
        # `rjust` puts a hole in the place of every evicted page.
        resident = resident[:first] + resident[end:].rjust(tail, HOLE)
        before = component * node.size
        at, until = (before + first) * ID_BYTES, (before + end) * ID_BYTES
        node.packed = packed[:at] + bytes(until - at) + packed[until:]
        node.resident = (*node.resident[:component], resident, *node.resident[component + 1 :])
        self._forget_prices(node)
        earliest = resident.find(1)
        if earliest < 0:
            self._requeue(node, cheaper=False)
        elif price and earliest >= price.island:
            # The island is left. Its price follows from the old one, so the next look need not compute it.
            queue.remember(node.number, price.without_unneeded((end - first) * self._costs[component]))
        return packed[at:until]

    def cut(self, node: Node, count: int) -> list[Run]:
        """Cuts the last `count` pages off a leaf. Returns them by component, without holes, to be freed."""
        assert not node.children and 0 < count <= node.size, (node, count)
        size = node.size - count
        taken, end, packed = [], 0, node.packed
        for resident in node.resident:
            start, end = end + size * ID_BYTES, end + node.size * ID_BYTES
            run = packed[start:end]
            taken.append(run if resident.find(0, size) < 0 else without_holes(run))
        # Before the change: the event names the tokens that are cut.
        self._record_from(EventKind.REMOVED, node, size)
        if size:
            self._set(node, node.key[: size * self.page_bytes], _front(node.runs, size))
            self.trim(node)
        else:
            self._remove(node)
        return taken

    def _remove(self, leaf: Node) -> None:
        """Takes a leaf out. The leaf keeps its runs, so that a rollback only has to link it again."""
        assert leaf.parent is not None and not leaf.children, leaf
        for queue in self.queues:
            if queue.queued[leaf.number]:
                queue.remove(leaf.number)
        self._take_out(leaf)
        self._requeue(leaf.parent, cheaper=False)
        if not leaf.parent.children:
            self.trim(leaf.parent)

    def _take_out(self, leaf: Node) -> None:
        """Takes a leaf that is in no queue out of the tree."""
        assert not leaf.children and not any(queue.queued[leaf.number] for queue in self.queues), leaf
        self._journal.log(self._link, leaf)
        self._unlink(leaf)
        self.numbers.leave(leaf.number)

    def trim(self, node: Node) -> None:
        """Restores the shape upwards from `node`: leaves end with a resident page, empty ones are removed."""
        while node.parent is not None and not node.children:
            # Pages up to the last one that any component has.
            keep = 0
            for resident in node.resident:
                last = resident.rfind(1) + 1
                if last > keep:
                    keep = last
            if keep == node.size:
                return
            if keep:  # trailing holes of a leaf are of no use: a hit there would need them
                self._set(node, node.key[: keep * self.page_bytes], _front(node.runs, keep))
                return
            self._take_out(node)
            node = node.parent
            self._requeue(node, cheaper=False)
        if isinstance(node, Root) and not node.children and self.roots.get(node.namespace) is node:
            self._journal.log(self.roots.__setitem__, node.namespace, node)
            del self.roots[node.namespace]

    # ---------------------------------------------------------------- events

    def _record_from(self, kind: EventKind, node: Node, first: int) -> None:
        """Records an event for everything that is resident in `node` from page `first` on."""
        assert node.parent is not None and first < node.size, (node, first)
        start, records = node.start + first, []
        for component, resident in enumerate(node.resident):
            # A range as long as there is no hole: records are kept, and a range is smaller than a list.
            pages: Sequence[int] = range(start, node.start + node.size)
            if resident.find(0, first) >= 0:
                pages = [page for page in pages if resident[page - node.start]]
            if pages:
                records.append((component, node.namespace, node.above, node.key, pages))
        self._log.record(kind, records)

    def _record(self, kind: EventKind, node: Node, component: int, pages: Sequence[int]) -> None:
        """Records an event for `pages` of `node`, indices from the root."""
        assert node.parent is not None, node
        self._log.record(kind, [(component, node.namespace, node.above, node.key, pages)])

    # ---------------------------------------------------------------- primitives

    def _link(self, node: Node) -> None:
        """Adds `node` to its parent's children, in place of one with the same first page."""
        assert node.parent is not None, node
        node.parent.children = with_child(node.parent.children, node, node.key[: self.page_bytes])
        # Prices are by number, and another node may have had the number.
        self._forget_prices(node)

    def _unlink(self, node: Node) -> None:
        """Takes `node` out of its parent's children."""
        assert node.parent is not None, node
        node.parent.children = without_child(node.parent.children, node, node.key[: self.page_bytes])

    def _replace(self, node: Node, component: int, run: Run, resident: bytes) -> None:
        """Replaces the run of one component; `resident` belongs to it. The caller calls `_requeue`."""
        assert len(run) == len(resident) * ID_BYTES, (node, component, run, resident)
        self._journal.log(self._restore, node, node.key, node.packed, node.resident)
        self._assign(node, component, run, resident)

    def _assign(self, node: Node, component: int, run: Run, resident: bytes) -> None:
        at, end = component * len(run), (component + 1) * len(run)
        node.packed = node.packed[:at] + run + node.packed[end:]
        node.resident = (*node.resident[:component], resident, *node.resident[component + 1 :])
        self._forget_prices(node)

    def _set(self, node: Node, key: bytes, runs: tuple[Run, ...]) -> None:
        assert len(key) == len(runs[0]) // ID_BYTES * self.page_bytes, (len(key), runs)
        self._journal.log(self._restore, node, node.key, node.packed, node.resident)
        node.key, node.packed, node.resident = key, b"".join(runs), residency(runs)
        node.size = len(node.resident[0])
        self._forget_prices(node)
        assert node.parent is not None, node
        refresh(node.parent.children, node, key[: self.page_bytes])
        self._requeue(node)

    def _set_branched(self, node: Node, branched: bool) -> None:
        node.branched = branched
        if node.parent is not None:  # a root is in no queue
            self._forget_prices(node)
            for queue in self.queues:
                queue.invalidate(node.number)

    def _set_pinned(self, node: Node, until: int) -> None:
        node.pinned = until
        self._forget_prices(node)

    def _restore(self, node: Node, key: bytes, packed: Run, resident: tuple[bytes, ...]) -> None:
        node.key, node.packed, node.resident = key, packed, resident
        node.size = len(resident[0])
        self._forget_prices(node)
        for queue in self.queues:
            queue.invalidate(node.number)

    def _restore_all(self, before: list[tuple[Node, bytes, Run, tuple[bytes, ...]]]) -> None:
        for each in before:
            self._restore(*each)

    def _forget_prices(self, node: Node) -> None:
        """The node has changed: prices of it are no longer valid."""
        number = node.number
        for queue in self.queues:
            queue.exact[number] = 0
            queue.prices.pop(number, None)

    def _requeue(self, node: Node, *, cheaper: bool = True) -> None:
        """Updates the node's entries in the eviction queues. `cheaper`: its prices may have fallen.

        A node is queued in each component that has pages to evict there. Losing pages or children never
        lowers a price.
        """
        if node.parent is None:
            return
        for group, component in enumerate(self.groups):
            queue, number = self.queues[group], node.number
            has_pages = 1 in node.resident[component] and (component in self.sparse or not node.children)
            if not queue.queued[number]:
                if has_pages:
                    queue.add(number)
            elif not has_pages:
                queue.remove(number)
            elif cheaper:  # otherwise its old entry is still a lower bound: see `eviction_queue`
                queue.requeue(number)


def _front(runs: tuple[Run, ...], count: int) -> tuple[Run, ...]:
    """The first `count` pages of each run."""
    assert count * ID_BYTES <= len(runs[0]), (count, runs)
    return tuple([run[: count * ID_BYTES] for run in runs])
