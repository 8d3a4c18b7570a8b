"""One engine process: started with a channel as its standard input, stopped with patience or killed."""

import asyncio
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from transom import wire
from transom.config import EngineConfig, LogConfig
from transom.engine.channel import Channel
from transom.errors import TransomError

log = logging.getLogger("transom.engine")

ENGINE_COMMAND = (sys.executable, "-m", "transom.engine.process")
STOP_SECONDS = 2.0
"""Time for an engine to finish its step and exit after its channel is closed, before SIGTERM."""
KILL_SECONDS = 1.0
"""Time between SIGTERM and SIGKILL."""
EXIT_SECONDS = 10.0
"""Time for an engine that has closed its channel to exit: it only has to free its memory."""
LOG_DEFAULT = LogConfig()
KILLED = -signal.SIGKILL

Receive = Callable[[wire.FromEngine], None]
"""Called with each message of a started engine, in order."""


@dataclass(frozen=True, slots=True)
class End:
    """Why an engine process ended. `from_outside`: killed or stopped by a signal that we did not send."""

    reason: str
    from_outside: bool = False


class StartRefusedError(TransomError):
    """The operating system has no descriptors, processes or memory for another process at the moment."""


class EngineProcess:
    """Owns one engine process and the server's end of its channel. Mutable; belongs to one event loop."""

    def __init__(
        self, config: EngineConfig, receive: Receive, command: Sequence[str], log_config: LogConfig
    ) -> None:
        """StartRefusedError if the operating system refuses to start a process."""
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._started: asyncio.Future[wire.Ready] = self._loop.create_future()
        self._ended: asyncio.Future[End] = self._loop.create_future()
        self._failure: End | None = None
        """The end, if it is known before the process has ended."""
        self.is_productive = False
        """Whether the engine has sampled a token."""
        self._child, self._channel = _spawn(command)
        self._loop.add_reader(self._channel.fileno(), self._on_readable)
        self.send(wire.Launch(config, log_config))

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        receive: Receive,
        command: Sequence[str] = ENGINE_COMMAND,
        log_config: LogConfig = LOG_DEFAULT,
    ) -> Self:
        """A process that is ready. TransomError, in one line, if the engine cannot start."""
        process = cls(config, receive, command, log_config)
        try:
            await asyncio.shield(process._started)
        except BaseException:
            await process.stop()
            raise
        return process

    @property
    def ready(self) -> wire.Ready:
        """The facts that the engine reported when it had loaded."""
        return self._started.result()

    @property
    def pid(self) -> int:
        return self._child.pid

    async def ended(self) -> End:
        """Waits until the process has ended and its last message has been received."""
        return await asyncio.shield(self._ended)

    def send(self, message: wire.ToEngine) -> None:
        """Queue a message. A process that has died ignores it."""
        self._channel.send(wire.encode(message))
        if self._channel.unsent:
            self._loop.add_writer(self._channel.fileno(), self._on_writable)

    def kill(self, end: End) -> None:
        """SIGKILL, as `end` says why. Messages that the process has sent are still received."""
        self._failure = self._failure or end
        self._child.kill()

    async def stop(self, patience_seconds: float = STOP_SECONDS) -> None:
        """End the process: close its channel, then send signals. Stopping again does nothing."""
        self._unwatch()
        self._channel.close()
        # An engine that is still loading does not read its channel and has nothing to finish.
        loaded = self._started.done() and self._started.exception() is None
        await asyncio.to_thread(_terminate, self._child, patience_seconds if loaded else 0.0)
        if not self._started.done():
            self._started.cancel()

    # ---------------------------------------------------------------- channel

    def _on_writable(self) -> None:
        self._channel.flush()
        if not self._channel.unsent:
            self._loop.remove_writer(self._channel.fileno())

    def _on_readable(self) -> None:
        try:
            for body in self._channel.receive():
                self._dispatch(wire.decode_from_engine(body))
        except (AssertionError, msgspec.MsgspecError) as error:
            log.error("the engine sent bytes that are not a message", exc_info=error)
            self._child.kill()
            self._disconnected("sent bytes that are not a message")
        else:
            # Only now: messages sent before the end, a Failed for example, explain it.
            if self._channel.ended:
                self._disconnected("ended unexpectedly")

    def _dispatch(self, message: wire.FromEngine) -> None:
        match message:
            case wire.Ready():
                self._started.set_result(message)
            case wire.Failed():
                self._failure = End(message.message)
            case wire.StepOut():
                self.is_productive = self.is_productive or bool(message.tokens)
                self._receive(message)
            case _:
                self._receive(message)

    # ---------------------------------------------------------------- the end

    def _disconnected(self, how: str) -> None:
        """The channel has ended. The exit status, once known, completes the reason."""
        self._unwatch()
        # In a thread: the process has closed its files, but may still be freeing its memory.
        reaping = self._loop.run_in_executor(None, _reap, self._child)
        reaping.add_done_callback(lambda status: self._end(how, status.result()))

    def _end(self, how: str, status: int) -> None:
        words = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        end = self._failure or End(f"the engine process {how}: {words}", from_outside=status == KILLED)
        if not self._started.done():
            self._started.set_exception(TransomError(end.reason))
        self._ended.set_result(end)

    def _unwatch(self) -> None:
        descriptor = self._channel.fileno()
        if descriptor >= 0:  # a closed descriptor's number may already belong to another socket
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)


