"""An engine process that repeats the prompt: real messages and the real loop, but no scheduler and no model.

Tokens are bytes; 256 begins a prompt, 257 ends an output. A word in the prompt selects the behaviour:
    REJECT   refused at submit
    STALL    three tokens, then nothing more until it is aborted
    FAIL     one token, then the request ends with an error
    CRASH    three tokens, then the loop raises
    EXIT     three tokens, then the process exits without a message
    MEMORY   at submit, the loop runs out of memory
    DAMAGE   served as usual, but the next check of the idle engine fails
The name of the model selects how it loads. `broken` fails and `slow` never finishes. `chatty` first writes to
standard input and output. The first `gate FOLDER` of a folder loads at once; later ones wait for the file
`open` in it, and load as the model that the file names.
"""

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from transom import wire
from transom.config import EngineConfig
from transom.engine import process
from transom.errors import BadRequest, ModelFileError, RequestTooLarge
from transom.sched import loop as sched
from transom.sched.commands import Done, Drained, WeightsRefused, WeightsUpdated
from transom.sched.request import Idle
from transom.values import (
    Alternative,
    Ended,
    Event,
    FinishReason,
    IdleReason,
    PauseMode,
    PromptLogprobs,
    Request,
    RequestId,
    SampledToken,
    TokenSampled,
    Usage,
)

CONTEXT = 512
POOL_TOKENS = 1024


@dataclass
class Echo:
    request: Request
    cached: int
    made: int = 0
    script: bytes = field(init=False)
    echoed: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.echoed = [int(t) for t in self.request.prompt if t != 256]
        self.script = bytes(t for t in self.echoed if t < 256)

    def says(self, word: bytes) -> bool:
        return word in self.script

    def usage(self) -> Usage:
        return Usage(len(self.request.prompt), self.made, self.cached)


def alternatives(request: Request) -> tuple[Alternative, ...]:
    """A, B, C, ..., each less probable than the one before."""
    return tuple(Alternative(ord("A") + n, -1.0 - n) for n in range(request.logprobs.top))


