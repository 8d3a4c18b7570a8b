"""Does operations to a world, and asserts of each what must hold whatever the situation."""

from collections import Counter
from typing import Any

import numpy as np

from transom.errors import NoSpace
from transom.kv.budget import Capacity
from transom.kv.cache import Namespace, Offer, PrefixCaching
from transom.kv.check import evict, inside
from transom.kv.eviction_policy import CachePolicy
from transom.kv.layout import address_space
from transom.values import RequestId, Tokens
from transom_lab.fuzz import operations as do
from transom_lab.fuzz.kinds import components, is_state
from transom_lab.fuzz.layered import LayeredWorld
from transom_lab.fuzz.operations import Operation, Setting
from transom_lab.fuzz.snapshot import same, snapshot
from transom_lab.fuzz.world import Job, World

PRIORITIES = 3

Asked = tuple[Tokens, Namespace, Offer]


class Undo(Exception):
    """Ends a transaction that is not to have happened."""


def world_of(setting: Setting) -> World:
    """A world as `setting` says. With layers it judges repairs; beside a state there must be none."""
    budget, pages = None, setting.pages
    if setting.page_bytes:
        budget = sum(n * size for n, size in zip(setting.pages, setting.page_bytes, strict=True))
        pages = address_space(budget, setting.page_bytes)
    kinds, size = components(setting.mix, setting.window), setting.page_size
    keywords: dict[str, Any] = {
        "rows": setting.rows,
        "context": setting.context,
        "caching": PrefixCaching.ON if setting.prefix_caching else PrefixCaching.OFF,
        "budget": budget,
        "page_bytes": setting.page_bytes,
        "policy": CachePolicy(setting.policy),
        "pin_tokens": setting.pin_tokens,
    }
    if setting.layers and not any(is_state(kind) for kind in kinds):
        return LayeredWorld(kinds, pages, size, setting.layers, **keywords)
    return World(kinds, pages, size, layers=setting.layers, **keywords)


