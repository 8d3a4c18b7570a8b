"""Workloads by name. Each draws a trace from a seed.

The workloads of a benchmark are closed loops: a fixed number of clients, each of which sends its next request
when it has an answer. The workloads of users are mostly open loops: requests arrive at their own times.

Tokens are random. Only the lengths matter to scheduler and cache, and which prompts share how long a prefix.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import pi, sin

import numpy as np

from transom.errors import ConfigError
from transom.values import Tokens
from transom_lab.sim.trace import FIRST_TOKEN, LAST_TOKEN, Arrival, Trace

BOS = 2


@dataclass(frozen=True, slots=True)
class Workload:
    """`make` draws about as many requests as it is given, or without a number the workload's own number."""

    about: str
    make: "Callable[[Draw, int | None], Trace]"


def make_trace(name: str, seed: int, requests: int | None = None) -> Trace:
    """The workload `name`. Raises ConfigError for an unknown one."""
    workload = WORKLOADS.get(name)
    if workload is None:
        raise ConfigError(f"--workload is {name!r}; it must be one of {', '.join(WORKLOADS)}")
    return workload.make(Draw(seed, name), requests)


class Draw:
    """A random source of tokens, lengths and times. Mutable. It depends on the seed and the workload only."""

    def __init__(self, seed: int, workload: str) -> None:
        self._generator = np.random.Generator(np.random.PCG64([seed, *workload.encode()]))

    def tokens(self, count: int) -> Tokens:
        return self._generator.integers(FIRST_TOKEN, LAST_TOKEN, count, dtype=np.int32)

    def begin(self, count: int) -> Tokens:
        """`count` tokens, the first of which is the one that begins every text."""
        return joined(np.array([BOS], np.int32), self.tokens(count - 1))

    def between(self, low: int, high: int) -> int:
        """A uniform integer, `low` and `high` included."""
        return int(self._generator.integers(low, high + 1))

    def near(self, mean: float, deviation: float, low: int) -> int:
        """A normally distributed length, at least `low`."""
        return max(low, round(self._generator.normal(mean, deviation)))

    def skewed(self, median: float, sigma: float, low: int, high: int) -> int:
        """A log-normal length between `low` and `high`: most answers are short, and a few are very long."""
        return min(high, max(low, round(median * float(np.exp(sigma * self._generator.standard_normal())))))

    def pause(self, mean_s: float) -> float:
        """An exponentially distributed time."""
        return float(self._generator.exponential(mean_s))

    def moments(self, mean_s: float) -> Iterator[float]:
        """The times of a Poisson process, `mean_s` apart on average, without end."""
        now = 0.0
        while True:
            now += self.pause(mean_s)
            yield now

    def chance(self, probability: float) -> bool:
        return bool(self._generator.random() < probability)


def joined(*parts: Tokens) -> Tokens:
    return np.concatenate(parts, dtype=np.int32)


# ---------------------------------------------------------------- closed loops of a benchmark


def _w1(draw: Draw, requests: int | None) -> Trace:
    arrivals = (Arrival(0.0, draw.begin(512), draw.tokens(128)) for _ in range(requests or 1))
    return Trace("w1", tuple(arrivals), concurrency=1)


def _w2(clients: int) -> Callable[[Draw, int | None], Trace]:
    def make(draw: Draw, requests: int | None) -> Trace:
        prompts = (draw.begin(draw.near(335, 8.6, 64)) for _ in range(requests or 32))
        arrivals = tuple(Arrival(0.0, prompt, draw.tokens(64)) for prompt in prompts)
        return Trace(f"w2c{clients}", arrivals, concurrency=clients)

    return make


def _w3(draw: Draw, requests: int | None) -> Trace:
    shared = draw.begin(1502)
    prompts = (joined(shared, draw.tokens(48)) for _ in range(requests or 32))
    return Trace("w3", tuple(Arrival(0.0, prompt, draw.tokens(64)) for prompt in prompts), concurrency=8)


