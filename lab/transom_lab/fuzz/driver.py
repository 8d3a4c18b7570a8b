"""Applies operations to a cache world, and asserts the effect that each must have in any situation."""

from collections import Counter

import numpy as np

from transom.errors import NoSpace
from transom.kv.budget import Capacity
from transom.kv.cache import CacheLayout, Namespace, Offer, PrefixCaching
from transom.kv.check import evict, inside
from transom.kv.eviction_policy import CachePolicy
from transom.kv.layout import address_space
from transom.values import RequestId, Tokens
from transom_lab.fuzz import operations as do
from transom_lab.fuzz.operations import Operation, Setting
from transom_lab.worlds.cache_world import CacheWorld, Job
from transom_lab.worlds.mixes import components, is_state
from transom_lab.worlds.snapshot import same, snapshot

PRIORITIES = 3

Asked = tuple[Tokens, Namespace, Offer]
"""A prompt, and the offer that was kept for it."""


class Undo(Exception):
    """Rolls a transaction back."""


def layout_of(setting: Setting) -> CacheLayout:
    budget, pages = None, setting.pages
    if setting.page_bytes:
        budget = sum(n * size for n, size in zip(setting.pages, setting.page_bytes, strict=True))
        pages = address_space(budget, setting.page_bytes)
    return CacheLayout(
        components=components(setting.mix, setting.window),
        pages=pages,
        page_size=setting.page_size,
        rows=setting.rows,
        context=setting.context,
        prefix_caching=PrefixCaching.ON if setting.prefix_caching else PrefixCaching.OFF,
        budget=budget,
        page_bytes=setting.page_bytes,
        policy=CachePolicy(setting.policy),
        pin_tokens=setting.pin_tokens,
        layers=setting.layers,
    )


