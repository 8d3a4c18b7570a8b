"""A scheduler that asserts, for every plan and every commit, the rules that hold in any situation."""

from transom.kv.cache import HybridCache
from transom.sched.config import SchedulerConfig
from transom.sched.plan import Admit, Continue, Plan
from transom.sched.request import Idle, Step
from transom.sched.running import column_of
from transom.sched.scheduler import Scheduler
from transom.values import RequestId
from transom_lab.worlds.idle_oracle import IdleOracle


class CheckedScheduler(Scheduler):
    """A scheduler that checks itself. Mutable, as a scheduler is."""

    plan_twice_every = 1
    """Iterations from one plan that is made twice, to see that planning changes nothing, to the next."""

    def __init__(self, cache: HybridCache, config: SchedulerConfig) -> None:
        super().__init__(cache, config)
        self.oracle = IdleOracle()

    def plan(self) -> Plan:
        plan = super().plan()
        if not self._lifecycle.paused:
            self.oracle.judge(self._view(), plan)
        if self._requests.iterations % self.plan_twice_every == 0:
            assert plan == super().plan(), "planning changes nothing"
        columns = [column_of(state) for state in self._requests.running]
        assert self._requests.running.columns().T.tolist() == [list(column) for column in columns]
        spans = {_id(entry): entry.span for entry in plan.entries}
        assert len(spans) == len(plan.entries), "one span per request"
        assert sum(map(len, spans.values())) <= self._config.chunk_tokens
        victims = [victim.progress.id for victim in plan.retract]
        assert spans.keys().isdisjoint(victims)
        running = [state.progress.id for state in self._requests.running]
        if self._lifecycle.paused:
            assert plan == Plan((), ())
        admitted = [entry.waiting.progress for entry in plan.entries if isinstance(entry, Admit)]
        assert len(running) - len(victims) + len(admitted) <= self._config.max_running
        left = [state.progress for state in self._requests.running if state.progress.id not in victims]
        if not self._lifecycle.paused and running:
            # The senior one of a step advances in it. The bound on a request's wait rests on this.
            assert left or admitted, "all were retracted, and for no request"
            lead = min([*left, *admitted], key=lambda progress: progress.seniority)
            assert lead.id in spans, "the lead is in every step"
        waits = [state.progress.seniority for state in self._requests.waiting]
        for victim in plan.retract:
            senior = min([*waits, *(progress.seniority for progress in left)])
            assert senior < victim.progress.seniority, "a request is retracted for a senior one only"
        assert not victims or len(admitted) <= 1, "only a claim admits in a step that retracts"
        return plan

    def commit(self, plan: Plan) -> Step | Idle:
        """Every planned span gets its pages, but for an admission that lost its hit to an earlier one.

        That happens only if the earlier admission took pages, and the later one has a hit to lose.
        """
        outcome = super().commit(plan)
        done = {s.running.progress.id for s in outcome.scheduled} if isinstance(outcome, Step) else set()
        admissions = [entry for entry in plan.entries if isinstance(entry, Admit)]
        taken = 0
        for entry in admissions:
            if _id(entry) not in done:
                assert entry.offer.begin.full_until > 0 and taken > 0, entry
            taken += sum(entry.offer.takes)
        assert all(_id(entry) in done for entry in plan.entries if isinstance(entry, Continue))
        return outcome


def _id(entry: Continue | Admit) -> RequestId:
    state = entry.running if isinstance(entry, Continue) else entry.waiting
    return state.progress.id
