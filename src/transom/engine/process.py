"""The engine process: messages in, `turn` after `turn`, messages out.

Started by `EngineClient` as `python -m transom.engine.process`, with the channel as its standard input.
It ends by the channel's end or SIGTERM, cleanly; by any exception, with status 1.
"""

import contextlib
import errno
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

import msgspec

from transom import logs, wire
from transom.config import EngineConfig
from transom.engine.channel import Channel
from transom.errors import TransomError
from transom.sched import loop as sched
from transom.sched.commands import Drained, WeightsRefused, WeightsUpdated
from transom.values import (
    Ended,
    FinishReason,
    IdleReason,
    PromptLogprobs,
    TokenSampled,
    Usage,
)

log = logging.getLogger("transom.engine")

FOREVER: int | None = None
STALLED_POLL_MS = 10
"""Pause between turns that find nothing to do although requests are unfinished. A scheduler should never
say so twice; if one does, a slow loop is better than a request that hangs."""
NO_MEMORY = (
    "not enough memory for the model and its pools; --kv-bytes and --max-total-tokens make them smaller"
)
LAST_WORDS_SECONDS = 1.0
"""How long a server that is slow to read may hold up an engine that ends."""


class Steps(Protocol):
    """What the loop drives: a scheduler with its runner."""

    def iterate(self, commands: Sequence[wire.Command]) -> sched.Iteration: ...

    def stats(self) -> wire.Stats: ...


Load = Callable[[EngineConfig], tuple[wire.Ready, Steps]]


@dataclass(frozen=True, slots=True)
class Stop:
    """Whatever means "stop": the server is gone, or closed the channel, or SIGTERM came."""


Incoming = wire.ToEngine | Stop


class Mailbox:
    """Owns the engine's end of the channel, and knows what else says "stop". Mutable; `receive` waits."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._poller = select.poll()
        self._stops: set[int] = set()

    def stop_on(self, readable: int) -> None:
        """Something more that means "stop" once it is readable."""
        self._stops.add(readable)
        self._poller.register(readable, select.POLLIN)

    def send(self, message: wire.FromEngine) -> None:
        self._channel.send(wire.encode(message))

    def receive(self, timeout_ms: int | None) -> list[Incoming]:
        """Everything that has arrived, waiting at most `timeout_ms` (None: for ever) for a first message."""
        # The wait begins anew after a part of a message, and after the socket took some of what is unsent.
        while ready := self._wait(timeout_ms):
            self._channel.flush()
            arrived: list[Incoming] = [wire.decode_to_engine(body) for body in self._channel.receive()]
            if self._channel.ended or ready & self._stops:
                arrived.append(Stop())
            if arrived:
                return arrived
        return []

    def _wait(self, timeout_ms: int | None) -> set[int]:
        """What is ready: to be read, or written to if anything is unsent."""
        writable = select.POLLOUT if self._channel.unsent else 0
        self._poller.register(self._channel, select.POLLIN | writable)
        return {descriptor for descriptor, _ in self._poller.poll(timeout_ms)}

    def close(self) -> None:
        self._channel.close(LAST_WORDS_SECONDS)


@contextlib.contextmanager
def sigterm_socket() -> Iterator[int]:
    """A descriptor that becomes readable on SIGTERM: a poll wakes up, nothing is interrupted."""
    readable, writable = socket.socketpair()
    with readable, writable:
        writable.setblocking(False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(writable.fileno(), warn_on_full_buffer=False)
        try:
            yield readable.fileno()
        finally:
            signal.set_wakeup_fd(-1)


# ---------------------------------------------------------------- events and answers as messages


def step_out(iteration: sched.Iteration, stats: wire.Stats) -> wire.StepOut:
    """The turn's events in order, by kind; refusals after them."""
    prompt_logprobs: list[wire.PromptLogprobOut] = []
    tokens: list[wire.TokenOut] = []
    ended: list[wire.EndOut] = []
    for event in iteration.events:
        match event:
            case TokenSampled():
                tokens.append(wire.TokenOut(event.request, event.token, event.logprob, event.top))
            case Ended():
                ended.append(_end(event))
            case PromptLogprobs():
                prompt_logprobs += [
                    wire.PromptLogprobOut(event.request, token.token, token.logprob, token.top)
                    for token in event.tokens
                ]
    ended += map(_refusal, iteration.rejected)
    return wire.StepOut(tuple(tokens), tuple(ended), stats, tuple(prompt_logprobs))


