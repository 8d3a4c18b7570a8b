"""The waiting requests: fair between tenants, ordered by the policy within one, without starvation.

Between tenants: virtual token counters ("Fairness in Serving Large Language Models", OSDI 2024), on two
levels, since a client can invent users but no keys. The API key with the smallest counter of served tokens is
next, and in it the tenant with the smallest. A key or tenant that arrives, or returns, starts level with the
smallest counter among the waiting ones beside it, so that no credit is saved up while it is away.

The number of times that a request can be skipped in favour of its juniors is bounded by `skipped_max`:

- Through `skipped_max` / 2 admissions of its tenant, the policy alone orders it.
- Then it is promoted: before all ranked requests of its tenant, which pass it only if it does not fit.
- After `skipped_max` admissions, times the waiting tenants, it is aged: if it does not fit, no request
  behind it is looked at.

Waiting for a prefix that is being computed does not count as being skipped.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import NamedTuple

from transom.kv.budget import PageCounts
from transom.kv.cache import HybridCache
from transom.sched.config import SchedulerConfig
from transom.sched.line import Fits, QueuedRequest, Search
from transom.sched.output_lengths import OutputHistory
from transom.sched.policy import CACHE_AWARE, KeyShare, SchedulePolicy, TenantQueue, rank
from transom.sched.request import Progress, Seniority, Waiting
from transom.values import Request, RequestId

LOOKUPS = 4
"""Cached prefixes that are looked up again per iteration. Each costs a walk of the radix tree."""

TENANTS_KEPT = 1024
"""Service counters that are kept. Bounds the memory that clients with changing tenant names can take."""

CLASSES = 8
"""Classes whose seniors a plan looks at for preemption."""

OUTPUT_WEIGHT = 2
"""Prompt tokens that one output token counts for, since a decode costs more than a token of a prefill."""

MayAdmit = Callable[[Progress], bool]
"""Whether a request may be admitted at this moment."""


class Refused(NamedTuple):
    """A waiting request that was not admitted, since `pages` were not left: see `forecast`."""

    waiting: Waiting
    pages: PageCounts


def any_request(progress: Progress) -> bool:
    return True


def no_limit(pages: PageCounts) -> bool:
    return True


class Queue:
    """Owns the waiting requests and the service counters of the tenants. Mutable; iterated senior first."""

    def __init__(self, config: SchedulerConfig, cache: HybridCache, outputs: OutputHistory) -> None:
        self._skipped_max = config.skipped_max
        self._policy = config.policy
        self._cache = cache
        self._outputs = outputs
        self._requests: dict[RequestId, QueuedRequest] = {}
        self._by_seniority: list[Seniority] = []
        self._by_class: list[tuple[int, Seniority]] = []
        """The highest priority first, and in each class the senior first."""
        self._tenants: dict[str, TenantQueue] = {}
        self._keys: dict[str, KeyShare] = {}
        """The keys of the tenants."""
        self._admissions = 0
        self._level = 0
        """The counter of the key that waited last, for arrivals when no key waits."""
        self._lookups: deque[RequestId] = deque()
        """Order in which prefixes are looked up again. May hold requests that have left the queue."""

    # ------------------------------------------------------------ queries

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._requests

    def __iter__(self) -> Iterator[Waiting]:
        return (self._requests[request].waiting for _, request in self._by_seniority)

    def find(self, request: RequestId) -> Waiting | None:
        queued = self._requests.get(request)
        return None if queued is None else queued.waiting

    def senior(self, may_admit: MayAdmit = any_request) -> Waiting | None:
        """The senior of the requests that may be admitted."""
        return next((state for state in self if may_admit(state.progress)), None)

    def class_seniors(self, above: int, may_admit: MayAdmit = any_request) -> tuple[Waiting, ...]:
        """The senior of each of the highest classes above `above`, the highest class first."""
        found: list[Waiting] = []
        at = 0
        while at < len(self._by_class) and len(found) < CLASSES:
            priority, (_, request) = self._by_class[at]
            if -priority <= above:
                break
            state = self._requests[request].waiting
            if may_admit(state.progress):
                found.append(state)
            at = bisect_left(self._by_class, (priority + 1,))
        return tuple(found)

    def considered(
        self, may_admit: MayAdmit = any_request, fits: Fits = no_limit, resumed: float = -inf
    ) -> Iterator[Waiting]:
        """The requests that may be admitted, in scheduling order, without those known to lack pages.

        A request that may block the others is included even if it lacks pages: an aged request, or a request
        with part of its output that has waited since iteration `resumed` or longer.
        """
        search = self._search(fits, resumed)
        tenants = [tenant for tenant in self._tenants.values() if len(tenant)]
        # Most servers have one tenant at a time, and then need no heap. Lazy in both cases: a plan looks at
        # a few requests of a queue that may have thousands.
        one = len(tenants) == 1
        order = tenants[0].line.search(search) if one else self._between(tenants, search)
        return (queued.waiting for queued in order if may_admit(queued.waiting.progress))

    def lacks(self, waiting: Waiting) -> PageCounts | None:
        """Pages that the request was last refused for; None if that may have changed."""
        return self._requests[waiting.progress.id].lacks

    def blocks(self, waiting: Waiting, resumed: float = -inf) -> bool:
        """Whether no request behind this one may start while it does not fit.

        It is aged: skipped as often as a request may be. Or it has part of its output, and has waited since
        iteration `resumed` or longer.
        """
        return self._search(no_limit, resumed).is_blocked_by(self._requests[waiting.progress.id])

    def _search(self, fits: Fits, resumed: float) -> Search:
        waiting = sum([len(tenant) > 0 for tenant in self._tenants.values()])
        return Search(fits, self._admissions - self._skipped_max * waiting, resumed)

    def served(self, tenant: str) -> int:
        """The tenant's counter, in weighted tokens."""
        return self._tenants[tenant].served

    @property
    def has_tenants(self) -> bool:
        """Whether there is more than one tenant to be fair between."""
        return len(self._tenants) > 1

    # ------------------------------------------------------------ transitions

    def add(self, waiting: Waiting) -> None:
        progress = waiting.progress
        assert progress.id not in self._requests, progress.id
        tenant = self._tenant(progress.request)
        # Raised to the level of the waiting ones, see the head of the file.
        # A retracted request does not lift the counters: its tenant and its key were served until now.
        if not progress.admissions:
            self._raise_to_level(tenant)
        tenant.share.waiting += 1
        queued = QueuedRequest(waiting, since_own=tenant.admissions, since_all=self._admissions)
        rank = self._look_up(queued)  # before it is added, since the order depends on it
        self._requests[progress.id] = queued
        insort(self._by_seniority, progress.seniority)
        insort(self._by_class, (-progress.request.priority, progress.seniority))
        self._lookups.append(progress.id)
        tenant.add(queued, rank)

    def remove(self, waiting: Waiting) -> None:
        """Removes exactly this state; a stale one is our bug."""
        progress = waiting.progress
        queued = self._requests.pop(progress.id)
        assert queued.waiting is waiting, (queued.waiting, waiting)
        del self._by_seniority[bisect_left(self._by_seniority, progress.seniority)]
        own = (-progress.request.priority, progress.seniority)
        del self._by_class[bisect_left(self._by_class, own)]
        tenant = self._tenants[progress.request.tenant]
        tenant.remove(queued)
        share = tenant.share
        share.waiting -= 1
        if not share.waiting:
            # The next tenant to arrive must not start at 0: it would win against this one for a long time.
            share.level = tenant.served
        if not self._requests:
            self._level = share.served
            self._lookups.clear()

    def admit(self, waiting: Waiting) -> None:
        """Removes a request that runs now. This skips the other requests of its tenant once more."""
        self.remove(waiting)
        self._admissions += 1
        self._tenants[waiting.progress.request.tenant].count_admission()

    def charge(self, tenant: str, tokens: int) -> None:
        """Adds weighted tokens to the counters of tenant and key. Ignored for a tenant that is forgotten."""
        if (queue := self._tenants.get(tenant)) is not None:
            queue.served += tokens
            queue.share.served += tokens

    def look_again(self) -> None:
        """Forgets what a few requests lack, in turns, and updates their ranks if the cache has changed."""
        for _ in range(min(LOOKUPS, len(self._lookups))):
            request = self._lookups.popleft()
            queued = self._requests.get(request)
            if queued is None:
                continue  # it has left the queue, and leaves this list now
            self._lookups.append(request)
            # Another request may hold a part of its prefix now, and the estimates change with every step.
            tenant = self._tenants[queued.waiting.progress.request.tenant]
            tenant.line.forget(queued)
            if queued.looked_up != self._cache_version():
                tenant.rerank(queued, self._look_up(queued))

    def refuse(self, refused: Sequence[Refused]) -> None:
        """Notes what these requests lack."""
        for waiting, pages in refused:
            self._requests[waiting.progress.id].lacks = pages

    # ------------------------------------------------------------ ranks

    def _look_up(self, queued: QueuedRequest) -> int:
        """Notes how much of the request is cached now. Returns the rank that follows from it."""
        progress = queued.waiting.progress
        queued.cached, queued.looked_up = self._cached(progress), self._cache_version()
        expected = 0
        if self._policy is SchedulePolicy.SRPT:
            expected = self._outputs.lengths().remaining_of(progress.outputs)
        return rank(self._policy, progress, cached=queued.cached, outputs_expected=expected)

    def _cached(self, progress: Progress) -> int:
        """Tokens that need not be computed: a walk of the radix tree, unless the policy does not use it."""
        if self._policy not in CACHE_AWARE:
            return 0
        namespace = self._cache.namespace(progress.id, progress.request.salt)
        return self._cache.offers(namespace, progress.tokens(), progress.start_limit)[0].begin.start

    def _cache_version(self) -> int:
        """While it is unchanged, so is `_cached` of every request."""
        return self._cache.version if self._policy in CACHE_AWARE else 0

    # ------------------------------------------------------------ tenants

    def _raise_to_level(self, tenant: TenantQueue) -> None:
        share = tenant.share
        if not share.waiting:
            others = [one.served for one in self._keys.values() if one.waiting]
            share.served = max(share.served, min(others, default=self._level))
        if not len(tenant):
            beside = [one.served for one in self._tenants.values() if one.share is share and len(one)]
            tenant.served = max(tenant.served, min(beside, default=share.level))

    def _between(self, tenants: list[TenantQueue], search: Search) -> Iterator[QueuedRequest]:
        """The requests of all tenants, fair between keys, then between the tenants of each."""
        keys: dict[int, tuple[KeyShare, list[Counted]]] = {}
        for tenant in tenants:
            _, lines = keys.setdefault(id(tenant.share), (tenant.share, []))
            lines.append((tenant.served, tenant.line.search(search)))
        return _fair([(share.served, _fair(lines)) for share, lines in keys.values()])

    def _tenant(self, request: Request) -> TenantQueue:
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            self._forget_one()
            share = self._keys.setdefault(request.key, KeyShare())
            patience = max(1, self._skipped_max // 2)
            tenant = self._tenants[request.tenant] = TenantQueue(patience, share)
        return tenant

    def _forget_one(self) -> None:
        """Makes space for one more counter.

        Drops the smallest counter of the absent tenants: on return, that tenant would most likely be raised
        to the level of the waiting tenants anyway.
        """
        if len(self._tenants) < TENANTS_KEPT:
            return
        absent = [name for name, tenant in self._tenants.items() if not len(tenant)]
        if absent:
            share = self._tenants.pop(min(absent, key=lambda name: self._tenants[name].served)).share
            if all(tenant.share is not share for tenant in self._tenants.values()):
                self._keys = {name: one for name, one in self._keys.items() if one is not share}


Counted = tuple[int, Iterator[QueuedRequest]]
"""A counter of served tokens, and the requests that it counts."""


def _fair(lines: list[Counted]) -> Iterator[QueuedRequest]:
    """The requests of all lines: the next of the line with the smallest counter, again and again.

    Each request is charged to its line as if it had been admitted, so that one plan is fair too.
    """
    heads: list[tuple[int, Seniority, QueuedRequest, Iterator[QueuedRequest]]] = []
    # Equal counters go by the seniority of the next request.
    for served, line in lines:
        if (first := next(line, None)) is not None:
            heads.append((served, first.seniority, first, line))
    heapify(heads)
    while heads:
        served, _, queued, line = heads[0]
        yield queued
        following = next(line, None)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (served + queued.cost, following.seniority, following, line))
