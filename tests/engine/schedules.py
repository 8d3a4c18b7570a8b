"""Random schedules of a real engine, and the cold run that every row of logits must equal to the bit.

The cold run computes one request alone, in one chunk, without a cache.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from transom.config import EngineConfig
from transom.engine.batch import sampled_rows
from transom.engine.engine import Engine
from transom.engine.runner import ModelRunner
from transom.kv.check import check
from transom.models.decoder import Batch, head, hidden
from transom.models.spec import Model
from transom.ops.protocol import F32, Ops, SpanRows
from transom.ops.reference import ReferenceOps
from transom.ops.store import KVStore, KVType
from transom.sched.commands import outputs_of
from transom.sched.loop import iterate
from transom.sched.output_lengths import HISTORY
from transom.steps import StepResult, StepWork
from transom.values import (
    Ended,
    Event,
    FinishReason,
    PromptLogprobs,
    Request,
    RequestId,
    SampledToken,
    Sampling,
    TokenSampled,
)
from transom.wire import Abort, Command, Submit

ITERATIONS_MAX = 5000
OUTPUTS_MAX = 96
OUTPUTS_SEEN = 32


class RecordingRunner:
    """Runs the model and records a digest of the logits of every sampled token. Mutable.

    `digests` is keyed by request and position. A span names its siblings only by sampling parameters, so
    `by_seed` maps the seeds, which `random_requests` makes unique, to request ids.
    """

    def __init__(self, ops: Ops, runner: ModelRunner) -> None:
        self._ops = ops
        self._runner = runner
        self.digests: dict[tuple[RequestId, int], bytes] = {}
        self.spans: list[tuple[RequestId, int, int]] = []
        self.by_seed: dict[int, RequestId] = {}

    def run(self, work: StepWork) -> StepResult:
        rows = self._runner.hidden(work)
        logits = head(self._ops, self._runner.model, rows[sampled_rows(work)])
        sampling = [span for span in work.spans if span.sampling is not None]
        self.spans += [(span.request, span.start, span.end) for span in work.spans]
        for span, row in zip(sampling, logits, strict=True):
            for output in (span.request, *(self.by_seed[sibling.seed] for sibling in span.siblings)):
                assert (output, span.end) not in self.digests, f"{(output, span.end)} was sampled twice"
                self.digests[output, span.end] = digest(row)
        return self._runner.results(work, rows)


def digest(row: F32) -> bytes:
    """A digest of all bits. The rows themselves, with a vocabulary of 262,144, would fill the memory."""
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


@dataclass(slots=True)
class Played:
    """Outputs, ends and prompt logprobs of a schedule, by request. Mutable while the schedule runs."""

    outputs: dict[RequestId, list[int]] = field(default_factory=dict)
    logprobs: dict[RequestId, list[float]] = field(default_factory=dict)
    ended: dict[RequestId, Ended] = field(default_factory=dict)
    prompt_logprobs: dict[RequestId, list[SampledToken]] = field(default_factory=dict)

    def record(self, event: Event) -> None:
        assert event.request not in self.ended, f"{event} after {self.ended[event.request]}"
        match event:
            case Ended():
                self.ended[event.request] = event
            case TokenSampled():
                self.outputs.setdefault(event.request, []).append(event.token)
                self.logprobs.setdefault(event.request, []).append(event.logprob)
            case PromptLogprobs():
                self.prompt_logprobs.setdefault(event.request, []).extend(event.tokens)


class SameWeights:
    """Weights that an update replaces by themselves."""

    def check(self, source: str) -> None:
        pass

    def load(self, source: str) -> None:
        pass


def play(engine: Engine, runner: RecordingRunner, arrivals: Sequence[tuple[int, Command]]) -> Played:
    """Runs a schedule until every request has ended, and checks all invariants after each iteration.

    `arrivals` pairs each command with the iteration that receives it. The clock counts iterations.
    """
    played = Played()
    pending = sorted(arrivals, key=lambda arrival: arrival[0])
    submitted = [command.request for _, command in pending if isinstance(command, Submit)]
    wanted = {output.id for request in submitted for output in outputs_of(request)}
    runner.by_seed = {sibling.sampling.seed: sibling.id for r in submitted for sibling in r.siblings}
    for number in range(ITERATIONS_MAX):
        due = [command for at, command in pending if at <= number]
        pending = [(at, command) for at, command in pending if at > number]
        outcome = iterate(engine.scheduler, due, runner, float(number), SameWeights())
        assert outcome.failure is None, outcome.failure
        assert not outcome.rejected, outcome.rejected
        check(engine.cache)
        for event in outcome.events:
            played.record(event)
        if not pending and wanted <= played.ended.keys():
            return played
    raise AssertionError(f"{wanted - played.ended.keys()} not ended after {ITERATIONS_MAX} iterations")


def cold_logits(
    ops: Ops, model: Model, tokens: Sequence[int], first: int, kv_type: KVType = KVType.FLOAT16
) -> F32:
    """Logits after tokens[:first], tokens[:first + 1], ...: one request alone, one chunk, no cache."""
    count = len(tokens)
    store = KVStore(model.spec.page_shapes(count, kv_type), (1,) * len(model.spec.components))
    table = np.ones((1, 1), dtype=np.int32)
    kv = tuple(store.paged(component, table) for component in range(len(model.spec.components)))
    zero = np.zeros(1, dtype=np.int32)
    spans = SpanRows(
        rows=zero,
        starts=zero,
        offsets=np.array([0, count], dtype=np.int32),
        positions=np.arange(count, dtype=np.int32),
        token_rows=np.zeros(count, dtype=np.int32),
    )
    wanted = np.arange(first - 1, count, dtype=np.int32)
    batch = Batch(np.array(tokens, dtype=np.int32), (spans,) * len(kv), wanted)
    return head(ops, model, hidden(ops, model, kv, batch))


def assert_equal_to_cold(
    ops: Ops, model: Model, requests: Sequence[Request], played: Played, runner: RecordingRunner
) -> None:
    """Asserts that the logits of all sampled tokens and all prompt logprobs have the bits of the cold run."""
    for request in (output for asked in requests for output in outputs_of(asked)):
        outputs, end = played.outputs.get(request.id, []), played.ended[request.id]
        found = played.prompt_logprobs.get(request.id, [])
        if outputs or found or end.reason is FinishReason.LENGTH:
            assert_prompt_logprobs_equal_cold(ops, model, request, found, cut=not outputs and found != [])
        if not outputs:
            continue
        tokens = [*request.prompt.tolist(), *outputs[:-1]]
        cold = cold_logits(ops, model, tokens, len(request.prompt))
        for number in range(len(outputs)):
            position = len(request.prompt) + number
            assert runner.digests[request.id, position] == digest(cold[number]), (request.id, position)


def assert_prompt_logprobs_equal_cold(
    ops: Ops, model: Model, request: Request, found: Sequence[SampledToken], *, cut: bool = False
) -> None:
    """Asserts that prompt logprobs and alternatives equal to the bit those that numpy computes, cold.

    With `cut`, the request ended during its prompt, and only the prompt logprobs reported until then count.
    """
    first, top = request.logprobs.prompt_from, request.logprobs.top
    if first is None:
        assert not found
        return
    prompt = request.prompt[max(1, first) :]
    prompt = prompt[: len(found)] if cut else prompt
    rows = cold_logits(ops, model, request.prompt.tolist(), max(1, first))[: len(prompt)]
    logprobs, best, best_logprobs = ReferenceOps().logprobs(rows, prompt, top)
    assert [token.token for token in found] == prompt.tolist()
    assert [token.logprob for token in found] == logprobs.tolist()
    assert [[a.token for a in token.top] for token in found] == best.tolist()
    assert [[a.logprob for a in token.top] for token in found] == best_logprobs.tolist()


def random_requests(rng: random.Random, count: int, vocabulary: int, longest: int) -> list[Request]:
    """Requests that mostly share a prefix with another one; greedy and sampled, short and long."""
    stem = [rng.randrange(4, vocabulary) for _ in range(longest)]
    requests = []
    for number in range(count):
        shared = rng.choice([0, longest // 4, longest // 2, rng.randrange(longest)])
        own = [rng.randrange(4, vocabulary) for _ in range(rng.randrange(1, longest // 3))]
        requests.append(
            Request(
                id=RequestId(number + 1),
                prompt=np.array((stem[:shared] + own)[:longest], dtype=np.int32),
                max_tokens=rng.choice([1, rng.randrange(3, OUTPUTS_MAX), OUTPUTS_MAX, OUTPUTS_MAX]),
                sampling=Sampling(temperature=rng.choice([0.0, 0.9]), seed=number),
            )
        )
    return requests


def random_arrivals(rng: random.Random, requests: Sequence[Request]) -> list[tuple[int, Command]]:
    """Submits `requests` at random iterations, and one more with a known prompt, which is aborted."""
    arrivals: list[tuple[int, Command]] = [(rng.randrange(0, 12), Submit(request)) for request in requests]
    victim = requests[0]
    doomed = Request(RequestId(len(requests) + 1), victim.prompt, max_tokens=64, sampling=Sampling(seed=1))
    at = rng.randrange(0, 8)
    return [*arrivals, (at, Submit(doomed)), (at + rng.randrange(1, 6), Abort(doomed.id))]


def build(model: Model, ops: Ops, config: EngineConfig) -> tuple[Engine, RecordingRunner]:
    """An engine that expects short outputs.

    It admits more requests than fit until their ends, so that some are retracted.
    """
    engine = Engine(config, model, ops)
    for _ in range(HISTORY):
        engine.scheduler._requests.outputs.add(OUTPUTS_SEEN)
    return engine, RecordingRunner(ops, engine.runner)
