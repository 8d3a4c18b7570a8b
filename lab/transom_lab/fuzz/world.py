"""A cache, its requests, and a runner that computes nothing and checks all it reads."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transom.kv.cache import CacheLayout, Holding, HybridCache, Namespace, Offer, PrefixCaching
from transom.kv.check import check, inside
from transom.kv.component_specs import ComponentSpec
from transom.kv.eviction_policy import CachePolicy
from transom.kv.node import Node
from transom.kv.pool import owner_of
from transom.steps import Discard, PageCopy
from transom.values import RequestId, Tokens
from transom_lab.fuzz import residency
from transom_lab.fuzz.contents import Contents, Digests, of_component, prefix_digests
from transom_lab.fuzz.kinds import first_key, is_state, keeps_everything
from transom_lab.fuzz.residency import PageName, Prefix
from transom_lab.fuzz.snapshot import snapshot


@dataclass(eq=False)
class Job:
    """One request and its holding. Mutable: tokens are appended as they are chosen."""

    holding: Holding
    tokens: Tokens
    _digests: Digests = field(default_factory=lambda: np.zeros(0, np.uint64), repr=False)

    def digests(self, start: int, end: int) -> Digests:
        """What a slot at each of the positions stands for, of no component yet."""
        if len(self._digests) < len(self.tokens):
            self._digests = prefix_digests(self.holding.namespace, self.tokens)
        return self._digests[start:end]


class World:
    """Owns a cache, the requests that hold its rows, and what its pages hold. Mutable."""

    def __init__(
        self,
        kinds: tuple[ComponentSpec, ...],
        pages: tuple[int, ...],
        page_size: int,
        *,
        rows: int = 4,
        context: int = 64,
        caching: PrefixCaching = PrefixCaching.ON,
        budget: int | None = None,
        page_bytes: tuple[int, ...] = (),
        policy: CachePolicy = CachePolicy.VALUE,
        pin_tokens: int = 1 << 16,
        layers: tuple[int, ...] = (),
    ) -> None:
        layout = CacheLayout(
            kinds, pages, page_size, rows, context, caching, budget, page_bytes, policy, pin_tokens, layers
        )
        self.cache = HybridCache(layout)
        self.page_size = page_size
        self.kinds = kinds
        self.contents = Contents(pages, page_size)
        self.jobs: list[Job] = []
        self.next_id = 0

    # ---------------------------------------------------------------- a request's life

    def offer(self, tokens: ArrayLike, salt: str = "") -> tuple[Namespace, Offer]:
        namespace = self.cache.namespace(RequestId(self.next_id), salt)
        return namespace, self.cache.offer(namespace, np.asarray(tokens, dtype=np.int32))

    def admit(self, tokens: ArrayLike, salt: str = "", *, cold: bool = False) -> Job:
        """By the best offer there is, or cold. Raises NoSpace."""
        array = np.asarray(tokens, dtype=np.int32)
        namespace, offer = self.offer(array, salt)
        return self.admit_by(array, namespace, self.cache.cold() if cold else offer)

    def admit_by(self, tokens: Tokens, namespace: Namespace, offer: Offer) -> Job:
        """By an offer made just now or earlier. Raises NoSpace."""
        job = Job(self.cache.admit(RequestId(self.next_id), namespace, tokens, offer), tokens)
        self.next_id += 1
        self.jobs.append(job)
        return job

    def compute(self, job: Job, end: int) -> None:
        """Extend, run, advance."""
        self.cache.extend(job.holding, end)
        self.run(job, end)

    def run(self, job: Job, end: int) -> None:
        """Copies first, then the span; then the holding has advanced."""
        self.run_copies()
        self.forward(job, end)
        self.cache.advance(job.holding, end)

    def forward(self, job: Job, end: int) -> None:
        """What a model does to pages: the span from `computed` is stored, and all it reads is read."""
        start = job.holding.computed
        for component, kind in enumerate(self.kinds):
            row = self.cache.page_tables[component][job.holding.row]
            if is_state(kind):
                self.expect_state(job, component, start)
                after = of_component(job.digests(end - 1, end), component)
                self.contents.change_state(component, int(row[0]), after[0])
            else:
                first = (
                    max(start, min(end, job.holding.full_until))
                    if self.keeps_everything(component)
                    else start
                )
                self.require_own(job, component, first, end)
                self.contents.store(component, row, first, job.digests(first, end))
        for component, kind in enumerate(self.kinds):
            if not is_state(kind):
                self.expect(job, component, range(first_key(kind, start), end))

    def require_own(self, job: Job, component: int, start: int, end: int) -> None:
        """Only pages of the request's own are written to."""
        if start < end:
            entries = slice(start // self.page_size, (end - 1) // self.page_size + 1)
            pages = self.cache.page_tables[component][job.holding.row, entries]
            owners = inside(self.cache).pools[component].owners()[pages]
            assert (owners == owner_of(job.holding.row)).all(), ("written to", job.holding, pages, owners)

    def keeps_everything(self, component: int) -> bool:
        """Whether a request never lets go of what this component has of it."""
        return keeps_everything(self.kinds[component], self.cache.layout.context)

    def run_copies(self) -> None:
        self.move(self.cache.pending_copies(), self.cache.pending_discards())
        self.cache.copies_done()

    def move(self, copies: Iterable[PageCopy], discards: Iterable[Discard]) -> None:
        """What a step does before any span."""
        for copy in copies:
            self.contents.copy(copy)
        for discard in discards:
            self.contents.forget(discard.component, np.array(discard.pages))

    def forget_free(self) -> None:
        """What nobody owns holds nothing, lest a page that comes back be right by chance.

        But what a copy has still to read, of a fork whose first one has ended.
        """
        for component, pool in enumerate(inside(self.cache).pools):
            read = [copy.source for copy in self.cache.pending_copies() if copy.component == component]
            free = pool.free_pages()
            self.contents.forget(component, free[~np.isin(free, read)] if read else free)

    def settle(self, job: Job) -> None:
        self.cache.publish(job.holding, job.tokens)
        self.cache.slide(job.holding)

    def drop(self, job: Job) -> None:
        self.cache.drop(job.holding)
        self.jobs.remove(job)

    def serve(self, tokens: ArrayLike, salt: str = "", *, chunk: int = 1 << 20, cold: bool = False) -> int:
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

    def expect(self, job: Job, component: int, positions: range) -> None:
        """The job's row holds its own keys at `positions`."""
        row = self.cache.page_tables[component][job.holding.row]
        found = self.contents.read(component, row, positions.start, positions.stop)
        right = found == of_component(job.digests(positions.start, positions.stop), component)
        if not right.all():
            at = positions.start + int(right.argmin())
            page = int(row[at // self.page_size])
            raise AssertionError(
                f"request {job.holding.request} reads position {at} of {self.kinds[component].name} from "
                f"page {page}, which holds something else; {job.holding}"
            )

    def expect_state(self, job: Job, component: int, computed: int) -> None:
        """The job's own state is that after `computed` tokens; before the first it may be anything."""
        found = self.contents.state(component, self.cache.page_tables[component][job.holding.row, :1])
        if computed:
            right = of_component(job.digests(computed - 1, computed), component)
            assert found == right, ("another state", job.holding, component, computed)

    def audit(self) -> None:
        """All invariants, all contents of the tree, and all that running requests will read next."""
        check(self.cache)
        for namespace, prefix, node in self.nodes():
            self._audit_node(namespace, prefix, node)
        if not self.cache.pending_copies():
            for job in self.jobs:
                self._audit_row(job)

    def _audit_node(self, namespace: Namespace, prefix: Prefix, node: Node) -> None:
        digests = prefix_digests(namespace, np.array(prefix, np.int32))[-node.size * self.page_size :]
        for component, pages in enumerate(node.pages):
            if is_state(self.kinds[component]):
                self._audit_snapshots(component, pages, digests[self.page_size - 1 :: self.page_size])
                continue
            found = self.contents.read(component, pages.astype(np.int32), 0, len(digests))
            right = (found == of_component(digests, component)).reshape(node.size, self.page_size)
            assert (right.all(axis=1) | (pages == 0)).all(), (
                f"the tree files under {prefix} what was not computed for it: {node}, component {component}"
            )

    def _audit_snapshots(self, component: int, pages: NDArray[np.int64], digests: Digests) -> None:
        """But those that a copy has still to write."""
        copies = [c.target for c in self.cache.pending_copies() if c.component == component]
        found = self.contents.state(component, pages.astype(np.int32))
        right = (found == of_component(digests, component)) | (pages == 0) | np.isin(pages, copies)
        assert right.all(), ("another state", component, pages, right)

    def _audit_row(self, job: Job) -> None:
        computed = job.holding.computed
        for component, kind in enumerate(self.kinds):
            if is_state(kind):
                self.expect_state(job, component, computed)
            else:
                self.expect(job, component, range(first_key(kind, computed), computed))

    # ---------------------------------------------------------------- what is there

    def nodes(self) -> Iterator[tuple[Namespace, Prefix, Node]]:
        """Every node but roots, with all tokens up to its end."""
        return residency.nodes(self.cache)

    def resident(self) -> list[set[PageName]]:
        """Per component: pages in the tree, each as all tokens up to its end."""
        return residency.resident(self.cache)

    def longest_hit(self, namespace: Namespace, tokens: list[int]) -> int:
        """Where a request may begin at best, a repair included, by brute force."""
        return max(self.longest_island(namespace, tokens), self.latest_repair(namespace, tokens))

    def longest_island(self, namespace: Namespace, tokens: list[int]) -> int:
        """Where all that is needed is there."""
        return residency.longest_hit(self.cache, namespace, tokens)

    def latest_repair(self, namespace: Namespace, tokens: list[int]) -> int:
        """Where windows could be rebuilt from; never without layers."""
        return 0

    def snapshot(self) -> dict[str, Any]:
        """Everything the cache knows, comparable."""
        return snapshot(self.cache)
