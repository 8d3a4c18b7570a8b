"""A runner that computes nothing: it writes what a model would, asserts all it reads, and fails as told.

A slot stands for (namespace, all tokens up to its own, position, component), as `transom_lab.fuzz` has it;
wrong KV, in any way, is a failed assertion. Of repairs it follows layer by layer which keys are exact.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from transom.kv.check import inside
from transom.kv.holding import Holding
from transom.steps import SpanWork, StepResult, StepWork
from transom.values import RequestId, SampledToken
from transom_lab.faults.asked import Asked
from transom_lab.faults.events import Trouble
from transom_lab.faults.judge import Seen
from transom_lab.fuzz.kinds import is_state
from transom_lab.fuzz.world import Job
from transom_lab.fuzz.world import World as Memory

SECONDS = 0.01
"""What a step takes, where nothing stalls it."""

GARBAGE = np.uint64(0xBAD)


class RunnerBroke(RuntimeError):
    """As told."""


class FaultyRunner:
    """Owns what pages hold, and what is to go wrong next. Mutable.

    `midway` is called in the midst of each step: whatever happens then happens in flight.
    """

    def __init__(
        self,
        memory: Memory,
        asked: Callable[[RequestId], Asked],
        epoch: Callable[[], int],
        midway: Callable[[], None],
    ) -> None:
        self._memory = memory
        self._asked = asked
        self._epoch = epoch
        self._midway = midway
        self._jobs: dict[RequestId, Job] = {}
        self.trouble: Trouble | None = None
        self.seconds = SECONDS
        self.steps = 0
        self.seen: Seen | None = None
        """Of the step of this turn, if there is one."""
        self.broke = False
        """Whether the answer to it was none."""

    def run(self, work: StepWork) -> StepResult:
        self.steps += 1
        jobs = [self._job(span) for span in work.spans]
        self.seen = self._look(work)
        trouble, self.trouble = self.trouble, None
        self.broke = trouble in (Trouble.REFUSES, Trouble.HALFWAY)
        if trouble is Trouble.REFUSES:
            self._midway()
            raise RunnerBroke("refused")
        self._memory.move(work.copies, work.discards)
        if trouble is Trouble.HALFWAY:
            self._scribble(jobs[0], work.spans[0])
            self._midway()
            raise RunnerBroke("halfway")
        for job, span in zip(jobs, work.spans, strict=True):
            self._memory.forward(job, span.end)
        result = self._answer(work)
        self._midway()
        spoilt = _spoilt(result, trouble)
        self.broke = spoilt != result
        return spoilt

    def settle(self) -> None:
        """After a turn: who has lost its row is not looked after any more; free pages hold nothing."""
        holdings = inside(self._memory.cache).holdings
        self._jobs = {id: job for id, job in self._jobs.items() if holdings[job.holding.row] is job.holding}
        for holding in holdings:
            if holding is not None and holding.request not in self._jobs:  # born, and not in a step yet
                self._jobs[holding.request] = Job(holding, self._asked(holding.request).tokens)
        self._memory.jobs = list(self._jobs.values())
        self._memory.forget_free()

    # ---------------------------------------------------------------- spans

    def _job(self, span: SpanWork) -> Job:
        """The request of a span, which says where it stands, in its own tokens, and of repairs what is so."""
        holding, asked = inside(self._memory.cache).holdings[span.row], self._asked(span.request)
        assert holding is not None and holding.request == span.request, (span, holding)
        job = self._jobs.get(span.request)
        if job is None or job.holding is not holding:
            self._require_namespace(holding, asked)
            asked.begin(holding.start)
            job = self._jobs[span.request] = Job(holding, asked.tokens)
        assert span.start == holding.computed < span.end <= holding.allocated, (span, holding)
        assert (span.clip, span.store_from) == (holding.clip, holding.full_until), (span, holding)
        assert span.end <= asked.known, ("computes what nobody knows", span, asked)
        assert np.array_equal(span.tokens, asked.tokens[span.start : span.end]), (span, asked)
        return job

    def _require_namespace(self, holding: Holding, asked: Asked) -> None:
        """Just admitted, it reads under the epoch of now and its own salt."""
        namespace, salt = holding.namespace, asked.request.salt
        assert (namespace.salt, namespace.epoch) == (salt, self._epoch()), ("not its own", namespace, asked)

    def _look(self, work: StepWork) -> Seen:
        """Whose tokens are to be chosen: theirs whose last known token is computed, and those born of it."""
        chosen: dict[RequestId, RequestId] = {}
        for span in work.spans:
            asked = self._asked(span.request)
            wanted = span.end == asked.known and asked.wants_token
            assert (span.sampling is not None) == wanted, ("a token asked for, or not", span, asked)
            born = asked.unborn if wanted else []
            chosen.update(dict.fromkeys([span.request, *born] if wanted else [], span.request))
            seeds = [sampling.seed for sampling in span.siblings]
            assert seeds == [self._asked(id).request.sampling.seed for id in born], (span, asked)
        pending = inside(self._memory.cache).pending
        copied = frozenset(each.holding.request for each in pending if each.snapshot_of is None)
        return Seen({span.request: span.end for span in work.spans}, chosen, copied)

    def _answer(self, work: StepWork) -> StepResult:
        """Functions of the tokens before, and of the seeds."""
        assert self.seen is not None
        choices, siblings, scores = [], [], []
        for span in work.spans:
            asked = self._asked(span.request)
            choices.append(asked.next() if span.sampling is not None else None)
            born = asked.unborn if span.sampling is not None else []
            siblings.append(tuple(self._asked(id).next() for id in born))
            places = (
                range(span.prompt_logprobs.start, span.prompt_logprobs.end)
                if span.prompt_logprobs is not None
                else ()
            )
            scores.append(tuple(asked.at(place + 1) for place in places))
            assert span.top == asked.request.logprobs.top, (span, asked)
        return StepResult(tuple(choices), self.seconds, tuple(siblings), tuple(scores))

    def _scribble(self, job: Job, span: SpanWork) -> None:
        """As who dies in the midst of it: what was to be stored holds anything."""
        memory, row = self._memory, job.holding.row
        for component, kind in enumerate(memory.kinds):
            table = memory.cache.page_tables[component][row]
            first = max(span.start, span.store_from if memory.keeps_everything(component) else 0)
            if is_state(kind):
                memory.contents.change_state(component, int(table[0]), GARBAGE)
            elif first < span.end:
                entries = slice(first // memory.page_size, (span.end - 1) // memory.page_size + 1)
                memory.contents.forget(component, table[entries].astype(np.int64))


def _spoilt(result: StepResult, trouble: Trouble | None) -> StepResult:
    """The answer with what `trouble` does to it, the same where it can do nothing."""
    choices = result.sampled
    match trouble:
        case Trouble.LOSES:
            return replace(result, sampled=choices[:-1])
        case Trouble.SILENT:
            return replace(result, sampled=(None,) * len(choices))
        case Trouble.TALKATIVE:
            return replace(result, sampled=tuple(choice or SampledToken(0, 0.0) for choice in choices))
    return result
