"""Responses of /v1/completions and /v1/chat/completions, plain and streamed, over HTTP."""

from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.over_http import Json, cached_tokens, chat, complete, events, refused, streamed_text
from tests.server.toy import CONTEXT, Running


def test_a_completion_has_openais_shape(http: httpx.Client) -> None:
    answer = complete(http, "abc", max_tokens=7, model="toy", temperature=0)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "toy"
    assert answer["choices"] == [{"index": 0, "text": "abcabca", "logprobs": None, "finish_reason": "length"}]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 7, 11)


def test_a_chat_answer_has_openais_shape(http: httpx.Client) -> None:
    answer = chat(http, "hello", max_tokens=4)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "u:he", "refusal": None}
    assert choice["finish_reason"] == "length"


def test_cached_tokens_are_always_reported(http: httpx.Client) -> None:
    first, second = (complete(http, "a prompt of its own", max_tokens=1)["usage"] for _ in range(2))
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"] == {"cached_tokens": 19}


def test_prefixes_of_another_salt_are_not_found(http: httpx.Client) -> None:
    def cached(**fields: str) -> int:
        return cached_tokens(complete(http, "a salted prompt", max_tokens=1, **fields))

    assert [cached(cache_salt="t1"), cached(cache_salt="t2"), cached(), cached(cache_salt="t1")] == [
        0,
        0,
        0,
        15,
    ]


def test_a_flush_forgets_cached_prefixes(http: httpx.Client) -> None:
    def cached() -> int:
        return cached_tokens(complete(http, "to be flushed", max_tokens=1))

    cached()
    assert cached() > 0
    assert http.post("/flush_cache").status_code == 200
    assert cached() == 0
    assert http.post("/flush_cache").status_code == 200
    assert cached() == 0


def test_without_max_tokens_a_completion_gets_16_and_a_chat_fills_the_context(http: httpx.Client) -> None:
    assert complete(http, "abc")["usage"]["completion_tokens"] == 16
    answer = chat(http, "abc")
    assert answer["usage"]["total_tokens"] == CONTEXT
    assert answer["choices"][0]["finish_reason"] == "length"


def test_max_tokens_beyond_the_context_ends_at_the_context(http: httpx.Client) -> None:
    usage = complete(http, "abc", max_tokens=10**9)["usage"]
    assert usage["total_tokens"] == CONTEXT


def test_the_models_own_end_stops_silently_unless_ignored(http: httpx.Client) -> None:
    ids = [*b"ab", 257]
    stopped = complete(http, ids, max_tokens=6)
    assert stopped["choices"][0]["text"] == "ab"
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] == 3
    ignored = complete(http, ids, max_tokens=6, ignore_eos=True)
    assert ignored["choices"][0]["text"] == "abab"
    assert ignored["choices"][0]["finish_reason"] == "length"


def test_stop_token_ids_stop_too(http: httpx.Client) -> None:
    answer = complete(http, "abc", max_tokens=9, stop_token_ids=[ord("c")], ignore_eos=True)
    assert answer["choices"][0]["text"] == "ab"
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_batch_gives_one_choice_per_prompt_and_usage_of_all(http: httpx.Client) -> None:
    answer = complete(http, ["ab", "cde", "f"], max_tokens=4)
    assert [c["text"] for c in answer["choices"]] == ["abab", "cdec", "ffff"]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == 9
    assert answer["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [([97, 98], ["abab"]), ([[97, 98], [99]], ["abab", "cccc"]), (["ab", [99]], ["abab", "cccc"])],
)
def test_prompts_can_be_token_ids(http: httpx.Client, prompt: Any, texts: list[str]) -> None:
    assert [c["text"] for c in complete(http, prompt, max_tokens=4)["choices"]] == texts


def test_content_can_be_a_list_of_text_parts(http: httpx.Client) -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]
    assert chat(http, parts, max_tokens=7)["choices"][0]["message"]["content"] == "u:ab\ncd"