def _spawn(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], Channel]:
    """Starts the engine process. StartRefusedError if the operating system refuses."""
    try:
        ours, theirs = socket.socketpair()
    except OSError as error:
        raise StartRefusedError(f"the engine process cannot be started: {error.strerror}") from error
    with theirs:
        try:
            # A process group of its own: Ctrl-C in the terminal reaches only the server, which stops it.
            child = subprocess.Popen(command, stdin=theirs.fileno(), process_group=0)
        except OSError as error:
            ours.close()
            raise StartRefusedError(f"the engine process cannot be started: {error.strerror}") from error
    return child, Channel(ours)


def _reap(child: subprocess.Popen[bytes]) -> int:
    """Waits for a process that has ended or is about to. Returns its exit status, minus its signal if any."""
    try:
        return child.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _terminate(child: subprocess.Popen[bytes], patience_seconds: float) -> None:
    """Waits, then sends SIGTERM, then SIGKILL, until the process has exited."""
    for escalate, seconds in ((child.terminate, patience_seconds), (child.kill, KILL_SECONDS)):
        try:
            child.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            escalate()
    child.wait()


# ---------------------------------------------------------------- signs of life


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the kernel says about a process: whether it is stopped, and the processor time it has used."""

    stopped: bool
    cpu_ticks: int


def pulse(pid: int) -> Pulse | None:
    """None where the system has no /proc, or the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return None
    # proc(5): state, then fields 4 to 13; user and system time are fields 14 and 15.
    return Pulse(fields[0] in "Tt", int(fields[11]) + int(fields[12]))


@dataclass(slots=True)
class Watchdog:
    """Decides whether a silent engine hangs. Mutable: remembers when it last saw the engine compute.

    A step of a large model on few cores takes long, so silence alone does not decide soon: an engine that
    uses its processor is given `busy_seconds`. A stopped one, or one that waits for ever, computes nothing.
    """

    busy_seconds: float
    """For an endless loop, and where the system has no /proc."""
    still_seconds: float = 10.0
    """Without a message and without processor time: a deadlock, or a device that does not answer."""
    stopped_seconds: float = 2.0
    _pid: int = 0
    _ticks: int = -1
    _computed_at: float = 0.0

    def verdict(self, pid: int, silent_seconds: float, now: float, found: Pulse | None) -> End | None:
        """Why the engine must be replaced, if it must. `silent_seconds`: 0 unless it owes an answer."""
        ticks = -1 if found is None else found.cpu_ticks
        if not silent_seconds or pid != self._pid or ticks != self._ticks:
            self._pid, self._ticks, self._computed_at = pid, ticks, now
        still = min(silent_seconds, now - self._computed_at)
        if silent_seconds > self.busy_seconds:
            return End(f"the engine has not finished a step for {silent_seconds:.0f} seconds")
        if found is None:
            return None
        if found.stopped and silent_seconds > self.stopped_seconds:
            return End("the engine process was stopped by a signal", from_outside=True)
        if still > self.still_seconds:
            return End(f"the engine has computed nothing for {still:.0f} seconds")
        return None

    def look(self, pid: int, silent_seconds: float) -> End | None:
        return self.verdict(pid, silent_seconds, time.monotonic(), pulse(pid))
