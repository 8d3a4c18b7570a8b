"""A world whose runner has layers: it knows which keys are exact, by following what each layer reads.

A slot of a layer holds a digest of all tokens up to its own, or, where its token was computed from keys that
were missing or themselves inexact, a digest that says so. Nothing here uses the core's formulas.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transom.kv.cache import Namespace
from transom.kv.component_specs import ComponentSpec
from transom.kv.node import Node
from transom.steps import PageCopy
from transom_lab.fuzz.contents import Contents, Digests, of_component, prefix_digests
from transom_lab.fuzz.kinds import first_key, keeps_everything
from transom_lab.fuzz.residency import Prefix
from transom_lab.fuzz.world import Job, World

Mask = NDArray[np.bool_]
INEXACT = np.uint64(0x5DEECE66D1CE4E5B)


def exact_after(kind: ComponentSpec, exact: Mask, start: int) -> Mask:
    """Of the tokens from `start` on, nothing before which this layer finds: whose output is exact."""
    return np.array(
        [
            first_key(kind, t) >= start and bool(exact[first_key(kind, t) - start : t - start + 1].all())
            for t in range(start, start + len(exact))
        ],
        dtype=np.bool_,
    )


def is_enough(kinds: tuple[ComponentSpec, ...], page_size: int, context: int, until: int, start: int) -> bool:
    """Whether who computes from `start` has all windows of `until` exact, and the token at `until`."""
    exact = np.ones(until + 1 - start, dtype=np.bool_)
    for kind in kinds:
        if keeps_everything(kind, context):
            continue
        first = first_key(kind, until) // page_size * page_size
        if first < start or not exact[first - start :].all():
            return False
        exact = exact_after(kind, exact, start)
    return bool(exact[-1])


@cache
def latest_start(kinds: tuple[ComponentSpec, ...], page_size: int, context: int, until: int) -> int:
    """The last position from which that is so, by trying all; 0 always is."""
    starts = range(until, 0, -1)
    return next((s for s in starts if is_enough(kinds, page_size, context, until, s)), 0)


class LayeredContents(Contents):
    """One run of slots per layer; a component's pages are its layers' pages."""

    def __init__(self, pages: tuple[int, ...], page_size: int, layers: tuple[int, ...]) -> None:
        super().__init__(tuple(pages[component] for component in layers), page_size)
        self.layers = layers

    def of(self, component: int) -> list[int]:
        return [layer for layer, each in enumerate(self.layers) if each == component]

    def put(self, layer: int, row: NDArray[np.int32], positions: NDArray[np.int64], digests: Digests) -> None:
        pages = row[positions // self._page_size].astype(np.int64)
        assert pages.all(), ("stored into the null page", layer, positions, pages)
        self._slots[layer][pages * self._page_size + positions % self._page_size] = digests

    def copy(self, copy: PageCopy) -> None:
        for layer in self.of(copy.component):
            super().copy(PageCopy(layer, copy.source, copy.target, copy.tokens))

    def forget(self, component: int, pages: NDArray[np.int64]) -> None:
        for layer in self.of(component):
            super().forget(layer, pages)


class LayeredWorld(World):
    """A world that is offered repairs, and judges them."""

    contents: LayeredContents

    def __init__(
        self,
        kinds: tuple[ComponentSpec, ...],
        pages: tuple[int, ...],
        page_size: int,
        layers: tuple[int, ...],
        **keywords: Any,
    ) -> None:
        super().__init__(kinds, pages, page_size, layers=layers, **keywords)
        self.layers = layers
        self.contents = LayeredContents(pages, page_size, layers)

    # ---------------------------------------------------------------- a step

    def forward(self, job: Job, end: int) -> None:
        """Layer by layer. What is computed after the full pages end must be exact, whatever came before."""
        start = job.holding.computed
        exact = np.ones(end - start, dtype=np.bool_)
        for layer in range(len(self.layers)):
            self._store(job, layer, exact, start)
            exact = self._read(job, layer, exact, start)
        must = max(0, job.holding.full_until - start) if job.holding.clip else 0
        assert exact[must:].all(), ("computed from what is not exact", job.holding, start, exact)

    def _store(self, job: Job, layer: int, exact: Mask, start: int) -> None:
        component = self.layers[layer]
        positions = np.arange(start, start + len(exact))
        right = of_component(job.digests(start, start + len(exact)), layer)
        digests = np.where(exact, right, right ^ INEXACT)
        until = job.holding.full_until if self.keeps_everything(component) else 0
        self.require_own(job, component, max(start, until), start + len(exact))
        stored = positions >= until
        row = self.cache.page_tables[component][job.holding.row]
        self.contents.put(layer, row, positions[stored], digests[stored])

    def _read(self, job: Job, layer: int, exact: Mask, start: int) -> Mask:
        """Whose keys are all there and exact. A key that is another's is an error."""
        component, end = self.layers[layer], start + len(exact)
        kind, clip = self.kinds[component], 0 if self.keeps_everything(component) else job.holding.clip
        low = max(clip, first_key(kind, start))
        right = np.concatenate([np.zeros(low, np.bool_), self._exact(job, layer, low, end)])
        firsts = [first_key(kind, t) for t in range(start, end)]
        reads = [first >= clip and right[first : start + i + 1].all() for i, first in enumerate(firsts)]
        return exact & np.array(reads, dtype=np.bool_)

    def _exact(self, job: Job, layer: int, start: int, end: int) -> Mask:
        """Of positions [start, end): whether they are exact, asserting that they are the job's own."""
        row = self.cache.page_tables[self.layers[layer]][job.holding.row]
        found = self.contents.read(layer, row, start, end)
        right = of_component(job.digests(start, end), layer)
        own = (found == right) | (found == right ^ INEXACT)
        assert own.all(), ("reads positions of another", job.holding, layer, start, found, right)
        return np.asarray(found == right)

    # ---------------------------------------------------------------- content

    def _audit_node(self, namespace: Namespace, prefix: Prefix, node: Node) -> None:
        digests = prefix_digests(namespace, np.array(prefix, np.int32))[-node.size * self.page_size :]
        for layer, component in enumerate(self.layers):
            pages = node.pages[component]
            found = self.contents.read(layer, pages.astype(np.int32), 0, len(digests))
            right = (found == of_component(digests, layer)).reshape(node.size, self.page_size)
            assert (right.all(axis=1) | (pages == 0)).all(), ("filed what is not exact", prefix, node, layer)

    def _audit_row(self, job: Job) -> None:
        computed, held = job.holding.computed, job.holding
        for layer, component in enumerate(self.layers):
            first = first_key(self.kinds[component], computed)
            if self.keeps_everything(component):
                assert self._exact(job, layer, 0, max(computed, held.full_until)).all(), (held, layer)
            elif computed < held.full_until and held.clip:
                self._exact(job, layer, max(first, held.clip), computed)
            else:
                assert self._exact(job, layer, first, computed).all(), (held, layer, first)

    # ---------------------------------------------------------------- oracle

    def latest_repair(self, namespace: Namespace, tokens: list[int]) -> int:
        whole = [c for c in range(len(self.kinds)) if self.keeps_everything(c)]
        resident = self.resident()
        until = 0
        while whole and until + self.page_size < len(tokens):
            page = (namespace, tuple(tokens[: until + self.page_size]))
            if not all(page in resident[c] for c in whole):
                break
            until += self.page_size
        kinds = tuple(self.kinds[component] for component in self.layers)
        return latest_start(kinds, self.page_size, self.cache.layout.context, until)