def test_max_completion_tokens_wins_over_max_tokens(http: httpx.Client) -> None:
    assert chat(http, "abc", max_tokens=9, max_completion_tokens=2)["usage"]["completion_tokens"] == 2


# ---------------------------------------------------------------- streaming

TEXTS = ["plain", "día über 漢字 🙂 e\u0301", "STOP in the middle, then more"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("stop", [None, "in the", ["字 🙂 e", "re"], "zzz"])
def test_streamed_and_plain_texts_are_equal(http: httpx.Client, text: str, stop: Any) -> None:
    body = {"prompt": text, "max_tokens": 40, "stop": stop}
    plain = complete(http, text, max_tokens=40, stop=stop)
    chunks = events(http, "/v1/completions", body)
    assert streamed_text(chunks) == plain["choices"][0]["text"]
    finishes = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]
    assert finishes[-1] == plain["choices"][0]["finish_reason"]
    assert set(finishes[:-1]) <= {None}


@pytest.mark.parametrize("text", TEXTS)
def test_a_chat_stream_opens_with_the_role_and_equals_the_plain_text(http: httpx.Client, text: str) -> None:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 30}
    chunks = events(http, "/v1/chat/completions", body)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert streamed_text(chunks) == chat(http, text, max_tokens=30)["choices"][0]["message"]["content"]


def test_characters_are_never_cut_in_a_stream(http: httpx.Client) -> None:
    chunks = events(http, "/v1/completions", {"prompt": "漢字🙂", "max_tokens": 30})
    assert streamed_text(chunks) == "漢字🙂漢字🙂漢字🙂"
    assert not any("\ufffd" in c["text"] for chunk in chunks for c in chunk["choices"])


def test_an_output_cut_inside_a_character_shows_it_once_at_the_end(http: httpx.Client) -> None:
    chunks = events(http, "/v1/completions", {"prompt": "漢", "max_tokens": 2})
    assert streamed_text(chunks) == complete(http, "漢", max_tokens=2)["choices"][0]["text"] == "\ufffd"


def test_a_stop_string_across_tokens_never_leaks(http: httpx.Client) -> None:
    answer = complete(http, "ABCDEFGH", max_tokens=50, stop="DEFG")
    assert answer["choices"][0] == {
        "index": 0,
        "text": "ABC",
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": "DEFG",
    }
    assert answer["usage"]["completion_tokens"] == 7
    chunks = events(http, "/v1/completions", {"prompt": "ABCDEFGH", "max_tokens": 50, "stop": ["X", "DEFG"]})
    assert streamed_text(chunks) == "ABC"
    delayed = complete(http, "ABCDEFGH", max_tokens=8, stop="CDX")
    assert delayed["choices"][0]["text"] == "ABCDEFGH"


@pytest.mark.parametrize("name", ["include_stop_str_in_output", "no_stop_trim"])
def test_a_text_may_contain_what_ended_it(http: httpx.Client, name: str) -> None:
    fields: Json = {"max_tokens": 50, "stop": ["X", "DEFG"], name: True}
    assert complete(http, "ABCDEFGH", **fields)["choices"][0]["text"] == "ABCDEFG"
    assert streamed_text(events(http, "/v1/completions", {"prompt": "ABCDEFGH", **fields})) == "ABCDEFG"
    by_id = complete(http, "abc", max_tokens=9, stop_token_ids=[ord("c")], **{name: True})
    assert by_id["choices"][0]["text"] == "abc"


def test_an_answer_tells_which_stop_ended_it(http: httpx.Client) -> None:
    def reasons(**fields: Any) -> list[Any]:
        (plain,) = complete(http, [*b"abc", 257], max_tokens=9, **fields)["choices"]
        body = {"prompt": [*b"abc", 257], "max_tokens": 9, **fields}
        ends = [choice for chunk in events(http, "/v1/completions", body) for choice in chunk["choices"]]
        assert plain.get("stop_reason") == ends[-1].get("stop_reason")
        return [plain["finish_reason"], plain.get("stop_reason")]

    assert reasons(stop=["x", "bc"]) == ["stop", "bc"]
    assert reasons(stop_token_ids=[98]) == ["stop", 98]
    assert reasons() == ["stop", None], "the model's own end"
    assert reasons(stop_token_ids=[257]) == ["stop", 257]
    assert reasons(ignore_eos=True) == ["length", None]