def _end(event: Ended) -> wire.EndOut:
    return wire.EndOut(
        event.request, event.reason, event.usage, event.message, queue_seconds=event.queue_seconds
    )


def answers(messages: Sequence[wire.ToEngine | Stop], iteration: sched.Iteration) -> Iterator[wire.Done]:
    """What is carried out: at once, as most commands are, or by now."""
    for message in messages:
        match message:
            case wire.AbortAll() | wire.Flush() | wire.Pause() | wire.Resume():
                yield wire.Done(message.number)
            case _:
                pass
    for done in iteration.done:
        match done:
            case WeightsUpdated() | Drained():
                yield wire.Done(done.number)
            case WeightsRefused(number, error):
                yield wire.Done(number, error.message, error.code or "invalid_value", error.param)


def _refusal(rejected: sched.Rejected) -> wire.EndOut:
    error = rejected.error
    return wire.EndOut(
        rejected.request,
        FinishReason.ERROR,
        Usage(0, 0, 0),
        error.message,
        error.code or "invalid_value",
        error.param,
    )


# ---------------------------------------------------------------- the loop


def serve(mailbox: Mailbox, steps: Steps) -> None:
    """Take turns until told to stop. Sleeps only when there is nothing to compute."""
    timeout_ms = FOREVER
    while True:
        messages = mailbox.receive(timeout_ms)
        commands = [m for m in messages if isinstance(m, wire.Command)]
        if len(commands) < len(messages):
            return
        iteration = steps.iterate(commands)
        if iteration.failure is not None:
            log.error("a step failed; its requests end with an error", exc_info=iteration.failure)
        out = step_out(iteration, steps.stats())
        if out.tokens or out.ends or out.prompt_logprobs or iteration.idle is not None:
            mailbox.send(out)
        for answer in answers(messages, iteration):
            mailbox.send(answer)
        timeout_ms = _pause(iteration, out.stats)


def _pause(iteration: sched.Iteration, stats: wire.Stats) -> int | None:
    """How long to wait for messages before the next turn."""
    if iteration.idle is None:
        return 0
    if iteration.idle.reason is IdleReason.PAUSED:
        return _until(iteration.idle.until)
    return STALLED_POLL_MS if stats.running + stats.waiting else FOREVER


def _until(deadline: float | None) -> int | None:
    return FOREVER if deadline is None else max(0, ceil(1000 * (deadline - time.monotonic())))


def run(load: Load) -> int:
    """The life of an engine process; returns its exit status."""
    # Ctrl-C reaches the whole terminal group; ending the engine is the parent's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mailbox = Mailbox(Channel(_standard_input()))
    try:
        match mailbox.receive(FOREVER):
            case [wire.Launch(config, log_config)]:
                logs.configure(log_config)
                _live(mailbox, load, config)
        # Anything else: the server is gone before it said what it wants.
        return 0
    except Exception as error:
        mailbox.send(wire.Failed(_last_words(error)))
        return 1
    finally:
        mailbox.close()


def _last_words(error: Exception) -> str:
    """One line for the user; the log has the traceback of what is not the user's to mend."""
    match error:
        case TransomError():
            return str(error)
        case MemoryError() | OSError(errno=errno.ENOMEM):
            return f"{NO_MEMORY} ({' '.join(str(error).split())})"
    log.error("the engine failed", exc_info=error)
    return f"the engine failed: {type(error).__name__}: {error}"


def _live(mailbox: Mailbox, load: Load, config: EngineConfig) -> None:
    # While loading, SIGTERM simply kills: there is nothing yet to leave in order. After Ready it never does.
    ready, steps = load(config)
    with sigterm_socket() as sigterm:
        mailbox.stop_on(sigterm)
        mailbox.send(msgspec.structs.replace(ready, pid=os.getpid()))
        serve(mailbox, steps)


def _standard_input() -> socket.socket:
    """The socket that standard input is; in its place, for whoever else may read or write there, nothing."""
    standard = sys.stdin.fileno()
    end = socket.socket(fileno=os.dup(standard))
    with open(os.devnull, "r+b") as nothing:
        os.dup2(nothing.fileno(), standard)
    return end


# ---------------------------------------------------------------- the real thing


def _load(config: EngineConfig) -> tuple[wire.Ready, Steps]:
    # Only the child pays for the model's code; whoever imports this module for its loop does not.
    from transom.engine.engine import load_engine

    return load_engine(config)


def main() -> int:
    return run(_load)


if __name__ == "__main__":
    sys.exit(main())