class FakeSteps:
    def __init__(self) -> None:
        self.running: dict[RequestId, Echo] = {}
        self.seen: set[bytes] = set()
        self.paused: PauseMode | None = None
        self.damaged = False
        self.drain: int | None = None
        self.updates: list[str] = []
        self.finished = self.prompt_tokens = self.cached_tokens = self.generated = self.steps = 0

    def iterate(self, commands: Sequence[wire.Command], computing: process.Computing) -> sched.Iteration:
        events: list[Event] = []
        rejected: list[sched.Rejected] = []
        done: list[Done] = []
        for command in commands:
            match command:
                case wire.Submit(request):
                    self._submit(request, rejected)
                case wire.Abort(number):
                    events += self._end(number, FinishReason.ABORT) if number in self.running else ()
                case wire.AbortAll():
                    for number in list(self.running):
                        events += self._end(number, FinishReason.ABORT)
                case wire.Flush():
                    self.seen.clear()
                case wire.Pause(mode):
                    self.paused = mode
                case wire.Resume():
                    self.paused = None
                case wire.Drain(number):
                    self.drain = number
                case wire.UpdateWeights(number, source, mode):
                    if source == "missing" or source.endswith("other.gguf"):
                        error = BadRequest(f"{source} is not of the model that is served", param="model_path")
                        done.append(WeightsRefused(number, error))
                    else:
                        self.updates.append(f"{mode} {source}")
                        done.append(WeightsUpdated(number, len(self.updates)))
        if self.paused is not None:
            return sched.Iteration(tuple(events), Idle(IdleReason.PAUSED), tuple(rejected), None, tuple(done))
        before = len(events)
        computing(tuple(self.running))
        for number, echo in list(self.running.items()):
            if echo.request.deadline is not None and echo.request.deadline <= time.monotonic():
                events += self._end(number, FinishReason.DEADLINE)
        for echo in list(self.running.values()):
            events += self._step(echo)
        self.steps += 1
        idle = None if len(events) > before else Idle(IdleReason.NO_WORK)
        if self.drain is not None and not self.running:
            done.append(Drained(self.drain))
        return sched.Iteration(tuple(events), idle, tuple(rejected), None, tuple(done))

    def stats(self) -> wire.Stats:
        used = sum(len(echo.request.prompt) + echo.made for echo in self.running.values())
        components = tuple(wire.ComponentUse(name, POOL_TOKENS, used, 7) for name in ("full", "window"))
        return wire.Stats(
            running=len(self.running),
            waiting=0,
            requests_finished=self.finished,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.prompt_tokens - self.cached_tokens + self.generated,
            generated_tokens=self.generated,
            retractions=3,
            steps=self.steps,
            components=components,
        )

    def weights(self) -> str:
        return self.updates[-1].split()[-1] if self.updates else ""

    def check_slice(self) -> bool:
        assert not self.damaged, "the fake is damaged as asked"
        return False

    def _submit(self, request: Request, rejected: list[sched.Rejected]) -> None:
        key = request.salt.encode() + b"\0" + request.prompt.tobytes()
        echo = Echo(request, len(request.prompt) - 1 if key in self.seen else 0)
        if echo.says(b"MEMORY"):
            raise MemoryError
        if echo.says(b"REJECT"):
            rejected.append(sched.Rejected(request.id, RequestTooLarge("no pool holds it")))
            return
        self.seen.add(key)
        self.damaged |= echo.says(b"DAMAGE")
        for number in (request.id, *(sibling.id for sibling in request.siblings)):
            made = len(request.outputs)
            self.running[number] = Echo(replace(request, id=number), echo.cached, made)
        self.prompt_tokens += len(request.prompt)
        self.cached_tokens += echo.cached

    def _step(self, echo: Echo) -> list[Event]:
        if echo.made == 3:
            if echo.says(b"STALL"):
                return []
            if echo.says(b"CRASH"):
                raise ValueError("the fake broke as asked")
            if echo.says(b"EXIT"):
                os._exit(7)
        if echo.made == 1 and echo.says(b"FAIL"):
            return self._end(echo.request.id, FinishReason.ERROR, "its step failed")
        scored = self._scored(echo) if echo.made == 0 else []
        if echo.request.max_tokens == 0:
            return [*scored, *self._end(echo.request.id, FinishReason.LENGTH)]
        token = echo.echoed[echo.made % len(echo.echoed)]
        echo.made += 1
        self.generated += 1
        chosen = TokenSampled(echo.request.id, token, -0.5, alternatives(echo.request))
        if token in echo.request.stop_ids:
            return [*scored, chosen, *self._end(echo.request.id, FinishReason.STOP)]
        if echo.made == echo.request.max_tokens:
            return [*scored, chosen, *self._end(echo.request.id, FinishReason.LENGTH)]
        return [*scored, chosen]

    def _scored(self, echo: Echo) -> list[Event]:
        """Prompt logprobs: each is minus the token's position. Siblings get none."""
        request = echo.request
        first = request.logprobs.prompt_from
        if first is None or any(sibling.id == request.id for sibling in request.siblings):
            return []
        tokens = [int(token) for token in request.prompt[max(1, first) :]]
        scores = [
            SampledToken(t, -float(n), alternatives(request)) for n, t in enumerate(tokens, max(1, first))
        ]
        return [PromptLogprobs(request.id, max(1, first), tuple(scores))]

    def _end(self, number: RequestId, reason: FinishReason, message: str = "") -> list[Event]:
        self.finished += 1
        return [Ended(number, reason, self.running.pop(number).usage(), message)]


def ready(context: int = CONTEXT) -> wire.Ready:
    return wire.Ready(
        pid=0,
        model="echo",
        architecture="echo",
        context=context,
        weights_bytes=12345678,
        components=(
            wire.ComponentInfo("full", 3, None, POOL_TOKENS, 1 << 20),
            wire.ComponentInfo("window", 15, 512, POOL_TOKENS, 5 << 20),
        ),
        page_size=16,
        threads=2,
        isa="none",
        max_running_requests=32,
        chunked_prefill_size=512,
        load_seconds=0.1,
    )


def load(config: EngineConfig) -> tuple[wire.Ready, process.Steps]:
    model = str(config.model)
    return loaded(
        passed(Path(model.removeprefix("gate "))) if model.startswith("gate ") else model
    ), FakeSteps()


def passed(folder: Path) -> str:
    """The name of the model that loads once the gate is open."""
    try:
        (folder / "first").touch(exist_ok=False)
        return "echo"
    except FileExistsError:
        while not (folder / "open").exists():
            threading.Event().wait(0.005)
        return (folder / "open").read_text()


def loaded(model: str) -> wire.Ready:
    match model:
        case "broken":
            raise ModelFileError("broken.gguf: tensor x is truncated")
        case "bug":
            raise ZeroDivisionError("the loader has a bug")
        case "memory":
            raise MemoryError("Unable to allocate 160. MiB\nfor an array")
        case "slow":
            threading.Event().wait()
        case "chatty":
            os.write(sys.stdin.fileno(), b"to standard input")
            print("on standard output", flush=True)
    served = ready(CONTEXT + 1 if model == "other" else CONTEXT)
    return msgspec.structs.replace(served, weights=model if model.startswith("weights") else "")


if __name__ == "__main__":
    sys.exit(process.run(load))
