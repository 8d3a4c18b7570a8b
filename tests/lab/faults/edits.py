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
    """In one function, given as `module:name`, `old`, found there exactly once, becomes `new`.

    `seed` is of a life that broke with it when this was written: it is looked at first.
    """

    name: str
    seed: int
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
        92,
        "requests:Requests.publish_and_drop",
        "    self._cache.truncate(holding, holding.computed)\n",
        "    if holding.allocated > holding.computed and victim.progress.length > holding.computed:\n"
        "        self._cache.advance(holding, min(holding.allocated, victim.progress.length))\n"
        "    self._cache.truncate(holding, holding.computed)\n",
    ),
    Edit(
        "an answer is applied before anybody looks whether it is one",
        6,
        "loop:_compute",
        "        _check(step, result)\n",
        "",
    ),
    Edit(
        "copies of a step that failed count as made",
        159,
        "scheduler:Scheduler.fail",
        "copied = self._cache.copies_failed()",
        "copied = frozenset(self._cache.copies_done() or ())",
    ),
    Edit(
        "a retracted request says its last token again",
        68,
        "requests:Requests.retract",
        "    victim.progress.retractions += 1\n",
        "    victim.progress.retractions += 1\n    victim.progress.length -= victim.progress.outputs > 0\n",
    ),
    Edit(
        "a retracted request is in no queue",
        39,
        "requests:Requests.retract",
        "    self.wait(victim.progress)\n",
        "",
    ),
    Edit(
        "seniors are retracted for juniors",
        18,
        "draft:PlanBuilder.retract_for",
        "self.view.running[:position:-1]",
        "self.view.running[::-1]",
    ),
    Edit(
        "pages of who is aborted are leaked",
        1,
        "requests:Requests.end",
        "        self._cache.drop(running.holding)\n",
        "        pass\n",
    ),
    Edit(
        "pages of who is aborted in flight are leaked",
        17,
        "requests:Requests.drop_ended_in_flight",
        "        self._cache.drop(holding)\n",
        "        pass\n",
    ),
    Edit(
        "who waits and is aborted ends twice",
        6,
        "requests:Requests.stop",
        "return (self.ended(waiting.progress, reason, message),)",
        "return (self.ended(waiting.progress, reason, message),) * 2",
    ),
    Edit(
        "deadlines do not hold for those who wait",
        24,
        "scheduler:Scheduler.expire",
        "for request in passed for",
        "for request in passed if request in self._requests.running for",
    ),
    Edit(
        "who waits for a prefix is never woken",
        44,
        "admission:AdmissionBuilder.consider",
        "    if not is_starved and self.in_flight.is_worth_waiting_for(namespace, reusable, cached=hit):\n",
        "    waited = globals().setdefault('waited', set())\n"
        "    if not is_starved and (\n"
        "        progress in waited or self.in_flight.is_worth_waiting_for(namespace, reusable, cached=hit)\n"
        "    ):\n"
        "        waited.add(progress)\n",
    ),
    Edit(
        "coming back counts as cached",
        41,
        "requests:Requests.admit",
        "    if not progress.admissions:\n",
        "    if True:\n",
    ),
    Edit(
        "who was aborted in flight is given its token",
        5,
        "scheduler:Scheduler.apply",
        "if all_unfinished or self._requests.is_unfinished(scheduled.running):",
        "if True:",
    ),
    Edit("a pause pauses nothing", 39, "scheduler:Scheduler.plan", "if self._lifecycle.paused:", "if False:"),
    Edit(
        "weights change under those who run",
        100,
        "scheduler:Scheduler.update_due",
        "if update is None or len(self._requests.running) or self._requests.in_flight is not None:",
        "if update is None:",
    ),
    Edit(
        "prefixes outlive the weights they were computed with",
        13,
        "scheduler:Scheduler.weights_changed",
        "    self._cache.flush()\n",
        "",
    ),
    Edit("a repair reads what is not there", 18, "scheduler:_work", "holding.clip,", "0,"),
    Edit(
        "full pages that were found are stored again",
        2,
        "scheduler:_work",
        "holding.full_until,",
        "0,",
    ),
    Edit(
        "siblings say each other's tokens",
        4,
        "results:Results.apply",
        "zip(siblings, result.siblings, strict=True)",
        "zip(siblings, result.siblings[::-1], strict=True)",
    ),
    Edit(
        "the last row is given to nobody",
        9,
        "plan:SchedulerView.rows_free",
        "self.cache.layout.rows) - len",
        "self.cache.layout.rows) - 1 - len",
    ),
    Edit(
        "the lead has no place kept", 67, "planner:_hold_back_for_oldest", "if is_decode(oldest):", "if True:"
    ),
    Edit(
        "the step may be longer than the budget",
        6,
        "draft:PlanBuilder.add_chunk",
        "    self.budget -= len(entry.span)\n",
        "",
    ),
)
