"""Keeps an engine running: starts a new one when the engine process dies, and hands out the current one."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from transom import wire
from transom.config import EngineConfig, LogConfig
from transom.engine.client import ENGINE_COMMAND, LOG_DEFAULT, NO_STATS, STOP_SECONDS, EngineClient
from transom.errors import EngineDied, TransomError

log = logging.getLogger("transom.engine")


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """Settings to start an engine, and the restart limit.

    An engine that crashes `crashes_max` times within `crashes_seconds` is not restarted: a cause that recurs
    so soon is not transient, and each start takes CPU and memory from the machine.
    """

    config: EngineConfig
    log_config: LogConfig = LOG_DEFAULT
    command: Sequence[str] = ENGINE_COMMAND
    crashes_max: int = 5
    crashes_seconds: float = 60.0

    async def start(self) -> EngineClient:
        return await EngineClient.start(self.config, self.command, self.log_config)

    def is_enough(self, crashes: Sequence[float]) -> bool:
        """Whether the last of these crashes, given by their times in seconds, reaches the limit."""
        last = crashes[-self.crashes_max :]
        return len(last) == self.crashes_max and last[-1] - last[0] <= self.crashes_seconds


class Supervisor:
    """Owns the current engine and replaces it when it dies. Mutable; belongs to one event loop."""

    def __init__(self, launch: EngineLaunch, first: EngineClient) -> None:
        self._launch = launch
        self._client = first
        self._ready = first.ready
        self._over: str | None = None
        """Why no engine will serve any more."""
        self._replacing = asyncio.ensure_future(self._replace_dead_engines())
        self.restarts = 0

    @classmethod
    async def start(cls, launch: EngineLaunch) -> Self:
        """A supervisor with a ready engine. TransomError, in one line, if the engine cannot start."""
        return cls(launch, await launch.start())

    @property
    def client(self) -> EngineClient:
        """The engine that serves now. EngineDied, with the reason, while no engine serves."""
        trouble = self.trouble
        if trouble is not None:
            raise EngineDied(trouble)
        return self._client

    @property
    def trouble(self) -> str | None:
        """Why no engine serves and whether a new one is starting; None while one serves."""
        death = self._client.death
        if self._over is not None or death is None:
            return self._over
        return f"{death}; a new one is being started"

    @property
    def ready(self) -> wire.Ready:
        """The facts of the first engine. Later ones differ only in process id and loading time."""
        return self._ready

    @property
    def stats(self) -> wire.Stats:
        """The latest snapshot. Each engine counts from zero."""
        return self._client.stats if self.trouble is None else NO_STATS

    async def gave_up(self) -> str:
        """Waits until no engine will be started any more. Returns why."""
        return await asyncio.shield(self._replacing)

    def retire(self, reason: str) -> None:
        """Fail all present and later requests with EngineDied, and start no further engine."""
        self._over = reason
        self._client.retire(reason)

    async def stop(self, patience_seconds: float = STOP_SECONDS) -> None:
        """End the engine, even if it is still starting. Requests in flight get EngineDied."""
        self.retire("the server is shutting down")
        self._replacing.cancel()
        await asyncio.gather(self._replacing, return_exceptions=True)
        await self._client.stop(patience_seconds)

    # ---------------------------------------------------------------- replacing

    async def _replace_dead_engines(self) -> str:
        """Runs until it gives up. Returns why."""
        crashes: list[float] = []
        reason = await self._end_of_service()
        while self._over is None:
            crashes.append(time.monotonic())
            if self._launch.is_enough(crashes):
                self._over = self._too_often(reason)
                break
            log.error("%s; starting a new engine", reason)
            try:
                successor = await self._launch.start()
            except TransomError as error:  # counts as a crash
                reason = str(error)
            else:
                reason = await self._serve_with(successor, crashes[-1])
        return self._over

    async def _serve_with(self, successor: EngineClient, crashed_at: float) -> str:
        """Makes `successor` the current engine and waits for its end. Returns why it ended."""
        self._client = successor
        if _model(successor.ready) != _model(self._ready):
            self._over = "the model file has changed since the server started; the server must be restarted"
            return self._over
        self.restarts += 1
        log.warning("a new engine serves, %.1f s after the end of the last", time.monotonic() - crashed_at)
        return await self._end_of_service()

    async def _end_of_service(self) -> str:
        """Waits until the engine no longer serves and its process has exited. Returns why."""
        death = await self._client.died()
        await self._client.stop()
        return str(death)

    def _too_often(self, reason: str) -> str:
        launch = self._launch
        return (
            f"the engine ended {launch.crashes_max} times within {launch.crashes_seconds:g} seconds, "
            f"the last time because: {reason}"
        )


def _model(ready: wire.Ready) -> tuple[object, ...]:
    """The facts that the server has built on: its tokenizer, its limits and its metrics."""
    return (ready.model, ready.architecture, ready.context, ready.weights_bytes, ready.components)
