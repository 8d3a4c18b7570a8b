"""Serves until told to stop: listen, start the engine, answer, and end both in order."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import uvicorn
import uvloop

from transom import wire
from transom.config import ServerConfig
from transom.engine.client import STOP_SECONDS
from transom.engine.supervisor import EngineLaunch, Supervisor
from transom.errors import EngineDied, TransomError
from transom.server.app import Service, build_app
from transom.server.input_processor import Intake
from transom.server.listen import url_of
from transom.server.metrics import Metrics
from transom.text.model_text import ModelText

log = logging.getLogger("transom.server")

CLOSE_SECONDS = 1
"""How long a client may take to read its last words, once no answer can go on."""
KEEP_ALIVE_SECONDS = 60
"""Idle connections stay for longer than a client is told to wait for a new engine."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Announce = Callable[[wire.Ready, str], None]
"""Told, once requests are answered, what the engine is and at which URL."""


@dataclass(frozen=True, slots=True)
class Site:
    """What is served, and how. `load_text` is called in a thread while the engine loads."""

    server: ServerConfig
    recipe: EngineLaunch
    served_name: str
    load_text: Callable[[], ModelText]


def serve(site: Site, sock: socket.socket, announce: Announce) -> None:
    """Blocks until SIGINT or SIGTERM; a second one raises KeyboardInterrupt, and cuts answers off.

    TransomError if the engine cannot start, or ended too often.
    """
    if uvloop.run(serve_async(site, sock, announce)) is Stopped.AT_ONCE:
        raise KeyboardInterrupt


class Stopped(Enum):
    """How a server came to its end, by signals."""

    IN_ORDER = "in order"
    AT_ONCE = "at once"


class Signals:
    """What SIGINT and SIGTERM ask for: the first to stop, the next to do it at once. Mutable."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.stop_at_once = asyncio.Event()

    def hear(self, number: signal.Signals) -> None:
        (self.stop_at_once if self.stop.is_set() else self.stop).set()
        log.warning("%s: stopping%s", number.name, " at once" if self.stop_at_once.is_set() else "")

    def stopped(self) -> Stopped:
        return Stopped.AT_ONCE if self.stop_at_once.is_set() else Stopped.IN_ORDER


async def serve_async(site: Site, sock: socket.socket, announce: Announce) -> Stopped:
    with heard_signals() as signals, sock:
        loading = asyncio.ensure_future(asyncio.to_thread(site.load_text))
        try:
            engine = await _start(site.recipe, signals)
        finally:
            # A thread cannot be cancelled; if the engine has failed, it has most often failed alike.
            await asyncio.gather(loading, return_exceptions=True)
        if engine is None:
            return signals.stopped()
        try:
            app = build_app(_service(site, engine, await loading))
            http = HttpServer(uvicorn_config(app, site.server), engine, signals, site.server.finish_seconds)
            await _answer(http, sock, announce)
        finally:
            await engine.stop(0.0 if signals.stop_at_once.is_set() else STOP_SECONDS)
        return signals.stopped()


def _service(site: Site, engine: Supervisor, text: ModelText) -> Service:
    intake = Intake(text, site.served_name, engine.ready.context)
    return Service(engine, intake, Metrics(site.served_name, engine), site.server)


async def _start(recipe: EngineLaunch, signals: Signals) -> Supervisor | None:
    """The engine, ready; None if told to stop before it was."""
    starting = asyncio.ensure_future(Supervisor.start(recipe))
    stopping = asyncio.ensure_future(signals.stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        return starting.result()
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    return None


async def _answer(http: "HttpServer", sock: socket.socket, announce: Announce) -> None:
    """Until told to stop. TransomError if there is no engine any more."""
    serving = asyncio.ensure_future(http.serve(sockets=[sock]))
    stopping = asyncio.ensure_future(http.signals.stop.wait())
    failing = asyncio.ensure_future(http.engine.gave_up())
    announce(http.engine.ready, url_of(sock))
    done, _ = await asyncio.wait((serving, stopping, failing), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    failing.cancel()
    http.should_exit = True
    await serving
    if failing in done:
        raise TransomError(failing.result())


class HttpServer(uvicorn.Server):
    """uvicorn, with an end that is bounded in time and leaves no client without an answer."""

    def __init__(
        self, config: uvicorn.Config, engine: Supervisor, signals: Signals, finish_seconds: float
    ) -> None:
        super().__init__(config)
        self.engine = engine
        self.signals = signals
        self._finish_seconds = finish_seconds

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would raise them again at the end, and the exit status would not be 0."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.ensure_future(super().shutdown(sockets))
        draining = asyncio.ensure_future(self._drain())
        insisting = asyncio.ensure_future(self.signals.stop_at_once.wait())
        await asyncio.wait(
            (closing, insisting), timeout=self._finish_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        insisting.cancel()
        draining.cancel()
        if not closing.done():
            self.engine.retire("the server is shutting down")
            # uvicorn looks a tenth of a second later: enough for last words, not for who reads slowly.
            self.force_exit = self.signals.stop_at_once.is_set()
        await closing

    async def _drain(self) -> None:
        """The engine takes nothing more: what came in before is answered, as long as it may go on."""
        with contextlib.suppress(EngineDied):
            await self.engine.client.drain()


def uvicorn_config(app: object, server: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=log.isEnabledFor(logging.DEBUG),
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(server.finish_seconds) + CLOSE_SECONDS,
    )


@contextlib.contextmanager
def heard_signals() -> Iterator[Signals]:
    """Hears SIGINT and SIGTERM while it lasts."""
    signals = Signals()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, signals.hear, number)
    try:
        yield signals
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