def test_stop_strings_are_not_looked_for_before_min_tokens(http: httpx.Client) -> None:
    answer = complete(http, "ab", max_tokens=20, stop="b", min_tokens=5)
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("ababa", 6)
    answer = complete(http, "ab", max_tokens=20, stop="ba", min_tokens=3)
    assert answer["choices"][0]["text"] == "aba", "the b before min_tokens is no beginning of a stop string"


def test_control_tokens_have_text_if_they_are_not_skipped(http: httpx.Client) -> None:
    ids = [*b"ab", 257]
    fields: Json = {"max_tokens": 6, "ignore_eos": True, "skip_special_tokens": False}
    assert complete(http, ids, **fields)["choices"][0]["text"] == "ab<257>ab<257>"
    ended: Json = {"max_tokens": 6, "skip_special_tokens": False, "include_stop_str_in_output": True}
    assert complete(http, ids, **ended)["choices"][0]["text"] == "ab<257>"


def test_a_stop_string_frees_the_engine(http: httpx.Client) -> None:
    """The fake would otherwise go on to the end of the context."""
    answer = chat(http, "ab", stop="a")
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0


def test_usage_comes_last_and_only_if_asked_for(http: httpx.Client) -> None:
    body: Json = {"prompt": "abc", "max_tokens": 5}
    assert all("usage" not in chunk for chunk in events(http, "/v1/completions", body))
    chunks = events(http, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 5, 9)
    assert "cached_tokens" in usage["prompt_tokens_details"]


def test_continuous_usage_counts_up_to_the_final_number(http: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 20, "stream_options": options}
    counts = [c["usage"]["completion_tokens"] for c in events(http, "/v1/chat/completions", body)[1:]]
    assert counts == sorted(counts)
    assert counts[-1] == 20


def test_a_streamed_batch_ends_every_choice_once(http: httpx.Client) -> None:
    body = {"prompt": ["ab", [99, 100, 257], "efg"], "max_tokens": 9, "stop": "gef"}
    chunks = events(http, "/v1/completions", body)
    assert [streamed_text(chunks, i) for i in range(3)] == ["ababababa", "cd", "ef"]
    ends = {
        i: [
            c["finish_reason"] for x in chunks for c in x["choices"] if c["index"] == i and c["finish_reason"]
        ]
        for i in range(3)
    }
    assert ends == {0: ["length"], 1: ["stop"], 2: ["stop"]}


# ---------------------------------------------------------------- log-probabilities


def test_completion_logprobs_name_each_chosen_token(http: httpx.Client) -> None:
    logprobs = complete(http, "ab", max_tokens=3, logprobs=1)["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a", "b", "a"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{"A": -1.0, "a": -0.5}, {"A": -1.0, "b": -0.5}, {"A": -1.0, "a": -0.5}],
        "text_offset": [0, 1, 2],
    }


def test_chat_logprobs_name_each_chosen_token_with_its_bytes(http: httpx.Client) -> None:
    logprobs = chat(http, "é", max_tokens=4, logprobs=True, top_logprobs=1)["choices"][0]["logprobs"]
    assert [entry["bytes"] for entry in logprobs["content"]] == [[117], [58], [195], [169]]
    assert {entry["logprob"] for entry in logprobs["content"]} == {-0.5}


