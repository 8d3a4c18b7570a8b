"""`transom serve` from its configuration: the model's file, its name and text, then the server."""

import dataclasses
import socket
import sys
from pathlib import Path

from transom import wire
from transom.config import EngineConfig, ServerConfig
from transom.server import banner
from transom.server.run import Site, serve
from transom.server.text import ModelText, load_text
from transom.weights.builtin import GEMMA_NOTICE, Progress, builtin_model, is_assembled, resolve_model


def serve_model(server: ServerConfig, engine: EngineConfig, sock: socket.socket) -> None:
    """Blocks until told to stop. TransomError, of one line, for what cannot work."""
    path = find_model(engine.model)
    name = server.served_model_name or served_name(engine.model)

    def load() -> ModelText:
        return load_text(path)

    def announce(ready: wire.Ready, url: str) -> None:
        banner.show(ready, name, url)

    site = Site(server, dataclasses.replace(engine, model=str(path)), name, load)
    serve(site, sock, announce)


def served_name(model: str | None) -> str:
    """What clients call the model when nobody said: a built-in one by its name, a file by its stem."""
    builtin = builtin_model(model)
    return builtin.name if builtin is not None else Path(str(model)).stem


def find_model(model: str | None) -> Path:
    """The model's file; before a built-in one is put together, its terms are said. ModelFileError."""
    builtin = builtin_model(model)
    if builtin is None or is_assembled(builtin):
        return resolve_model(model)
    print(GEMMA_NOTICE, file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        return resolve_model(model)
    return _resolve_with_bar(model)


def _resolve_with_bar(model: str | None) -> Path:
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("putting the model together", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        told: Progress = progress
        return resolve_model(model, told)
