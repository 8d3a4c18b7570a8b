"""Whether there is place for a request over its whole life, beside those that run and those just let in."""

from collections.abc import Callable, Sequence

from transom.kv.budget import Capacity, PageCounts
from transom.kv.page_rules import PageRule
from transom.sched.forecast import Counts, Forecast, Life, forecast
from transom.sched.running import ALLOCATED, Columns


class Ceiling:
    """Owns a bound on the pages that requests come to take if everybody stays until the last has ended.

    From sums alone: what all will write, and what a window holds at most. Never less than what a forecast
    counts. Mutable, lives for one plan.
    """

    __slots__ = ("_page", "_places", "_rules", "others")

    def __init__(self, columns: Columns, tokens: int, context: int, rules: Sequence[PageRule]) -> None:
        """Of those that run, who come to `tokens` tokens together, and none of them beyond `context`."""
        self._rules, self._page = rules, rules[0].page_size
        running = columns.shape[1]
        grown = tokens - int(columns[ALLOCATED].sum()) + running * (self._page - 1)
        most = [running * rule.held(rule.entries(context)) * self._page for rule in rules]
        self._places = [
            min(grown, held) if rule.by_reference else 0 for held, rule in zip(most, rules, strict=True)
        ]
        """Slots in pages."""
        self.others = 0
        """Let in beside those that run."""

    def let_in(self, life: Life) -> None:
        """From now on it counts like those that run."""
        self._places = self._with(life)
        self.others += 1

    def pages(self, life: Life) -> PageCounts:
        """Of each component, with `life` let in too."""
        return tuple([places // self._page for places in self._with(life)])

    def _with(self, life: Life) -> list[int]:
        grown = life.known + life.steps + self._page - 1
        return [
            places + beside * self._page + rule.keeps_all * grown
            for places, beside, rule in zip(self._places, life.beside, self._rules, strict=True)
        ]


class Outlook:
    """Owns what is expected of those that run and of those let in since. Mutable, lives for one plan.

    With room to spare there is place for all even if nobody gives anything back: a ceiling says so. Only else
    it is looked at who ends when, and what has come back by then.
    """

    __slots__ = ("_ceiling", "_columns", "_forecast", "_known", "_new", "_own", "_rules", "_steps")

    def __init__(
        self,
        columns: Columns,
        known: Counts,
        steps: Counts,
        own: Callable[[], Counts],
        context: int,
        rules: Sequence[PageRule],
    ) -> None:
        """Of those that run, each with its tokens and steps to go. `own`: what each of them holds alone."""
        self._columns, self._known, self._steps, self._own = columns, known, steps, own
        self._rules = rules
        self._ceiling = Ceiling(columns, int(known.sum() + steps.sum()), context, rules)
        self._new: list[Life] = []
        """Let in, and not in the forecast yet."""
        self._forecast: Forecast | None = None

    @property
    def others(self) -> int:
        """Let in beside those that run."""
        return self._ceiling.others

    def let_in(self, life: Life) -> None:
        """From now on it counts like those that run."""
        self._ceiling.let_in(life)
        self._new.append(life)

    def fits(self, life: Life, room: Capacity) -> bool:
        """Whether, as long as `life` lasts, all that is expected to be taken is to be had in `room`."""
        return room.covers(self._ceiling.pages(life)) or self._looked_ahead().fits(life, room)

    def _looked_ahead(self) -> Forecast:
        """Made when first asked for, then only added to."""
        found = self._forecast
        if found is None:
            found = forecast(self._columns, self._known, self._steps, self._own(), self._rules)
        if self._new:
            found = found.plus(self._new)
            self._new = []
        self._forecast = found
        return found
