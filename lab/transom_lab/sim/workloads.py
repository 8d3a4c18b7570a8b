"""Workloads by name: closed loops that a benchmark's clients make, and open ones that users do.

Tokens are random; lengths, and who shares how long a beginning with whom, are what matters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi, sin

from transom.errors import ConfigError
from transom.values import Tokens
from transom_lab.sim.draw import Draw, joined
from transom_lab.sim.trace import Arrival, Trace


@dataclass(frozen=True, slots=True)
class Workload:
    """`make` draws about `requests` requests; None: as many as the workload has by itself."""

    about: str
    make: Callable[[Draw, int | None], Trace]


def make_trace(name: str, seed: int, requests: int | None = None) -> Trace:
    """The workload `name`. Raises ConfigError for an unknown one."""
    workload = WORKLOADS.get(name)
    if workload is None:
        raise ConfigError(f"--workload is {name!r}; it must be one of {', '.join(WORKLOADS)}")
    return workload.make(Draw(seed, name), requests)


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
    """Conversations of four turns, taken up again at the back of the queue when an answer is there."""

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


def _reply(to: Arrival, index: int, said: Tokens, outputs: Tokens, pause_s: float = 0.0) -> Arrival:
    """The next turn of a conversation: all before, the answer, and what was `said` to it."""
    prompt = joined(to.prompt, to.outputs, said)
    return Arrival(pause_s, prompt, outputs, to.tenant, to.priority, after=index)


# ---------------------------------------------------------------- what users do


def _agents(draw: Draw, requests: int | None) -> Trace:
    """Agents under one of four instructions: a tool answers each turn, and some try two ways at once."""
    instructions = [draw.begin(draw.between(900, 1800)) for _ in range(4)]
    moments = draw.moments(4.0)
    arrivals: list[Arrival] = []
    while len(arrivals) < (requests or 400):
        tenant = draw.between(0, 3)
        prompt = joined(instructions[tenant], draw.tokens(draw.skewed(120, 0.6, 16, 600)))
        _agent(draw, arrivals, Arrival(next(moments), prompt, _answer(draw), tenant=f"team-{tenant}"))
    return Trace("agents", tuple(arrivals))


def _agent(draw: Draw, arrivals: list[Arrival], first: Arrival) -> None:
    arrivals.append(first)
    tips = [len(arrivals) - 1]
    for _ in range(draw.between(3, 9)):
        at = tips.pop(draw.between(0, len(tips) - 1))
        for _ in range(2 if len(tips) < 3 and draw.chance(0.2) else 1):
            said = draw.tokens(draw.skewed(90, 0.8, 8, 700))
            arrivals.append(_reply(arrivals[at], at, said, _answer(draw), draw.pause(3.0)))
            tips.append(len(arrivals) - 1)


def _answer(draw: Draw) -> Tokens:
    return draw.tokens(draw.skewed(60, 0.7, 4, 400))


def _rollouts(draw: Draw, requests: int | None) -> Trace:
    """Sixteen outputs of each prompt (n = 16), of very different lengths; a next one when all have ended."""
    arrivals: list[Arrival] = []
    while len(arrivals) < (requests or 256):
        first, prompt = len(arrivals), draw.begin(draw.between(120, 700))
        for number in range(16):
            outputs = draw.tokens(draw.skewed(160, 0.8, 8, 1024))
            arrivals.append(Arrival(0.0, prompt, outputs, sample_of=first if number else None))
    return Trace("rollouts", tuple(arrivals), concurrency=4)


def _documents(draw: Draw, requests: int | None) -> Trace:
    """Long documents, each asked several questions with time to read in between."""
    moments = draw.moments(20.0)
    arrivals: list[Arrival] = []
    while len(arrivals) < (requests or 80):
        document = draw.begin(draw.between(4_000, 16_000))
        at = next(moments)
        for _ in range(draw.between(2, 6)):
            prompt = joined(document, draw.tokens(draw.between(12, 60)))
            arrivals.append(Arrival(at, prompt, draw.tokens(draw.skewed(90, 0.5, 8, 300))))
            at += draw.pause(25.0)
    return Trace("documents", tuple(arrivals))


def _bursts(draw: Draw, requests: int | None) -> Trace:
    """An on/off Poisson process: 20 s of chats, 40 s of calm, on average."""
    systems = [draw.begin(draw.between(80, 500)) for _ in range(8)]
    arrivals: list[Arrival] = []
    now, ends = 0.0, draw.pause(20.0)
    while len(arrivals) < (requests or 300):
        now += draw.pause(0.4)
        if now > ends:
            now = ends + draw.pause(40.0)
            ends = now + draw.pause(20.0)
        arrivals.append(_chat(draw, systems, now))
    return Trace("bursts", tuple(arrivals))


DAY_S = 86_400.0


def _day(draw: Draw, requests: int | None) -> Trace:
    """A day: the rate of arrivals follows the hour, four times as many at noon as at midnight."""
    systems = [draw.begin(draw.between(80, 500)) for _ in range(8)]
    mean = (requests or 5_000) / DAY_S
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
    which = draw.between(0, len(systems) - 1)
    prompt = joined(systems[which], draw.tokens(draw.skewed(60, 1.0, 4, 2_000)))
    return Arrival(at, prompt, _answer(draw), tenant=f"app-{which}")


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
