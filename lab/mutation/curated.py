"""Wrong edits that tests must notice: the bugs of the two reports, and other instructive ones.

An edit names a function of a package and a pattern of its syntax tree, so that moves between modules,
reformatting and renames of variables do not break it. In a pattern `_` stands for any expression and `...`
for any arguments: `_.drop(...)` is the call of a method `drop`. In the replacement `{0}`, `{1}` are the texts
that the `_` stand for, and `{all}` is the whole text.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from lab.mutation.edits import (
    PRODUCT,
    ROOT,
    Change,
    Edit,
    FunctionNode,
    Text,
    functions,
    generated,
    own_nodes,
    source_of,
)

DROPPED = "pass"


@dataclass(frozen=True, slots=True)
class Curated:
    """In `function`, the one place that matches `pattern` becomes `new`.

    `seed` is of a simulated lifetime that broke with it when this was written: tests try it first. Each suite
    of `alone` must notice the edit without help from another suite.
    """

    name: str
    package: str
    function: str
    pattern: str
    new: str
    seed: int = 0
    alone: tuple[str, ...] = ()

    def edit(self) -> Edit:
        """Raises ValueError unless the function and the place in it exist once."""
        found = [
            (module, node) for module, name, node in _all_functions(self.package) if name == self.function
        ]
        if len(found) != 1:
            raise ValueError(
                f"{self.name}: {len(found)} functions {self.function} in {self.package}, not one"
            )
        module, function = found[0]
        text = Text(source_of(module))
        changes = list(self._changes(text, function))
        if len(changes) != 1:
            raise ValueError(
                f"{self.name}: {len(changes)} places match {self.pattern} in {self.function}, not one"
            )
        return Edit(module, self.function, self.name, 0, changes[0][0], (changes[0][1],))

    def _changes(self, text: Text, function: FunctionNode) -> Iterator[tuple[int, Change]]:
        (pattern,) = ast.parse(self.pattern).body
        wanted: ast.AST = pattern
        if isinstance(pattern, ast.Expr) and not self._replaces_statement():
            wanted = pattern.value
        for node in own_nodes(function):
            bound: list[ast.expr] = []
            if isinstance(node, ast.expr | ast.stmt) and _matches(wanted, node, bound):
                new = self.new.format(*(text.of(each) for each in bound), all=text.of(node))
                yield node.lineno, text.replace(node, new)

    def _replaces_statement(self) -> bool:
        try:
            ast.parse(self.new.format(*["x"] * 9, all="x"), mode="eval")
        except SyntaxError:
            return True
        return False


def _all_functions(package: str) -> Iterator[tuple[str, str, FunctionNode]]:
    for path in sorted((ROOT / PRODUCT / package).glob("*.py")):
        module = f"{package}.{path.stem}"
        for name, node in functions(ast.parse(source_of(module))):
            yield module, name, node


def _matches(pattern: object, node: object, bound: list[ast.expr]) -> bool:
    """Whether a tree has the shape of a pattern. Expressions that `_` stands for are added to `bound`."""
    match pattern, node:
        case ast.Name(id="_"), ast.expr():
            bound.append(node)
            return True
        case ast.Call(args=[*_, ast.Constant(value=value)]), ast.Call() if value is ...:
            count = len(pattern.args) - 1
            return _matches(pattern.func, node.func, bound) and _matches(
                pattern.args[:count], node.args[:count], bound
            )
        case ast.AST(), ast.AST():
            return type(pattern) is type(node) and all(
                _matches(getattr(pattern, name), getattr(node, name), bound)
                for name in pattern._fields
                if name not in ("ctx", "kind", "type_comment")
            )
        case list(), list():
            return len(pattern) == len(node) and all(
                _matches(one, other, bound) for one, other in zip(pattern, node, strict=True)
            )
    return pattern == node


# ---------------------------------------------------------------- the edits

BY_THEMSELVES = ("tests/reports", "tests/exhaustive")

REPLACE_LOCKED_FULL = (
    "both = np.flatnonzero((ours != 0) & (theirs != 0)); "
    "pool, entries = self._tree.pools[component], node.pages[component].copy(); "
    "pool.adopt(ours[both], owner_of(holding.row)); "
    "entries[both + (first - start)] = ours[both]; "
    "self._tree._replace(node, component, entries.tobytes(), (entries != 0).tobytes()); "
    "pool.reference(theirs[both]); "
    "pool._state[theirs[both]] = -1; "
    "pool.unreference(theirs[both]); "
    "pool.free_evicted(theirs[both])"
)
"""The pages of the request take the place of the tree's, which are freed whether or not a row reads them."""