class Driver:
    """Owns a world and the offers that were asked for. Mutable.

    `done` counts operations by name; `refused` those that found no space; `skipped` those that could not be.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.world = world_of(setting)
        self.cache = self.world.cache
        self.jobs: dict[int, Job] = {}
        self.asked: dict[int, Asked] = {}
        self.done: Counter[str] = Counter()
        self.refused = 0
        self.skipped = 0

    def apply(self, operation: Operation) -> None:
        """Does it, or nothing where it cannot be done. AssertionError where the core is wrong."""
        try:
            did = self._dispatch(operation)
        except NoSpace:
            did = True
            self.refused += 1
        if not did:
            self.skipped += 1
            return
        self.done[type(operation).__name__] += 1
        self.world.forget_free()
        if not self.jobs:
            pages = self.cache.available.alone()
            assert pages == self.cache.layout.pages, ("lost", pages)

    def end(self) -> None:
        """At idle no reference is left, and after a flush every page is free."""
        for request in list(self.jobs):
            self.apply(do.Drop(request))
        self.world.audit()
        self.cache.flush()
        stats = self.cache.stats()
        assert all(component.free == component.capacity for component in stats.components), stats
        assert not inside(self.cache).tree.roots, inside(self.cache).tree.roots

    def _dispatch(self, operation: Operation) -> bool:
        """Whether there was anything to do. Raises NoSpace."""
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
            case do.Reclaim():
                return self._reclaim(operation)
            case do.Fork(child=child):
                parent = self.jobs.get(operation.request)
                return parent is not None and self._fork(parent, child)
        job = self.jobs.get(operation.request)
        return job is not None and self._go_on(operation, job)

    def _flush(self) -> bool:
        """Nothing that was there is found afterwards, not even what a running request still reads."""
        epoch = self.cache.epoch
        self.cache.flush()
        assert self.cache.epoch > epoch, epoch
        for request, job in self.jobs.items():
            namespace = self.cache.namespace(RequestId(request), job.holding.namespace.salt)
            offer = self.cache.offer(namespace, job.tokens)
            assert offer == self.cache.cold(), ("found after a flush", offer, job)
        return True

    # ---------------------------------------------------------------- requests that come

    def _arrive(self, operation: do.Ask | do.Admit | do.AdmitCold) -> bool:
        request = operation.request
        if request in self.jobs:
            return False
        match operation:
            case do.Ask(tokens=tokens, salt=salt, way=way):
                namespace, array = self._arriving(request, tokens, salt)
                offers = self.cache.offers(namespace, array)
                self.asked[request] = array, namespace, offers[min(way, len(offers) - 1)]
                return True
            case do.Admit():
                return request in self.asked and self._admit(request, *self.asked.pop(request))
            case do.AdmitCold(tokens=tokens, salt=salt):
                namespace, array = self._arriving(request, tokens, salt)
                return self._admit(request, array, namespace, self.cache.cold())

    def _arriving(self, request: int, tokens: tuple[int, ...], salt: str) -> tuple[Namespace, Tokens]:
        return self.cache.namespace(RequestId(request), salt), np.array(tokens, np.int32)

    def _admit(self, request: int, tokens: Tokens, namespace: Namespace, offer: Offer) -> bool:
        """An offer that would be made now is kept to the page; an old one begins where it said or nowhere."""
        if namespace.epoch != self.cache.epoch:
            return False
        room, fresh = self.cache.available, offer in self.cache.offers(namespace, tokens)
        cost = [take + pin for take, pin in zip(offer.takes, offer.pins, strict=True)]
        fits = len(self.jobs) < self.setting.rows and room.covers(cost)
        importance = request % PRIORITIES
        try:
            holding = self.cache.admit(RequestId(request), namespace, tokens, offer, priority=importance)
        except NoSpace:
            assert not (fresh and fits), ("an offer that fits was refused", offer, room)
            assert self.cache.available == room, ("a refusal took pages", room)
            raise
        assert (holding.start, holding.clip) == (offer.begin.start, offer.begin.clip), (holding, offer)
        if fresh:
            assert fits and self.cache.available == room.less(cost), (offer, room)
        end = len(tokens)
        assert self.cache.growth(offer.begin, end) == self.cache.growth(holding, end), (offer, holding)
        job = Job(holding, tokens)
        self.jobs[request] = job
        self.world.jobs.append(job)
        return True

    def _reclaim(self, operation: do.Reclaim) -> bool:
        """What is to be had is as much as before."""
        cache, component = self.cache, operation.component
        if component >= len(inside(cache).pools):
            return False
        idle, space = inside(cache).pools[component].idle, cache.available
        if not idle:
            return False
        evict(cache, component, min(idle, operation.pages))
        assert inside(cache).pools[component].idle <= idle - min(idle, operation.pages), (operation, idle)
        assert cache.available == space, (operation, space)
        return True

    def _fork(self, parent: Job, child: int) -> bool:
        """It reads what the first one has, and takes no more than the pages that it will write to."""
        copies = [pending for pending in inside(self.cache).pending if pending.snapshot_of is None]
        if child in self.jobs or any(pending.holding is parent.holding for pending in copies):
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
        """Order only: no page comes or goes. Beyond what may be pinned it is refused, and nothing changes."""
        before, kept, space = snapshot(self.cache), self.world.resident(), self.cache.available
        namespace, tokens = self._arriving(0, operation.tokens, "")
        try:
            pinned = self.cache.pin(namespace, tokens, operation.steps)
        except NoSpace:
            same(before, snapshot(self.cache))
            raise
        assert (self.world.resident(), self.cache.available) == (kept, space), operation
        assert 0 <= pinned <= len(operation.tokens), (pinned, operation)
        assert sum(pin.tokens for pin in inside(self.cache).pins.pins) <= self.setting.pin_tokens, operation
        return True

    # ---------------------------------------------------------------- requests that run

    def _go_on(
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
        """Only a snapshot takes a page; under one budget that may be a page of any component."""
        states = [is_state(kind) for kind in self.cache.layout.components]
        if any(states) and self.cache.layout.budget is not None:
            return
        assert before.bytes <= after.bytes, (operation, "took", before, after)
        for state, b, a in zip(states, before.pages, after.pages, strict=True):
            assert b <= a or state, (operation, "took", before, after)

    def _extend(self, job: Job, end: int) -> bool:
        """It succeeds exactly when there is room, and takes exactly what was said."""
        if end <= job.holding.allocated:
            return False
        growth, room = self.cache.growth(job.holding, end), self.cache.available
        fits = room.covers(growth)
        try:
            self.cache.extend(job.holding, end)
        except NoSpace:
            assert not fits and self.cache.available == room, (growth, room, self.cache.available)
            raise
        assert fits and self.cache.available == room.less(growth), (growth, room)
        return True

    def _run(self, job: Job, end: int) -> bool:
        if end <= job.holding.computed:
            return False
        if job.holding.request % 4:  # others run over the places where snapshots could be kept
            end = self.cache.stop(job.holding.computed, end)
        if end > len(job.tokens):
            places = range(len(job.tokens), end)
            chosen = np.array([chosen_token(job.holding.request, place) for place in places], np.int32)
            job.tokens = np.concatenate([job.tokens, chosen])
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
        """Whatever it did, and wherever it met no space, the cache is as it was."""
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


def chosen_token(request: int, position: int) -> int:
    """What request `request` says at `position`: 0 or 1, so that texts meet."""
    return (request * 2654435761 + position * 40503) >> 7 & 1
