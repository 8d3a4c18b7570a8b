"""How long requests wait for their first step, by a clock that the test sets."""

import numpy as np

from transom.engine.waits import Waits
from transom.errors import BadRequest
from transom.sched.turn import Abort, Rejected, Submit, Turn
from transom.values import (
    Ended,
    Event,
    FinishReason,
    Request,
    RequestId,
    SpanWork,
    StepResult,
    StepWork,
    TokenChosen,
    Usage,
)

ONE, TWO = RequestId(1), RequestId(2)
NOTHING = StepResult(())


class Runner:
    def run(self, work: StepWork) -> StepResult:
        return NOTHING


def submit(number: RequestId) -> Submit:
    return Submit(Request(number, np.ones(3, np.int32), 5, frozenset()))


def step(*numbers: RequestId) -> StepWork:
    spans = tuple(SpanWork(number, row, 0, np.ones(1, np.int32), None) for row, number in enumerate(numbers))
    return StepWork(spans, ())


def ended(number: RequestId) -> Ended:
    return Ended(number, FinishReason.STOP, Usage(1, 1, 0))


def seconds(waits: Waits, *events: Event) -> list[float]:
    return [event.queue_seconds for event in waits.stamped(Turn(events)).events if isinstance(event, Ended)]


def test_a_wait_lasts_from_the_turn_of_the_submit_to_that_of_the_first_step() -> None:
    waits = Waits(Runner())
    waits.turn_begins([submit(ONE), submit(TWO)], 10.0)
    assert waits.run(step(ONE)) is NOTHING
    assert seconds(waits, TokenChosen(ONE, 5, -1.0)) == []
    waits.turn_begins([], 12.0)
    waits.run(step(ONE, TWO))
    waits.turn_begins([], 15.0)
    waits.run(step(ONE, TWO))
    assert seconds(waits, ended(TWO), ended(ONE)) == [2.0, 0.0]


def test_who_ends_without_a_step_has_waited_until_then() -> None:
    waits = Waits(Runner())
    waits.turn_begins([submit(ONE)], 1.0)
    waits.turn_begins([Abort(ONE)], 4.0)
    assert seconds(waits, ended(ONE)) == [3.0]


def test_nothing_is_kept_of_who_has_ended_or_was_refused() -> None:
    waits = Waits(Runner())
    waits.turn_begins([submit(ONE), submit(TWO)], 1.0)
    waits.run(step(ONE))
    waits.stamped(Turn((ended(ONE),), rejected=(Rejected(TWO, BadRequest("no")),)))
    assert not waits._since
    assert not waits._waited
