# ruff: noqa: E501
"""Wrong edits to kv/, each small enough to slip into a review. `tools/mutants.py` tries them one at a time."""

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
                pool, entries = self.tree.pools[component], node.pages[component].copy()
                self._adopt(component, ours[both])
                entries[both + (first - start)] = ours[both]
                self.tree._replace(node, component, entries)
                pool.reference(theirs[both])
                pool._references[theirs[both]] = 1
                pool.unreference(theirs[both])
                pool.release(theirs[both])
"""
"""Report B: the incoming pages take the place of the tree's, which are freed whoever reads them."""

MUTANTS = (
    # ------------------------------------------------------------ the two reports
    Mutant(
        "publish-uncomputed",
        "cache.py",
        "whole = self.grids[0].floor(holding.computed)\n        if whole <= holding.published",
        "whole = self.grids[0].floor(min(holding.allocated, len(tokens)))\n        if whole <= holding.published",
        alone=BY_ITSELF,
    ),
    Mutant(
        "replace-locked-full",
        "publish.py",
        "            self._return_duplicates(component, first, ours, theirs)\n",
        REPLACE,
        alone=BY_ITSELF,
    ),
    # ------------------------------------------------------------ publish
    Mutant(
        "row-keeps-duplicates",
        "publish.py",
        "        self.rows[component].write(self.holding.row, first, np.where(both, theirs, ours))\n",
        "",
    ),
    Mutant("duplicates-unreferenced", "publish.py", "        pool.reference(theirs[both])\n", ""),
    Mutant(
        "duplicates-kept", "publish.py", "        pool.give(ours[both], owner_of(self.holding.row))\n", ""
    ),
    Mutant(
        "holes-not-filled",
        "publish.py",
        "(theirs == 0))\n            if len",
        "(theirs < 0))\n            if len",
    ),
    Mutant("holes-filled-elsewhere", "publish.py", "fresh + (first - start)", "fresh"),
    Mutant(
        "merge-what-is-published", "publish.py", "first = max(start, self.holding.published)", "first = start"
    ),
    Mutant("publish-leaves-empty-tails", "publish.py", "        self.tree.trim(path.end)\n", ""),
    Mutant("publish-is-no-use", "publish.py", "        self.tree.use(path, self.holding.kept)\n", ""),
    Mutant(
        "holes-uncounted",
        "publish.py",
        "                self.counters.add(component, holes_filled=len(fresh))\n",
        "",
    ),
    # ------------------------------------------------------------ admission
    Mutant(
        "nothing-left-to-compute",
        "cache.py",
        "self._offer(best_hit(self.tree, self.grids, namespace, as_key(tokens, len(tokens) - 1)))",
        "self._offer(best_hit(self.tree, self.grids, namespace, as_key(tokens, len(tokens))))",
    ),
    Mutant(
        "salts-meet", "cache.py", "Namespace(self.epoch, salt, request", 'Namespace(self.epoch, "", request'
    ),
    Mutant("uncached-requests-meet", "cache.py", "request if alone else None", "None"),
    Mutant(
        "stale-offer-taken",
        "cache.py",
        '        if hit.start < start:\n            raise NoSpace("prefix", start, hit.start)\n',
        "",
    ),
    Mutant(
        "offer-outgrown",
        "cache.py",
        "            if hit.start <= start:\n                return hit\n",
        "            return hit\n",
    ),
    Mutant(
        "hit-unreferenced",
        "cache.py",
        "            self.pools[component].reference(entries[entries != 0])\n            self.rows",
        "            self.rows",
    ),
    Mutant(
        "copy-source-unreferenced",
        "cache.py",
        "                self.pools[component].reference([source])\n",
        "                pass\n",
    ),
    Mutant("copy-unasked", "cache.py", "        self._require_room((1,) * len(sources))\n", ""),
    Mutant(
        "partial-page-published",
        "cache.py",
        "published=self.grids[0].floor(",
        "published=self.grids[0].ceil(",
    ),
    Mutant(
        "partial-page-not-pinned",
        "cache.py",
        "pages = np.append(pages_read(hit, component, grid), hit.partial_page(component))",
        "pages = pages_read(hit, component, grid)",
    ),
    Mutant("inexact-forgotten", "cache.py", "if partial and not hit.partial_page(c))", "if False)"),
    Mutant("inexact-published", "cache.py", "            self._give_up_inexact(holding)\n", ""),
    Mutant("admission-is-no-use", "cache.py", "        self.tree.use(hit.path, holding.kept)\n", ""),
    # ------------------------------------------------------------ extend, truncate, slide, drop
    Mutant(
        "extend-into-the-last-page",
        "cache.py",
        "first = self.grids[0].ceil(holding.allocated)\n        with",
        "first = self.grids[0].floor(holding.allocated)\n        with",
    ),
    Mutant(
        "extend-unasked",
        "cache.py",
        "            self._require_room(growth)\n            for component, count in enumerate(growth):",
        "            for component, count in enumerate(growth):",
    ),
    Mutant(
        "growth-rounds-down",
        "cache.py",
        "-(-end // page) - -(-allocated // page)",
        "end // page - allocated // page",
    ),
    Mutant(
        "truncate-cuts-the-page",
        "cache.py",
        "self.grids[0].ceil(end), self",
        "self.grids[0].floor(end), self",
    ),
    Mutant("drop-leaves-copies", "cache.py", "if pending.holding is holding])", "if pending is holding])"),
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
        "cache.py",
        "            self.rows[component].clear(holding.row, start, middle)\n",
        "",
    ),
    Mutant(
        "let-go-of-too-little",
        "cache.py",
        "middle = min(max(start, holding.published), end)",
        "middle = start",
    ),
    Mutant(
        "flush-keeps-all",
        "cache.py",
        "                purge(self.tree, root)\n\n    # ---",
        "                pass\n\n    # ---",
    ),
    Mutant("flush-hides-nothing", "cache.py", '"epoch", self.epoch + 1', '"epoch", self.epoch'),
    Mutant("reclaims-uncounted", "cache.py", "if pool.tree < pages:", "if pool.tree > pages:"),
    # ------------------------------------------------------------ what a window needs
    Mutant(
        "keep-the-last-tokens-window",
        "components.py",
        "boundary = end - end % self.page_size",
        "boundary = end",
    ),
    Mutant(
        "keep-a-page-less",
        "components.py",
        "return first_needed(self.component, boundary) // self.page_size",
        "return self.ceil(first_needed(self.component, boundary))",
    ),
    Mutant(
        "nothing-needed-is-a-page",
        "components.py",
        "return self.ceil(end) if start == end else start // self.page_size",
        "return start // self.page_size",
    ),
    Mutant(
        "every-window-is-rooted",
        "components.py",
        "first_needed(component, context) == 0",
        "first_needed(component, 1) == 0",
    ),
    Mutant(
        "a-window-of-one-reads-before",
        "components.py",
        "return all(first_needed(component, end) < end for end in range(1, context + 1))",
        "return True",
        survives="the question is asked where a hole was met, and a window of one, the only kind here that does "
        "not read before, reads no page that could be one; attention in chunks will make a difference",
    ),
    Mutant(
        "never-reads-before",
        "components.py",
        "return all(first_needed(component, end) < end for end in range(1, context + 1))",
        "return False",
    ),
    # ------------------------------------------------------------ the hit rule
    Mutant("hole-in-the-partial-page", "match.py", "or grid.needed(end) > page for", "or True for"),
    Mutant(
        "first-needed-page-unseen",
        "match.py",
        "rfind(0, grid.needed(end), pages)",
        "rfind(0, grid.needed(end) + 1, pages)",
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
        "grid.keep(hit.start), grid.floor",
        "grid.keep(hit.start) + 1, grid.floor",
    ),
    # ------------------------------------------------------------ the tree
    Mutant(
        "split-is-a-use",
        "tree.py",
        "self.orders[group].split(upper.links[group], node.links[group])",
        "self.orders[group].use(upper.links[group])",
    ),
    Mutant(
        "split-not-undone",
        "tree.py",
        "        self._journal.log(parent.children.__setitem__, first, node)\n",
        "",
    ),
    Mutant(
        "pages-not-undone",
        "tree.py",
        "        self._journal.log(self._restore, node, node.key, node.pages, node.resident)\n",
        "",
    ),
    Mutant("node-not-undone", "tree.py", "        self._journal.log(self._unlink, node)\n", ""),
    Mutant(
        "root-not-undone",
        "tree.py",
        "            self._journal.log(self.roots.__setitem__, node.namespace, node)\n",
        "",
    ),
    Mutant(
        "empty-parents-stay",
        "tree.py",
        "            self._unlink(node)\n            node = node.parent\n",
        "            self._unlink(node)\n            return\n",
    ),
    Mutant(
        "a-cut-of-one-component",
        "tree.py",
        "        for component in range(len(self.pools)):\n            resident",
        "        for component in (0,):\n            resident",
    ),
    Mutant(
        "parents-older-than-children",
        "tree.py",
        "zip(reversed(path.nodes), reversed(path.starts), strict=True)",
        "zip(path.nodes, path.starts, strict=True)",
    ),
    Mutant(
        "slid-pages-are-used",
        "tree.py",
        "if link.listed and start + node.size > first[component]:",
        "if link.listed:",
    ),
    Mutant(
        "passed-over-without-ancestors",
        "tree.py",
        "while self.rooted[component] and node.parent",
        "while False and node.parent",
    ),
    Mutant("vacant-nodes-stay-listed", "tree.py", "elif not resident and link.listed:", "elif False:"),
    Mutant(
        "siblings-unsorted", "tree.py", "insort(node.parent.order, first)", "node.parent.order.append(first)"
    ),
    Mutant(
        "shared-part-rounds-up",
        "tree.py",
        "tokens * TOKEN_BYTES // page_bytes",
        "-(-tokens * TOKEN_BYTES // page_bytes)",
    ),
    # ------------------------------------------------------------ order and reclaim
    Mutant("newest-goes-first", "recency.py", "oldest = self._ring.newer", "oldest = self._ring.older"),
    Mutant(
        "use-undone-elsewhere",
        "recency.py",
        "            self._journal.log(self._move, link, link.older)\n        else",
        "            pass\n        else",
    ),
    Mutant(
        "split-makes-new",
        "recency.py",
        "        self._move(upper, lower)\n",
        "        self._move(upper, self._ring.older)\n",
    ),
    Mutant(
        "reclaim-what-is-read",
        "reclaim.py",
        "(entries != 0) & (tree.pools[component].references(entries) == 0)",
        "entries != 0",
    ),
    Mutant(
        "windows-end-goes-first", "reclaim.py", "np.flatnonzero(idle)[:most]", "np.flatnonzero(idle)[-most:]"
    ),
    Mutant(
        "whole-leaves-go",
        "reclaim.py",
        "min(most, tree.pools[component].unreferenced(node.pages[component]))",
        "tree.pools[component].unreferenced(node.pages[component])",
    ),
    Mutant("purge-from-the-root", "reclaim.py", "return found[::-1]", "return found"),
    Mutant("vacated-nodes-untrimmed", "reclaim.py", "        tree.trim(node)\n", ""),
    Mutant(
        "windows-outlive-a-purge",
        "reclaim.py",
        "            if not tree.rooted[component]:\n",
        "            if False:\n",
    ),
    # ------------------------------------------------------------ pools, rows, counters, journal
    Mutant(
        "adopted-unread",
        "pool.py",
        "        self._references[index] = 1\n",
        "        self._references[index] = 0\n",
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
        '        assert (self._stamp[index] == order).all(), (self.name, "named twice", index)\n',
        "",
    ),
    Mutant(
        "anybody-gives",
        "pool.py",
        "        assert (self._owner[index] == owner).all(), (self.name, owner, index, self._owner[index])\n",
        "",
    ),
    Mutant(
        "released-while-read",
        "pool.py",
        "        assert not self._references[index].any(), (self.name, index, self._references[index])\n",
        "",
    ),
    Mutant(
        "below-zero",
        "pool.py",
        "        assert (self._references[index] > 0).all(), (self.name, index, self._references[index])\n",
        "",
    ),
    Mutant(
        "idle-miscounted",
        "pool.py",
        "        self.idle -= len(index) - int(np.count_nonzero(counts))",
        "        self.idle -= len(index)",
    ),
    Mutant("give-not-undone", "pool.py", "        self._journal.log(self._pop, index, owner)\n", ""),
    Mutant("adopt-not-undone", "pool.py", "        self._journal.log(self._disown, index, owner)\n", ""),
    Mutant("row-not-undone", "rows.py", "        self._journal.log(self._restore, row, start, before)\n", ""),
    Mutant(
        "admissions-not-undone",
        "stats.py",
        'self._journal.assign(self, "admissions", new)',
        "self.admissions = new",
    ),
    Mutant("every-admission-a-hit", "stats.py", "old.hits + (hit_tokens > 0)", "old.hits + 1"),
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
)
