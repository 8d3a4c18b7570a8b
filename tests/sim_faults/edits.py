# ruff: noqa: E501
"""Wrong edits to sched/, each small enough to slip into a review, made to the code that runs and undone again."""

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType


@dataclass(frozen=True, slots=True)
class Edit:
    """In one function, given as `module:name`, `old`, found there exactly once, becomes `new`."""

    name: str
    where: str
    old: str
    new: str

    @contextmanager
    def made(self) -> Iterator[None]:
        """ValueError unless `old` is there once."""
        function = self._function()
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: {source.count(self.old)} places in {self.where}, not one")
        found: dict[str, FunctionType] = {}
        exec(source.replace(self.old, self.new).replace("@property\n", ""), function.__globals__, found)
        code = function.__code__
        function.__code__ = found[function.__name__].__code__
        try:
            yield
        finally:
            function.__code__ = code

    def _function(self) -> FunctionType:
        module, _, names = self.where.partition(":")
        found: object = import_module(f"transom.sched.{module}")
        for name in names.split("."):
            found = inspect.getattr_static(found, name)
        function = found.fget if isinstance(found, property) else found
        assert isinstance(function, FunctionType), (self.where, function)
        return function


EDITS = (
    Edit(
        "a chunk prepared and put off is filed as if computed",
        "roster:Roster.give_back",
        "    self._cache.truncate(holding, holding.computed)\n",
        "    if holding.allocated > holding.computed and victim.progress.length > holding.computed:\n"
        "        self._cache.advance(holding, min(holding.allocated, victim.progress.length))\n"
        "    self._cache.truncate(holding, holding.computed)\n",
    ),
    Edit(
        "an answer is applied before anybody looks whether it is one",
        "turn:_compute",
        "        _check(step, result)\n",
        "",
    ),
    Edit(
        "copies of a step that failed count as made",
        "scheduler:Scheduler.fail",
        "copied = self._cache.copies_failed()",
        "copied = frozenset(self._cache.copies_done() or ())",
    ),
    Edit(
        "a retracted request says its last token again",
        "roster:Roster.retract",
        "    victim.progress.retractions += 1\n",
        "    victim.progress.retractions += 1\n    victim.progress.length -= victim.progress.outputs > 0\n",
    ),
    Edit(
        "a retracted request is in no queue",
        "roster:Roster.retract",
        "    self.wait(victim.progress)\n",
        "",
    ),
    Edit(
        "seniors are retracted for juniors",
        "draft:Draft.make_room",
        "self.situation.running[:position:-1]",
        "self.situation.running[::-1]",
    ),
    Edit(
        "pages of who is aborted are leaked",
        "roster:Roster.end",
        "        self._cache.drop(running.holding)\n",
        "        pass\n",
    ),
    Edit(
        "pages of who is aborted in flight are leaked",
        "roster:Roster.drop_those_that_left",
        "        self._cache.drop(holding)\n",
        "        pass\n",
    ),
    Edit(
        "who waits and is aborted ends twice",
        "roster:Roster.stop",
        "return (self.ended(waiting.progress, reason, message),)",
        "return (self.ended(waiting.progress, reason, message),) * 2",
    ),
    Edit(
        "deadlines do not hold for those who wait",
        "scheduler:Scheduler.expire",
        "for request in passed for",
        "for request in passed if request in self._roster.running for",
    ),
    Edit(
        "who waits for a prefix is never woken",
        "admission:_Desk.consider",
        "    if not urgent and self._is_promised(progress, namespace, offers[0]):\n",
        "    waited = globals().setdefault('waited', set())\n"
        "    if not urgent and (progress in waited or self._is_promised(progress, namespace, offers[0])):\n"
        "        waited.add(progress)\n",
    ),
    Edit(
        "coming back counts as cached",
        "roster:Roster.begin",
        "    if not progress.admissions:\n",
        "    if True:\n",
    ),
    Edit(
        "who was aborted in flight is given its token",
        "scheduler:Scheduler.apply",
        "if self._roster.goes_on(scheduled.running):",
        "if True:",
    ),
    Edit("a pause pauses nothing", "scheduler:Scheduler.plan", "if self._gate.paused:", "if False:"),
    Edit(
        "weights change under those who run",
        "scheduler:Scheduler.update_due",
        "if update is None or len(self._roster.running) or self._roster.in_flight is not None:",
        "if update is None:",
    ),
    Edit(
        "prefixes outlive the weights they were computed with",
        "scheduler:Scheduler.weights_changed",
        "    self._cache.flush()\n",
        "",
    ),
    Edit("a repair reads what is not there", "scheduler:_work", "clip=holding.clip", "clip=0"),
    Edit(
        "full pages that were found are stored again",
        "scheduler:_work",
        "store_from=holding.full_until",
        "store_from=0",
    ),
    Edit(
        "siblings say each other's tokens",
        "results:Results.apply",
        "zip(scheduled.siblings, found.siblings, strict=True)",
        "zip(scheduled.siblings, found.siblings[::-1], strict=True)",
    ),
    Edit(
        "the senior waits for others' prefixes like everybody",
        "intents:Situation.is_urgent",
        "return first and self.turns - senior.since > self.limits.patience_steps",
        "return False",
    ),
    Edit("the lead has no place kept", "planning:_secure_lead", "if _is_decode(lead):", "if True:"),
    Edit(
        "the step may be longer than the budget",
        "draft:Draft.add",
        "    self.budget -= len(intent.span)\n",
        "",
    ),
)
