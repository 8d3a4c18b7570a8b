"""What the scheduler asks of a runner, and what the runner answers: the seam between them."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from transom.values import RequestId, SampledToken, Sampling, Tokens


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy the first `tokens` slots of page `source` to page `target`, all layers of `component`.

    A snapshot's page is one slot. Copies run in order: a later one may read what an earlier one wrote.
    """

    component: int
    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Give the memory of `pages` back to the system: nobody owns them. They read as anything afterwards."""

    component: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scoring:
    """The logits at positions from `start` on say how probable `tokens` were, each the token after it."""

    start: int
    tokens: Tokens

    def __post_init__(self) -> None:
        assert len(self.tokens) > 0, self

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class SpanWork(NamedTuple):
    """Compute `tokens` at positions `[start, start + len(tokens))` of row `row`.

    A tuple, as hundreds are made for a step; a step checks its spans.

    `sampling` is None when no token is to be chosen; otherwise the one after the last is, and once more for
    each of `siblings`, from the same logits. `top` alternatives are told with each token chosen or scored.
    `clip` is the first position that components which slide may read. Of the others, keys and values of the
    tokens before `store_from` exist, and are not stored again.
    """

    request: RequestId
    row: int
    start: int
    tokens: Tokens
    sampling: Sampling | None
    clip: int = 0
    store_from: int = 0
    siblings: tuple[Sampling, ...] = ()
    scoring: Scoring | None = None
    top: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class StepWork:
    """One forward of the model: copies, in order, then discards, then all spans. Never without spans."""

    spans: tuple[SpanWork, ...]
    copies: tuple[PageCopy, ...]
    discards: tuple[Discard, ...] = ()

    def __post_init__(self) -> None:
        assert self.spans, "a step computes something"
        for span in self.spans:
            assert 0 <= span.clip <= span.start and len(span.tokens), span
            assert span.sampling is not None or not span.siblings, span
            scoring = span.scoring
            assert scoring is None or span.start <= scoring.start < scoring.end <= span.end, span


@dataclass(frozen=True, slots=True)
class StepResult:
    """One choice per span of the step, None where none was wanted. `seconds` is what it took.

    `siblings` and `scores` have an entry per span too, one choice for each that the span asked for; they may
    be left out where no span asked.
    """

    choices: tuple[SampledToken | None, ...]
    seconds: float = 0.0
    siblings: tuple[tuple[SampledToken, ...], ...] = ()
    scores: tuple[tuple[SampledToken, ...], ...] = ()


class Runner(Protocol):
    """Whatever computes a step: the model, a simulator's cost model, a test's fake."""

    def run(self, work: StepWork) -> StepResult: ...
