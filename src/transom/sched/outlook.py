"""Whether there is place for a request over its whole life, beside those that run and those just let in."""

from collections.abc import Callable, Sequence

from transom.kv.components import PageRule
from transom.kv.room import Room
from transom.sched.forecast import Counts, Forecast, Life, forecast
from transom.sched.running import ALLOCATED, Columns


class Outlook:
    """Owns what is expected of those that run and of those let in since. Mutable, lives for one plan.

    With room to spare there is place for all even if everybody stays until the last has ended, and windows
    give nothing back: sums say so. Only else it is looked at who ends when, and what has come back by then.
    """

    __slots__ = (
        "_columns",
        "_forecast",
        "_grids",
        "_known",
        "_new",
        "_own",
        "_page",
        "_steps",
        "_tokens",
        "others",
    )

    def __init__(
        self,
        columns: Columns,
        known: Counts,
        steps: Counts,
        own: Callable[[], Counts],
        grids: Sequence[PageRule],
    ) -> None:
        """Of those that run, each with its tokens and steps to go. `own`: what each of them holds alone."""
        self._columns, self._known, self._steps, self._own = columns, known, steps, own
        self._grids, self._page = grids, grids[0].page_size
        self.others = 0
        """Let in beside those that run."""
        self._new: list[Life] = []
        """Of those, who is not in the forecast yet."""
        self._forecast: Forecast | None = None
        grown = int(known.sum() + steps.sum() - columns[ALLOCATED].sum()) + len(known) * (self._page - 1)
        self._tokens = [grown if grid.by_reference else 0 for grid in grids]
        """Places in pages that all together take if nobody ends: never less than what a forecast counts."""

    def let_in(self, life: Life) -> None:
        """From now on it counts like those that run."""
        self._tokens = self._with(life)
        self._new.append(life)
        self.others += 1

    def fits(self, life: Life, room: Room) -> bool:
        """Whether, as long as `life` lasts, all that is expected to be taken is to be had in `room`."""
        if room.covers([tokens // self._page for tokens in self._with(life)]):
            return True
        return self._looked_ahead().fits(life, room)

    def _with(self, life: Life) -> list[int]:
        grown = life.known + life.steps + self._page - 1
        return [
            tokens + beside * self._page + grid.rooted * grown
            for tokens, beside, grid in zip(self._tokens, life.beside, self._grids, strict=True)
        ]

    def _looked_ahead(self) -> Forecast:
        """Made when first asked for, then only added to."""
        found = self._forecast
        if found is None:
            found = forecast(self._columns, self._known, self._steps, self._own(), self._grids)
        if self._new:
            found = found.plus(self._new)
            self._new = []
        self._forecast = found
        return found
