"""The server's side of the engine: starts it, talks to it, notices its death, stops it."""

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Self

import msgspec

from transom import wire
from transom.config import EngineConfig, LogConfig
from transom.engine.channel import Channel
from transom.errors import BadRequest, EngineDied, TransomError
from transom.values import PauseMode, Request, RequestId, UpdateMode

log = logging.getLogger("transom.engine")

ENGINE_COMMAND = (sys.executable, "-m", "transom.engine.process")
STOP_SECONDS = 2.0
KILL_SECONDS = 1.0
LINGER_SECONDS = 10.0
"""An engine that has closed its channel has nothing left to do but to go."""
LOG_DEFAULT = LogConfig()

Reply = wire.PromptLogprobOut | wire.TokenOut | wire.EndOut

NOTHING_YET = wire.Stats()


class Replies:
    """The engine's answers to one group of requests, in order of arrival. Mutable, one reader.

    Use it as a context manager: leaving it, by whatever way, aborts what has not ended.
    """

    def __init__(self, client: "EngineClient") -> None:
        self._client = client
        self._arrived: list[Reply] = []
        self._open: set[RequestId] = set()
        self._waiter: asyncio.Future[None] | None = None
        self._death: EngineDied | None = None

    def submit(self, request: Request) -> None:
        """Send one more request. Its id must be new to the engine. EngineDied if the engine is gone."""
        self._client._submit(request, self)
        self._open.update(request.ids)

    async def take(self) -> list[Reply]:
        """Everything that has arrived since the last call, at least one. EngineDied if no more will come."""
        while not self._arrived:
            if self._death is not None:
                raise self._death
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        arrived, self._arrived = self._arrived, []
        return arrived

    def abort(self, number: RequestId) -> None:
        """Ask for an early end. The request's EndOut still arrives; asking again does nothing."""
        if number in self._open:
            self._client._abort(number)

    def abort_all(self) -> int:
        """Ask for an early end of all. How many that are."""
        for number in self._open:
            self._client._abort(number)
        return len(self._open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._open:
            self._client._forget(number)
        self._open.clear()

    # Called by the client.

    def deliver(self, reply: Reply) -> None:
        self._arrived.append(reply)
        if type(reply) is wire.EndOut:
            self._open.discard(reply.id)
        self._wake()

    def fail(self, death: EngineDied) -> None:
        self._death = death
        self._open.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineClient:
    """Owns one engine process, the channel to it and the table of requests in flight. Mutable.

    Belongs to the event loop it was started in. A dead engine stays dead; `Supervisor` has the next one.
    """

    def __init__(
        self,
        config: EngineConfig,
        command: Sequence[str] = ENGINE_COMMAND,
        log_config: LogConfig = LOG_DEFAULT,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[RequestId, Replies] = {}
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._paused = False
        self._next_number = 1
        self._death: asyncio.Future[EngineDied] = self._loop.create_future()
        self._started: asyncio.Future[wire.Ready] = self._loop.create_future()
        self._stats = NOTHING_YET
        self._progress_at = time.monotonic()
        self._child, self._channel = _spawn(command)
        self._loop.add_reader(self._channel.fileno(), self._on_readable)
        self._post(wire.Launch(config, log_config))

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        command: Sequence[str] = ENGINE_COMMAND,
        log_config: LogConfig = LOG_DEFAULT,
    ) -> Self:
        """A client whose engine is ready. TransomError, of one line, if it cannot be."""
        client = cls(config, command, log_config)
        try:
            await asyncio.shield(client._started)
        except BaseException:
            await client.stop()
            raise
        return client

    @property
    def ready(self) -> wire.Ready:
        """What the engine said when it had loaded."""
        return self._started.result()

    @property
    def stats(self) -> wire.Stats:
        """The latest snapshot."""
        return self._stats

    @property
    def death(self) -> EngineDied | None:
        """Why the engine serves no more, or None while it does."""
        return self._death.result() if self._death.done() else None

    async def died(self) -> EngineDied:
        """Why the engine serves no more, once it does not."""
        return await asyncio.shield(self._death)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def stalled_seconds(self) -> float:
        """How long the engine has been silent to requests in flight; 0 without any, and while paused."""
        working = self._in_flight and not self._paused
        return time.monotonic() - self._progress_at if working else 0.0

    def replies(self) -> Replies:
        return Replies(self)

    # Commands: each returns when the engine has carried it out. EngineDied; BadRequest if it is refused.

    async def flush(self) -> None:
        """Forget all cached prefixes."""
        await self._ask(wire.Flush(self._number()))

    async def abort_all(self) -> None:
        await self._ask(wire.AbortAll(self._number()))

    async def pause(self, mode: PauseMode) -> None:
        """No tokens until `resume`."""
        await self._ask(wire.Pause(mode, self._number()))
        self._paused = True

    async def resume(self) -> None:
        self._progress_at = time.monotonic()
        self._paused = False
        await self._ask(wire.Resume(self._number()))

    async def update_weights(self, source: str, mode: UpdateMode) -> None:
        """The weights of the file `source` serve then."""
        await self._ask(wire.UpdateWeights(self._number(), source, mode))

    async def drain(self) -> None:
        """Nothing is taken any more; returns when nothing is left."""
        await self._ask(wire.Drain(self._number()))

    def retire(self, reason: str) -> None:
        """Answer whatever is in flight, or comes later, with EngineDied. The engine is left to `stop`."""
        self._die(EngineDied(reason))

    async def stop(self, patience_seconds: float = STOP_SECONDS) -> None:
        """End the engine: its end of file first, then signals. Requests in flight get EngineDied.

        Stopping again does nothing.
        """
        self.retire("the server is shutting down")
        self._unwatch()
        self._channel.close()
        # An engine that is still loading has nothing to finish and does not listen yet.
        loaded = self._started.done() and self._started.exception() is None
        await asyncio.to_thread(_end, self._child, patience_seconds if loaded else 0.0)

    # ---------------------------------------------------------------- sending

    def _submit(self, request: Request, replies: Replies) -> None:
        self._send(wire.Submit(request))
        if not self._in_flight:
            self._progress_at = time.monotonic()
        self._in_flight.update(dict.fromkeys(request.ids, replies))

    async def _ask(self, command: wire.Answered) -> None:
        self._send(command)
        done = self._asked[command.number] = self._loop.create_future()
        await done

    def _abort(self, number: RequestId) -> None:
        with contextlib.suppress(EngineDied):
            self._send(wire.Abort(number))

    def _forget(self, number: RequestId) -> None:
        """Abort a request nobody reads any more."""
        if self._in_flight.pop(number, None) is not None:
            self._abort(number)

    def _number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number

    def _send(self, message: wire.ToEngine) -> None:
        if self.death is not None:
            raise self.death
        self._post(message)

    def _post(self, message: wire.ToEngine) -> None:
        self._channel.send(wire.encode(message))
        if self._channel.unsent:
            self._loop.add_writer(self._channel.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        self._channel.flush()
        if not self._channel.unsent:
            self._loop.remove_writer(self._channel.fileno())

    # ---------------------------------------------------------------- receiving

    def _on_readable(self) -> None:
        try:
            for body in self._channel.receive():
                self._receive(wire.decode_from_engine(body))
        except (AssertionError, msgspec.MsgspecError) as error:
            log.error("not a message", exc_info=error)
            self._child.kill()
            self._lost("said what is not a message")
        else:
            # What the engine still said has come first.
            if self._channel.ended:
                self._lost("ended unexpectedly")

    def _receive(self, message: wire.FromEngine) -> None:
        self._progress_at = time.monotonic()
        match message:
            case wire.StepOut():
                self._deliver(message)
            case wire.Done():
                self._answered(message)
            case wire.Ready():
                self._started.set_result(message)
            case wire.Failed():
                self._fail(message.message)

    def _answered(self, done: wire.Done) -> None:
        asked = self._asked.pop(done.number, None)
        if asked is None or asked.done():
            return
        if done.message:
            asked.set_exception(BadRequest(done.message, param=done.param, code=done.code))
        else:
            asked.set_result(None)

    def _deliver(self, step: wire.StepOut) -> None:
        self._stats = step.stats
        in_flight = self._in_flight
        replies: Iterator[wire.PromptLogprobOut | wire.TokenOut] = chain(step.prompt_logprobs, step.tokens)
        for reply in replies:
            reader = in_flight.get(reply.id)
            if reader is not None:
                reader.deliver(reply)
        for end in step.ends:
            reader = in_flight.pop(end.id, None)
            if reader is not None:
                reader.deliver(end)

    # ---------------------------------------------------------------- the end

    def _lost(self, how: str) -> None:
        self._unwatch()
        # In a thread: the process has closed its files, but may still be giving its memory back.
        reaping = self._loop.run_in_executor(None, _reap, self._child)
        if self.death is not None:  # it has said why
            return
        message = f"the engine process {how}"
        if self._started.done():
            self._fail(message)
            reaping.add_done_callback(lambda status: log.error("%s: %s", message, status.result()))
        else:  # nobody but `start` waits, and its user is told all
            reaping.add_done_callback(lambda status: self._fail(f"{message}: {status.result()}"))

    def _unwatch(self) -> None:
        descriptor = self._channel.fileno()
        if descriptor >= 0:  # a closed one's number may be another's by now
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)

    def _fail(self, message: str) -> None:
        if not self._started.done():
            self._started.set_exception(TransomError(message))
        self._die(EngineDied(message))

    def _die(self, death: EngineDied) -> None:
        if self._death.done():
            return
        self._death.set_result(death)
        for replies in set(self._in_flight.values()):
            replies.fail(death)
        self._in_flight.clear()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(death)
        self._asked.clear()


def _spawn(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], Channel]:
    """Start the engine; the process, and the channel to it. TransomError if the system does not let us."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            # A process group of its own: Ctrl-C in the terminal is for the server, which ends the engine.
            child = subprocess.Popen(command, stdin=theirs.fileno(), process_group=0)
        except OSError as error:
            ours.close()
            raise TransomError(f"the engine process cannot be started: {error.strerror}") from error
    return child, Channel(ours)


def _reap(child: subprocess.Popen[bytes]) -> str:
    """Wait for a process that has ended, or is about to; how it did, in words."""
    try:
        status = child.wait(LINGER_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        status = child.wait()
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _end(child: subprocess.Popen[bytes], patience: float) -> None:
    for insist, seconds in ((child.terminate, patience), (child.kill, KILL_SECONDS)):
        try:
            child.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            insist()
    child.wait()
