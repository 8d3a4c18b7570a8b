"""How many prompt tokens fit in a step that answers wait for."""

from collections.abc import Iterable
from dataclasses import dataclass

from transom.sched.request import Span
from transom.sched.step_cost import StepCost, StepCounts, keys_near, keys_read


@dataclass(slots=True)
class Pace:
    """Owns the seconds that a step has left for chunks. Mutable, lives no longer than a plan.

    The step is expected to take no longer than its target, or than its decodes and `floor` tokens of chunks:
    prompts get on even where answers alone take all the time there is.
    """

    cost: StepCost
    seconds: float
    floor: int

    def most(self, start: int, budget: int) -> int:
        """The longest chunk from `start`, at most `budget` tokens, for which there is time."""
        return min(budget, max(self.floor, self.cost.longest_span(start, budget, self.seconds)))

    def spend(self, span: Span) -> None:
        self.floor = max(0, self.floor - len(span))
        self.seconds -= self.cost.of_span(span.start, span.end)


def pace_beside(decodes: Iterable[int], cost: StepCost, target_seconds: float, floor: int) -> Pace:
    """What is left of `target_seconds` beside decodes at these positions."""
    ends = [position + 1 for position in decodes]
    near = sum([keys_near(end - 1, end, cost.window) for end in ends]) if cost.window else 0
    attended = sum([keys_read(end - 1, end) for end in ends])
    taken = cost.of(StepCounts(len(ends), len(ends), len(ends), attended, near))
    return Pace(cost, target_seconds - taken, floor)
