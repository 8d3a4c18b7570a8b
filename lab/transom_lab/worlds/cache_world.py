"""A cache with requests that are driven by hand, and page contents that are checked at every read."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transom.kv.cache import CacheLayout, Holding, HybridCache, Namespace, Offer
from transom.kv.check import check, inside
from transom.kv.node import Node
from transom.kv.pool import owner_of
from transom.steps import Discard, PageCopy
from transom.values import RequestId, Tokens
from transom_lab.worlds import residency
from transom_lab.worlds.contents import (
    Chain,
    Digests,
    Model,
    PageContents,
    Repair,
    after_layer,
    chain_of,
    of_layer,
    prefix_digests,
    totals,
)
from transom_lab.worlds.mixes import first_key, is_state, keeps_everything
from transom_lab.worlds.repair_oracle import Mask, latest_start
from transom_lab.worlds.residency import PageName, Prefix
from transom_lab.worlds.snapshot import snapshot


@dataclass(eq=False)
class Job:
    """One request and its holding. Mutable: sampled tokens are appended to `tokens`."""

    holding: Holding
    tokens: Tokens
    _chains: tuple[Tokens, Chain, Chain] | None = field(default=None, repr=False)

    def chains(self, model: Model) -> tuple[Chain, Chain]:
        """The chain that this request must compute, and a cold run's. They differ inside a repair only."""
        if self._chains is None or self._chains[0] is not self.tokens:
            held = self.holding
            embedded = prefix_digests(held.namespace, self.tokens)
            cold = own = chain_of(model, embedded)
            if held.clip:
                own = chain_of(model, embedded, (Repair(held.clip, held.full_until), cold))
            self._chains = self.tokens, own, cold
        return self._chains[1:]