class Driver:
    """Owns a cache world and the offers that are kept. Mutable.

    `done` counts operations by name, including `refused` ones, which found no space. `skipped` operations
    were impossible in the state they met.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.world = CacheWorld(layout_of(setting))
        self.cache = self.world.cache
        self.jobs: dict[int, Job] = {}
        self.asked: dict[int, Asked] = {}
        self.done: Counter[str] = Counter()
        self.refused = 0
        self.skipped = 0

    def apply(self, operation: Operation) -> None:
        """Does an operation, or nothing where it cannot be done. AssertionError if the cache is wrong."""
        try:
            did = self._dispatch(operation)
        except NoSpace:
            did = True
            self.refused += 1
        if not did:
            self.skipped += 1
            return
        self.done[type(operation).__name__] += 1
        self.world.clear_free_pages()
        if not self.jobs:
            pages = self.cache.available.alone()
            assert pages == self.cache.layout.pages, ("lost", pages)

    def end(self) -> None:
        """Ends every request. Then no page is referenced, and after a flush every page is free."""
        for request in list(self.jobs):
            self.apply(do.Drop(request))
        self.world.audit()
        self.cache.flush()
        stats = self.cache.stats()
        assert all(component.free == component.capacity for component in stats.components), stats
        assert not inside(self.cache).tree.roots, inside(self.cache).tree.roots

    def _dispatch(self, operation: Operation) -> bool:
        """Returns whether the operation could be done. Raises NoSpace."""
        match operation:
            case do.Ask() | do.Admit() | do.AdmitCold():
                return self._arrive(operation)
            case do.Undone():
                return self._undo(operation)
            case do.RunCopies():
                return self._run_copies()
            case do.Flush():
                return self._flush()
            case do.Pin():
                return self._pin(operation)
            case do.Evict():
                return self._evict(operation)
            case do.Fork(child=child):
                parent = self.jobs.get(operation.request)
                return parent is not None and self._fork(parent, child)
        job = self.jobs.get(operation.request)
        return job is not None and self._continue(operation, job)

    def _flush(self) -> bool:
        """After a flush no prefix hits, not even one that a running request still reads."""
        epoch = self.cache.epoch
        self.cache.flush()
        assert self.cache.epoch > epoch, epoch
        for request, job in self.jobs.items():
            namespace = self.cache.namespace(RequestId(request), job.holding.namespace.salt)
            offer = self.cache.offer(namespace, job.tokens)
            assert offer == self.cache.cold(), ("a hit after a flush", offer, job)
        return True

    # ---------------------------------------------------------------- arriving requests

    def _arrive(self, operation: do.Ask | do.Admit | do.AdmitCold) -> bool:
        request = operation.request
        if request in self.jobs:
            return False
        match operation:
            case do.Ask(tokens=tokens, salt=salt, way=way):
                namespace, array = self._prompt(request, tokens, salt)
                offers = self.cache.offers(namespace, array)
                self.asked[request] = array, namespace, offers[min(way, len(offers) - 1)]
                return True
            case do.Admit():
                return request in self.asked and self._admit(request, *self.asked.pop(request))
            case do.AdmitCold(tokens=tokens, salt=salt):
                namespace, array = self._prompt(request, tokens, salt)
                return self._admit(request, array, namespace, self.cache.cold())

    def _prompt(self, request: int, tokens: tuple[int, ...], salt: str) -> tuple[Namespace, Tokens]:
        return self.cache.namespace(RequestId(request), salt), np.array(tokens, np.int32)

    def _admit(self, request: int, tokens: Tokens, namespace: Namespace, offer: Offer) -> bool:
        """A fresh offer costs exactly the pages it states. A stale one starts where it states, or fails."""
        if namespace.epoch != self.cache.epoch:
            return False
        available, fresh = self.cache.available, offer in self.cache.offers(namespace, tokens)
        cost = [take + pin for take, pin in zip(offer.takes, offer.pins, strict=True)]
        fits = len(self.jobs) < self.setting.rows and available.covers(cost)
        priority = request % PRIORITIES
        try:
            holding = self.cache.admit(RequestId(request), namespace, tokens, offer, priority=priority)
        except NoSpace:
            assert not (fresh and fits), ("an offer that fits was refused", offer, available)
            assert self.cache.available == available, ("a refusal took pages", available)
            raise
        assert (holding.start, holding.clip) == (offer.begin.start, offer.begin.clip), (holding, offer)
        if fresh:
            assert fits and self.cache.available == available.less(cost), (offer, available)
        end = len(tokens)
        assert self.cache.growth(offer.begin, end) == self.cache.growth(holding, end), (offer, holding)
        job = Job(holding, tokens)
        self.jobs[request] = job
        self.world.jobs.append(job)
        return True

    def _evict(self, operation: do.Evict) -> bool:
        """Eviction frees the pages and leaves the available capacity as it was."""
        cache, component = self.cache, operation.component
        if component >= len(self.world.kinds):
            return False
        pool, available = inside(cache).pools[component], cache.available
        idle = pool.idle
        if not idle:
            return False
        evict(cache, component, min(idle, operation.pages))
        assert pool.idle <= idle - min(idle, operation.pages), (operation, idle)
        assert cache.available == available, (operation, available)
        return True

    def _fork(self, parent: Job, child: int) -> bool:
        """A fork shares its parent's pages, and allocates only the pages that it will write to."""
        copies = [pending for pending in inside(self.cache).pending if pending.snapshot_of is None]
        if child in self.jobs or any(pending.holding is parent.holding for pending in copies):
            return False
        if parent.holding.computed < parent.holding.full_until:  # the cache refuses to fork such a repair
            return False
        before = snapshot(self.cache)
        try:
            holding = self.cache.fork(parent.holding, RequestId(child), parent.tokens)
        except NoSpace:
            same(before, snapshot(self.cache))
            raise
        assert holding.computed == parent.holding.computed == holding.allocated, (holding, parent.holding)
        self.jobs[child] = Job(holding, parent.tokens.copy())
        self.world.jobs.append(self.jobs[child])
        return True

    def _pin(self, operation: do.Pin) -> bool:
        """A pin changes the order of eviction only. Beyond the limit it is refused and changes nothing."""
        before, kept, available = snapshot(self.cache), self.world.resident(), self.cache.available
        namespace, tokens = self._prompt(0, operation.tokens, "")
        try:
            pinned = self.cache.pin(namespace, tokens, operation.steps)
        except NoSpace:
            same(before, snapshot(self.cache))
            raise
        assert (self.world.resident(), self.cache.available) == (kept, available), operation
        assert 0 <= pinned <= len(operation.tokens), (pinned, operation)
        assert sum(pin.tokens for pin in inside(self.cache).pins.pins) <= self.setting.pin_tokens, operation
        return True

    # ---------------------------------------------------------------- running requests

    def _continue(
        self, operation: do.Extend | do.Run | do.Publish | do.Slide | do.Truncate | do.Drop, job: Job
    ) -> bool:
        match operation:
            case do.Extend(tokens=tokens):
                return self._extend(job, min(self.setting.context, job.holding.computed + tokens))
            case do.Run(tokens=tokens):
                return self._run(job, min(job.holding.allocated, job.holding.computed + tokens))
            case do.Truncate(tokens=tokens):
                return self._truncate(job, max(job.holding.computed, job.holding.allocated - tokens))
        before = self.cache.available
        match operation:
            case do.Publish():
                self.cache.publish(job.holding, job.tokens)
            case do.Slide():
                self.cache.slide(job.holding)
            case do.Drop():
                self.world.drop(job)
                del self.jobs[operation.request]
        self._require_no_less(operation, before, self.cache.available)
        return True

    def _require_no_less(self, operation: Operation, before: Capacity, after: Capacity) -> None:
        """The operation took no capacity. Only a snapshot of a state may, to store its page.

        Under a shared budget the page of a snapshot lowers the capacity of every component.
        """
        states = [is_state(kind) for kind in self.cache.layout.components]
        if any(states) and self.cache.layout.budget is not None:
            return
        assert before.bytes <= after.bytes, (operation, "took", before, after)
        for state, b, a in zip(states, before.pages, after.pages, strict=True):
            assert b <= a or state, (operation, "took", before, after)

    def _extend(self, job: Job, end: int) -> bool:
        """`extend` succeeds exactly when there is capacity, and takes exactly the growth it stated."""
        if end <= job.holding.allocated:
            return False
        growth, available = self.cache.growth(job.holding, end), self.cache.available
        fits = available.covers(growth)
        try:
            self.cache.extend(job.holding, end)
        except NoSpace:
            assert not fits and self.cache.available == available, (growth, available, self.cache.available)
            raise
        assert fits and self.cache.available == available.less(growth), (growth, available)
        return True

    def _run(self, job: Job, end: int) -> bool:
        if end <= job.holding.computed:
            return False
        if job.holding.request % 4:  # every fourth request runs past the places where snapshots are taken
            end = self.cache.stop(job.holding.computed, end)
        if end > len(job.tokens):
            positions = range(len(job.tokens), end)
            sampled = [sampled_token(job.holding.request, position) for position in positions]
            job.tokens = np.concatenate([job.tokens, np.array(sampled, np.int32)])
        self.world.run(job, end)
        return True

    def _truncate(self, job: Job, end: int) -> bool:
        if end >= job.holding.allocated:
            return False
        self.cache.truncate(job.holding, end)
        return True

    def _run_copies(self) -> bool:
        if not self.cache.pending_copies():
            return False
        self.world.run_copies()
        return True

    # ---------------------------------------------------------------- transactions

    def _undo(self, operation: do.Undone) -> bool:
        """A transaction that is rolled back, or runs out of space, leaves the cache as it was."""
        before = snapshot(self.cache)
        jobs, running, asked = dict(self.jobs), list(self.world.jobs), dict(self.asked)
        try:
            with self.cache.transaction():
                for inner in operation.operations:
                    self._dispatch(inner)
                raise Undo
        except (Undo, NoSpace):
            self.jobs, self.world.jobs, self.asked = jobs, running, asked
        same(before, snapshot(self.cache))
        return True


def sampled_token(request: int, position: int) -> int:
    """The token of a request at a position: 0 or 1, so that the texts of requests meet."""
    return (request * 2654435761 + position * 40503) >> 7 & 1
