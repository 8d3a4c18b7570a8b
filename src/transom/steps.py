"""The interface between scheduler and runner: the work of a step, and its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from transom.values import LogitRules, RequestId, SampledToken, Sampling, Tokens


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy the first `tokens` slots of page `source` to page `target`, in all layers of `component`.

    A page of a snapshot component is one slot. Copies run in order: one may read a page that an earlier one
    wrote.
    """

    component: int
    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Return the memory of free `pages` to the operating system. Their contents become undefined."""

    component: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptLogprobSpan:
    """Positions `[start, end)` of a span that give the logprobs of prompt `tokens`.

    Logits predict the next position: the logprob of the prompt's token at `i` comes from position `i - 1`.
    """

    start: int
    tokens: Tokens

    def __post_init__(self) -> None:
        assert len(self.tokens) > 0, self

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class Constraint(NamedTuple):
    """The grammar of an output, and its tokens so far. Together they determine which tokens may follow."""

    grammar: str
    outputs: Tokens


class RuledOutput(NamedTuple):
    """What the logit rules of a span depend on. `tokens` are the prompt's first `prompt` and the outputs."""

    rules: LogitRules
    tokens: Tokens
    prompt: int
    stop_ids: frozenset[int]

    @property
    def outputs(self) -> Tokens:
        return self.tokens[self.prompt :]


class SpanWork(NamedTuple):
    """Compute `tokens` at positions `[start, start + len(tokens))` of row `row`.

    A tuple, because hundreds are made per step and a tuple is the cheapest; `StepWork` checks the fields.

    sampling         how to sample the token after the last one; unset while prompt tokens remain
    clip             first position that sliding components may read
    store_from       below it, components that keep all positions have keys and values, which are not stored
                     again
    siblings         further samples from the same logits, one for each
    prompt_logprobs  positions that give the logprobs of prompt tokens
    ruled            how logits are changed before sampling, if they are
    top              number of alternatives reported with each sampled token and each prompt logprob
    constraint       tokens that may be sampled; siblings have the same
    """

    request: RequestId
    row: int
    start: int
    tokens: Tokens
    sampling: Sampling | None
    clip: int = 0
    store_from: int = 0
    siblings: tuple[Sampling, ...] = ()
    prompt_logprobs: PromptLogprobSpan | None = None
    top: int = 0
    ruled: RuledOutput | None = None
    constraint: Constraint | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class StepWork:
    """One forward pass: copies in order, then discards, then all spans together. Never without spans."""

    spans: tuple[SpanWork, ...]
    copies: tuple[PageCopy, ...]
    discards: tuple[Discard, ...] = ()

    def __post_init__(self) -> None:
        assert self.spans, "a step without spans"
        for span in self.spans:
            assert 0 <= span.clip <= span.start and len(span.tokens), span
            assert span.sampling is not None or not (span.siblings or span.ruled), span
            wanted = span.prompt_logprobs
            assert wanted is None or span.start <= wanted.start < wanted.end <= span.end, span


class SpanFailure(NamedTuple):
    """Why the outputs of a span end. With a `code` the request is refused; without one the model failed."""

    message: str
    code: str | None = None


NOT_FINITE = SpanFailure("the model computed logits that are not finite, so no token can follow")


@dataclass(frozen=True, slots=True)
class StepResult:
    """The tokens of one step, and the seconds that it took. All tuples are in the order of the step's spans.

    `sampled` has one token per span, None where the span does not sample. `siblings` and `prompt_logprobs`
    have a tuple per span; either may be empty as a whole if no span asked for it. `failures` says why outputs
    of a span cannot go on, by the span's number; their tokens and prompt logprobs do not count.
    """

    sampled: tuple[SampledToken | None, ...]
    seconds: float = 0.0
    siblings: tuple[tuple[SampledToken, ...], ...] = ()
    prompt_logprobs: tuple[tuple[SampledToken, ...], ...] = ()
    failures: Mapping[int, SpanFailure] = field(default_factory=dict)


class Runner(Protocol):
    """Computes steps: the model, a simulator's cost model or a test's fake."""

    def run(self, work: StepWork) -> StepResult: ...
