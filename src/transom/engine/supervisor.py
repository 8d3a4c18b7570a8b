"""Keeps an engine running: whoever needs it asks for the one that serves now."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from transom import wire
from transom.config import EngineConfig, LogConfig
from transom.engine.client import ENGINE_COMMAND, LOG_DEFAULT, NOTHING_YET, STOP_SECONDS, EngineClient
from transom.errors import EngineDied, TransomError

log = logging.getLogger("transom.engine")


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """All it takes to start an engine, and again, until `crashes_max` have ended within `crashes_seconds`."""

    config: EngineConfig
    log_config: LogConfig = LOG_DEFAULT
    command: Sequence[str] = ENGINE_COMMAND
    crashes_max: int = 5
    crashes_seconds: float = 60.0

    async def start(self) -> EngineClient:
        return await EngineClient.start(self.config, self.command, self.log_config)

    def is_enough(self, crashes: Sequence[float]) -> bool:
        """Whether the last of these times, in seconds, was one crash too many."""
        last = crashes[-self.crashes_max :]
        return len(last) == self.crashes_max and last[-1] - last[0] <= self.crashes_seconds


class Supervisor:
    """Owns the engine that serves, and replaces it when it dies. Mutable; of the loop it was started in."""

    def __init__(self, recipe: EngineLaunch, first: EngineClient) -> None:
        self._recipe = recipe
        self._client = first
        self._ready = first.ready
        self._over: str | None = None
        self._replacing = asyncio.ensure_future(self._replace_the_dead())
        self.restarts = 0

    @classmethod
    async def start(cls, recipe: EngineLaunch) -> Self:
        """With a first engine that is ready. TransomError, of one line, if there cannot be one."""
        return cls(recipe, await recipe.start())

    @property
    def client(self) -> EngineClient:
        """The engine that serves now. EngineDied, with the reason, while there is none."""
        trouble = self.trouble
        if trouble is not None:
            raise EngineDied(trouble)
        return self._client

    @property
    def trouble(self) -> str | None:
        """Why no engine serves and what is done about it, or None while one does."""
        death = self._client.death
        if self._over is not None or death is None:
            return self._over
        return f"{death}; a new one is being started"

    @property
    def ready(self) -> wire.Ready:
        """What the engine is: the same of all that ever serve, but for its process and its loading time."""
        return self._ready

    @property
    def stats(self) -> wire.Stats:
        """The latest snapshot. Every engine counts from nothing."""
        return self._client.stats if self.trouble is None else NOTHING_YET

    async def gave_up(self) -> str:
        """Why there will be no engine any more, once there will not."""
        return await asyncio.shield(self._replacing)

    def retire(self, reason: str) -> None:
        """Answer whatever is in flight, or comes later, with EngineDied; replace nothing from now on."""
        self._over = reason
        self._client.retire(reason)

    async def stop(self, patience_seconds: float = STOP_SECONDS) -> None:
        """End the engine, also one that is only starting. Requests in flight get EngineDied."""
        self.retire("the server is shutting down")
        self._replacing.cancel()
        await asyncio.gather(self._replacing, return_exceptions=True)
        await self._client.stop(patience_seconds)

    # ---------------------------------------------------------------- replacing

    async def _replace_the_dead(self) -> str:
        """Returns only when it gives up: with the reason."""
        crashes: list[float] = []
        reason = await self._served()
        while self._over is None:
            crashes.append(time.monotonic())
            if self._recipe.is_enough(crashes):
                self._over = self._too_often(reason)
                break
            log.error("%s; starting a new engine", reason)
            try:
                successor = await self._recipe.start()
            except TransomError as error:
                reason = str(error)
            else:
                reason = await self._succeeded(successor, crashes[-1])
        return self._over

    async def _succeeded(self, successor: EngineClient, since: float) -> str:
        """It serves from now on; why it no longer does, once it does not."""
        self._client = successor
        if _model(successor.ready) != _model(self._ready):
            self._over = "the model file has changed since the server began; it must be started anew"
            return self._over
        self.restarts += 1
        log.warning("a new engine serves, %.1f s after the end of the last", time.monotonic() - since)
        return await self._served()

    async def _served(self) -> str:
        """Why the engine no longer serves, once it does not and its process is gone."""
        death = await self._client.died()
        await self._client.stop()
        return str(death)

    def _too_often(self, reason: str) -> str:
        recipe = self._recipe
        return (
            f"the engine ended {recipe.crashes_max} times within {recipe.crashes_seconds:g} seconds, "
            f"the last time because: {reason}"
        )


def _model(ready: wire.Ready) -> tuple[object, ...]:
    """What texts, limits and metrics of the server rely on."""
    return (ready.model, ready.architecture, ready.context, ready.weights_bytes, ready.components)