class CacheWorld:
    """Owns a cache, the requests that hold its rows, and the contents of its pages. Mutable."""

    def __init__(self, layout: CacheLayout) -> None:
        self.layout = layout
        self.kinds = layout.components
        self.page_size = layout.page_size
        self.cache = HybridCache(layout)
        self.model = Model.of(layout)
        self.contents = PageContents(layout)
        self.jobs: list[Job] = []
        self.next_id = 0

    def keeps_everything(self, component: int) -> bool:
        """Whether a request never frees pages of this component before it ends."""
        return keeps_everything(self.kinds[component], self.layout.context)

    # ---------------------------------------------------------------- a request's life

    def offer(self, tokens: ArrayLike, salt: str = "") -> tuple[Namespace, Offer]:
        namespace = self.cache.namespace(RequestId(self.next_id), salt)
        return namespace, self.cache.offer(namespace, np.asarray(tokens, dtype=np.int32))

    def admit(self, tokens: ArrayLike, salt: str = "", *, cold: bool = False) -> Job:
        """Admits a request by its best offer, or cold. Raises NoSpace."""
        array = np.asarray(tokens, dtype=np.int32)
        namespace, offer = self.offer(array, salt)
        return self.admit_by(array, namespace, self.cache.cold() if cold else offer)

    def admit_by(self, tokens: Tokens, namespace: Namespace, offer: Offer) -> Job:
        """Admits a request by an offer that was made now or earlier. Raises NoSpace."""
        job = Job(self.cache.admit(RequestId(self.next_id), namespace, tokens, offer), tokens)
        self.next_id += 1
        self.jobs.append(job)
        return job

    def compute(self, job: Job, end: int) -> None:
        """Allocates pages up to `end`, and computes up to it. Raises NoSpace."""
        self.cache.extend(job.holding, end)
        self.run(job, end)

    def run(self, job: Job, end: int) -> None:
        """A step of one span: pending copies, the span [computed, end), then `advance`."""
        self.run_copies()
        self.forward([(job, end)])
        self.cache.advance(job.holding, end)

    def run_copies(self) -> None:
        self.move(self.cache.pending_copies(), self.cache.pending_discards())
        self.cache.copies_done()

    def settle(self, job: Job) -> None:
        self.cache.publish(job.holding, job.tokens)
        self.cache.slide(job.holding)

    def drop(self, job: Job) -> None:
        self.cache.drop(job.holding)
        self.jobs.remove(job)

    def serve(self, tokens: ArrayLike, salt: str = "", *, chunk: int = 1 << 20, cold: bool = False) -> int:
        """Serves a whole request alone. Returns the position at which it started to compute."""
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

    # ---------------------------------------------------------------- a step

    def move(self, copies: Iterable[PageCopy], discards: Iterable[Discard]) -> None:
        """The part of a step that precedes all spans."""
        for copy in copies:
            self.contents.copy(copy)
        for discard in discards:
            self.contents.clear(discard.component, np.array(discard.pages))

    def forward(self, spans: Sequence[tuple[Job, int]]) -> list[list[Mask]]:
        """Computes [computed, end) of each job as a batched forward pass does: layer by layer, writes first.

        Keys are read through the rows, and each layer must leave the digests that tokens alone determine.
        Returns per span, for each layer, which tokens entered it exact, and last which left the model exact.
        """
        starts = [job.holding.computed for job, _ in spans]
        hidden = [
            prefix_digests(job.holding.namespace, job.tokens)[start:end]
            for (job, end), start in zip(spans, starts, strict=True)
        ]
        for layer in range(len(self.contents.layers)):
            reads = []
            for (job, _), start, entering in zip(spans, starts, hidden, strict=True):
                reads.append(self._store(job, layer, entering, start))
            for number, ((job, _), start) in enumerate(zip(spans, starts, strict=True)):
                state = reads[number]
                read = self._read(job, layer, start, len(hidden[number])) if state is None else state
                hidden[number] = after_layer(hidden[number], read)
                self._require_chain(job, layer, start, hidden[number])
        followed = []
        for (job, end), start in zip(spans, starts, strict=True):
            own, cold = job.chains(self.model)
            pairs = zip(own.entering, cold.entering, strict=True)
            masks = [one[start:end] == other[start:end] for one, other in pairs]
            # Only a repair may compute inexact tokens, and only where full pages were resident already.
            must = max(0, job.holding.full_until - start) if job.holding.clip else 0
            assert masks[-1][must:].all(), ("computed from inexact keys", job.holding, start, masks[-1])
            followed.append(masks)
        return followed

    def _require_chain(self, job: Job, layer: int, start: int, hidden: Digests) -> None:
        """The digests after a layer are right. If not, names the key that was read wrong."""
        right = job.chains(self.model)[0].entering[layer + 1][start : start + len(hidden)]
        if not np.array_equal(hidden, right):
            kind = self.kinds[self.contents.layers[layer]]
            if not is_state(kind):
                clip = 0 if self.keeps_everything(self.contents.layers[layer]) else job.holding.clip
                self.exact_keys(job, layer, max(clip, first_key(kind, start)), start + len(hidden))
            raise AssertionError(("another chain", job.holding, layer, start, hidden == right))

    def _store(self, job: Job, layer: int, hidden: Digests, start: int) -> Digests | None:
        """Writes the keys that the layer would store. A repair stores no full keys that are resident.

        Returns what each token reads of a state, which the span itself moves on; None for keys.
        """
        component, end = self.contents.layers[layer], start + len(hidden)
        row, keys = self.row(job, component), of_layer(hidden, layer)
        if is_state(self.kinds[component]):
            self.expect_state(job, layer, start)
            before = self.contents.state(layer, row[:1]) if start else np.zeros(1, np.uint64)
            states: Digests = before + totals(keys, start)[1:]
            self.contents.set_state(layer, int(row[0]), states[-1])
            return states
        first = max(start, min(end, job.holding.full_until)) if self.keeps_everything(component) else start
        self._require_own(job, component, first, end)
        self.contents.store(layer, row, first, keys[first - start :])
        return None

    def _read(self, job: Job, layer: int, start: int, count: int) -> Digests:
        """The sum of the keys that each token reads, through the row."""
        component = self.contents.layers[layer]
        clip = 0 if self.keeps_everything(component) else job.holding.clip
        firsts = np.maximum(self.model.firsts(layer, start, start + count), clip)
        low = int(firsts[0])
        sums = totals(self.contents.read(layer, self.row(job, component), low, start + count), low)
        read: Digests = sums[start - low + 1 :] - sums[firsts - low]
        return read

    def _require_own(self, job: Job, component: int, start: int, end: int) -> None:
        """A request writes only to pages that it owns."""
        if start < end:
            entries = slice(start // self.page_size, (end - 1) // self.page_size + 1)
            pages = self.row(job, component)[entries]
            owners = inside(self.cache).pools[component].owners()[pages]
            assert (owners == owner_of(job.holding.row)).all(), ("written to", job.holding, pages, owners)

    def spoil(self, job: Job, end: int, garbage: np.uint64) -> None:
        """Leaves the span [computed, end) as a step that fails half way does: empty keys, a broken state."""
        for layer, component in enumerate(self.contents.layers):
            row, kind = self.row(job, component), self.kinds[component]
            first = job.holding.computed
            if is_state(kind):
                self.contents.set_state(layer, int(row[0]), garbage)
                continue
            if self.keeps_everything(component):
                first = max(first, job.holding.full_until)
            if first < end:
                entries = slice(first // self.page_size, (end - 1) // self.page_size + 1)
                self.contents.clear(component, row[entries])

    def clear_free_pages(self) -> None:
        """Empties every page without an owner, so that a page that is reused is never right by chance.

        A page that a pending copy still reads keeps its contents: a fork may outlive the request it copies.
        """
        for component, pool in enumerate(inside(self.cache).pools):
            read = [copy.source for copy in self.cache.pending_copies() if copy.component == component]
            free = pool.free_pages()
            self.contents.clear(component, free[~np.isin(free, read)] if read else free)

    # ---------------------------------------------------------------- content

    def row(self, job: Job, component: int) -> NDArray[np.int32]:
        """The job's page ids in a component."""
        pages: NDArray[np.int32] = self.cache.page_tables[component][job.holding.row]
        return pages

    def exact_keys(self, job: Job, layer: int, start: int, end: int) -> Mask:
        """Which of the job's keys at [start, end) are exact. Asserts that all of them are its own."""
        component = self.contents.layers[layer]
        found = self.contents.read(layer, self.row(job, component), start, end)
        right, cold = (chain.keys[layer][start:end] for chain in job.chains(self.model))
        exact: Mask = found == cold
        own = found == right
        if not own.all():
            at = start + int(own.argmin())
            page = int(self.row(job, component)[at // self.page_size])
            raise AssertionError(
                f"request {job.holding.request} reads position {at} of {self.kinds[component].name}, layer "
                f"{layer}, from page {page}, which holds another key; {job.holding}"
            )
        return exact

    def expect(self, job: Job, layer: int, positions: range) -> None:
        """Asserts that the job's row holds exact keys of its own at `positions`."""
        exact = self.exact_keys(job, layer, positions.start, positions.stop)
        assert exact.all(), ("reads an inexact key", job.holding, layer, positions, exact)

    def expect_state(self, job: Job, layer: int, computed: int) -> None:
        """Asserts that the job's state is the one after `computed` tokens. Before the first it is unset."""
        found = self.contents.state(layer, self.row(job, self.contents.layers[layer])[:1])
        if computed:
            right = job.chains(self.model)[0].keys[layer][computed - 1 : computed]
            assert found == right, ("another state", job.holding, layer, computed)

    def audit(self) -> None:
        """Asserts all invariants of the cache, all cached contents, and the keys that each job reads next."""
        check(self.cache)
        self.audit_contents()

    def audit_contents(self) -> None:
        """Asserts the contents of the tree, and of the pages that each job reads next."""
        for namespace, prefix, node in self.nodes():
            self._audit_node(namespace, prefix, node)
        if not self.cache.pending_copies():
            for job in self.jobs:
                self.audit_job(job)

    def audit_job(self, job: Job) -> None:
        """Asserts that every key and state that the job's next token reads is its own and exact."""
        computed, held = job.holding.computed, job.holding
        for layer, component in enumerate(self.contents.layers):
            kind = self.kinds[component]
            if is_state(kind):
                self.expect_state(job, layer, computed)
            elif self.keeps_everything(component):
                self.expect(job, layer, range(max(computed, held.full_until)))
            elif computed < held.full_until and held.clip:
                # In the middle of a repair the window may hold inexact keys, but no foreign ones.
                self.exact_keys(job, layer, max(first_key(kind, computed), held.clip), computed)
            else:
                self.expect(job, layer, range(first_key(kind, computed), computed))

    def _audit_node(self, namespace: Namespace, prefix: Prefix, node: Node) -> None:
        chain = chain_of(self.model, prefix_digests(namespace, np.array(prefix, np.int32)))
        for layer, component in enumerate(self.contents.layers):
            pages, right = node.pages[component], chain.keys[layer][-node.size * self.page_size :]
            if is_state(self.kinds[component]):
                self._audit_snapshots(layer, pages, right[self.page_size - 1 :: self.page_size])
                continue
            found = self.contents.read(layer, pages, 0, len(right))
            shape = node.size, self.page_size
            is_exact = (found == right).reshape(shape).all(axis=1)
            where = (prefix, node, layer)
            assert (is_exact | (pages == 0)).all(), ("was not computed for this prefix, or inexact", *where)

    def _audit_snapshots(self, layer: int, pages: NDArray[np.int64], right: Digests) -> None:
        """Snapshots that a pending copy has yet to write are left out."""
        component = self.contents.layers[layer]
        copies = [c.target for c in self.cache.pending_copies() if c.component == component]
        found = self.contents.state(layer, pages)
        is_right = (found == right) | (pages == 0) | np.isin(pages, copies)
        assert is_right.all(), ("another state", layer, pages, is_right)

    # ---------------------------------------------------------------- the tree

    def nodes(self) -> Iterator[tuple[Namespace, Prefix, Node]]:
        """Every node except roots, with all tokens up to its end."""
        return residency.nodes(self.cache)

    def resident(self) -> list[set[PageName]]:
        """Per component: the pages in the tree, each named by all tokens up to its end."""
        return residency.resident(self.cache)

    def longest_hit(self, namespace: Namespace, tokens: list[int]) -> int:
        """The best start of a request, repairs included, by brute force."""
        return max(self.longest_island(namespace, tokens), self.latest_repair(namespace, tokens))

    def longest_island(self, namespace: Namespace, tokens: list[int]) -> int:
        """The best start at which every key that is needed is resident, by brute force."""
        return residency.longest_hit(self.cache, namespace, tokens)

    def latest_repair(self, namespace: Namespace, tokens: list[int]) -> int:
        """The best start of a repair, by brute force. 0 without layers or beside a recurrent state.

        No window of tokens restores a state, so a cache that has one offers no repair.
        """
        if not self.layout.layers or any(map(is_state, self.kinds)):
            return 0
        whole = [c for c in range(len(self.kinds)) if self.keeps_everything(c)]
        resident = self.resident()
        until = 0
        while whole and until + self.page_size < len(tokens):
            page = (namespace, tuple(tokens[: until + self.page_size]))
            if not all(page in resident[c] for c in whole):
                break
            until += self.page_size
        kinds = tuple(self.kinds[component] for component in self.layout.layers)
        return latest_start(kinds, self.page_size, self.layout.context, until)

    def snapshot(self) -> dict[str, Any]:
        """Everything the cache knows, comparable."""
        return snapshot(self.cache)
