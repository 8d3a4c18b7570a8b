"""The engine process: receives messages, runs one iteration of the engine, sends its results, and repeats.

`EngineClient` starts it as `python -m transom.engine.process`, with the channel as its standard input. Its
exit status is 0 when the channel closes or SIGTERM arrives, and 1 after any exception.
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
from transom.values import Ended, FinishReason, IdleReason, PromptLogprobs, RequestId, TokenSampled, Usage

log = logging.getLogger("transom.engine")

FOREVER: int | None = None
STALLED_POLL_MS = 10
"""Pause after an iteration that computed nothing although requests are unfinished.

The scheduler should never report that twice. If a bug makes it do so, a slow loop that goes on serving the
other requests is better than one that blocks for ever.
"""
UNSOUND = "a check of the idle engine has found a broken invariant"
NO_MEMORY = (
    "not enough memory for the model and its pools; --kv-bytes and --max-total-tokens make them smaller"
)
CLOSE_SECONDS = 1.0
"""How long an exiting engine waits for a slow server to read its last messages."""


Computing = Callable[[tuple[RequestId, ...]], None]
"""Called before each step with the requests that it computes."""


class Steps(Protocol):
    """A scheduler with its runner, as the loop below drives it."""

    def iterate(self, commands: Sequence[wire.Command], computing: Computing) -> sched.Iteration: ...

    def weights(self) -> str:
        """Identity of the weights that serve now."""
        ...

    def stats(self) -> wire.Stats: ...

    def check_slice(self) -> bool:
        """Checks a bounded part of the state. False once all is checked since the last iteration."""
        ...


Load = Callable[[EngineConfig], tuple[wire.Ready, Steps]]


@dataclass(frozen=True, slots=True)
class Stop:
    """The engine shall exit: the server has closed the channel or has died, or SIGTERM has arrived."""


Incoming = wire.ToEngine | Stop


class Mailbox:
    """Owns the engine's end of the channel, and further descriptors that mean "stop". Mutable."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._poller = select.poll()
        self._stops: set[int] = set()

    def stop_on(self, descriptor: int) -> None:
        """Add a descriptor that means "stop" once it is readable."""
        self._stops.add(descriptor)
        self._poller.register(descriptor, select.POLLIN)

    def send(self, message: wire.FromEngine) -> None:
        self._channel.send(wire.encode(message))

    def receive(self, timeout_ms: int | None) -> list[Incoming]:
        """All messages that have arrived. Waits up to `timeout_ms` (None: for ever) for the first one."""
        # The wait starts over after part of a message has arrived and after the socket has taken some of the
        # unsent bytes: both are progress, and neither is a message.
        while ready := self._wait(timeout_ms):
            self._channel.flush()
            messages: list[Incoming] = [wire.decode_to_engine(body) for body in self._channel.receive()]
            if self._channel.ended or ready & self._stops:
                messages.append(Stop())
            if messages:
                return messages
        return []

    def _wait(self, timeout_ms: int | None) -> set[int]:
        """Descriptors that are ready: readable, or, for a channel with unsent bytes, writable."""
        writable = select.POLLOUT if self._channel.unsent else 0
        self._poller.register(self._channel, select.POLLIN | writable)
        return {descriptor for descriptor, _ in self._poller.poll(timeout_ms)}

    def close(self) -> None:
        self._channel.close(CLOSE_SECONDS)


