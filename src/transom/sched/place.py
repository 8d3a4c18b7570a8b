"""Who finds place for a whole life in a plan: first by limits, which is certain, then by what is expected."""

import numpy as np

from transom.kv.budget import Capacity
from transom.kv.cache import Offer
from transom.sched.forecast import Counts, Life, steps_to_go
from transom.sched.needs import PESSIMISM, need, pages_at
from transom.sched.outlook import Ceiling, Outlook
from transom.sched.output_lengths import OutputLengths
from transom.sched.plan import SchedulerView
from transom.sched.request import Progress
from transom.sched.running import ALLOCATED, FULL_UNTIL, LIMIT, PROMPT, ROW


class Place:
    """Owns what is expected of those that run and of those let in since. Mutable, lives for one plan.

    Where all can come to their limits, nothing need be expected of anybody.
    """

    def __init__(self, view: SchedulerView, room: Capacity) -> None:
        """`room`: when the step began."""
        self._situation = view
        self._room = room
        self._rules = view.cache.rules
        self._admitted: list[tuple[Progress, Offer]] = []
        self._limits: Ceiling | None = None
        self._lengths: OutputLengths | None = None
        self._known: Counts | None = None
        self._outlooks: dict[int, Outlook] = {}
        """By the factor on outputs."""

    def is_for(self, progress: Progress, offer: Offer) -> bool:
        """Whether there is place for the request over its life, if it begins with `offer`."""
        if self._room.covers(self._at_limits().pages(self._at_limit(progress, offer))):
            return True
        factor = PESSIMISM**progress.retractions
        return self._outlook(factor).fits(self._expected(progress, offer, factor), self._room)

    def let_in(self, progress: Progress, offer: Offer) -> None:
        """From now on it counts like those that run."""
        self._admitted.append((progress, offer))

    # ------------------------------------------------------------ made when they are asked for, and then kept

    def _at_limits(self) -> Ceiling:
        columns, context = self._situation.columns, self._situation.limits.context
        found = self._limits
        if found is None:
            found = self._limits = Ceiling(columns, int(columns[LIMIT].sum()), context, self._rules)
        for progress, offer in self._admitted[found.others :]:
            found.let_in(self._at_limit(progress, offer))
        return found

    def _outlook(self, factor: int) -> Outlook:
        found = self._outlooks.get(factor)
        if found is None:
            columns, context = self._situation.columns, self._situation.limits.context
            known = self._known_tokens()
            steps = steps_to_go(columns, known, self._output_lengths(), factor)
            found = Outlook(columns, known, steps, self._own, context, self._rules)
            self._outlooks[factor] = found
        for progress, offer in self._admitted[found.others :]:
            found.let_in(self._expected(progress, offer, factor))
        return found

    def _known_tokens(self) -> Counts:
        """Of those that run."""
        if self._known is None:
            self._known = np.array([state.progress.length for state in self._situation.running], np.int64)
        return self._known

    def _output_lengths(self) -> OutputLengths:
        if self._lengths is None:
            outputs = self._known_tokens() - self._situation.columns[PROMPT]
            self._lengths = self._situation.outputs.seeing(outputs)
        return self._lengths

    def _own(self) -> Counts:
        columns = self._situation.columns
        return self._situation.cache.held_alone(columns[ROW], columns[ALLOCATED], columns[FULL_UNTIL])

    # ------------------------------------------------------------ lives

    def _at_limit(self, progress: Progress, offer: Offer) -> Life:
        """All it could ever take."""
        return self._life(progress, offer, progress.kv_limit)

    def _expected(self, progress: Progress, offer: Offer, factor: int) -> Life:
        """What it is expected to take."""
        expected = self._output_lengths().expected(progress.outputs, factor)
        return self._life(progress, offer, min(progress.kv_limit, progress.length + expected))

    def _life(self, progress: Progress, offer: Offer, end: int) -> Life:
        beside = [
            pages - rule.entries(end) if rule.keeps_all else min(pages, pages_at(rule, end))
            for pages, rule in zip(need(self._situation.cache, offer, end), self._rules, strict=True)
        ]
        return Life(progress.length, max(0, end - progress.length), tuple(beside))