def test_streamed_logprobs_equal_plain_ones(http: httpx.Client) -> None:
    plain = complete(http, "é漢", max_tokens=9, logprobs=0)["choices"][0]["logprobs"]
    chunks = events(http, "/v1/completions", {"prompt": "é漢", "max_tokens": 9, "logprobs": 0})
    parts = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    for key, values in plain.items():
        assert [value for part in parts for value in part[key]] == values


# ---------------------------------------------------------------- token ids

IDS = [256, *b"ab"]


def test_token_ids_of_prompts_and_outputs(http: httpx.Client) -> None:
    fields: Json = {"max_tokens": 3, "return_token_ids": True}
    first, second = complete(http, ["ab", [99]], **fields)["choices"]
    assert (first["prompt_token_ids"], first["token_ids"]) == (IDS, [97, 98, 97])
    assert (second["prompt_token_ids"], second["token_ids"]) == ([99], [99, 99, 99])
    answer = chat(http, "b", **fields)
    assert answer["prompt_token_ids"] == [256, *b"u:b"]
    assert answer["choices"][0]["token_ids"] == [*b"u:b"]
    assert "token_ids" not in complete(http, "ab", max_tokens=1)["choices"][0]


@pytest.mark.parametrize("usage", [False, True])
def test_streamed_token_ids_equal_plain_ones(http: httpx.Client, usage: bool) -> None:
    body: Json = {"prompt": ["ab", "c"], "max_tokens": 6, "return_token_ids": True, "stop": "bab"}
    if usage:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    choices = [choice for chunk in events(http, "/v1/completions", body) for choice in chunk["choices"]]
    own = [choice for choice in choices if choice["index"] == 0]
    assert own[0]["prompt_token_ids"] == IDS
    assert [token for choice in own for token in choice.get("token_ids", ())] == [97, 98, 97, 98]
    turn = {"messages": [{"role": "user", "content": "b"}], "max_tokens": 3, "n": 2, "return_token_ids": True}
    chunks = events(http, "/v1/chat/completions", turn)
    assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [[256, *b"u:b"]]
    ids = [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids", ())]
    assert sorted(ids) == sorted([*b"u:b"] * 2)


def test_prompt_log_probabilities_have_their_own_number_of_alternatives(http: httpx.Client) -> None:
    (choice,) = complete(http, "ab", max_tokens=1, logprobs=2, prompt_logprobs=0)["choices"]
    assert [one and list(one) for one in choice["prompt_logprobs"]] == [None, ["97"], ["98"]]
    assert choice["prompt_logprobs"][2]["98"] == {"logprob": -2.0, "rank": None, "decoded_token": "b"}
    assert len(choice["logprobs"]["top_logprobs"][0]) == 3
    answer = chat(http, "b", max_tokens=1, logprobs=True, prompt_logprobs=3)
    assert len(answer["prompt_logprobs"]) == 4
    assert len(answer["prompt_logprobs"][1]) == 4
    assert answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_prompt_log_probabilities_are_not_streamed(http: httpx.Client) -> None:
    body = {"prompt": "a", "stream": True, "prompt_logprobs": 0}
    assert refused(http.post("/v1/completions", json=body))["param"] == "prompt_logprobs"


# ---------------------------------------------------------------- the openai package


def test_the_openai_package_completes_and_streams(toy: Running) -> None:
    with OpenAI(base_url=f"{toy.url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["toy"]
        assert client.models.retrieve("toy").id == "toy"
        whole = client.completions.create(model="toy", prompt="abc", max_tokens=5, extra_body={"top_k": 3})
        assert whole.choices[0].text == "abcab"
        stream = client.completions.create(model="toy", prompt="abc", max_tokens=5, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == "abcab"


def test_the_openai_package_chats_and_streams(toy: Running) -> None:
    with OpenAI(base_url=f"{toy.url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "abc"}]
        whole = client.chat.completions.create(model="toy", messages=messages, max_tokens=5, seed=1)
        assert whole.choices[0].message.content == "u:abc"
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details is not None
        stream = client.chat.completions.create(
            model="toy", messages=messages, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "u:abc"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 5