REPORT_A = Curated(
    "a deferred chunk is filed as if computed (report A)",
    "kv",
    "HybridCache.publish",
    "_.computed // _",
    "min({0}.allocated, len(tokens)) // {1}",
    alone=BY_THEMSELVES,
)
REPORT_B = Curated(
    "locked full pages are replaced (report B)",
    "kv",
    "Publisher._merge",
    "_._return_duplicates(...)",
    REPLACE_LOCKED_FULL,
    alone=BY_THEMSELVES,
)

KV = (
    REPORT_A,
    REPORT_B,
    Curated(
        "a page is freed twice", "kv", "HybridCache._free_private", "_.free_private(...)", "{all}; {all}"
    ),
    Curated("references of a hit are skipped", "kv", "HybridCache._begin", "_.reference(...)", DROPPED),
    Curated(
        "the page to copy from is not referenced",
        "kv",
        "HybridCache._allocate_own",
        "_.reference(...)",
        DROPPED,
    ),
    Curated("pages of a dropped request are leaked", "kv", "HybridCache.drop", "_._let_go(...)", DROPPED),
    Curated("pages are taken without making room", "kv", "HybridCache.extend", "_._evict_for(...)", DROPPED),
    Curated("inexact pages are published", "kv", "HybridCache.publish", "_._let_go_of_inexact(...)", DROPPED),
    Curated("a flush keeps the epoch", "kv", "HybridCache.flush", "_ + 1", "{0}"),
    Curated(
        "salts share prefixes",
        "kv",
        "HybridCache.namespace",
        "Namespace(_, _, _)",
        'Namespace({0}, "", {2})',
        seed=1,
    ),
    Curated(
        "holes are not filled", "kv", "Publisher._merge", "(_ != 0) & (_ == 0)", "({0} != 0) & ({1} < 0)"
    ),
    Curated("a row keeps its duplicates", "kv", "Publisher._return_duplicates", "_.write(...)", DROPPED),
    Curated(
        "duplicates are read without a reference",
        "kv",
        "Publisher._return_duplicates",
        "_.reference(...)",
        DROPPED,
    ),
    Curated("duplicates are not freed", "kv", "Publisher._return_duplicates", "_.free_private(...)", DROPPED),
    Curated("a repair starts a window too late", "kv", "SlidingPages.exact_start", "min(_, _)", "{0}"),
    Curated(
        "a repair reads before its start",
        "kv",
        "repaired",
        "StartPoint(_, _, _, clip=_)",
        "StartPoint({0}, {1}, {2})",
    ),
    Curated("a hit is the whole prompt", "kv", "start_options", "max(0, len(_) - 1)", "len({0})"),
    Curated("a hit reads a hole", "kv", "_HitSearch.hole", "_.rfind(0, _, _)", "{0}.rfind(0, {1} + 1, {2})"),
    Curated(
        "a page that a row reads is evicted",
        "kv",
        "Freed.leave_holes",
        "_.idle_among(_)",
        "node.resident[component]",
    ),
    Curated("a row names what it let go", "kv", "PageTable.clear", "_[...] = _", DROPPED),
    Curated("the oldest change is undone first", "kv", "Journal.unwind", "_.pop()", "{0}.pop(0)"),
    Curated("a page's change of owner is not undone", "kv", "PagePool.adopt", "_.log(...)", DROPPED),
    Curated("an undone event is told", "kv", "EventLog.record", "_.log(...)", DROPPED),
    Curated("a fork shares without references", "kv", "share_pages", "_.reference(...)", DROPPED),
    Curated("a copy lacks a token", "kv", "PageRule.slots", "min(_, _)", "{all} - 1"),
    Curated(
        "a withdrawn snapshot stays", "kv", "SnapshotKeeper.withdraw", "_.evict_pages(...)", DROPPED, seed=159
    ),
    Curated("the most recently used goes first", "kv", "LeastRecentlyUsed.priority", "_.last_used", "-{all}"),
)

