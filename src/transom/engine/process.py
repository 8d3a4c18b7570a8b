"""The engine process: messages in, `turn` after `turn`, messages out.

Started by `EngineClient` as `python -m transom.engine.process`, with a `Launch` line on standard input.
It ends by a Shutdown message, SIGTERM, or its parent's death, cleanly; by any exception, with status 1.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import zmq

from transom import wire
from transom.config import EngineConfig
from transom.engine import launch
from transom.errors import TransomError
from transom.sched import turn as sched
from transom.values import Ended, FinishReason, Request, RequestId, TokenChosen, Usage

log = logging.getLogger("transom.engine")

FOREVER: int | None = None
STALLED_POLL_MS = 10
"""Pause between turns that find nothing to do although requests are unfinished. A scheduler should never
say so twice; if one does, a slow loop is better than a request that hangs."""


class Steps(Protocol):
    """What the loop drives: a scheduler with its runner."""

    def turn(self, commands: Sequence[sched.Command]) -> sched.Turn: ...

    def stats(self) -> wire.Stats: ...


Load = Callable[[EngineConfig], tuple[wire.Ready, Steps]]


class Mailbox:
    """Owns the engine's end of the socket, and watches the parent. Mutable.

    Whatever means "stop" is received as a Shutdown message.
    """

    def __init__(self, endpoint: str, parent: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        # Long enough for a last Failed to leave; a parent that is gone takes nothing anyway.
        self._socket.linger = 1000
        self._socket.connect(endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(parent, zmq.POLLIN)

    def stop_on(self, readable: int) -> None:
        """Something more that means "stop" once it is readable."""
        self._poller.register(readable, zmq.POLLIN)

    def send(self, message: wire.FromEngine) -> None:
        self._socket.send(wire.encode(message))

    def receive(self, timeout_ms: int | None) -> list[wire.ToEngine]:
        """Everything that has arrived, waiting at most `timeout_ms` (None: for ever) for a first message."""
        stop: list[wire.ToEngine] = [
            wire.Shutdown() for source, _ in self._poller.poll(timeout_ms) if source is not self._socket
        ]
        return [*self._arrived(), *stop[:1]]

    def _arrived(self) -> Iterator[wire.ToEngine]:
        with contextlib.suppress(zmq.Again):
            while True:
                yield wire.decode_to_engine(self._socket.recv(zmq.NOBLOCK))

    def close(self) -> None:
        self._socket.close()
        self._context.term()


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


# ---------------------------------------------------------------- messages and values


def command(message: wire.Submit | wire.Abort | wire.Flush) -> sched.Command:
    match message:
        case wire.Submit():
            return sched.Submit(_request(message))
        case wire.Abort():
            return sched.Abort(RequestId(message.id))
        case wire.Flush():
            return sched.Flush()


def _request(message: wire.Submit) -> Request:
    return Request(
        id=RequestId(message.id),
        prompt=np.frombuffer(message.prompt, dtype="<i4").astype(np.int32, copy=False),
        max_tokens=message.max_tokens,
        stop_ids=frozenset(message.stop_ids),
        sampling=message.sampling,
        priority=message.priority,
        salt=message.salt,
    )


def step_out(turn: sched.Turn, stats: wire.Stats) -> wire.StepOut:
    """The turn's events in order, refusals after them."""
    tokens = tuple(
        wire.TokenOut(event.request, event.token, event.logprob)
        for event in turn.events
        if isinstance(event, TokenChosen)
    )
    ended = tuple(
        wire.EndOut(event.request, event.reason, event.usage, event.message)
        for event in turn.events
        if isinstance(event, Ended)
    )
    return wire.StepOut(tokens, ended + tuple(map(_refusal, turn.rejected)), stats)


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
        commands = [command(m) for m in messages if not isinstance(m, wire.Shutdown)]
        if len(commands) < len(messages):
            return
        turn = steps.turn(commands)
        if turn.failure is not None:
            log.error("a step failed; its requests end with an error", exc_info=turn.failure)
        out = step_out(turn, steps.stats())
        if out.tokens or out.ends or turn.idle is not None:
            mailbox.send(out)
        for message in messages:
            if isinstance(message, wire.Flush):
                mailbox.send(wire.Flushed(message.id))
        timeout_ms = _pause(turn, out.stats)


def _pause(turn: sched.Turn, stats: wire.Stats) -> int | None:
    if turn.idle is None:
        return 0
    return STALLED_POLL_MS if stats.running + stats.waiting else FOREVER


def run(load: Load) -> int:
    """The life of an engine process; returns its exit status."""
    # Ctrl-C reaches the whole terminal group; ending the engine is the parent's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = sys.stdin.fileno()
    told = launch.decode(_line(parent))
    mailbox = Mailbox(told.endpoint, parent)
    try:
        ready, steps = load(told.config)
        mailbox.send(msgspec.structs.replace(ready, pid=os.getpid()))
        # While loading, SIGTERM simply kills: there is nothing yet to leave in order.
        with sigterm_socket() as sigterm:
            mailbox.stop_on(sigterm)
            serve(mailbox, steps)
        return 0
    except TransomError as error:
        mailbox.send(wire.Failed(str(error)))
        return 1
    except Exception as error:
        log.exception("the engine failed")
        mailbox.send(wire.Failed(f"the engine failed: {type(error).__name__}: {error}"))
        return 1
    finally:
        mailbox.close()
        _tidy(told.endpoint)


def _line(descriptor: int) -> bytes:
    """Bytes up to a newline, none beyond it: what follows is only ever end of file."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(descriptor, 65536)
        if not piece:
            raise SystemExit(0)
        line += piece
    return line


def _tidy(endpoint: str) -> None:
    """Remove the socket's directory, in case the parent no longer can. It serves this engine alone."""
    path = Path(endpoint.removeprefix("ipc://"))
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


# ---------------------------------------------------------------- the real thing


def _load(config: EngineConfig) -> tuple[wire.Ready, Steps]:
    # Only the child pays for the model's code; whoever imports this module for its loop does not.
    from transom.engine.engine import load_engine

    return load_engine(config)


def main() -> int:
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return run(_load)


if __name__ == "__main__":
    sys.exit(main())
