"""Prefix matching: where a request can start computing, given the pages in the radix tree. Pure.

A hit is a position at which every component has the pages that the next token reads. Components that keep
everything have a page on the whole path, so the longest hit is the last position with resident windows and
snapshots. It may lie inside a page: then the request copies the page's first tokens.

A repair starts before the end of the path although windows are missing there, and recomputes only as many
tokens as the windows need: see `repair_start`.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from transom.kv.children import around
from transom.kv.holding import Holding, Namespace, Offer, StartPoint
from transom.kv.node import TOKEN_BYTES, Node, Path, as_key, shared_tokens
from transom.kv.page_rules import PageRule, Share
from transom.kv.pool import PagePool, as_pages
from transom.kv.radix_tree import RadixTree
from transom.values import RequestId, Tokens


class Hit(NamedTuple):
    """A start point and its pages in the tree. Valid until the tree changes; never stored.

    path    covers the whole pages that `begin` reads, and may reach further
    partial node and index of the page that the hit ends inside, unless at a page boundary
    """

    path: Path
    begin: StartPoint
    partial: tuple[Node, int] | None = None

    def shares(self, rules: tuple[PageRule, ...]) -> list[Share]:
        """One per component."""
        path, begin, partial = self
        return [rule.share(component, path, begin, partial) for component, rule in enumerate(rules)]


def start_options(
    tree: RadixTree,
    layers: tuple[int, ...],
    namespace: Namespace,
    tokens: Tokens,
    *,
    latest: int | None = None,
) -> Iterator[Hit]:
    """Hits and repairs to start from, fewest tokens to compute first. Use them before the tree changes.

    Each leaves at least one token to compute. With `latest`, each also computes the token at `latest`.
    """
    # The last token is always computed: its output is the first sampled token.
    last = max(0, len(tokens) - 1)
    key = as_key(tokens, last if latest is None else min(last, latest))
    hit = best_hit(tree, namespace, key)
    repair = repaired(hit, tree.rules, layers)
    if repair:
        yield repair
    # The start is bounded by `latest`, but full pages beyond it are still read and not stored again.
    if latest is not None and latest < last:
        hit = with_full_pages(tree, namespace, as_key(tokens, last), hit)
    if hit.begin.full_until:
        yield hit


def best_hit(tree: RadixTree, namespace: Namespace, key: bytes) -> Hit:
    """The longest hit for `key`, which may end inside a page.

    Searches backwards from the end of the path. If no hit is possible at a position, a hole is to blame that
    rules out all positions down to the hole, so the search jumps there.
    """
    path = tree.walk(namespace, key)
    scan = _HitSearch(path, tree)
    page_size, page_bytes = tree.rules[0].page_size, tree.page_bytes
    page = path.pages
    hit = scan.within(page, key[page * page_bytes : (page + 1) * page_bytes])
    while hit is None and (hole := scan.hole(page * page_size, page)) is not None:
        # Every end between the hole and here reads it. But a sibling's page may begin like the hole's.
        page = hole
        hit = scan.within(page, key[page * page_bytes : (page + 1) * page_bytes])
    return hit or scan.hit(page * page_size)


def repaired(hit: Hit, rules: tuple[PageRule, ...], layers: tuple[int, ...]) -> Hit | None:
    """The repair that rebuilds the windows at the path's end, if it computes less than `hit`; otherwise None.

    Never inside the page after the path: its tokens are computed in any case.
    """
    until = hit.path.pages * rules[0].page_size
    if not layers or hit.begin.start >= until or not any(rule.whole(1) for rule in rules):
        return None
    start = repair_start(rules, layers, until)
    # The same start as the hit would compute as much, and inexactly.
    if start <= hit.begin.start:
        return None
    exact_from = min([rule.exact_start(until, until) for rule in rules])
    assert 0 < start < until and start <= exact_from, (start, until, exact_from)
    return Hit(hit.path, StartPoint(start, until, exact_from, clip=start))


def repair_start(rules: tuple[PageRule, ...], layers: tuple[int, ...], until: int) -> int:
    """Where to start so that all layers are exact from `until` on, and each window from its `keep(until)`.

    `layers` names the component of every layer of the model, in order. Components that keep everything are
    resident up to `until`, a page boundary. The other components have nothing.

        start           keep(until)     until
        |~~~~~~~~~~~~~~~|===============|======
         inexact          windows exact   all exact

    The output of a window layer is exact at t if its keys from needed(t) on are. So each window layer, from
    the last to the first, moves the start back by a window. A full layer reads cached keys and moves nothing.
    A state depends on all tokens before it, and moves the start to 0.
    """
    assert until % rules[0].page_size == 0, (until, rules[0].page_size)
    start = until
    for component in reversed(layers):
        start = rules[component].exact_start(until, start)
    return start


def with_full_pages(tree: RadixTree, namespace: Namespace, key: bytes, hit: Hit) -> Hit:
    """`hit`, found for a part of `key`, extended by the pages that full components have for all of `key`."""
    start = hit.begin.start
    if start % tree.rules[0].page_size:
        return hit  # inside a page, full pages may not reach further: see `_HitSearch.hit`
    return _HitSearch(tree.walk(namespace, key), tree).hit(start)


def match_again(tree: RadixTree, namespace: Namespace, tokens: Tokens, begin: StartPoint) -> Hit | None:
    """The hit behind an earlier offer to start at `begin`, if the tree still has its pages.

    The tree may have grown or lost pages since the offer.
    """
    path = tree.walk(namespace, as_key(tokens, begin.full_until))
    page, within = divmod(begin.start, tree.rules[0].page_size)
    scan = _HitSearch(path, tree)
    # Components that keep everything have all pages of the path, so its length tells whether theirs are left.
    if path.pages < begin.full_until // tree.rules[0].page_size:
        return None
    if begin.is_repair:
        return Hit(path, begin)
    if not within:
        return None if scan.hole(begin.start, page) is not None else Hit(path, begin)
    # With all tokens of the page, to find the page that was offered. If by now another page shares more
    # tokens, that search finds a longer hit, so search again with the tokens up to `start` only.
    key = as_key(tokens, len(tokens) - 1)
    for end in ((page + 1) * tree.page_bytes, begin.start * TOKEN_BYTES):
        hit = scan.within(page, key[page * tree.page_bytes : end])
        if hit is not None and hit.begin == begin:
            return hit
    return None


def offer_of(begin: StartPoint, shares: list[Share], pools: tuple[PagePool, ...]) -> Offer:
    """The offer of a hit: pages that its admission would allocate and reference, by component."""
    takes, pins = [], []
    for pool, share in zip(pools, shares, strict=True):
        assert share.takes >= 0 and share.source >= 0, (begin, share)
        takes.append(share.takes)
        source = pool.unreferenced(as_pages([share.source])) if share.source else 0
        pins.append(pool.unreferenced(share.pages) + source)
    return Offer(begin, tuple(takes), tuple(pins))


def holding_of(
    hit: Hit,
    shares: list[Share],
    rules: tuple[PageRule, ...],
    request: RequestId,
    namespace: Namespace,
    row: int,
) -> Holding:
    """The holding of a request that starts at `hit`. It is not seated yet and references nothing."""
    begin = hit.begin
    assert len(shares) == len(rules), (shares, rules)
    kept, _, _, _, exact = zip(*shares, strict=True)
    return Holding(
        request=request,
        row=row,
        namespace=namespace,
        start=begin.start,
        computed=begin.start,
        allocated=begin.start,
        published=begin.start // rules[0].page_size,
        kept=kept,
        exact=exact,
        full_until=begin.full_until,
        clip=begin.clip,
    )


def partial_matches(path: Path, page: int, tail: bytes) -> Iterable[tuple[Node, int, int]]:
    """Pages that may follow `page` pages of the path and begin like `tail`, longest common beginning first.

    Yields node, page index in the node, shared tokens.
    """
    end, index = path.after(page)
    if index == end.size:
        return ((child, 0, shared) for child, shared in nearest(end, tail)) if end.children else ()
    page_bytes = len(end.key) // end.size
    shared = shared_tokens(end.key[index * page_bytes : (index + 1) * page_bytes], tail)
    return [(end, index, shared)] if shared else ()


def nearest(node: Node, tail: bytes) -> Iterator[tuple[Node, int]]:
    """The children of `node` that begin like `tail`, with the tokens shared, most first.

    Walks outwards from where `tail` would be inserted: the further away, the less a child can share.
    """
    above, below = around(node.children, tail)
    up, down = next(above, None), next(below, None)
    while True:
        shared_up = shared_tokens(up.key, tail) if up else 0
        shared_down = shared_tokens(down.key, tail) if down else 0
        if not shared_up and not shared_down:
            return
        if up and shared_up >= shared_down:
            yield up, shared_up
            up = next(above, None)
        elif down:
            yield down, shared_down
            down = next(below, None)


class _HitSearch:
    """Answers whether a hit may end at a position of one path."""

    __slots__ = ("_full", "_page_size", "_path", "_sparse")

    def __init__(self, path: Path, tree: RadixTree) -> None:
        self._path = path
        self._page_size = tree.rules[0].page_size
        # Only components with holes are examined: the others have the whole path.
        self._sparse = [
            (component, tree.rules[component], path.residency(component)) for component in tree.sparse
        ]
        self._full = path.pages * self._page_size if len(tree.sparse) < len(tree.rules) else 0

    def hit(self, start: int, partial: tuple[Node, int] | None = None) -> Hit:
        """The hit at `start`. At a page boundary, full pages may reach further than the windows.

        Inside a page they may not: the page may come from a sibling of the path. And wherever a window page
        is referenced, also as the source of a copy, the full page must be referenced too, because cutting
        unreferenced full pages off a leaf takes the window pages at the same positions along.
        """
        full_until = self._full if self._full > start and not partial else start
        assert 0 <= start <= full_until, (start, full_until)
        return Hit(self._path, StartPoint(start, full_until, start), partial)

    def hole(self, end: int, pages: int) -> int | None:
        """A hole, among the first `pages` of the path, that a hit at `end` reads, if there is one.

        No hit ends between the hole and `end`. In a run of holes within one node, returns the first, where
        every position reads the one before: no other path branches off inside a node.
        """
        assert 0 <= pages <= self._path.pages, (end, pages)
        for _, rule, resident in self._sparse:
            hole = resident.rfind(0, rule.needed(end), pages)
            if hole >= 0:
                run = resident.rfind(1, 0, hole) + 1 if rule.reads_before else hole
                return max(run, self._path.start_of(hole))
        return None

    def within(self, page: int, tail: bytes) -> Hit | None:
        """The longest hit inside the page after `page` pages of the path, where the tokens are `tail`."""
        assert page <= self._path.pages, (page, self._path.pages)
        longest, start = None, page * self._page_size
        for node, index, tokens in partial_matches(self._path, page, tail):
            if longest is not None and longest.begin.start >= start + tokens:
                break
            if self.hole(start + tokens, page) is not None:
                break  # a shorter part of the page reads at least the same whole pages
            end = self._longest_end(node, index, start, tokens)
            if end > max(start, longest.begin.start if longest else 0):
                longest = self.hit(end, (node, index))
        return longest

    def _longest_end(self, node: Node, index: int, start: int, tokens: int) -> int:
        """The last end in (start, start + tokens] at which the page allows a hit, otherwise `start`."""
        assert tokens > 0, (node, index, tokens)
        end = start + tokens
        if self._allows(node, index, end):
            return end
        if all(rule.reads_before for _, rule, _ in self._sparse):
            return start  # every end reads the token before it, so a page that is not resident allows no hit
        ends = range(end - 1, start, -1)
        return next(
            (
                e
                for e in ends
                if self.hole(e, start // self._page_size) is None and self._allows(node, index, e)
            ),
            start,
        )

    def _allows(self, node: Node, index: int, end: int) -> bool:
        """Whether page `index` of `node` allows a hit at `end`, inside it."""
        return all(
            rule.ends_within(end, bool(node.resident[component][index]))
            for component, rule, _ in self._sparse
        )
