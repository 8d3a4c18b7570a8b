"""Commands over HTTP, several outputs, echoed and scored prompts, timeouts: over the fake engine."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.over_http import DEADLINE_SECONDS, chat, complete, events, refused, samples, streamed_text, until
from tests.server.toy import Running, running_server


@pytest.fixture(scope="module")
def own() -> Iterator[Running]:
    """A server of its own, which a test may pause."""
    with running_server() as server:
        yield server


@pytest.fixture
def alone(own: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=own.url, timeout=DEADLINE_SECONDS) as client:
        yield client


def running(http: httpx.Client) -> float:
    return samples(http)["transom:num_running_reqs"]


def stall(http: httpx.Client, threads: ThreadPoolExecutor, name: str = "mine", **fields: Any) -> Any:
    """An answer that does not end by itself; the request is there when this returns."""
    before = running(http)
    body = {"prompt": "STALL", "max_tokens": 9, **fields}
    answer = threads.submit(http.post, "/v1/completions", json=body, headers={"x-request-id": name})
    until(lambda: running(http) > before)
    return answer


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("body", [{"rid": "mine"}, {"abort_all": True}])
def test_an_aborted_request_ends_with_its_output_so_far(alone: httpx.Client, body: dict[str, Any]) -> None:
    with ThreadPoolExecutor(1) as threads:
        answer = stall(alone, threads, n=2)
        assert alone.post("/abort_request", json={"rid": "another"}).json()["aborted"] == 0
        assert alone.post("/abort_request", json=body).status_code == 200
        choices = answer.result().json()["choices"]
    assert [choice["finish_cause"] for choice in choices] == ["abort", "abort"]
    assert {choice["text"] for choice in choices} <= {"", "S", "ST", "STA"}


def test_aborting_an_unknown_request_reports_zero(alone: httpx.Client) -> None:
    assert refused(alone.post("/abort_request", json={}))["param"] == "rid"
    assert (
        refused(alone.post("/abort_request", content=b"{", headers={"content-type": "application/json"}))[
            "code"
        ]
        == "invalid_json"
    )


@pytest.mark.parametrize("body", [None, {"mode": "in_place"}, {"mode": "retract"}])
def test_a_paused_server_sends_nothing_and_is_healthy(
    alone: httpx.Client, body: dict[str, str] | None
) -> None:
    assert alone.post("/pause_generation", json=body).json()["status"] == "ok"
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(alone.post, "/v1/completions", json={"prompt": "abc", "max_tokens": 4})
        until(lambda: running(alone) == 1)
        threading.Event().wait(0.6)  # longer than a silent engine is healthy here
        assert alone.get("/health").status_code == 200
        assert not answer.done()
        assert alone.post("/continue_generation").status_code == 200
        assert answer.result().json()["choices"][0]["text"] == "abca"


def test_an_unknown_mode_is_refused(alone: httpx.Client) -> None:
    for path in ("/pause_generation", "/update_weights_from_disk"):
        error = refused(alone.post(path, json={"mode": "gently", "model_path": "x"}))
        assert error["param"] == "mode"


def test_weights_are_those_of_a_file_in_the_folder_and_every_refusal_reads_the_same(tmp_path: Path) -> None:
    folder, outside, log = tmp_path / "weights", tmp_path / "outside.gguf", tmp_path / "log"
    folder.mkdir()
    for file in (folder / "new.gguf", folder / "other.gguf", outside):
        file.write_bytes(b"GGUF")
    (folder / "link.gguf").symlink_to("new.gguf")
    (folder / "out.gguf").symlink_to(outside)
    (folder / "loop.gguf").symlink_to("loop.gguf")
    (folder / "folder.gguf").mkdir()
    os.mkfifo(folder / "pipe.gguf")
    bad = ["other.gguf", "missing.gguf", "out.gguf", "loop.gguf", "folder.gguf", "pipe.gguf", ""]
    bad += ["../outside.gguf", str(outside), "/etc/passwd", "/dev/zero"]
    bad += ["x" * 300, "x/" * 3000, "nul\0", "\x1b[2J"]
    with (
        running_server(flags=("--weights-dir", str(folder)), log=log) as server,
        httpx.Client(base_url=server.url, timeout=DEADLINE_SECONDS) as http,
    ):

        def update(path: str, **fields: Any) -> httpx.Response:
            return http.post("/update_weights_from_disk", json={"model_path": path, **fields})

        for fields in ({}, {"mode": "retract"}, {"abort_all_requests": True}):
            for path in ("new.gguf", "./link.gguf", str(folder / "new.gguf")):
                assert update(path, **fields).json()["success"] is True
        errors = [refused(update(path)) for path in bad]
        assert errors[0]["param"] == "model_path" and all(error == errors[0] for error in errors)
        assert refused(http.post("/update_weights_from_disk"))["param"] == "model_path"
    assert "not of the model that is served" in log.read_text()


def test_without_a_folder_no_weights_are_loaded(alone: httpx.Client) -> None:
    for path in ("new.gguf", "/etc/passwd"):
        error = refused(alone.post("/update_weights_from_disk", json={"model_path": path}))
        assert "--weights-dir" in error["message"]


# ---------------------------------------------------------------- several outputs


def test_n_outputs_are_choices_and_the_prompt_counts_once(http: httpx.Client) -> None:
    answer = complete(http, ["ab", "cde"], max_tokens=4, n=3)
    assert [c["index"] for c in answer["choices"]] == list(range(6))
    assert [c["text"] for c in answer["choices"]] == ["abab"] * 3 + ["cdec"] * 3
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3 + 4, 24)
    assert len(chat(http, "hello", max_tokens=4, n=2)["choices"]) == 2


def test_n_streams_run_side_by_side(http: httpx.Client) -> None:
    chunks = events(http, "/v1/completions", {"prompt": "ab", "max_tokens": 5, "n": 3, "stop": "bab"})
    assert [streamed_text(chunks, index) for index in range(3)] == ["a"] * 3


@pytest.mark.parametrize(
    "fields", [{"n": 2, "best_of": 3}, {"n": 2, "best_of": 1}, {"n": 2, "max_tokens": 0}]
)
def test_several_empty_outputs_are_refused(http: httpx.Client, fields: dict[str, int]) -> None:
    error = refused(http.post("/v1/completions", json={"prompt": "x", "n": 2, **fields}))
    assert error["param"] == ("best_of" if "best_of" in fields else "n")
    assert complete(http, "x", n=2, best_of=2)["choices"][1]["index"] == 1


# ---------------------------------------------------------------- echo and scores


def test_the_prompt_is_echoed_before_the_output(http: httpx.Client) -> None:
    choices = complete(http, ["h\u00e9", "b"], max_tokens=2, echo=True, n=2)["choices"]
    assert [c["text"] for c in choices] == ["h\u00e9h\u00c3"[:2] + "h\ufffd"] * 2 + ["bbb"] * 2
    assert choices[0]["logprobs"] is None


def test_every_prompt_token_but_the_first_has_a_logprob(http: httpx.Client) -> None:
    answer = complete(http, [97, 98, 99], max_tokens=0, echo=True, logprobs=2)
    assert answer["usage"]["completion_tokens"] == 0
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "c"],
        "token_logprobs": [None, -1.0, -2.0],
        "top_logprobs": [None, {"A": -1.0, "B": -2.0, "b": -1.0}, {"A": -1.0, "B": -2.0, "c": -2.0}],
        "text_offset": [0, 1, 2],
    }


def test_prompt_logprobs_precede_output_logprobs_in_every_choice(http: httpx.Client) -> None:
    choices = complete(http, [97, 98, 99], max_tokens=2, echo=True, logprobs=0, n=2)["choices"]
    assert choices[0]["logprobs"] == choices[1]["logprobs"]
    assert choices[0]["text"] == "abcab"
    assert choices[0]["logprobs"]["token_logprobs"] == [None, -1.0, -2.0, -0.5, -0.5]
    assert choices[0]["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]


def test_streamed_prompt_logprobs_equal_plain_ones(http: httpx.Client) -> None:
    body = {"prompt": "\u00e9\u6f22x", "max_tokens": 9, "echo": True, "logprobs": 1}
    plain = http.post("/v1/completions", json=body).json()["choices"][0]
    chunks = events(http, "/v1/completions", body)
    assert streamed_text(chunks) == plain["text"]
    parts = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    for key, values in plain["logprobs"].items():
        assert [value for part in parts for value in part[key]] == values


def test_alternatives_of_a_chat_come_with_their_bytes(http: httpx.Client) -> None:
    logprobs = chat(http, "x", max_tokens=1, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]
    assert logprobs["content"][0]["top_logprobs"] == [
        {"token": "A", "logprob": -1.0, "bytes": [65]},
        {"token": "B", "logprob": -2.0, "bytes": [66]},
    ]


def test_max_tokens_0_gives_an_empty_output_even_for_a_full_context(http: httpx.Client) -> None:
    answer = complete(http, [97] * 512, max_tokens=0)
    assert answer["choices"][0]["text"] == ""
    assert answer["usage"]["total_tokens"] == 512
    for length, tokens in ((512, 1), (513, 0)):
        error = refused(http.post("/v1/completions", json={"prompt": [97] * length, "max_tokens": tokens}))
        assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("how", ["field", "header", "both"])
def test_an_answer_ends_at_its_timeout_with_its_output_so_far(http: httpx.Client, how: str) -> None:
    body = {"prompt": "STALL", "max_tokens": 9, **({} if how == "header" else {"timeout": 0.05})}
    headers = {} if how == "field" else {"x-request-timeout": "0.05" if how == "header" else "5000"}
    (choice,) = http.post("/v1/completions", json=body, headers=headers).json()["choices"]
    assert (choice["text"], choice["finish_cause"]) == ("STA", "deadline")


def test_a_timeout_that_is_not_a_number_is_refused(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-timeout": "soon"})
    assert refused(answer)["param"] == "timeout"
    timed = http.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-timeout": "50"})
    assert timed.status_code == 200
