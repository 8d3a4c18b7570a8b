"""A runner that computes nothing: it writes what a model would, asserts all it reads, and fails as told.

A slot stands for (namespace, all tokens up to its own, position, component), as `transom.fuzz` has it; wrong
KV, in any way, is a failed assertion. Of repairs it follows layer by layer which keys are exact.
"""

from collections.abc import Callable

import numpy as np

from transom.fuzz.kinds import is_state
from transom.fuzz.world import Job
from transom.fuzz.world import World as Memory
from transom.kv.holding import Holding
from transom.sim.faults_events import Trouble
from transom.sim.faults_judge import Asked
from transom.values import Choice, RequestId, SpanWork, StepResult, StepWork

SECONDS = 0.01
"""What a step takes, where nothing stalls it."""

GARBAGE = np.uint64(0xBAD)


class RunnerBroke(RuntimeError):
    """As told."""


class FaultyRunner:
    """Owns what pages hold, and what is to go wrong next. Mutable."""

    def __init__(
        self, memory: Memory, asked: Callable[[RequestId], Asked], flushes: Callable[[], int]
    ) -> None:
        self._memory = memory
        self._asked = asked
        self._flushes = flushes
        self._jobs: dict[RequestId, Job] = {}
        self.trouble: Trouble | None = None
        self.seconds = SECONDS
        self.steps = 0
        self.last: StepWork | None = None
        """The step of this turn."""
        self.broke = False
        """Whether the answer to it was none."""

    def run(self, work: StepWork) -> StepResult:
        self.steps += 1
        self.last = work
        trouble, self.trouble = self.trouble, None
        self.broke = trouble in (Trouble.REFUSES, Trouble.HALFWAY)
        jobs = [self._job(span) for span in work.spans]
        if trouble is Trouble.REFUSES:
            raise RunnerBroke("refused")
        self._memory.move(work.copies, work.discards)
        if trouble is Trouble.HALFWAY:
            self._scribble(jobs[0], work.spans[0])
            raise RunnerBroke("halfway")
        for job, span in zip(jobs, work.spans, strict=True):
            self._require_asked(job, span)
            self._memory.forward(job, span.end)
        choices = [self._choose(span) for span in work.spans]
        answer = _spoilt(choices, trouble)
        self.broke = answer != choices
        return StepResult(tuple(answer), self.seconds)

    def settle(self) -> None:
        """After a turn: who has lost its row is not looked after any more; free pages hold nothing."""
        holdings = self._memory.cache.holdings
        self._jobs = {id: job for id, job in self._jobs.items() if holdings[job.holding.row] is job.holding}
        self._memory.jobs = list(self._jobs.values())
        self._memory.forget_free()

    # ---------------------------------------------------------------- spans

    def _job(self, span: SpanWork) -> Job:
        """The request of a span; where it has just been admitted, under the epoch of now and its own salt."""
        holding = self._memory.cache.holdings[span.row]
        assert holding is not None and holding.request == span.request, (span, holding)
        job = self._jobs.get(span.request)
        if job is None or job.holding is not holding:
            asked = self._asked(span.request)
            self._require_namespace(holding, asked)
            asked.begin(holding.start)
            job = self._jobs[span.request] = Job(holding, asked.tokens)
        return job

    def _require_namespace(self, holding: Holding, asked: Asked) -> None:
        namespace = holding.namespace
        assert (namespace.salt, namespace.epoch) == (asked.request.salt, self._flushes()), (
            "reads what is not its own",
            namespace,
            asked.request,
        )

    def _require_asked(self, job: Job, span: SpanWork) -> None:
        """The span goes on where the request stands, in its own tokens, and says of repairs what is so."""
        holding, asked = job.holding, self._asked(span.request)
        assert span.start == holding.computed < span.end <= holding.allocated, (span, holding)
        assert (span.clip, span.store_from) == (holding.clip, holding.full_until), (span, holding)
        assert span.end <= asked.known, ("computes what nobody knows", span, asked)
        assert np.array_equal(span.tokens, asked.tokens[span.start : span.end]), (span, asked)
        asked.computed += len(span.tokens)

    def _choose(self, span: SpanWork) -> Choice | None:
        """A function of the tokens before. The logprob tells the position, so that none can be mistaken."""
        asked = self._asked(span.request)
        wanted = span.end == asked.known and asked.wants_token
        assert (span.sampling is not None) == wanted, ("a token asked for, or not", span, asked)
        return asked.choice(span.end) if wanted else None

    def _scribble(self, job: Job, span: SpanWork) -> None:
        """As who dies in the midst of it: what was to be stored holds anything."""
        memory, row = self._memory, job.holding.row
        for component, kind in enumerate(memory.kinds):
            table = memory.cache.rows[component].table[row]
            first = max(span.start, span.store_from if memory.keeps_everything(component) else 0)
            if is_state(kind):
                memory.contents.change_state(component, int(table[0]), GARBAGE)
                continue
            if first >= span.end:
                continue
            pages = np.unique(table[first // memory.page_size : (span.end - 1) // memory.page_size + 1])
            owned = memory.cache.pools[component].owners()[pages] > 0
            memory.contents.forget(component, pages[owned].astype(np.int64))


def _spoilt(choices: list[Choice | None], trouble: Trouble | None) -> list[Choice | None]:
    """The answer with what `trouble` does to it, the same where it can do nothing."""
    given = [choice is not None for choice in choices]
    match trouble:
        case Trouble.LOSES:
            return choices[:-1]
        case Trouble.SILENT if True in given:
            return [None] * len(choices)
        case Trouble.TALKATIVE if False in given:
            return [choice or Choice(0, 0.0) for choice in choices]
    return choices
