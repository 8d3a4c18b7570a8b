"""`transom serve` from its configuration: the model's name and text, the server, the screen."""

import socket
from pathlib import Path

from transom import wire
from transom.config import EngineConfig, ServerConfig
from transom.server import banner
from transom.server.run import Site, serve
from transom.server.text import load_text
from transom.weights.builtin import builtin_model


def serve_model(server: ServerConfig, engine: EngineConfig, sock: socket.socket) -> None:
    """Blocks until told to stop. TransomError, of one line, for what cannot work."""
    name = server.served_model_name or default_name(engine.model)

    def announce(ready: wire.Ready, url: str) -> None:
        banner.show(ready, name, url)

    serve(Site(server, engine, name, lambda: load_text(engine.model)), sock, announce)


def default_name(model: str | None) -> str:
    """What clients call the model when nobody said: a built-in one by its name, a file by its stem."""
    builtin = builtin_model(model)
    return builtin.name if builtin is not None else Path(str(model)).stem