@contextlib.contextmanager
def sigterm_socket() -> Iterator[int]:
    """A descriptor that becomes readable on SIGTERM. It wakes the poll; no step is interrupted."""
    readable, writable = socket.socketpair()
    with readable, writable:
        writable.setblocking(False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(writable.fileno(), warn_on_full_buffer=False)
        try:
            yield readable.fileno()
        finally:
            signal.set_wakeup_fd(-1)


# ---------------------------------------------------------------- results as messages


def step_out(iteration: sched.Iteration, stats: wire.Stats) -> wire.StepOut:
    """The message for an iteration: events of each kind in order; refused requests are ends too."""
    prompt_logprobs: list[PromptLogprobs] = []
    tokens: list[TokenSampled] = []
    ends: list[Ended] = []
    for event in iteration.events:
        match event:
            case TokenSampled():
                tokens.append(event)
            case Ended():
                ends.append(event)
            case PromptLogprobs():
                prompt_logprobs.append(event)
    ends += map(_refusal, iteration.rejected)
    return wire.StepOut(tuple(tokens), tuple(ends), stats, tuple(prompt_logprobs))


def _refusal(rejected: sched.Rejected) -> Ended:
    error = rejected.error
    return Ended(
        rejected.request,
        FinishReason.ERROR,
        Usage(0, 0, 0),
        error.message,
        code=error.code or "invalid_value",
        param=error.param,
    )


def updated(iteration: sched.Iteration, weights: Callable[[], str]) -> Iterator[wire.Done]:
    """Answers to updates of the weights that were carried out."""
    for done in iteration.done:
        if isinstance(done, WeightsUpdated):
            yield wire.Done(done.number, weights=weights())


def acknowledgements(messages: Sequence[Incoming], iteration: sched.Iteration) -> Iterator[wire.Done]:
    """Answers to all other commands that this iteration carried out or refused.

    Most commands take effect at once. `Drain` and `UpdateWeights` end in a later iteration, which says so.
    """
    for message in messages:
        match message:
            case wire.AbortAll() | wire.Flush() | wire.Pause() | wire.Resume():
                yield wire.Done(message.number)
            case _:
                pass
    for done in iteration.done:
        match done:
            case Drained():
                yield wire.Done(done.number)
            case WeightsRefused(number, error):
                yield wire.Done(number, error.message, error.code or "invalid_value", error.param)
            case WeightsUpdated():
                pass  # answered before the step


# ---------------------------------------------------------------- the loop


class Announcer:
    """Tells the server which requests a step computes, before the step. Mutable: says each set once.

    Most steps compute the same requests as the one before, so most steps send nothing.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._last: tuple[RequestId, ...] = ()

    def computing(self, requests: tuple[RequestId, ...]) -> None:
        if requests != self._last:
            self._last = requests
            self._mailbox.send(wire.Computing(requests))


def serve(mailbox: Mailbox, steps: Steps) -> None:
    """Run iterations until the server says stop. Blocks only when there is nothing to compute or to check."""
    timeout_ms, unchecked = FOREVER, False
    announce = Announcer(mailbox).computing
    while True:
        messages = mailbox.receive(0 if unchecked else timeout_ms)
        if unchecked and not messages:
            unchecked = _check_slice(mailbox, steps)
            continue
        commands = [message for message in messages if isinstance(message, wire.Command)]
        if len(commands) < len(messages):  # a Stop
            return
        iteration = steps.iterate(commands, announce)
        if iteration.failure is not None:
            log.error("a step failed; its requests end with an error", exc_info=iteration.failure)
        # Before the step: a server that sees tokens of new weights must know that these weights serve.
        for done in updated(iteration, steps.weights):
            mailbox.send(done)
        out = step_out(iteration, steps.stats())
        if out.tokens or out.ends or out.prompt_logprobs or iteration.idle is not None:
            mailbox.send(out)
        # After the step's results: when abort_all is answered, its caller has seen every output end.
        for done in acknowledgements(messages, iteration):
            mailbox.send(done)
        timeout_ms = _timeout_ms(iteration, out.stats)
        # Checks wait for an engine with nothing to do, so that no request and no deadline waits for a check.
        unchecked = timeout_ms is FOREVER


def _check_slice(mailbox: Mailbox, steps: Steps) -> bool:
    """Checks a part of the engine's state. Returns whether more is unchecked.

    After a failure the server kills and replaces the engine. An exit from here would do as well; the message
    tells the server why.
    """
    try:
        return steps.check_slice()
    except MemoryError:  # tells nothing about the state; the check begins again after the next iteration
        log.warning("no memory to check the idle engine")
        return False
    except Exception as error:  # broad on purpose: a check of damaged data can raise anything
        log.error("%s; the server replaces the engine", UNSOUND, exc_info=error)
        mailbox.send(wire.Unsound(UNSOUND))
        return False


def _timeout_ms(iteration: sched.Iteration, stats: wire.Stats) -> int | None:
    """How long to wait for messages before the next iteration."""
    if iteration.idle is None:
        return 0
    if iteration.idle.reason is IdleReason.PAUSED:
        deadline = iteration.idle.until  # of a paused request, which can still expire
        return FOREVER if deadline is None else max(0, ceil(1000 * (deadline - time.monotonic())))
    return STALLED_POLL_MS if stats.running + stats.waiting else FOREVER


def run(load: Load) -> int:
    """Runs the engine process from its first message to its end. Returns the exit status."""
    # Ctrl-C reaches every process of the terminal's group. Only the server reacts, and stops the engine.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mailbox = Mailbox(Channel(_take_standard_input()))
    try:
        match mailbox.receive(FOREVER):
            case [wire.Launch(config, log_config)]:
                logs.configure(log_config)
                _load_and_serve(mailbox, load, config)
        # Otherwise the server has died before it sent the launch message: nothing to do.
        return 0
    except Exception as error:  # the edge of the process: the server tells the user
        mailbox.send(wire.Failed(_reason(error)))
        return 1
    finally:
        mailbox.close()


def _reason(error: Exception) -> str:
    """One line for the user. A bug of ours also leaves its traceback in the log."""
    match error:
        case TransomError():
            return str(error)
        case MemoryError() | OSError(errno=errno.ENOMEM):
            return f"{NO_MEMORY} ({' '.join(str(error).split())})"
    log.error("the engine failed", exc_info=error)
    return f"the engine failed: {type(error).__name__}: {error}"


def _load_and_serve(mailbox: Mailbox, load: Load, config: EngineConfig) -> None:
    # During loading SIGTERM kills the process as usual: there are no requests to finish. From Ready on it
    # only wakes the loop.
    ready, steps = load(config)
    with sigterm_socket() as sigterm:
        mailbox.stop_on(sigterm)
        mailbox.send(msgspec.structs.replace(ready, pid=os.getpid()))
        serve(mailbox, steps)


def _take_standard_input() -> socket.socket:
    """The socket that was passed as standard input.

    /dev/null takes its place: a library that reads or writes descriptor 0 must not touch the channel.
    """
    standard = sys.stdin.fileno()
    end = socket.socket(fileno=os.dup(standard))
    with open(os.devnull, "r+b") as null:
        os.dup2(null.fileno(), standard)
    return end


# ---------------------------------------------------------------- the real engine


def _load(config: EngineConfig) -> tuple[wire.Ready, Steps]:
    # Imported here because the tests' fake engine imports this module without paying for the model's code.
    from transom.engine.engine import load_engine

    return load_engine(config)


def main() -> int:
    return run(_load)


if __name__ == "__main__":
    sys.exit(main())
