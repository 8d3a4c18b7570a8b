"""Fake servers with OpenAI's API, or with a part of it."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.over_http import Json

Events = Sequence[Json]
Said = tuple[int, Json] | Events
"""A status and a body, or the events of a stream."""


@dataclass
class Fake:
    """The behaviour of a fake server, and the requests that it got."""

    answer: Callable[[Json], Said]
    models: tuple[int, Json] = (200, {"data": [{"id": "toy", "owned_by": "nobody"}]})
    asked: list[Json] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""

    @property
    def prompts(self) -> list[str]:
        return [body["prompt"] for body in self.asked]


def piece(text: str) -> Json:
    return {"choices": [{"index": 0, "text": text}]}


def usage(prompt: int, output: int, cached: int | None = None) -> Json:
    details: Json = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **details}}


def words_back(body: Json) -> Events:
    """Answers with the last words of the prompt. A word is a token, and nothing is cached."""
    words = body["prompt"].split()
    said = words[-body["max_tokens"] :]
    return [*[piece(f" {word}") for word in said], usage(len(words), len(said), 0)]


def server_of(fake: Fake, port: int = 0) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.keys.append(self.headers.get("Authorization"))
            known = {"/v1/models": fake.models, "/health": (200, {})}
            self._json(*known.get(self.path, (404, {"error": "nothing"})))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.asked.append(body)
            fake.keys.append(self.headers.get("Authorization"))
            said = fake.answer(body)
            if isinstance(said, tuple):
                self._json(*said)
            else:
                self._stream(said)

        def _json(self, status: int, body: Json) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _stream(self, events: Events) -> None:
            """HTTP/1.0: the end of the connection is the end of the stream."""
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for event in events:
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *words: Any) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    return server


def serve_for_ever(fake: Fake, port: int) -> None:
    """Serves in the foreground, for a process of its own."""
    server_of(fake, port).serve_forever()


@contextmanager
def running(fake: Fake) -> Iterator[Fake]:
    server = server_of(fake)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