SCHED = (
    Curated(
        "a chunk prepared and put off is filed as if computed (report A)",
        "sched",
        "Requests.publish_and_drop",
        "_.truncate(...)",
        "holding.allocated > holding.computed < victim.progress.length"
        " and self._cache.advance(holding, min(holding.allocated, victim.progress.length)); {all}",
        seed=92,
    ),
    Curated("a result is applied unchecked", "sched", "_compute", "_check(...)", DROPPED, seed=6),
    Curated(
        "copies of a failed step count as made",
        "sched",
        "Scheduler.fail",
        "_.copies_failed()",
        "frozenset({0}.copies_done() or ())",
        seed=159,
    ),
    Curated(
        "a retracted request samples its last token again",
        "sched",
        "Requests.retract",
        "_.retractions += 1",
        "{all}; victim.progress.length -= victim.progress.outputs > 0",
        seed=68,
    ),
    Curated(
        "a retracted request is in no queue", "sched", "Requests.retract", "_.wait(...)", DROPPED, seed=39
    ),
    Curated(
        "seniors are retracted for juniors",
        "sched",
        "PlanBuilder.retract_for",
        "_[:_:-1]",
        "{0}[::-1]",
        seed=18,
    ),
    Curated(
        "pages of an aborted request are leaked", "sched", "Requests.end", "_.drop(...)", DROPPED, seed=1
    ),
    Curated(
        "pages of a request aborted in flight are leaked",
        "sched",
        "Requests.drop_ended_in_flight",
        "_.drop(...)",
        DROPPED,
        seed=17,
    ),
    Curated(
        "a waiting request that is aborted ends twice",
        "sched",
        "Requests.stop",
        "(_.ended(_.progress, _, _),)",
        "{all} * 2",
        seed=6,
    ),
    Curated(
        "deadlines hold for running requests alone",
        "sched",
        "Scheduler.expire",
        "_.stop(...)",
        "({all} if request in self._requests.running else ())",
        seed=24,
    ),
    Curated(
        "a request that waits for a prefix is never looked at again",
        "sched",
        "AdmissionBuilder.consider",
        "_.waits_for_prefix(...)",
        "(progress in (seen := globals().setdefault('seen', set())) or {all} and not seen.add(progress))",
        seed=44,
    ),
    Curated("a readmission counts as cached", "sched", "Requests.admit", "not _.admissions", "True", seed=41),
    Curated(
        "a request aborted in flight gets its token", "sched", "Scheduler.apply", "_ or _", "True", seed=5
    ),
    Curated("a pause pauses nothing", "sched", "Scheduler.plan", "_.paused", "False", seed=39),
    Curated(
        "weights change under running requests",
        "sched",
        "Scheduler.update_due",
        "_ is None or len(_) or _ is not None",
        "{0} is None",
        seed=100,
    ),
    Curated(
        "prefixes outlive their weights", "sched", "Scheduler.weights_changed", "_.flush()", DROPPED, seed=13
    ),
    Curated("a repair reads before its start", "sched", "_work", "_.clip", "0", seed=18),
    Curated("full pages of a hit are stored again", "sched", "_work", "_.full_until", "0", seed=2),
    Curated(
        "siblings get each other's tokens",
        "sched",
        "Results.apply",
        "zip(_, _.siblings, strict=True)",
        "zip({0}, {1}.siblings[::-1], strict=True)",
        seed=4,
    ),
    Curated(
        "the last row stays empty", "sched", "SchedulerView.rows_free", "_ - len(_)", "{all} - 1", seed=9
    ),
    Curated(
        "no page is held back for the oldest",
        "sched",
        "_hold_back_for_oldest",
        "is_decode(_)",
        "True",
        seed=67,
    ),
    Curated("a step exceeds its budget", "sched", "PlanBuilder.add_chunk", "_.budget -= _", DROPPED, seed=6),
)

CURATED = KV + SCHED


def by_name(name: str) -> Curated:
    (found,) = [each for each in CURATED if each.name == name]
    return found


def by_id(edit_id: str) -> Edit:
    """A generated edit, by its id."""
    module = edit_id.partition(":")[0]
    (found,) = [edit for edit in generated(module, source_of(module)) if edit.id == edit_id]
    return found
