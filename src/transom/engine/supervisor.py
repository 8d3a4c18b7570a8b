"""Keeps an engine running: replaces it when its process ends or hangs. Requests in flight go on."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from transom import wire
from transom.config import EngineConfig, LogConfig
from transom.engine.child import (
    ENGINE_COMMAND,
    LOG_DEFAULT,
    STOP_SECONDS,
    End,
    EngineProcess,
    Receive,
    StartRefusedError,
    Watchdog,
)
from transom.engine.client import EngineClient
from transom.errors import EngineDied, TransomError

log = logging.getLogger("transom.engine")

WATCH_SECONDS = 0.25
"""Between two looks of the watchdog. Each costs one read of /proc, and only while requests are in flight."""
BACK_OFF_SECONDS = 0.1
"""Pause after a start that failed; twice as long after each further one."""
BACK_OFF_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """Settings to start an engine, and the restart limit.

    Engines that end without having sampled a token count: `crashes_max` of them in a row, within
    `crashes_seconds`, are not replaced. A cause that recurs so soon is not transient, and each start takes
    CPU and memory from the machine. An engine that samples tokens makes progress, so it is always replaced.
    """

    config: EngineConfig
    log_config: LogConfig = LOG_DEFAULT
    command: Sequence[str] = ENGINE_COMMAND
    crashes_max: int = 5
    crashes_seconds: float = 60.0
    hang_seconds: float = 120.0
    """An engine that computes for longer without finishing a step is replaced."""

    async def start(self, receive: Receive) -> EngineProcess:
        return await EngineProcess.start(self.config, receive, self.command, self.log_config)

    def is_enough(self, crashes: Sequence[float]) -> bool:
        """Whether the last of these crashes, given by their times in seconds, reaches the limit."""
        last = crashes[-self.crashes_max :]
        return len(last) == self.crashes_max and last[-1] - last[0] <= self.crashes_seconds


class Supervisor:
    """Owns the engine process and replaces it when it ends. Mutable; belongs to one event loop."""

    def __init__(self, launch: EngineLaunch, client: EngineClient, first: EngineProcess) -> None:
        self._launch = launch
        self._client = client
        self._process = first
        self._ready = first.ready
        self._over: str | None = None
        """What clients are told once no engine will serve any more."""
        self._is_down = False
        """Whether no engine serves at the moment."""
        self.restarts = 0
        client.attach(first)
        self._replacing = asyncio.ensure_future(self._replace_ended_engines())
        self._watching = asyncio.ensure_future(self._watch(Watchdog(launch.hang_seconds)))

    @classmethod
    async def start(cls, launch: EngineLaunch) -> Self:
        """A supervisor with a ready engine. TransomError, in one line, if the engine cannot start."""
        client = EngineClient()
        return cls(launch, client, await launch.start(client.receive))

    @property
    def client(self) -> EngineClient:
        """Takes requests and commands, also between two engines. EngineDied if no engine will serve."""
        if self._over is not None:
            raise EngineDied(self._over)
        return self._client

    @property
    def trouble(self) -> str | None:
        """What clients are told while no engine serves; None while one does.

        The reason is for the log only: it may be the text of another client's request or command.
        """
        return self._over or ("the engine has ended; a new one is being started" if self._is_down else None)

    @property
    def ready(self) -> wire.Ready:
        """The facts of the first engine. Later ones differ only in process id, loading time and weights."""
        return self._ready

    @property
    def weights_version(self) -> str:
        """Identity of the file whose weights were accepted last."""
        return self._client.weights[1] if self._client.weights is not None else self._ready.weights

    @property
    def stats(self) -> wire.Stats:
        """The latest snapshot. Each engine counts from zero."""
        return self._client.stats

    async def gave_up(self) -> str:
        """Waits until no engine will be started any more. Returns why."""
        return await asyncio.shield(self._replacing)

    def retire(self, reason: str) -> None:
        """Fail all present and later requests with EngineDied, and start no further engine."""
        self._over = self._over or reason
        self._client.die(EngineDied(reason))

    async def stop(self, patience_seconds: float = STOP_SECONDS) -> None:
        """End the engine, even if it is still starting. Requests in flight get EngineDied."""
        self.retire("the server is shutting down")
        for task in (self._watching, self._replacing):
            task.cancel()
        await asyncio.gather(self._replacing, self._watching, return_exceptions=True)
        await self._process.stop(patience_seconds)

    # ---------------------------------------------------------------- replacing

    async def _replace_ended_engines(self) -> str:
        """Runs until it gives up. Returns why."""
        failures: list[float] = []
        while True:
            end = await self._process.ended()
            ended_at = time.monotonic()
            if self._over is not None:
                return self._over
            log.error("%s; starting a new engine", end.reason)
            self._is_down = True
            self._client.detach(end)
            await self._process.stop()
            if self._process.is_productive:
                failures.clear()
            failures.append(ended_at)
            successor = await self._start_successor(end, failures)
            if isinstance(successor, str):
                self.retire("no engine can be started any more; the reason is in the log of the server")
                return successor
            self._process, self._is_down = successor, False
            self.restarts += 1
            self._client.attach(successor)
            log.warning("a new engine serves, %.1f s after the end of the last", time.monotonic() - ended_at)

    async def _start_successor(self, end: End, failures: list[float]) -> EngineProcess | str:
        """A ready engine with the weights that were accepted last, or why there will be none."""
        launch, reason, refusals = self._launch, end.reason, 0
        weights = self._client.weights
        if weights is not None:
            launch = replace(launch, config=replace(launch.config, model=weights[0]))
        while not launch.is_enough(failures):
            try:
                process = await launch.start(self._client.receive)
            except StartRefusedError as error:
                # No engine has ended, so this is no crash: the machine lacks something that it may have soon.
                log.error("%s; trying again", error)
                refusals += 1
                await asyncio.sleep(_back_off_seconds(refusals))
                continue
            except TransomError as error:  # counts as a crash
                reason = str(error)
                failures.append(time.monotonic())
                await asyncio.sleep(_back_off_seconds(len(failures)))
                continue
            if _model(process.ready) == _model(self._ready) and process.ready.weights == self.weights_version:
                return process
            await process.stop()
            return "the model file has changed since the server started; the server must be restarted"
        return (
            f"the engine ended {launch.crashes_max} times within {launch.crashes_seconds:g} seconds, "
            f"the last time because: {reason}"
        )

    async def _watch(self, watchdog: Watchdog) -> None:
        """Kills an engine that hangs. Its end, and all that follows, is then as after a crash."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            silent = self._client.stalled_seconds()
            if not silent:
                continue
            verdict = watchdog.look(self._process.pid, silent)
            if verdict is not None:
                log.error("%s; killing it", verdict.reason)
                self._process.kill(verdict)


def _back_off_seconds(failures: int) -> float:
    return min(BACK_OFF_SECONDS_MAX, float(BACK_OFF_SECONDS * 2**failures))


def _model(ready: wire.Ready) -> tuple[object, ...]:
    """The facts that the server has built on: its tokenizer, its limits and its metrics."""
    return (ready.architecture, ready.context, ready.components)
