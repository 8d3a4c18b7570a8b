"""`transom serve` from its configuration: the model's name and text, the server, the screen."""

import logging
import socket
from pathlib import Path

from transom import wire
from transom.config import EngineConfig, LogConfig, ServerConfig
from transom.engine.supervisor import EngineLaunch
from transom.server import banner
from transom.server.launch import Site, serve
from transom.weights.builtin import builtin_model
from transom.weights.tokenizer import load_text

log = logging.getLogger("transom.server")


def serve_model(
    server: ServerConfig, engine: EngineConfig, log_config: LogConfig, sock: socket.socket
) -> None:
    """Blocks until told to stop. TransomError, of one line, for what cannot work."""
    name = server.served_model_name or default_name(engine.model)

    def announce(ready: wire.Ready, url: str) -> None:
        log.info("serving %s at %s", name, url)
        banner.show(ready, name, url, len(server.api_keys))

    recipe = EngineLaunch(engine, log_config)
    serve(Site(server, recipe, name, lambda: load_text(engine.model)), sock, announce)


def default_name(model: str | None) -> str:
    """What clients call the model when nobody said: a built-in one by its name, a file by its stem."""
    builtin = builtin_model(model)
    return builtin.name if builtin is not None else Path(str(model)).stem
