"""A scheduler whose every plan and step is held to what must hold whatever the situation."""

from transom.sched.plan import Admit, Continue, Plan
from transom.sched.request import Idle, Step
from transom.sched.running import column_of
from transom.sched.scheduler import Scheduler
from transom.values import RequestId


class CheckedScheduler(Scheduler):
    """Asserts of every plan what must hold whatever the situation. Mutable, as a scheduler is."""

    again_every = 1
    """Turns from one plan that is made twice, to see that planning changes nothing, to the next."""

    def plan(self) -> Plan:
        plan = super().plan()
        if self._requests.iterations % self.again_every == 0:
            assert plan == super().plan(), "planning changes nothing"
        columns = [column_of(state) for state in self._requests.running]
        assert self._requests.running.columns().T.tolist() == [list(column) for column in columns]
        spans = {_id(intent): intent.span for intent in plan.entries}
        assert len(spans) == len(plan.entries), "one span per request"
        assert sum(map(len, spans.values())) <= self._config.chunk_tokens
        victims = [victim.progress.id for victim in plan.retract]
        assert spans.keys().isdisjoint(victims)
        running = [state.progress.id for state in self._requests.running]
        if self._lifecycle.paused:
            assert plan == Plan((), ())
        elif running:
            assert running[0] in spans, "the lead is in every step"
            assert running[0] not in victims
        admitted = spans.keys() - set(running)
        assert len(running) - len(victims) + len(admitted) <= self._config.max_running
        assert not (admitted and victims), "nobody is admitted while somebody is retracted"
        return plan

    def commit(self, plan: Plan) -> Step | Idle:
        """Only one kind of span may find no page: an admission whose hit went to the copies of another's."""
        outcome = super().commit(plan)
        done = {s.running.progress.id for s in outcome.scheduled} if isinstance(outcome, Step) else set()
        admissions = [intent for intent in plan.entries if isinstance(intent, Admit)]
        copies = 0
        for intent in admissions:
            if _id(intent) not in done:
                assert intent.offer.begin.full_until > 0 and copies > 0, intent
            copies += sum(intent.offer.takes)
        assert all(_id(i) in done for i in plan.entries if isinstance(i, Continue))
        return outcome


def _id(intent: Continue | Admit) -> RequestId:
    state = intent.running if isinstance(intent, Continue) else intent.waiting
    return state.progress.id
