"""Starts the server, serves until a signal arrives, and shuts down within a bounded time."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
import uvloop

from transom import __version__, wire
from transom.config import EngineConfig, LogConfig, ServerConfig
from transom.engine.child import STOP_SECONDS
from transom.engine.supervisor import EngineLaunch, Supervisor
from transom.errors import ConfigError, EngineDied, TransomError
from transom.limits import Limits
from transom.logs import fields
from transom.server import banner, systemd
from transom.server.app import Service, build_app
from transom.server.callers import KeyRing
from transom.server.connections import Connection, connections_max
from transom.server.input_processor import InputProcessor
from transom.server.listening import Address, Listener
from transom.server.metrics import Metrics
from transom.server.middleware import Peers, RootPath
from transom.server.queue_bounds import Bounds, QueueBounds
from transom.server.text_pool import TextPool
from transom.text.model_text import ModelText
from transom.weights.builtin import builtin_model
from transom.weights.tokenizer import load_text

log = logging.getLogger("transom.server")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Announce = Callable[[wire.Ready, Address], None]
"""Called once the server accepts requests, with the engine's facts and the server's address."""


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """Everything that a server is started from. `load_text` runs in a thread while the engine loads."""

    server: ServerConfig
    engine: EngineLaunch
    served_name: str
    load_text: Callable[[], ModelText]


def serve_model(
    server: ServerConfig, engine: EngineConfig, log_config: LogConfig, listener: Listener
) -> None:
    """`transom serve`: blocks until stopped. TransomError, of one line, if it cannot start."""
    name = server.served_model_name or default_name(engine.model)

    def announce(ready: wire.Ready, address: Address) -> None:
        if log_config.format == "text":
            banner.show(ready, name, address, needs_key=server.requires_key)

    launch = ServerLaunch(
        server,
        EngineLaunch(engine, log_config, hang_seconds=server.limits.stalled_seconds),
        name,
        lambda: load_text(engine.model),
    )
    serve(launch, listener, announce)


def default_name(model: str | None) -> str:
    """The served name by default: that of a built-in model, or the file name without `.gguf`."""
    builtin = builtin_model(model)
    return builtin.name if builtin is not None else Path(str(model)).stem


# ---------------------------------------------------------------- signals


class Shutdown(Enum):
    """How signals ended the server."""

    GRACEFUL = "graceful"
    IMMEDIATE = "immediate"


class StopSignals:
    """Records SIGINT and SIGTERM. The first means a graceful stop, the second an immediate one. Mutable."""

    def __init__(self) -> None:
        self.graceful = asyncio.Event()
        self.immediate = asyncio.Event()

    def receive(self, number: signal.Signals) -> None:
        (self.immediate if self.graceful.is_set() else self.graceful).set()
        log.warning("%s: stopping%s", number.name, " at once" if self.immediate.is_set() else "")

    def shutdown(self) -> Shutdown:
        return Shutdown.IMMEDIATE if self.immediate.is_set() else Shutdown.GRACEFUL


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Handles SIGINT and SIGTERM inside the block."""
    signals = StopSignals()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, signals.receive, number)
    try:
        yield signals
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def reload_at_hangup(reloads: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Calls the functions at SIGHUP inside the block. Each keeps what it has if it raises ConfigError.

    Without functions SIGHUP has its usual effect: it ends the process, as a closed terminal should.
    """
    if not reloads:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, _reload, reloads)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _reload(reloads: Sequence[Callable[[], None]]) -> None:
    for reload in reloads:
        try:
            reload()
        except ConfigError as error:
            log.error("SIGHUP: %s; the old one stays in use", error)
    log.warning("SIGHUP: files have been read again")


# ---------------------------------------------------------------- serving


def serve(launch: ServerLaunch, listener: Listener, announce: Announce) -> None:
    """Blocks until SIGINT or SIGTERM. A second signal cuts answers off and raises KeyboardInterrupt.

    TransomError if the engine cannot start, or crashes too often.
    """
    if uvloop.run(serve_async(launch, listener, announce)) is Shutdown.IMMEDIATE:
        raise KeyboardInterrupt


async def serve_async(launch: ServerLaunch, listener: Listener, announce: Announce) -> Shutdown:
    keys = KeyRing(launch.server, is_local=listener.address.is_local)
    reloads = [keys.reload] if launch.server.api_key_file is not None else []
    if listener.certificates is not None:
        reloads.append(listener.certificates.reload)
    with stop_signals() as signals, reload_at_hangup(reloads), listener.open():
        loading = asyncio.ensure_future(asyncio.to_thread(launch.load_text))
        try:
            engine = await _start_engine(launch.engine, signals)
        finally:
            # A thread cannot be cancelled, so wait for it. If the engine failed, the text side usually failed
            # for the same reason: only the engine's error is reported.
            await asyncio.gather(loading, return_exceptions=True)
        if engine is None:
            return signals.shutdown()
        try:
            service = _service(launch, engine, await loading, keys)
            service = replace(service, is_stopping=signals.graceful.is_set)
            limits = replace(launch.server.limits, connections=connections_max(launch.server.limits))
            app = build_app(service, checks_host=listener.address.is_loopback)
            app = Peers(RootPath(app, launch.server.root_path), launch.server.trusted_proxies)
            config = uvicorn_config(app, limits)
            config.ssl_context_factory = listener.certificates
            http = HttpServer(config, engine, signals, limits)
            _warn_if_open(service, listener.address)
            record = start_record(launch, service, replace(launch.server, limits=limits), listener.address)
            await _serve_http(http, listener, announce, record)
        finally:
            await engine.stop(0.0 if signals.immediate.is_set() else STOP_SECONDS)
        return signals.shutdown()


def _service(launch: ServerLaunch, engine: Supervisor, text: ModelText, keys: KeyRing) -> Service:
    limits = launch.server.limits
    processor = InputProcessor(text, launch.served_name, engine.ready.context, limits, TextPool(limits))
    processor = replace(processor, weights=lambda: engine.weights_version)
    server = launch.server
    bounds = Bounds.of(server.limits, engine.ready.max_running_requests, len(keys.names))
    metrics = Metrics(launch.served_name, engine)
    return Service(engine, processor, metrics, server, keys, QueueBounds(bounds))


async def _start_engine(launch: EngineLaunch, signals: StopSignals) -> Supervisor | None:
    """The engine, once it is ready. None if a signal arrives first."""
    starting = asyncio.ensure_future(Supervisor.start(launch))
    stopping = asyncio.ensure_future(signals.graceful.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        return starting.result()
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    return None


def _warn_if_open(service: Service, address: Address) -> None:
    if address.is_local or service.config.requires_key:
        return
    log.warning(
        "NO KEY IS NEEDED at %s: every machine that can connect may use %s; set --api-key-file or --api-key, "
        "or listen on 127.0.0.1",
        address,
        ", ".join(service.open_endpoints()),
    )


def start_record(
    launch: ServerLaunch, service: Service, server: ServerConfig, address: Address
) -> dict[str, object]:
    """Fields of the log's line about the start: every setting that decides how it behaves, and no key."""
    if launch.engine.log_config.format == "text":  # the start screen has the rest
        return fields(model=launch.served_name, address=address)
    ready = service.engine.ready
    engine = msgspec.structs.asdict(ready)
    engine["components"] = [msgspec.structs.asdict(part) for part in ready.components]
    return fields(
        model=launch.served_name,
        engine=engine,
        version=__version__,
        address=str(address),
        socket=address.permissions() if address.path else None,
        tls=server.ssl_certfile is not None,
        root_path=server.root_path or None,
        trusted_proxies=server.trusted_proxies,
        keys=sorted(service.keys.names),
        open_endpoints=service.open_endpoints(),
        limits=asdict(server.limits),
    )


async def _serve_http(
    http: "HttpServer", listener: Listener, announce: Announce, record: dict[str, object]
) -> None:
    """Answers requests until a signal arrives. TransomError once the engine is not restarted any more."""
    serving = asyncio.ensure_future(http.serve(sockets=[listener.sock]))
    stopping = asyncio.ensure_future(http.signals.graceful.wait())
    failing = asyncio.ensure_future(http.engine.gave_up())
    log.info("serving", extra=record)
    announce(http.engine.ready, listener.address)
    systemd.notify(systemd.READY)
    living = asyncio.ensure_future(systemd.stay_alive(systemd.watchdog_seconds()))
    done, _ = await asyncio.wait((serving, stopping, failing), return_when=asyncio.FIRST_COMPLETED)
    if stopping in done:
        # /ready is 503 by now. Requests are still taken, until balancers have noticed or a second signal.
        second = asyncio.ensure_future(http.signals.immediate.wait())
        done, _ = await asyncio.wait(
            (serving, second, failing), timeout=http.drain_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        second.cancel()
    stopping.cancel()
    failing.cancel()
    systemd.notify(systemd.STOPPING)
    http.should_exit = True
    await serving
    living.cancel()
    if failing in done:
        raise TransomError(failing.result())


class HttpServer(uvicorn.Server):
    """uvicorn with a shutdown that is bounded in time and sends every client the end of its response."""

    def __init__(
        self, config: uvicorn.Config, engine: Supervisor, signals: StopSignals, limits: Limits
    ) -> None:
        super().__init__(config)
        self.engine = engine
        self.signals = signals
        self._limits = limits
        self.drain_seconds = limits.drain_seconds

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `StopSignals`.

        uvicorn's handlers would raise the signal again after shutdown, and the exit status would not be 0.
        """
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts connections. Unlike uvicorn's own method, it bounds the time of a TLS handshake.

        A connection counts only after its handshake, so the limits of `Connection` do not reach it before.
        """
        seconds = None if self.config.ssl is None else self._limits.head_seconds
        self.servers = [
            await asyncio.get_running_loop().create_server(
                self._connection, sock=sock, ssl=self.config.ssl, ssl_handshake_timeout=seconds
            )
            for sock in sockets or ()
        ]
        self.started = True

    def _connection(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        connection: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return connection

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second."""
        now = time.monotonic()
        for connection in tuple(self.server_state.connections):
            assert isinstance(connection, Connection), connection
            connection.look(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets running answers finish for `finish_seconds` or until a second signal, then ends them."""
        closing = asyncio.ensure_future(super().shutdown(sockets))
        draining = asyncio.ensure_future(self._drain())
        second_signal = asyncio.ensure_future(self.signals.immediate.wait())
        await asyncio.wait(
            (closing, second_signal), timeout=self._limits.finish_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        second_signal.cancel()
        draining.cancel()
        if not closing.done():
            # Every open response now ends with an error event or a 503.
            self.engine.retire("the server is shutting down")
            # uvicorn checks `force_exit` every tenth of a second. That is enough time to send the ends of
            # responses, and a client that does not read cannot delay the exit.
            self.force_exit = self.signals.immediate.is_set()
        await closing

    async def _drain(self) -> None:
        """Makes the engine refuse new requests, so that accepted ones get all of the remaining time."""
        with contextlib.suppress(EngineDied):
            await self.engine.client.drain()


def uvicorn_config(app: object, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        loop="uvloop",
        http=partial(Connection, limits=limits),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        # The request log has a line per generation; uvicorn's line for every HTTP request is for debugging.
        access_log=log.isEnabledFor(logging.DEBUG),
        server_header=False,
        # `Peers` does it: uvicorn would believe every process of this machine.
        proxy_headers=False,
        timeout_keep_alive=math.ceil(limits.keep_alive_seconds),
        timeout_graceful_shutdown=math.ceil(limits.finish_seconds) + limits.close_seconds,
    )