def _w4(name: str, system_tokens: int) -> Callable[[Draw, int | None], Trace]:
    """Conversations of four turns. After each answer a conversation goes to the back of the queue."""

    def make(draw: Draw, requests: int | None) -> Trace:
        conversations = -(-(requests or 32) // 4)
        system = draw.begin(system_tokens)
        arrivals = [
            Arrival(0.0, joined(system, draw.tokens(60)), draw.tokens(64)) for _ in range(conversations)
        ]
        for _ in range(3):
            for index in range(len(arrivals) - conversations, len(arrivals)):
                arrivals.append(_reply(arrivals[index], index, draw.tokens(62), draw.tokens(64)))
        return Trace(name, tuple(arrivals), concurrency=4)

    return make


def _reply(to: Arrival, index: int, message: Tokens, outputs: Tokens, pause_s: float = 0.0) -> Arrival:
    """The next turn of a conversation, `pause_s` after the end of `to`, the arrival with number `index`."""
    prompt = joined(to.prompt, to.outputs, message)
    return Arrival(pause_s, prompt, outputs, to.tenant, to.priority, after=index)


# ---------------------------------------------------------------- workloads of users


def _agents(draw: Draw, requests: int | None) -> Trace:
    """Agents of four teams, each with its own instructions. A tool answers each turn; some turns branch."""
    instructions = [draw.begin(draw.between(900, 1800)) for _ in range(4)]
    moments = draw.moments(4.0)
    arrivals: list[Arrival] = []
    while len(arrivals) < (requests or 400):
        tenant = draw.between(0, 3)
        prompt = joined(instructions[tenant], draw.tokens(draw.skewed(120, 0.6, 16, 600)))
        _agent(draw, arrivals, Arrival(next(moments), prompt, _answer(draw), tenant=f"team-{tenant}"))
    return Trace("agents", tuple(arrivals))


def _agent(draw: Draw, arrivals: list[Arrival], first: Arrival) -> None:
    """Appends `first` and the turns after it. An agent continues a random one of up to three branches."""
    arrivals.append(first)
    tips = [len(arrivals) - 1]  # the last turn of each branch
    for _ in range(draw.between(3, 9)):
        at = tips.pop(draw.between(0, len(tips) - 1))
        for _ in range(2 if len(tips) < 3 and draw.chance(0.2) else 1):
            result = draw.tokens(draw.skewed(90, 0.8, 8, 700))
            arrivals.append(_reply(arrivals[at], at, result, _answer(draw), draw.pause(3.0)))
            tips.append(len(arrivals) - 1)


def _answer(draw: Draw) -> Tokens:
    return draw.tokens(draw.skewed(60, 0.7, 4, 400))


def _rollouts(draw: Draw, requests: int | None) -> Trace:
    """Sixteen outputs of each prompt (n = 16) with very different lengths. Four prompts are in flight."""
    arrivals: list[Arrival] = []
    while len(arrivals) < (requests or 256):
        first, prompt = len(arrivals), draw.begin(draw.between(120, 700))
        for number in range(16):
            outputs = draw.tokens(draw.skewed(160, 0.8, 8, 1024))
            arrivals.append(Arrival(0.0, prompt, outputs, sample_of=first if number else None))
    return Trace("rollouts", tuple(arrivals), concurrency=4)


def _documents(draw: Draw, requests: int | None) -> Trace:
    """Long documents with several questions about each, and time to read the answers in between."""
    moments = draw.moments(20.0)
    arrivals: list[Arrival] = []
    while len(arrivals) < (requests or 80):
        # Readers overlap: the questions about one document arrive between those about the next ones.
        document = draw.begin(draw.between(4_000, 16_000))
        at = next(moments)
        for _ in range(draw.between(2, 6)):
            prompt = joined(document, draw.tokens(draw.between(12, 60)))
            arrivals.append(Arrival(at, prompt, draw.tokens(draw.skewed(90, 0.5, 8, 300))))
            at += draw.pause(25.0)
    return Trace("documents", tuple(arrivals))


def _bursts(draw: Draw, requests: int | None) -> Trace:
    """An on/off Poisson process: 20 s of chats and 40 s without any, on average."""
    systems = [draw.begin(draw.between(80, 500)) for _ in range(8)]
    arrivals: list[Arrival] = []
    now, ends = 0.0, draw.pause(20.0)
    while len(arrivals) < (requests or 300):
        now += draw.pause(0.4)
        if now > ends:  # the burst is over; this chat is the first of the next one
            now = ends + draw.pause(40.0)
            ends = now + draw.pause(20.0)
        arrivals.append(_chat(draw, systems, now))
    return Trace("bursts", tuple(arrivals))


DAY_S = 86_400.0


def _day(draw: Draw, requests: int | None) -> Trace:
    """A day of chats, with four times as many arrivals per hour at noon as at midnight."""
    systems = [draw.begin(draw.between(80, 500)) for _ in range(8)]
    mean = (requests or 5_000) / DAY_S
    # Thinning: arrivals at the highest rate, 1.6 times the mean, each kept with the probability of its hour's
    # rate.
    arrivals = [
        _chat(draw, systems, at)
        for at in _until(DAY_S, draw, 1.0 / (1.6 * mean))
        if draw.chance((1.0 - 0.6 * sin(2 * pi * (at / DAY_S + 0.25))) / 1.6)
    ]
    return Trace("day", tuple(arrivals))


def _until(end_s: float, draw: Draw, mean_s: float) -> list[float]:
    moments: list[float] = []
    for at in draw.moments(mean_s):
        if at >= end_s:
            break
        moments.append(at)
    return moments


def _chat(draw: Draw, systems: list[Tokens], at: float) -> Arrival:
    app = draw.between(0, len(systems) - 1)
    prompt = joined(systems[app], draw.tokens(draw.skewed(60, 1.0, 4, 2_000)))
    return Arrival(at, prompt, _answer(draw), tenant=f"app-{app}")


WORKLOADS: Mapping[str, Workload] = {
    "w1": Workload("one prompt of 512 tokens, one client", _w1),
    "w2c8": Workload("32 prompts of 335 tokens with nothing in common, 8 clients", _w2(8)),
    "w2c16": Workload("32 prompts of 335 tokens with nothing in common, 16 clients", _w2(16)),
    "w3": Workload("32 prompts with 1,502 tokens in common, 8 clients", _w3),
    "w4": Workload("8 conversations of 4 turns, 4 clients", _w4("w4", 3)),
    "w4s": Workload(
        "8 conversations of 4 turns under 1,000 tokens of system prompt, 4 clients", _w4("w4s", 1004)
    ),
    "agents": Workload("agents that call tools and branch", _agents),
    "rollouts": Workload("16 outputs of each prompt (n = 16), 4 prompts at once", _rollouts),
    "documents": Workload("long documents, several questions each", _documents),
    "bursts": Workload("bursts of chats, and calm between", _bursts),
    "day": Workload("a day of chats, busier at noon", _day),
}
