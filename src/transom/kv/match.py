"""Ways to begin: the longest prefix that has what every component needs, and repair beyond it. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from transom.kv.holding import Holding, Namespace, Offer, StartPoint
from transom.kv.page_rules import PageRule, first_needed
from transom.kv.pool import PagePool, Pages, as_pages
from transom.kv.radix_tree import NO_PAGES, TOKEN_BYTES, Node, Path, PrefixTree, as_key, shared_tokens
from transom.values import RequestId, Tokens


class Share(NamedTuple):
    """What a hit finds in one component.

    kept   the first entry a row has
    pages  entries from there on. Holes only before what `start` needs
    takes  pages that must be the request's own from the beginning: that `start` lies in, and a state
    source the page of the tree to copy that from: the partial one, or a snapshot. 0 if there is none
    exact  the first page that may be published, of those the request computes
    """

    kept: int
    pages: Pages
    takes: int
    source: int
    exact: int


class Hit(NamedTuple):
    """Where to begin, and what is there. Valid until the tree changes; never kept.

    path    covers the whole pages that `begin` reads, and may reach further
    partial the node and page index that hold the page an island hit ends in, None at a page boundary
    """

    path: Path
    begin: StartPoint
    partial: tuple[Node, int] | None = None

    def shares(self, rules: tuple[PageRule, ...]) -> list[Share]:
        """By component."""
        return [self.share(component, rule) for component, rule in enumerate(rules)]

    def share(self, component: int, rule: PageRule) -> Share:
        """Of one component."""
        begin = self.begin
        start, keeps_all, is_repair = begin.start, rule.keeps_all, begin.clip > 0
        # A repair finds no window, so its row has none before its start.
        kept = rule.floor(start) if is_repair and not keeps_all else rule.first_entry(start)
        found = rule.shared((begin.full_until if keeps_all else start) // rule.page_size)
        assert found <= self.path.pages, (self, component, found)
        pages = self.path.read(component, kept, found) if kept < found else NO_PAGES
        takes = 0 if keeps_all and begin.full_until > start else rule.own(start)
        source = self.copied_from(component, rule) if takes else 0
        if is_repair and rule.by_reference:
            return Share(kept, pages, takes, source, rule.keep(begin.full_until))
        begun_nowhere = takes and not source and rule.by_reference
        return Share(kept, pages, takes, source, rule.ceil(start) if begun_nowhere else kept)

    def copied_from(self, component: int, rule: PageRule) -> int:
        """The page of the tree that begins as the one of `start` does, or that has the state there."""
        place = rule.snapshot_page(self.begin.start)
        if place is not None:
            return int(self.path.read(component, place, place + 1)[0])
        if self.partial is None:
            return 0
        node, index = self.partial
        return node.page(component, index)


def start_options(
    tree: PrefixTree,
    rules: tuple[PageRule, ...],
    layers: tuple[int, ...],
    namespace: Namespace,
    tokens: Tokens,
    *,
    latest: int | None = None,
) -> Iterator[Hit]:
    """Hits and repairs to start from, fewest tokens to compute first. Use them before the tree changes.

    Each leaves at least one token to compute. With `latest`, each also computes the token at `latest`.
    """
    last = max(0, len(tokens) - 1)
    key = as_key(tokens, last if latest is None else min(last, latest))
    hit = best_hit(tree, rules, namespace, key)
    repair = repaired(hit, rules, layers)
    if repair:
        yield repair
    if latest is not None and latest < last:
        hit = with_full_pages(tree, rules, namespace, as_key(tokens, last), hit)
    if hit.begin.full_until:
        yield hit


def best_hit(tree: PrefixTree, rules: tuple[PageRule, ...], namespace: Namespace, key: bytes) -> Hit:
    """The longest hit for all of `key`, which may end within a page."""
    path = tree.walk(namespace, key)
    scan = _PathRules(path, rules)
    page_size, page_bytes = rules[0].page_size, tree.page_bytes
    page = path.pages
    hit = scan.within(page, key[page * page_bytes : (page + 1) * page_bytes])
    while hit is None and (hole := scan.hole(page * page_size, page)) is not None:
        # Every end between the hole and here needs it; but another page may begin as the hole's does.
        page = hole
        hit = scan.within(page, key[page * page_bytes : (page + 1) * page_bytes])
    return hit or scan.hit(page * page_size)


def repaired(hit: Hit, rules: tuple[PageRule, ...], layers: tuple[int, ...]) -> Hit | None:
    """The way to begin at the path's end with its windows rebuilt, if that computes less than `hit` does.

    Not within the next page: its tokens are computed in any case.
    """
    until = hit.path.pages * rules[0].page_size
    if not layers or hit.begin.start >= until or not any(rule.keeps_all for rule in rules):
        return None
    if not all(rule.by_reference for rule in rules):
        return None  # a state is not rebuilt from any window of tokens
    start = repair_start(rules, layers, until)
    if start <= hit.begin.start:
        return None
    exact_from = min(rule.keep(until) for rule in rules if not rule.keeps_all) * rules[0].page_size
    assert 0 < start < until and start <= exact_from, (start, until, exact_from)
    return Hit(hit.path, StartPoint(start, until, exact_from, clip=start))


def repair_start(rules: tuple[PageRule, ...], layers: tuple[int, ...], until: int) -> int:
    """Where to begin so that everything is exact from `until` on, and each window from its `keep(until)`.

    `layers` names the component of every layer of the model, in order. Components that keep everything are
    resident up to `until`, which is a page boundary; of the others nothing is.

        start           keep(until)     until
        |~~~~~~~~~~~~~~~|===============|======
         inexact          windows exact   all exact

    The output of a window layer is exact at t if its keys from needed(t) on are: so each layer, from the last
    to the first, moves the start back by a window. A full layer reads keys that are there, and adds nothing.
    """
    assert until % rules[0].page_size == 0, (until, rules[0].page_size)
    start = until
    for component in reversed(layers):
        rule = rules[component]
        if not rule.keeps_all:
            start = min(rule.keep(until) * rule.page_size, first_needed(rule.component, start))
    return start


def with_full_pages(
    tree: PrefixTree, rules: tuple[PageRule, ...], namespace: Namespace, key: bytes, hit: Hit
) -> Hit:
    """`hit`, made for a part of `key`, with the full pages that are there of all of it."""
    start = hit.begin.start
    if start % rules[0].page_size:
        return hit
    return _PathRules(tree.walk(namespace, key), rules).hit(start)


def found_again(
    tree: PrefixTree, rules: tuple[PageRule, ...], namespace: Namespace, tokens: Tokens, begin: StartPoint
) -> Hit | None:
    """What `begin` was offered on for `tokens`, if the tree, which may have grown, still has it."""
    path = tree.walk(namespace, as_key(tokens, begin.full_until))
    page, within = divmod(begin.start, rules[0].page_size)
    scan = _PathRules(path, rules)
    if path.pages < begin.full_until // rules[0].page_size:
        return None
    if begin.is_repair:
        return Hit(path, begin)
    if not within:
        return None if scan.hole(begin.start, page) is not None else Hit(path, begin)
    # With all of the page's tokens, to find the page offered; with fewer, if by now more of it is shared.
    key = as_key(tokens, len(tokens) - 1)
    for end in ((page + 1) * tree.page_bytes, begin.start * TOKEN_BYTES):
        hit = scan.within(page, key[page * tree.page_bytes : end])
        if hit is not None and hit.begin == begin:
            return hit
    return None


def offer_of(hit: Hit, rules: tuple[PageRule, ...], pools: tuple[PagePool, ...]) -> Offer:
    """What admission at `hit` would take and reference, by component."""
    takes, pins = [], []
    for pool, share in zip(pools, hit.shares(rules), strict=True):
        assert share.takes >= 0 and share.source >= 0, (hit, share)
        takes.append(share.takes)
        source = pool.unreferenced(as_pages([share.source])) if share.source else 0
        pins.append(pool.unreferenced(share.pages) + source)
    return Offer(hit.begin, tuple(takes), tuple(pins))


def holding_of(
    hit: Hit,
    shares: list[Share],
    rules: tuple[PageRule, ...],
    request: RequestId,
    namespace: Namespace,
    row: int,
) -> Holding:
    """The holding of a request that begins at `hit`: not seated yet, nothing referenced."""
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
        published=rules[0].floor(begin.start),
        kept=kept,
        exact=exact,
        full_until=begin.full_until,
        clip=begin.clip,
    )


def candidates(path: Path, page: int, tail: bytes) -> Iterable[tuple[Node, int, int]]:
    """Pages that begin like `tail` after `page` pages of the path: node, index, tokens; most shared first."""
    end, index = path.after(page)
    if index == end.size:
        found = nearest(end.order, tail) if end.order else ()
        return ((end.children[first], 0, shared) for first, shared in found)
    page_bytes = len(end.key) // end.size
    shared = shared_tokens(end.key[index * page_bytes : (index + 1) * page_bytes], tail)
    return [(end, index, shared)] if shared else ()


def nearest(order: list[bytes], tail: bytes) -> Iterator[tuple[bytes, int]]:
    """Of sorted pages, those sharing a beginning with `tail`, most first: outward from its place."""
    above = bisect_left(order, tail)
    below = above - 1
    while True:
        up = shared_tokens(order[above], tail) if above < len(order) else 0
        down = shared_tokens(order[below], tail) if below >= 0 else 0
        if not up and not down:
            return
        if up >= down:
            yield order[above], up
            above += 1
        else:
            yield order[below], down
            below -= 1


class _PathRules:
    """`needed` of every component against what the path has. Rooted components have the whole path."""

    __slots__ = ("_full", "_page_size", "_path", "_sparse")

    def __init__(self, path: Path, rules: tuple[PageRule, ...]) -> None:
        self._path = path
        self._page_size = rules[0].page_size
        self._sparse = [(c, rule, path.residency(c)) for c, rule in enumerate(rules) if not rule.keeps_all]
        self._full = path.pages * self._page_size if len(self._sparse) < len(rules) else 0

    def hit(self, start: int, partial: tuple[Node, int] | None = None) -> Hit:
        """At `start`. Full pages may reach further, from a page boundary on.

        Within a page not: its windows may come from a sibling, and a copy's source is never a window page
        whose full page nobody reads.
        """
        full_until = self._full if self._full > start and not partial else start
        assert 0 <= start <= full_until, (start, full_until)
        return Hit(self._path, StartPoint(start, full_until, start), partial)

    def hole(self, end: int, pages: int) -> int | None:
        """A hole among the first `pages` of the path that a hit at `end` reads; no hit lies between.

        Of a run of holes in one node the first is as good as the last: nothing ends or branches off within.
        """
        assert 0 <= pages <= self._path.pages, (end, pages)
        for _, rule, resident in self._sparse:
            hole = resident.rfind(0, rule.needed(end), pages)
            if hole >= 0:
                run = resident.rfind(1, 0, hole) + 1 if rule.reads_before else hole
                return max(run, self._path.start_of(hole))
        return None

    def within(self, page: int, tail: bytes) -> Hit | None:
        """The longest hit inside the page after `page` pages of the path, whose tokens go on with `tail`."""
        assert page <= self._path.pages, (page, self._path.pages)
        found, start = None, page * self._page_size
        for node, index, tokens in candidates(self._path, page, tail):
            if found is not None and found.begin.start >= start + tokens:
                break
            if self.hole(start + tokens, page) is not None:
                break  # a shorter part of the page needs at least the same whole pages
            end = self._longest_end(node, index, start, tokens)
            if end > max(start, found.begin.start if found else 0):
                found = self.hit(end, (node, index))
        return found

    def _longest_end(self, node: Node, index: int, start: int, tokens: int) -> int:
        """The last end in (start, start + tokens] that the page `index` allows; `start` if there is none."""
        assert tokens > 0, (node, index, tokens)
        end = start + tokens
        if self._reads(node, index, end):
            return end
        if all(rule.reads_before for _, rule, _ in self._sparse):
            return start  # each end reads what comes before it in the page
        ends = range(end - 1, start, -1)
        return next(
            (
                e
                for e in ends
                if self.hole(e, start // self._page_size) is None and self._reads(node, index, e)
            ),
            start,
        )

    def _reads(self, node: Node, index: int, end: int) -> bool:
        """Whether page `index` of `node` allows a hit at `end` within it."""
        return all(
            rule.ends_within(end, bool(node.resident[component][index]))
            for component, rule, _ in self._sparse
        )
