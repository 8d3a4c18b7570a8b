"""Serves until told to stop: listen, start the engine, answer, and end both in order."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import uvicorn
import uvloop

from transom import wire
from transom.config import EngineConfig, ServerConfig
from transom.engine.client import ENGINE_COMMAND, EngineClient
from transom.errors import ConfigError, EngineDied
from transom.server.app import Service, build_app
from transom.server.intake import Intake
from transom.server.metrics import Metrics
from transom.server.text import ModelText

log = logging.getLogger("transom.server")

CLOSE_SECONDS = 1
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Announce = Callable[[wire.Ready, str], None]
"""Told, once requests are answered, what the engine is and at which URL."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or ConfigError. Early, so that a taken port costs nobody a model's loading."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise ConfigError(_cannot_listen(host, port, error)) from None
    sock.setblocking(False)
    return sock


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    advice = "; choose another with --port" if port else ""
    return f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}{advice}"


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass(frozen=True, slots=True)
class Site:
    """What is served, and how. `load_text` is called in a thread while the engine loads."""

    server: ServerConfig
    engine: EngineConfig
    served_name: str
    load_text: Callable[[], ModelText]
    command: Sequence[str] = ENGINE_COMMAND


def serve(site: Site, sock: socket.socket, announce: Announce) -> None:
    """Blocks until SIGINT or SIGTERM. TransomError if the engine cannot start."""
    uvloop.run(serve_async(site, sock, announce))


async def serve_async(site: Site, sock: socket.socket, announce: Announce) -> None:
    with stop_signals() as stop, sock:
        loading = asyncio.ensure_future(asyncio.to_thread(site.load_text))
        try:
            client = await _start(site, stop)
        finally:
            # A thread cannot be cancelled; if the engine has failed, it has most often failed alike.
            await asyncio.gather(loading, return_exceptions=True)
        if client is None:
            return
        try:
            app = build_app(_service(site, client, await loading))
            drain = Drain(client, site.server.drain_seconds, stop.again)
            await _answer(HttpServer(uvicorn_config(app, site.server), drain), sock, stop, announce)
        finally:
            await client.stop()


def _service(site: Site, client: EngineClient, text: ModelText) -> Service:
    intake = Intake(text, site.served_name, client.ready.context)
    metrics = Metrics(site.served_name, client.ready, lambda: client.stats)
    return Service(client, intake, metrics, site.server)


async def _start(site: Site, stop: "Stop") -> EngineClient | None:
    """The engine, ready; None if told to stop before it was."""
    starting = asyncio.ensure_future(EngineClient.start(site.engine, site.command))
    stopping = asyncio.ensure_future(stop.once.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        return starting.result()
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    return None


async def _answer(http: "HttpServer", sock: socket.socket, stop: "Stop", announce: Announce) -> None:
    serving = asyncio.ensure_future(http.serve(sockets=[sock]))
    stopping = asyncio.ensure_future(stop.once.wait())
    announce(http.drain.client.ready, url_of(sock))
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    http.should_exit = True
    await serving


@dataclass(frozen=True, slots=True)
class Drain:
    """The end of what is being answered: bounded in time, and at once when `hurry` is set."""

    client: EngineClient
    seconds: float
    hurry: asyncio.Event

    async def until(self, closing: asyncio.Future[None]) -> None:
        """Nothing new is taken; what is there may go on until `closing` is done, or time is up."""
        draining = asyncio.ensure_future(self._drain())
        hurrying = asyncio.ensure_future(self.hurry.wait())
        await asyncio.wait((closing, hurrying), timeout=self.seconds, return_when=asyncio.FIRST_COMPLETED)
        if not closing.done():
            self.client.retire("the server is shutting down")
        for task in (draining, hurrying):
            task.cancel()
        await asyncio.gather(draining, hurrying, return_exceptions=True)

    async def _drain(self) -> None:
        with contextlib.suppress(EngineDied):
            await self.client.drain()


class HttpServer(uvicorn.Server):
    """uvicorn, with an end that is bounded in time and leaves no client without an answer."""

    def __init__(self, config: uvicorn.Config, drain: Drain) -> None:
        super().__init__(config)
        self.drain = drain

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would raise them again at the end, and the exit status would not be 0."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.ensure_future(super().shutdown(sockets))
        await self.drain.until(closing)
        await closing


def uvicorn_config(app: object, server: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=server.log_level == "debug",
        server_header=False,
        timeout_graceful_shutdown=ceil(server.drain_seconds) + CLOSE_SECONDS,
    )


@dataclass(frozen=True, slots=True)
class Stop:
    """Set by the first signal to stop, and by any that follows."""

    once: asyncio.Event
    again: asyncio.Event

    def ask(self) -> None:
        (self.again if self.once.is_set() else self.once).set()


@contextlib.contextmanager
def stop_signals() -> Iterator[Stop]:
    """SIGINT and SIGTERM, while it lasts."""
    stop = Stop(asyncio.Event(), asyncio.Event())
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.ask)
    try:
        yield stop
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
