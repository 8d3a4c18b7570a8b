# ruff: noqa: E501
"""Wrong edits to kv/, each small enough to slip into a review. `mutants.py` tries them one at a time."""

from dataclasses import dataclass
from pathlib import Path

KV = Path("src/transom/kv")


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old`, found exactly once in `file`, becomes `new`. `alone`: suites that must notice by themselves."""

    name: str
    file: str
    old: str
    new: str
    alone: tuple[str, ...] = ()
    survives: str = ""
    """Why no test can notice, where that is so."""

    def apply(self, tree: Path) -> None:
        """ValueError unless `old` is there once."""
        path = tree / KV / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {text.count(self.old)} places in {self.file}, not one")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


BY_ITSELF = ("tests/reports", "tests/exhaustive")

REPLACE = """\
            both = np.flatnonzero((ours != 0) & (theirs != 0))
            if len(both):
                pool, entries = self._tree.pools[component], node.pages[component].copy()
                pool.adopt(ours[both], owner_of(holding.row))
                entries[both + (first - start)] = ours[both]
                self._tree._replace(node, component, entries.tobytes(), (entries != 0).tobytes())
                pool.reference(theirs[both])
                pool._state[theirs[both]] = -1
                pool.unreference(theirs[both])
                pool.release(theirs[both])
"""
"""Report B: the incoming pages take the place of the tree's, which are freed whoever reads them."""

MUTANTS = (
    # ------------------------------------------------------------ repair
    Mutant(
        "repair-publishes-inexact",
        "match.py",
        "Share(kept, pages, takes, source, rule.keep(begin.full_until))",
        "Share(kept, pages, takes, source, kept)",
    ),
    Mutant(
        "repair-a-window-too-late",
        "repair.py",
        "start = min(rule.keep(until) * rule.page_size, first_needed(rule.component, start))",
        "start = min(rule.keep(until) * rule.page_size, start)",
    ),
    Mutant(
        "repair-forgets-the-page",
        "repair.py",
        "start = min(rule.keep(until) * rule.page_size, first_needed(rule.component, start))",
        "start = first_needed(rule.component, start)",
    ),
    Mutant(
        "repair-moved-by-full-layers", "repair.py", "        if not rule.keeps_all:\n", "        if True:\n"
    ),
    Mutant(
        "repair-where-a-hit-is-better",
        "match.py",
        "    if start <= hit.begin.start:\n        return None\n",
        "    if start <= 0:\n        return None\n",
    ),
    Mutant(
        "repair-clips-nothing",
        "match.py",
        "StartPoint(start, until, exact_from, clip=start)",
        "StartPoint(start, until, exact_from)",
    ),
    Mutant(
        "full-pages-found-are-given-back",
        "holding.py",
        "            found = max(found, rule.floor(self.full_until))\n",
        "            pass\n",
    ),
    Mutant(
        "full-pages-taken-twice",
        "holding.py",
        "return rule.entries(self.full_until if rule.keeps_all else self.start)",
        "return rule.entries(self.start)",
    ),
    # ------------------------------------------------------------ the two reports
    Mutant(
        "publish-uncomputed",
        "cache.py",
        "whole = self.rules[0].floor(holding.computed)\n        if whole <= holding.published",
        "whole = self.rules[0].floor(min(holding.allocated, len(tokens)))\n        if whole <= holding.published",
        alone=BY_ITSELF,
    ),
    Mutant(
        "replace-locked-full",
        "publish.py",
        "            self._return_duplicates(holding, component, first, ours, theirs)\n",
        REPLACE,
        alone=BY_ITSELF,
    ),
    # ------------------------------------------------------------ publish
    Mutant(
        "row-keeps-duplicates",
        "publish.py",
        "        self._rows[component].write(holding.row, first, np.where(both, theirs, ours))\n",
        "",
    ),
    Mutant("duplicates-unreferenced", "publish.py", "        pool.reference(theirs[both])\n", ""),
    Mutant("duplicates-kept", "publish.py", "        pool.give(ours[both], owner_of(holding.row))\n", ""),
    Mutant(
        "holes-not-filled",
        "publish.py",
        "(theirs == 0))\n            if len",
        "(theirs < 0))\n            if len",
    ),
    Mutant("holes-filled-elsewhere", "publish.py", "fresh + (first - start)", "fresh"),
    Mutant(
        "merge-what-is-published",
        "publish.py",
        "first = max(start, holding.shared(rule))",
        "first = start",
    ),
    Mutant("publish-leaves-empty-tails", "cache.py", "            self.tree.trim(path.end)\n", ""),
    Mutant(
        "publish-is-no-use",
        "cache.py",
        "            self.tree.use(path, keep, hit=False, priority=holding.priority)\n",
        "",
    ),
    Mutant(
        "holes-uncounted",
        "publish.py",
        "                self._counters.add(component, holes_filled=len(fresh))\n",
        "",
    ),
    # ------------------------------------------------------------ admission
    Mutant(
        "scores-of-what-was-found",
        "begin.py",
        "last if latest is None else min(last, latest)",
        "last",
    ),
    Mutant(
        "snapshot-never-written",
        "snapshots.py",
        "self.tree.evict_pages(node, each.copy.component, [index])",
        "pass",
    ),
    Mutant(
        "nothing-left-to-compute",
        "begin.py",
        "last = max(0, len(tokens) - 1)",
        "last = len(tokens)",
    ),
    Mutant(
        "salts-meet", "cache.py", "Namespace(self.epoch, salt, request", 'Namespace(self.epoch, "", request'
    ),
    Mutant("uncached-requests-meet", "cache.py", "request if alone else None", "None"),
    Mutant(
        "stale-offer-taken",
        "match.py",
        "    if path.pages < begin.full_until // rules[0].page_size:\n        return None\n",
        "",
    ),
    Mutant(
        "offer-outgrown",
        "match.py",
        "    for end in ((page + 1) * tree.page_bytes, begin.start * TOKEN_BYTES):",
        "    for end in ((page + 1) * tree.page_bytes,):",
    ),
    Mutant(
        "hit-unreferenced",
        "cache.py",
        "                pool.reference(present(found.pages))\n",
        "",
    ),
    Mutant(
        "copy-source-unreferenced",
        "cache.py",
        "                pool.reference(as_pages([found.source]))\n",
        "                pass\n",
    ),
    Mutant("copy-unasked", "cache.py", "        self._make_room(takes, holding.request)\n", ""),
    Mutant(
        "partial-page-published",
        "begin.py",
        "published=rules[0].floor(",
        "published=rules[0].ceil(",
    ),
    Mutant(
        "partial-page-not-pinned",
        "begin.py",
        "pins.append(pool.unreferenced(share.pages) + source)",
        "pins.append(pool.unreferenced(share.pages))",
    ),
    Mutant(
        "inexact-forgotten",
        "match.py",
        "begun_nowhere = takes and not source and rule.by_reference",
        "begun_nowhere = False",
    ),
    Mutant("inexact-published", "cache.py", "            self._give_up_inexact(holding)\n", ""),
    Mutant(
        "admission-is-no-use",
        "cache.py",
        "        self.tree.use(hit.path, holding.keeps(self.rules), hit=True, priority=holding.priority)\n",
        "",
    ),
    # ------------------------------------------------------------ extend, truncate, slide, drop
    Mutant(
        "extend-into-the-last-page",
        "holding.py",
        "rule.entries(max(allocated, self.full_until) if rule.keeps_all else allocated)",
        "rule.floor(max(allocated, self.full_until) if rule.keeps_all else allocated)",
    ),
    Mutant("extend-unasked", "cache.py", "            self._make_room(growth, holding.request)\n", ""),
    Mutant(
        "growth-rounds-down",
        "cache.py",
        "max(0, rule.entries(end) - held.covered(rule))",
        "max(0, rule.floor(end) - held.covered(rule))",
    ),
    Mutant(
        "truncate-cuts-the-page",
        "cache.py",
        "self._return_private(holding, component, holding.covered(rule), last)",
        "self._return_private(holding, component, max(0, holding.covered(rule) - 1), last)",
    ),
    Mutant(
        "drop-leaves-copies",
        "cache.py",
        "if p.holding is holding and p.snapshot_of is None",
        "if p is holding and p.snapshot_of is None",
    ),
    Mutant(
        "drop-leaves-hidden-roots",
        "cache.py",
        "            self._seat(holding.row, None)\n            self._purge_if_hidden(holding.namespace)\n",
        "            self._seat(holding.row, None)\n",
    ),
    Mutant(
        "copies-leave-hidden-roots",
        "cache.py",
        "                self._purge_if_hidden(namespace)\n",
        "                pass\n",
    ),
    Mutant(
        "slide-leaves-hidden-roots",
        "cache.py",
        "tuple(map(max, holding.kept, keep)))\n            self._purge_if_hidden(holding.namespace)\n",
        "tuple(map(max, holding.kept, keep)))\n",
    ),
    Mutant(
        "row-names-what-it-let-go",
        "page_table.py",
        "        entries[...] = _NONE\n",
        "",
    ),
    Mutant(
        "let-go-of-too-little",
        "cache.py",
        "middle = min(holding.shared(self.rules[component]), end)",
        "middle = start",
    ),
    Mutant(
        "flush-keeps-all",
        "cache.py",
        "                purge(self.tree, root)\n            self.forget",
        "                pass\n            self.forget",
    ),
    Mutant("flush-hides-nothing", "cache.py", '"epoch", self.epoch + 1', '"epoch", self.epoch'),
    Mutant("reclaims-uncounted", "eviction.py", "if pool.tree < pages:", "if pool.tree > pages:"),
    # ------------------------------------------------------------ what a window needs
    Mutant(
        "keep-the-last-tokens-window",
        "page_rules.py",
        "self._start(end - end % self.page_size)",
        "self._start(end)",
    ),
    Mutant(
        "keep-a-page-less",
        "page_rules.py",
        "return self._start(end - end % self.page_size) // self.page_size",
        "return self.ceil(self._start(end - end % self.page_size))",
    ),
    Mutant(
        "nothing-needed-is-a-page",
        "page_rules.py",
        "return -(-end // self.page_size) if start == end else start // self.page_size",
        "return start // self.page_size",
    ),
    Mutant(
        "every-window-is-keeps_all",
        "page_rules.py",
        "first_needed(component, context) == 0",
        "first_needed(component, 1) == 0",
    ),
    Mutant(
        "a-window-of-one-reads-before",
        "page_rules.py",
        "reads_before = all(map(gt, range(1, context + 1), starts[1:]))",
        "reads_before = True",
    ),
    Mutant(
        "never-reads-before",
        "page_rules.py",
        "reads_before = all(map(gt, range(1, context + 1), starts[1:]))",
        "reads_before = False",
    ),
    # ------------------------------------------------------------ the hit rule
    Mutant(
        "hole-in-the-partial-page",
        "page_rules.py",
        "return is_resident or (self.needed",
        "return True or (self.needed",
    ),
    Mutant(
        "first-needed-page-unseen",
        "match.py",
        "rfind(0, rule.needed(end), pages)",
        "rfind(0, rule.needed(end) + 1, pages)",
    ),
    Mutant("holes-cross-nodes", "match.py", "return max(run, self._path.start_of(hole))", "return run"),
    Mutant(
        "hole-ends-the-page",
        "match.py",
        "        hit = rule.within(page, key[page * page_bytes : (page + 1) * page_bytes])\n    return",
        "    return",
    ),
    Mutant("one-sibling-side", "match.py", "    below = above - 1\n", "    below = -1\n"),
    Mutant("one-sibling-a-side", "match.py", "            above += 1\n", "            above = len(order)\n"),
    Mutant(
        "row-lacks-what-it-keeps",
        "match.py",
        "pages = self.path.read(component, kept, found) if kept < found else NO_PAGES",
        "pages = self.path.read(component, kept + 1, found) if kept < found else NO_PAGES",
    ),
    # ------------------------------------------------------------ the tree
    Mutant(
        "split-is-a-use",
        "eviction_queue.py",
        "upper.last, upper.base, upper.uses = lower.last, lower.base, lower.uses",
        "upper.last, upper.base, upper.uses = self.clock.now, lower.base, lower.uses",
    ),
    Mutant(
        "split-not-undone",
        "radix_tree.py",
        "        self._journal.log(parent.children.__setitem__, first, node)\n",
        "",
    ),
    Mutant(
        "pages-not-undone",
        "radix_tree.py",
        "        self._journal.log(self._restore, node, node.key, node.runs, node.resident)\n        node.key",
        "        node.key",
    ),
    Mutant("node-not-undone", "radix_tree.py", "        self._journal.log(self._unlink, node)\n", ""),
    Mutant(
        "root-not-undone",
        "radix_tree.py",
        "            self._journal.log(self.roots.__setitem__, node.space, node)\n",
        "",
    ),
    Mutant(
        "empty-parents-stay",
        "radix_tree.py",
        "            self._unlink(node)\n            node = node.parent\n",
        "            self._unlink(node)\n            return\n",
    ),
    Mutant(
        "a-cut-of-one-component",
        "radix_tree.py",
        "        return taken\n",
        "        return taken[:1]\n",
    ),
    Mutant(
        "parents-older-than-children",
        "radix_tree.py",
        "not (self.keeps_all[component] and node.children)",
        "not False",
    ),
    Mutant(
        "slid-pages-are-used",
        "radix_tree.py",
        "nodes = path.nodes[after - 1 :] if after else path.nodes",
        "nodes = path.nodes",
    ),
    Mutant(
        "passed-over-without-ancestors",
        "eviction_queue.py",
        "        self._journal.log(self._unpark, link)\n        link.parked = True\n",
        "        self._journal.log(self._unpark, link)\n",
    ),
    Mutant(
        "vacant-nodes-stay-listed",
        "radix_tree.py",
        "            elif link.listed:\n                order.leave(link)",
        "            elif False:\n                order.leave(link)",
    ),
    Mutant(
        "siblings-unsorted",
        "radix_tree.py",
        "insort(node.parent.order, first)",
        "node.parent.order.append(first)",
    ),
    Mutant(
        "shared-part-rounds-up",
        "radix_tree.py",
        "tokens * TOKEN_BYTES // page_bytes",
        "-(-tokens * TOKEN_BYTES // page_bytes)",
    ),
    # ------------------------------------------------------------ order and reclaim
    Mutant(
        "newest-goes-first",
        "eviction_policy.py",
        "        return (link.last, 0)\n\n\nclass LeastFrequently",
        "        return (-link.last, 0)\n\n\nclass LeastFrequently",
    ),
    Mutant(
        "use-undone-elsewhere", "eviction_queue.py", "        self._journal.log(self._restore, before)\n", ""
    ),
    Mutant(
        "first-listing-not-undone",
        "eviction_queue.py",
        "            self._journal.log(self._unborn, link, (link.last, link.base, link.uses))\n",
        "",
    ),
    Mutant(
        "split-makes-new",
        "eviction_queue.py",
        "upper.born, upper.priority, upper.serial = lower.born",
        "upper.born, upper.priority, upper.serial = self.clock.now",
    ),
    Mutant(
        "reclaim-what-is-read",
        "eviction.py",
        "return tree.pools[component].idle_among(node.runs[component])",
        "return node.resident[component]",
    ),
    Mutant(
        "windows-end-goes-first",
        "eviction.py",
        "first = idle.find(1)",
        "first = idle.rfind(1) + 1 - count",
    ),
    Mutant(
        "whole-leaves-go",
        "eviction.py",
        "min(most, tree.pools[component].unreferenced(pages_of(node.runs[component])))",
        "tree.pools[component].unreferenced(pages_of(node.runs[component]))",
    ),
    Mutant("purge-from-the-root", "eviction.py", "return found[::-1]", "return found"),
    Mutant("vacated-nodes-untrimmed", "eviction.py", "    tree.trim(node)\n", ""),
    Mutant(
        "windows-outlive-a-purge",
        "eviction.py",
        "            if not tree.keeps_all[component]:\n",
        "            if False:\n",
    ),
    # ------------------------------------------------------------ pools, rows, counters, journal
    Mutant(
        "adopted-unread",
        "pool.py",
        "        self._state[index] = TREE - 1\n",
        "        self._state[index] = TREE\n",
    ),
    Mutant(
        "released-still-idle",
        "pool.py",
        "        self.tree -= len(index)\n        self.idle -= len(index)\n",
        "        self.tree -= len(index)\n",
    ),
    Mutant(
        "twice-in-one-call",
        "pool.py",
        '            assert self._marked[pages].tobytes() == marks.tobytes(), (self.name, "named twice", pages)\n',
        "",
    ),
    Mutant(
        "anybody-gives",
        "pool.py",
        "        assert self._all_are(pages, state), (self.name, state, pages, self._state[pages])\n",
        "",
    ),
    Mutant(
        "released-while-read",
        "pool.py",
        "        self._require(index, TREE)\n",
        "",
    ),
    Mutant(
        "below-zero",
        "pool.py",
        '        assert fewest > 0, (self.name, "read by nobody", index, state)\n',
        "",
    ),
    Mutant(
        "idle-miscounted",
        "pool.py",
        "            self.idle -= len(index) - int(_count_nonzero(state))",
        "            self.idle -= len(index)",
    ),
    Mutant("give-not-undone", "pool.py", "        self._journal.log(self._pop, index, owner)\n", ""),
    Mutant("adopt-not-undone", "pool.py", "        self._journal.log(self._disown, index, owner)\n", ""),
    Mutant(
        "row-not-undone",
        "page_table.py",
        "        self._journal.log(self._restore, row, start, before)\n",
        "",
    ),
    Mutant(
        "admissions-not-undone",
        "stats.py",
        'self._journal.assign(self, "admissions", new)',
        "self.admissions = new",
    ),
    Mutant(
        "every-admission-a-hit",
        "stats.py",
        "old.hits + (begin.start > 0 and not begin.is_repair)",
        "old.hits + 1",
    ),
    Mutant("undone-oldest-first", "journal.py", "self._undos.pop()", "self._undos.pop(0)"),
    Mutant("inner-block-forgets-outer", "journal.py", "        if not self._depth:\n", "        if True:\n"),
    # ------------------------------------------------------------ sizes
    Mutant(
        "chunk-unsized",
        "layout.py",
        "np.minimum(computed + chunk, tokens)",
        "np.minimum(computed + 1, tokens)",
    ),
    Mutant("any-size-works", "layout.py", "        if pages < least:\n", "        if pages < 1:\n"),
    Mutant("one-pool-suffices", "layout.py", "return all(most <= pages", "return any(most <= pages"),
    # ------------------------------------------------------------ what is remembered, and in which order
    Mutant(
        "price-kept-while-pinned", "radix_tree.py", "        if not node.pinned:  #", "        if True:  #"
    ),
    Mutant(
        "price-outlives-undoing",
        "radix_tree.py",
        "        node.size = len(resident[0])\n        node.forget_prices()\n",
        "        node.size = len(resident[0])\n",
    ),
    Mutant(
        "price-outlives-holes",
        "radix_tree.py",
        "        node.runs, node.resident = tuple(runs), tuple(resident)\n        node.forget_prices()\n",
        "        node.runs, node.resident = tuple(runs), tuple(resident)\n",
    ),
    Mutant("ascending-out-of-order", "eviction_queue.py", "or entry > ascending[-1])", "or True)"),
    Mutant(
        "price-of-what-is-useless", "radix_tree.py", "elif price and earliest >= price.island:", "elif price:"
    ),
    Mutant("batch-of-what-is-read", "eviction.py", "    while 0 in idle:", "    while False:"),
    Mutant("batch-before-others", "eviction_queue.py", "not entry < until or (heap", "(heap"),
    Mutant("batch-before-its-heap", "eviction_queue.py", " or (heap and heap[0] < entry):", ":"),
    Mutant("batch-of-what-was-used-since", "eviction_queue.py", " or link.last != entry[1]:", ":"),
    Mutant(
        "least-of-one-queue",
        "eviction_queue.py",
        "heap[0] < ascending[0] if heap and ascending",
        "False if heap",
    ),
    Mutant(
        "read-of-anybody",
        "pool.py",
        """        assert fewest >= 0, (self.name, "not the tree's", index, state)\n""",
        "",
    ),
    Mutant("reading-not-undone", "pool.py", "        self._journal.log(self._end_read, index)\n", ""),
    Mutant("told-under-another-name", "radix_tree.py", "(*node.above, upper.key)", "node.above"),
    # ---- budget, orders, states, fork, pins, events
    Mutant(
        "budget-forgets-idle", "budget.py", "self.limit - self.in_use() + idle", "self.limit - self.in_use()"
    ),
    Mutant("nothing-is-discarded", "budget.py", "        while over > 0:", "        while False:"),
    Mutant(
        "discards-what-is-used-again", "budget.py", "if page in untouched[discard.component]]", "if page]"
    ),
    Mutant(
        "room-covers-all-bytes", "room.py", "return self._bytes(need) <= self.bytes and all(", "return all("
    ),
    Mutant("span-too-long-for-bytes", "room.py", "short = self._bytes(need) - self.bytes", "short = 0"),
    Mutant(
        "useless-is-useful",
        "radix_tree.py",
        "rank = RANK_USELESS if there.find(1, 0, island) >= 0 else RANK_USEFUL",
        "rank = RANK_USEFUL",
    ),
    Mutant(
        "no-slack",
        "page_rules.py",
        "return need - 1 - start if need > start else 0",
        "return need + 1 - start if need > start else 0",
    ),
    Mutant(
        "prompt-end-is-no-boundary",
        "publish.py",
        "extend = self._tree.grow if is_boundary else self._tree.lengthen",
        "extend = self._tree.lengthen",
    ),
    Mutant("parting-forgotten", "radix_tree.py", "not end.children and not end.branched", "not end.children"),
    Mutant(
        "ages-with-islands-only",
        "eviction.py",
        "RANK_USELESS and tree.ages",
        "RANK_USELESS and tree.gives_whole",
    ),
    Mutant("loops-by-age", "eviction_policy.py", "-link.last if price.whole else link.last", "link.last"),
    Mutant("every-use-counts", "eviction_policy.py", "if price.branched else 1.0", "if link else 1.0"),
    Mutant("half-a-stretch", "eviction.py", "node.size if tree.gives_whole else most", "most"),
    Mutant(
        "begin-on-a-page-kept", "page_rules.py", " and self.keep((page + 1) * self.page_size) > page)", ")"
    ),
    Mutant(
        "snapshot-anywhere",
        "page_rules.py",
        "cut for cut in self.component.cuts(start, end) if cut % self.page_size == 0",
        "cut for cut in self.component.cuts(start, end)",
    ),
    Mutant(
        "lost-snapshot-is-written",
        "snapshots.py",
        "if p.snapshot_of is None or self.tree",
        "if True or self.tree",
    ),
    Mutant("readers-left-behind", "snapshots.py", "_reading(p, copy.source) if p in moved else p", "p"),
    Mutant(
        "fork-copies-too-little",
        "fork.py",
        "min(size, holding.computed - entry * size)",
        "min(size, holding.computed - entry * size) - 1",
    ),
    Mutant(
        "fork-shares-unreferenced",
        "fork.py",
        "            cache.pools[component].reference(entries[entries != 0])\n",
        "",
    ),
    Mutant("pins-for-ever", "pins.py", "pin.until <= self._log.step", "False"),
    Mutant("pins-without-limit", "pins.py", "if pin.tokens > left:", "if False:"),
    Mutant("undone-is-told", "events.py", "        self._journal.log(self._forget, self.next)\n", ""),
    Mutant(
        "hidden-is-told",
        "events.py",
        "if namespace.epoch != self.epoch or namespace.private is not None:",
        "if False:",
    ),
    Mutant(
        "explains-another-hole",
        "explain.py",
        "min(rule.needed(end), path.pages)",
        "min(rule.needed(end) + 1, path.pages)",
    ),
    Mutant(
        "shares-a-token-more", "node.py", "return int(differs.argmax())", "return int(differs.argmax()) + 1"
    ),
)
