"""Backends: a tiny model in this process, and a toy server."""

import json
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from tests.server.toy import running_server
from tests.tiny_llama import write_tiny_llama

from transom.cli.chat_app.backend import (
    AnswerUsage,
    Backend,
    LocalBackend,
    Message,
    RemoteBackend,
    Settings,
    explanation_lines,
)
from transom.errors import TransomError
from transom.kv.check import check
from transom.kv.explain import Diverged, Evicted, Explanation, Hole
from transom.llm import LLM

GREEDY = Settings(max_tokens=12, sampling={"temperature": 0.0})
HELLO: list[Message] = [{"role": "user", "content": "the hat, the hat, the hat and the hat"}]


def answered(backend: Backend, messages: Sequence[Message] = HELLO) -> tuple[str, AnswerUsage | None]:
    pieces = list(backend.answer(messages, GREEDY))
    usage = next((piece for piece in pieces if isinstance(piece, AnswerUsage)), None)
    return "".join(piece for piece in pieces if isinstance(piece, str)), usage


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalBackend:
    path = write_tiny_llama(tmp_path_factory.mktemp("chat") / "tiny.gguf")
    return LocalBackend(LLM(str(path)), "tiny")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server() as running:
        yield running.url


def test_a_second_answer_finds_the_first_in_the_cache(local: LocalBackend) -> None:
    text, first = answered(local)
    later = [*HELLO, Message(role="assistant", content=text), Message(role="user", content="and?")]
    _, second = answered(local, later)
    assert first is not None and second is not None
    assert second.cached > first.prompt // 2


def test_explain_says_how_much_the_next_answer_finds(local: LocalBackend) -> None:
    answered(local)
    lines = local.explain([*HELLO, {"role": "assistant", "content": "x"}])
    assert "are cached" in lines[0] and "no earlier request had the same text beyond" in lines[1]


def test_an_interrupted_answer_ends_between_steps_and_the_next_one_is_whole(local: LocalBackend) -> None:
    whole, _ = answered(local)
    answer = local.answer(HELLO, GREEDY)
    pieces = [next(answer)]
    local.interrupt()
    pieces += list(answer)
    assert len(pieces) == 1 and not local._llm.engine.scheduler.has_work
    check(local._llm.engine.cache)
    assert answered(local)[0] == whole


def test_a_conversation_that_no_longer_fits_says_so(local: LocalBackend) -> None:
    with pytest.raises(TransomError, match="does not fit; /reset"):
        answered(local, [{"role": "user", "content": "x" * 5000}])


def test_a_server_lists_its_model_and_streams(url: str) -> None:
    for spelled in (url, f"{url}/v1", f"{url}/"):
        assert RemoteBackend(spelled).name == "toy"
    text, usage = answered(RemoteBackend(url), [{"role": "user", "content": "hello"}])
    assert text and usage is not None and usage.output == 12


def test_a_server_s_refusal_is_quoted(url: str) -> None:
    with pytest.raises(TransomError, match=r"the server says: .*role 'nobody'"):
        answered(RemoteBackend(url), [{"role": "nobody", "content": "x"}])
    with pytest.raises(TransomError, match=r"the server says: .*nonesuch"):
        answered(RemoteBackend(url, "nonesuch"))


def test_a_url_without_a_server_is_an_error() -> None:
    with pytest.raises(TransomError, match=r"no server answers at http://127\.0\.0\.1:9/v1"):
        RemoteBackend("http://127.0.0.1:9")
    with pytest.raises(TransomError, match="no server answers at nonsense"):
        RemoteBackend("nonsense")


class Odd(BaseHTTPRequestHandler):
    """Lists a model; ends each answer with an error in the stream."""

    def do_GET(self) -> None:
        self.say(json.dumps({"data": [{"id": "odd"}]}).encode())

    def do_POST(self) -> None:
        lines = ({"choices": [{"delta": {"content": "so far"}}]}, {"error": {"message": "engine died"}})
        self.say(b"".join(b"data: " + json.dumps(line).encode() + b"\n\n" for line in lines))

    def say(self, body: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_an_error_within_a_stream_ends_the_answer() -> None:
    with HTTPServer(("127.0.0.1", 0), Odd) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            backend = RemoteBackend(f"http://127.0.0.1:{server.server_port}")
            answer = backend.answer(HELLO, GREEDY)
            assert next(answer) == "so far"
            with pytest.raises(TransomError, match="the server says: engine died"):
                next(answer)
        finally:
            server.shutdown()
            thread.join()


def test_every_reason_has_a_line() -> None:
    reasons = (
        Diverged(4),
        Evicted("full", 8, 3, None),
        Hole("window", 2, 6, 5, None),
        Hole("w", 0, 1, None, None),
    )
    lines = explanation_lines(Explanation(2, 6, reasons, repair=1), 10)
    assert lines == [
        "2 of 10 prompt tokens are cached; 8 would be computed",
        "no earlier request had the same text beyond token 4",
        "full: the tokens from 8 on were evicted in step 3",
        "window: tokens 2 to 6, which are needed, were evicted in step 5",
        "w: tokens 0 to 1, which are needed, were never cached",
        "a repair would start at token 1",
    ]
