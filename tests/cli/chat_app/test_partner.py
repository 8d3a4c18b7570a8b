"""Partners: a tiny model in this process, and a toy server."""

import json
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from tests.server.toy import running_server
from tests.tiny_llama import write_tiny_llama

from transom.cli.chat_app.partner import (
    LocalPartner,
    Message,
    Partner,
    RemotePartner,
    Spent,
    Style,
    explained,
)
from transom.errors import TransomError
from transom.kv.check import check
from transom.kv.explain import Diverged, Evicted, Explanation, Hole
from transom.llm import LLM

GREEDY = Style(max_tokens=12, temperature=0.0)
HELLO: list[Message] = [{"role": "user", "content": "the hat, the hat, the hat and the hat"}]


def heard(partner: Partner, messages: Sequence[Message] = HELLO) -> tuple[str, Spent | None]:
    pieces = list(partner.answer(messages, GREEDY))
    spent = next((piece for piece in pieces if isinstance(piece, Spent)), None)
    return "".join(piece for piece in pieces if isinstance(piece, str)), spent


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalPartner:
    path = write_tiny_llama(tmp_path_factory.mktemp("chat") / "tiny.gguf")
    return LocalPartner(LLM(str(path)), "tiny")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server() as running:
        yield running.url


def test_a_second_turn_reuses_the_first(local: LocalPartner) -> None:
    text, first = heard(local)
    later = [*HELLO, Message(role="assistant", content=text), Message(role="user", content="and?")]
    _, second = heard(local, later)
    assert first is not None and second is not None
    assert second.cached > first.prompt // 2


def test_explain_says_what_the_next_answer_finds(local: LocalPartner) -> None:
    heard(local)
    lines = local.explain([*HELLO, {"role": "assistant", "content": "x"}])
    assert "are in memory" in lines[0] and "nobody computed this text beyond" in lines[1]


def test_an_interrupted_answer_ends_between_steps_and_the_next_one_is_whole(local: LocalPartner) -> None:
    whole, _ = heard(local)
    answer = local.answer(HELLO, GREEDY)
    pieces = [next(answer)]
    local.interrupt()
    pieces += list(answer)
    assert len(pieces) == 1 and not local._llm.engine.scheduler.has_work
    check(local._llm.engine.cache)
    assert heard(local)[0] == whole


def test_a_conversation_that_no_longer_fits_says_so(local: LocalPartner) -> None:
    with pytest.raises(TransomError, match="does not fit; /reset"):
        heard(local, [{"role": "user", "content": "x" * 5000}])


def test_a_server_is_asked_for_its_model_and_streams(url: str) -> None:
    for spelled in (url, f"{url}/v1", f"{url}/"):
        assert RemotePartner(spelled).name == "toy"
    text, spent = heard(RemotePartner(url), [{"role": "user", "content": "hello"}])
    assert text and spent is not None and spent.output == 12


def test_what_a_server_refuses_is_said_in_its_words(url: str) -> None:
    with pytest.raises(TransomError, match=r"the server says: .*role 'nobody'"):
        heard(RemotePartner(url), [{"role": "nobody", "content": "x"}])
    with pytest.raises(TransomError, match=r"the server says: .*nonesuch"):
        heard(RemotePartner(url, "nonesuch"))


def test_where_nobody_answers_is_said() -> None:
    with pytest.raises(TransomError, match=r"no server answers at http://127\.0\.0\.1:9/v1"):
        RemotePartner("http://127.0.0.1:9")
    with pytest.raises(TransomError, match="no server answers at nonsense"):
        RemotePartner("nonsense")


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
            partner = RemotePartner(f"http://127.0.0.1:{server.server_port}")
            answer = partner.answer(HELLO, GREEDY)
            assert next(answer) == "so far"
            with pytest.raises(TransomError, match="the server says: engine died"):
                next(answer)
        finally:
            server.shutdown()
            thread.join()


def test_every_reason_is_put_into_words() -> None:
    reasons = (
        Diverged(4),
        Evicted("full", 8, 3, None),
        Hole("window", 2, 6, 5, None),
        Hole("w", 0, 1, None, None),
    )
    lines = explained(Explanation(2, 6, reasons, repair=1), 10)
    assert lines == [
        "of 10 tokens, 2 are in memory; 8 would be computed",
        "nobody computed this text beyond token 4",
        "full: what came from token 8 on was given up in step 3, to make room",
        "window: tokens 2 to 6, which are needed, was given up in step 5, to make room",
        "w: tokens 0 to 1, which are needed, was never kept",
        "a repair would begin at token 1",
    ]
