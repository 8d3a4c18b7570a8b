"""The server's side of the engine process: starts it, sends it requests and commands, notices its end."""

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import Self

import msgspec

from transom import wire
from transom.config import EngineConfig, LogConfig
from transom.engine.channel import Channel
from transom.errors import BadRequest, EngineDied, TransomError
from transom.values import (
    Ended,
    Event,
    PauseMode,
    PromptLogprobs,
    Request,
    RequestId,
    TokenSampled,
    UpdateMode,
)

log = logging.getLogger("transom.engine")

ENGINE_COMMAND = (sys.executable, "-m", "transom.engine.process")
STOP_SECONDS = 2.0
"""Time for an engine to finish its step and exit after its channel is closed, before SIGTERM."""
KILL_SECONDS = 1.0
"""Time between SIGTERM and SIGKILL."""
EXIT_SECONDS = 10.0
"""Time for an engine that has closed its channel to exit: it only has to free its memory."""
LOG_DEFAULT = LogConfig()

NO_STATS = wire.Stats()


class Replies:
    """The engine's replies to one group of requests, in order of arrival. Mutable, for one reader.

    A context manager: leaving the block, normally or by an exception, aborts its unfinished requests.
    """

    def __init__(self, client: "EngineClient") -> None:
        self._client = client
        self._arrived: list[Event] = []
        self._unfinished: set[RequestId] = set()
        self._waiter: asyncio.Future[None] | None = None
        self._death: EngineDied | None = None

    def submit(self, request: Request) -> None:
        """Send one more request. Its id must be new to the engine. EngineDied if the engine is gone."""
        self._client._submit(request, self)
        self._unfinished.update(request.ids)

    async def take(self) -> list[Event]:
        """All replies since the last call, at least one. EngineDied if no more will arrive."""
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
        """Request an early end. The `Ended` event still arrives; repeating the call does nothing."""
        if number in self._unfinished:
            self._client._abort(number)

    def abort_all(self) -> int:
        """Request an early end of all unfinished outputs. Returns their number."""
        for number in self._unfinished:
            self._client._abort(number)
        return len(self._unfinished)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._unfinished:
            self._client._forget(number)
        self._unfinished.clear()

    # Called by the client.

    def deliver(self, reply: Event) -> None:
        self._arrived.append(reply)
        if type(reply) is Ended:  # hot path: cheaper than isinstance, and no reply has subclasses
            self._unfinished.discard(reply.request)
        self._wake()

    def fail(self, death: EngineDied) -> None:
        self._death = death
        self._unfinished.clear()
        self._wake()

    def _wake(self) -> None:
        # A cancelled reader leaves a waiter that is done.
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineClient:
    """Owns one engine process, the channel to it and the table of requests in flight. Mutable.

    Belongs to the event loop in which it was created. A dead engine is not restarted here: `Supervisor` makes
    a new client.
    """

    def __init__(
        self,
        config: EngineConfig,
        command: Sequence[str] = ENGINE_COMMAND,
        log_config: LogConfig = LOG_DEFAULT,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[RequestId, Replies] = {}
        self._unanswered: dict[int, asyncio.Future[None]] = {}
        """Commands sent and not yet answered by Done."""
        self._numbers = count(1)
        """Numbers of commands; requests have ids of their own."""
        self._paused = False
        self._flaw: str | None = None
        """Why the engine must be replaced, although it serves."""
        self._death: asyncio.Future[EngineDied] = self._loop.create_future()
        self._started: asyncio.Future[wire.Ready] = self._loop.create_future()
        self._stats = NO_STATS
        self._progress_at = time.monotonic()
        """When the engine last sent a message, or began to have something to do."""
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
        """A client with a ready engine. TransomError, in one line, if the engine cannot start."""
        client = cls(config, command, log_config)
        try:
            await asyncio.shield(client._started)
        except BaseException:
            await client.stop()
            raise
        return client

    @property
    def ready(self) -> wire.Ready:
        """The facts that the engine reported when it had loaded."""
        return self._started.result()

    @property
    def stats(self) -> wire.Stats:
        """The latest snapshot that the engine sent."""
        return self._stats

    @property
    def death(self) -> EngineDied | None:
        """Why the engine no longer serves; unset while it serves."""
        return self._death.result() if self._death.done() else None

    async def died(self) -> EngineDied:
        """Waits until the engine no longer serves. Returns why."""
        return await asyncio.shield(self._death)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def stalled_seconds(self) -> float:
        """Seconds without a message while requests are in flight; 0 without any, and while paused."""
        working = self._in_flight and not self._paused
        return time.monotonic() - self._progress_at if working else 0.0

    def replies(self) -> Replies:
        return Replies(self)

    # Commands return when the engine has carried them out. EngineDied; BadRequest if the engine refuses.

    async def flush(self) -> None:
        """Drop all cached prefixes."""
        await self._execute(wire.Flush(next(self._numbers)))

    async def abort_all(self) -> None:
        await self._execute(wire.AbortAll(next(self._numbers)))

    async def pause(self, mode: PauseMode) -> None:
        """Compute no tokens until `resume`."""
        await self._execute(wire.Pause(mode, next(self._numbers)))
        self._paused = True

    async def resume(self) -> None:
        self._progress_at = time.monotonic()
        self._paused = False
        await self._execute(wire.Resume(next(self._numbers)))

    async def update_weights(self, source: str, mode: UpdateMode) -> None:
        """Load the weights of the file `source`. Returns when they serve."""
        await self._execute(wire.UpdateWeights(next(self._numbers), source, mode))

    async def drain(self) -> None:
        """Refuse new requests. Returns when no request is left."""
        await self._execute(wire.Drain(next(self._numbers)))

    def retire(self, reason: str) -> None:
        """Fail all present and later requests and commands with EngineDied. The process runs until `stop`."""
        self._die(EngineDied(reason))

    async def stop(self, patience_seconds: float = STOP_SECONDS) -> None:
        """End the engine process: close its channel, then send signals. Requests in flight get EngineDied.

        Stopping again does nothing.
        """
        self.retire("the server is shutting down")
        self._unwatch()
        self._channel.close()
        # An engine that is still loading does not read its channel and has nothing to finish.
        loaded = self._started.done() and self._started.exception() is None
        await asyncio.to_thread(_terminate, self._child, patience_seconds if loaded else 0.0)

    # ---------------------------------------------------------------- sending

    def _submit(self, request: Request, replies: Replies) -> None:
        self._send(wire.Submit(request))
        if not self._in_flight:
            self._progress_at = time.monotonic()
        self._in_flight.update(dict.fromkeys(request.ids, replies))

    async def _execute(self, command: wire.Answered) -> None:
        self._send(command)
        done = self._unanswered[command.number] = self._loop.create_future()
        await done

    def _abort(self, number: RequestId) -> None:
        with contextlib.suppress(EngineDied):
            self._send(wire.Abort(number))

    def _forget(self, number: RequestId) -> None:
        """Abort a request that has no reader any more."""
        if self._in_flight.pop(number, None) is not None:
            self._abort(number)

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
            log.error("the engine sent bytes that are not a message", exc_info=error)
            self._child.kill()
            self._disconnected("sent bytes that are not a message")
        else:
            # Only now: messages sent before the end, a Failed for example, explain it.
            if self._channel.ended:
                self._disconnected("ended unexpectedly")

    def _receive(self, message: wire.FromEngine) -> None:
        self._progress_at = time.monotonic()
        match message:
            case wire.StepOut():
                self._deliver(message)
            case wire.Done():
                self._complete(message)
            case wire.Ready():
                self._started.set_result(message)
            case wire.Failed():
                self._fail(message.message)
            case wire.Unsound():
                self._flaw = message.message
        # Requests sent before the message arrived are still served. A paused engine may hold weights that an
        # administrator is about to replace, and the next engine would not be paused.
        if self._flaw is not None and not (self._in_flight or self._unanswered or self._paused):
            self._fail(self._flaw)

    def _complete(self, done: wire.Done) -> None:
        answer = self._unanswered.pop(done.number, None)
        if answer is None or answer.done():  # its caller was cancelled
            return
        if done.message:
            answer.set_exception(BadRequest(done.message, param=done.param, code=done.code))
        else:
            answer.set_result(None)

    def _deliver(self, step: wire.StepOut) -> None:
        self._stats = step.stats
        in_flight = self._in_flight
        replies: Iterator[PromptLogprobs | TokenSampled] = chain(step.prompt_logprobs, step.tokens)
        for reply in replies:
            reader = in_flight.get(reply.request)
            if reader is not None:  # otherwise the request was aborted when its reader left
                reader.deliver(reply)
        for end in step.ends:
            reader = in_flight.pop(end.request, None)
            if reader is not None:
                reader.deliver(end)

    # ---------------------------------------------------------------- the end

    def _disconnected(self, how: str) -> None:
        """The channel has ended. The exit status, once known, completes the error."""
        self._unwatch()
        # In a thread: the process has closed its files, but may still be freeing its memory.
        reaping = self._loop.run_in_executor(None, _reap, self._child)
        if self.death is not None:  # a Failed message has given the reason
            return
        message = f"the engine process {how}"
        if self._started.done():
            # Requests in flight fail at once; the exit status is only logged.
            self._fail(message)
            reaping.add_done_callback(lambda status: log.error("%s: %s", message, status.result()))
        else:
            # Only `start` is waiting, and a person reads its error: it can wait for the exit status.
            reaping.add_done_callback(lambda status: self._fail(f"{message}: {status.result()}"))

    def _unwatch(self) -> None:
        descriptor = self._channel.fileno()
        if descriptor >= 0:  # a closed descriptor's number may already belong to another socket
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
        for answer in self._unanswered.values():
            if not answer.done():
                answer.set_exception(death)
        self._unanswered.clear()


def _spawn(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], Channel]:
    """Starts the engine process. TransomError if the operating system refuses."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            # A process group of its own: Ctrl-C in the terminal reaches only the server, which stops it.
            child = subprocess.Popen(command, stdin=theirs.fileno(), process_group=0)
        except OSError as error:
            ours.close()
            raise TransomError(f"the engine process cannot be started: {error.strerror}") from error
    return child, Channel(ours)


def _reap(child: subprocess.Popen[bytes]) -> str:
    """Waits for a process that has ended or is about to. Returns its exit status in words."""
    try:
        status = child.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        status = child.wait()
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _terminate(child: subprocess.Popen[bytes], patience_seconds: float) -> None:
    """Waits, then sends SIGTERM, then SIGKILL, until the process has exited."""
    for escalate, seconds in ((child.terminate, patience_seconds), (child.kill, KILL_SECONDS)):
        try:
            child.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            escalate()
    child.wait()
