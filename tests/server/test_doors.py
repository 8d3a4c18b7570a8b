"""The tokenizer over HTTP: /tokenize, /detokenize, /tokenizer_info."""

from typing import Any

import httpx
import pytest
from tests.over_http import Json, chat, complete, refused
from tests.server.toy import BEGIN, CONTEXT, END

from transom import __version__


def tokenized(http: httpx.Client, **body: Any) -> Json:
    answer = http.post("/tokenize", json=body)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    assert found["count"] == len(found["tokens"])
    return found


def test_the_ids_of_a_text_are_those_that_a_completion_computes(http: httpx.Client) -> None:
    found = tokenized(http, prompt="abc")
    assert found == {
        "count": 4,
        "max_model_len": CONTEXT,
        "tokens": [BEGIN, *b"abc"],
        "token_strs": None,
    }
    by_ids, by_text = (complete(http, prompt, max_tokens=3) for prompt in (found["tokens"], "abc"))
    assert by_ids["choices"] == by_text["choices"]
    assert by_ids["usage"]["prompt_tokens"] == by_text["usage"]["prompt_tokens"] == found["count"]
    assert tokenized(http, prompt="abc", add_special_tokens=False)["tokens"] == [*b"abc"]
    assert tokenized(http, prompt="", add_special_tokens=False)["tokens"] == []
    assert tokenized(http, prompt="ab", return_token_strs=True)["token_strs"] == [f"<{BEGIN}>", "a", "b"]


def test_the_ids_of_a_conversation_are_those_that_a_chat_computes(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hello"}]
    found = tokenized(http, messages=messages)
    assert found["tokens"] == [BEGIN, *b"u:hello"]
    assert chat(http, "hello", max_tokens=1)["usage"]["prompt_tokens"] == found["count"]
    assert tokenized(http, messages=messages, add_generation_prompt=False)["tokens"] == [BEGIN, *b"u:hello!"]


def test_a_text_that_exceeds_the_context_is_refused_like_a_prompt(http: httpx.Client) -> None:
    assert tokenized(http, prompt="a" * (CONTEXT - 1))["count"] == CONTEXT
    error = refused(http.post("/tokenize", json={"prompt": "a" * 50_000}))
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")


@pytest.mark.parametrize(("skip", "begin"), [(None, f"<{BEGIN}>"), (False, f"<{BEGIN}>"), (True, "")])
def test_ids_become_the_text_that_they_came_from(http: httpx.Client, skip: bool | None, begin: str) -> None:
    ids = tokenized(http, prompt="Tür 🚪")["tokens"]
    answer = http.post("/detokenize", json={"tokens": ids, "skip_special_tokens": skip}).json()
    assert answer == {"prompt": f"{begin}Tür 🚪", "text": f"{begin}Tür 🚪"}
    assert http.post("/detokenize", json={"tokens": []}).json()["text"] == ""


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": [1]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "robot", "content": "x"}]}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [END + 1]}, "tokens"),
        ("/detokenize", {"tokens": [1 << 40]}, "tokens"),
    ],
)
def test_a_body_that_is_wrong_is_refused_with_its_field(
    http: httpx.Client, path: str, body: Json, param: str
) -> None:
    assert refused(http.post(path, json=body))["param"] == param


def test_another_model_is_not_found(http: httpx.Client) -> None:
    assert http.post("/tokenize", json={"prompt": "a", "model": "other"}).status_code == 404
    assert http.post("/detokenize", json={"tokens": [1], "model": "other"}).status_code == 404


def test_the_tokenizer_tells_its_special_tokens(http: httpx.Client) -> None:
    found = http.get("/tokenizer_info").json()
    assert (found["bos_token_id"], found["bos_token"]) == (BEGIN, f"<{BEGIN}>")
    assert (found["eos_token_id"], found["eos_token"]) == (END, f"<{END}>")
    assert found["stop_token_ids"] == [END]
    assert (found["vocab_size"], found["model_max_length"]) == (258, CONTEXT)
    assert found["add_bos_token"] is True


def test_the_version_is_told(http: httpx.Client) -> None:
    assert http.get("/version").json() == {"version": __version__}
