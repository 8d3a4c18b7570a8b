"""A workload as data: who asks what, when, and what the model will answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from transom.values import Tokens


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. `outputs` are what the model answers, so that a later prompt can contain them.

    `at` is in seconds from the start; with `after`, the index of an earlier arrival, from that one's end.
    With `sample_of`, the index of an earlier arrival, it is not asked for by itself: that one's request asks
    for several outputs of its prompt (n > 1), and this is another of them.
    """

    at: float
    prompt: Tokens
    outputs: Tokens
    tenant: str = ""
    priority: int = 0
    after: int | None = None
    sample_of: int | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals, in any order of time. At most `concurrency` requests are in flight; others wait, in order."""

    name: str
    arrivals: tuple[Arrival, ...]
    concurrency: int | None = None

    def __post_init__(self) -> None:
        assert self.concurrency is None or self.concurrency >= 1, self.concurrency
        for index, arrival in enumerate(self.arrivals):
            assert arrival.after is None or 0 <= arrival.after < index, (index, arrival.after)
            assert arrival.at >= 0 and len(arrival.prompt) and len(arrival.outputs), (index, arrival.at)
            if (first := arrival.sample_of) is not None:
                assert 0 <= first < index and self.arrivals[first].sample_of is None, (index, first)
                assert arrival.prompt is self.arrivals[first].prompt and arrival.after is None, (index, first)

    @property
    def prompt_tokens(self) -> int:
        """Of requests, however many outputs each asks for."""
        return sum(len(arrival.prompt) for arrival in self.arrivals if arrival.sample_of is None)

    @property
    def output_tokens(self) -> int:
        return sum(len(arrival.outputs) for arrival in self.arrivals)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and outputs."""
        return max((len(a.prompt) + len(a.outputs) for a in self.arrivals), default=0)


def samples(arrivals: Sequence[Arrival]) -> dict[int, list[int]]:
    """By index of an arrival whose request has several outputs: the others."""
    result: dict[int, list[int]] = {}
    for index, arrival in enumerate(arrivals):
        if arrival.sample_of is not None:
            result.setdefault(arrival.sample_of, []).append(index)
    return result


def followers(arrivals: Sequence[Arrival]) -> dict[int, list[int]]:
    """By index of an arrival, those that come after its end."""
    result: dict[int, list[int]] = {}
    for index, arrival in enumerate(arrivals):
        if arrival.after is not None:
            result.setdefault(arrival.after, []).append(index)
    return result
