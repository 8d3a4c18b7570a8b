"""`LLM` on a tiny random hybrid model."""

import dataclasses
import gc
import itertools
import json
import signal
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tiny import BOS, write_tiny_gguf

from transom import LLM
from transom.config import EngineConfig
from transom.errors import BadRequest, ConfigError, ModelFileError, RequestTooLarge, TransomError
from transom.kv.check import check
from transom.llm import Completion, EngineOptions, Piece
from transom.steps import StepResult, StepWork
from transom.values import FinishReason, RequestId

PROMPTS = [
    "the cat and the hat",
    "a rat in the rain",
    "a rat in the train",
    "",
    "漢字🙂",
    "the cat and the hat",
]
SAMPLED: dict[str, Any] = {"temperature": 0.9, "seed": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture(scope="module")
def loaded(path: str) -> LLM:
    return LLM(path, page_size=4, chunked_prefill_size=16, max_total_tokens=4096, threads=1, paranoid=True)


@pytest.fixture
def llm(loaded: LLM) -> Iterator[LLM]:
    """The shared LLM; no request and no page of a test may remain."""
    yield loaded
    assert held(loaded) == (0, 0)


def sampled(number: int) -> dict[str, Any]:
    """The options with which a call of its own repeats completion `number` of a call with SAMPLED."""
    return {**SAMPLED, "seed": SAMPLED["seed"] + number}


def held(llm: LLM) -> tuple[int, int]:
    """Pages that requests own, and unfinished requests."""
    stats = llm.engine.stats()
    pages = sum(use.private + use.referenced for use in llm.engine.cache.stats().components)
    return pages, stats.running + stats.waiting


def joined(pieces: list[Piece]) -> Completion:
    """The completion that the pieces of a stream add up to. Only the last piece has a finish reason."""
    *earlier, last = pieces
    assert all(piece.finish_reason is None and piece.usage is None for piece in earlier)
    assert last.finish_reason is not None and last.usage is not None
    return Completion(
        "".join(piece.text for piece in pieces),
        tuple(itertools.chain.from_iterable(piece.token_ids for piece in pieces)),
        tuple(itertools.chain.from_iterable(piece.logprobs for piece in pieces)),
        last.finish_reason,
        last.usage,
    )


def content(completion: Completion) -> tuple[object, ...]:
    """Everything but the cached tokens, which depend on earlier requests."""
    usage = completion.usage
    counts = usage.prompt_tokens, usage.completion_tokens
    return completion.text, completion.token_ids, completion.logprobs, completion.finish_reason, counts


# ---------------------------------------------------------------- outputs


def test_prompts_come_back_in_order_each_as_alone(llm: LLM) -> None:
    together = llm.generate(PROMPTS, max_tokens=12, **SAMPLED)
    alone = [llm.generate(prompt, max_tokens=12, **sampled(i)) for i, prompt in enumerate(PROMPTS)]
    assert [[content(completion)] for completion in together] == [
        [content(completion) for completion in completions] for completions in alone
    ]
    assert len({completion.text for completion in together}) == len(PROMPTS)


def test_more_prompts_than_run_at_once_are_all_answered(llm: LLM) -> None:
    completions = llm.generate([[BOS, 4 + n] for n in range(100)], max_tokens=3, ignore_eos=True)
    assert [len(completion.token_ids) for completion in completions] == [3] * 100


@pytest.mark.parametrize("options", [{}, {"stop": ["e", "th"]}, SAMPLED, {**SAMPLED, "stop": "a"}])
@pytest.mark.parametrize("prompt", PROMPTS[:5])
def test_a_stream_is_what_generate_gives(llm: LLM, prompt: str, options: dict[str, Any]) -> None:
    whole = llm.generate(prompt, max_tokens=30, **options)[0]
    pieces = list(llm.stream(prompt, max_tokens=30, **options))
    assert content(joined(pieces)) == content(whole)


def test_each_token_has_a_log_probability_and_usage_counts_them(llm: LLM) -> None:
    completion = llm.generate(PROMPTS[0], max_tokens=9, **SAMPLED)[0]
    assert len(completion.token_ids) == len(completion.logprobs) == 9
    assert all(value < 0 for value in completion.logprobs)
    assert completion.usage.completion_tokens == 9
    assert completion.usage.prompt_tokens == len(llm.tokenizer.encode(PROMPTS[0]))
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.text == llm.tokenizer.decode(completion.token_ids)


def test_prompts_may_be_ids_of_any_integer_kind(llm: LLM) -> None:
    ids = llm.tokenizer.encode(PROMPTS[0])
    expected = content(llm.generate(PROMPTS[0], max_tokens=5)[0])
    prompts: list[Any] = [ids, ids.tolist(), tuple(ids), ids.astype(np.uint16), list(ids)]
    for prompt in prompts:
        (completion,) = llm.generate(prompt, max_tokens=5)
        assert content(completion) == expected
        assert content(llm.generate([prompt, "a"], max_tokens=5)[0]) == expected


def test_no_prompts_give_no_completions(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_max_tokens_0_generates_nothing(llm: LLM) -> None:
    completion = llm.generate("the", max_tokens=0)[0]
    assert (completion.text, completion.token_ids, completion.finish_reason) == ("", (), "length")


def test_an_output_ends_with_the_context(llm: LLM) -> None:
    ids = [BOS, *[4 + n % 200 for n in range(llm.context - 6)]]
    completion = llm.generate(ids, max_tokens=100, ignore_eos=True)[0]
    assert completion.usage.prompt_tokens + completion.usage.completion_tokens == llm.context
    assert completion.finish_reason is FinishReason.LENGTH


def test_different_seeds_give_different_texts(llm: LLM) -> None:
    def text(seed: int) -> str:
        return llm.generate("the", max_tokens=20, temperature=1.0, ignore_eos=True, seed=seed)[0].text

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) == 4


def test_without_a_seed_equal_prompts_have_different_texts_and_so_have_two_calls(llm: LLM) -> None:
    options: Any = {"max_tokens": 20, "temperature": 1.0, "ignore_eos": True}
    completions = llm.generate(["the"] * 3, **options) + llm.generate(["the"] * 3, **options, seed=-1)
    assert len({completion.text for completion in completions}) == 6


def test_completion_i_has_the_seed_plus_i(llm: LLM) -> None:
    options: Any = {"max_tokens": 20, "temperature": 1.0, "ignore_eos": True}
    together = llm.generate(["the"] * 3, seed=5, **options)
    apart = [llm.generate("the", seed=5 + number, **options)[0] for number in range(3)]
    assert [content(completion) for completion in together] == [content(completion) for completion in apart]


# ---------------------------------------------------------------- logit rules

RULED: list[dict[str, Any]] = [
    {"logit_bias": {70: 100.0}},
    {"allowed_token_ids": [70, 71, 72]},
    {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 1.0},
]


@pytest.mark.parametrize("options", RULED)
def test_rules_change_the_output_and_not_the_log_probabilities(llm: LLM, options: dict[str, Any]) -> None:
    (plain,) = llm.generate("the", max_tokens=12, **SAMPLED)
    (ruled,) = llm.generate("the", max_tokens=12, **SAMPLED, **options)
    assert ruled.token_ids != plain.token_ids
    (score,) = llm.score([[*llm.tokenizer.encode("the").tolist(), *ruled.token_ids]])
    assert score.logprobs[-12:] == ruled.logprobs


def test_a_bias_forces_a_token_and_a_list_allows_tokens(llm: LLM) -> None:
    (forced,) = llm.generate("the", max_tokens=5, logit_bias={70: 100.0})
    assert forced.token_ids == (70,) * 5
    (some,) = llm.generate("the", max_tokens=30, allowed_token_ids=[70, 71, 72], **SAMPLED)
    assert set(some.token_ids) <= {70, 71, 72}


def single(llm: LLM, token: int) -> str:
    """The text of a token, if it is a word of this one token; otherwise empty."""
    word = llm.tokenizer.decode([token])
    return word if word.strip() and llm.tokenizer.encode(word, bos=False).tolist() == [token] else ""


def test_bad_words_do_not_occur_and_min_tokens_are_reached(llm: LLM) -> None:
    (plain,) = llm.generate("the", max_tokens=20, **SAMPLED)
    first = plain.token_ids[0]
    (ended,) = llm.generate("the", max_tokens=20, stop_token_ids=[first], **SAMPLED)
    assert (ended.token_ids, ended.text, ended.finish_reason) == ((first,), "", FinishReason.STOP)
    (longer,) = llm.generate("the", max_tokens=20, stop_token_ids=[first], min_tokens=9, **SAMPLED)
    assert len(longer.token_ids) >= 9 and first not in longer.token_ids[:9]
    token, word = next((t, w) for t in plain.token_ids if (w := single(llm, t)))
    (without,) = llm.generate("the", max_tokens=20, bad_words=[word], **SAMPLED)
    assert token not in without.token_ids


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"min_tokens": -1}, "min_tokens"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": {10**9: 1.0}}, "logit_bias"),
        ({"logit_bias": {5: 1e9}}, "logit_bias.5"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
    ],
)
def test_a_rule_out_of_range_is_named(llm: LLM, options: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        llm.generate("the", **options)
    assert caught.value.param == param


# ---------------------------------------------------------------- conversations


def test_a_chat_is_a_completion_of_the_rendered_messages(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [{"role": "user", "content": "the"}, {"role": "assistant", "content": "an"}]
    with pytest.raises(BadRequest, match="cannot chat"):
        llm.chat(turns)
    turn, end = "{{ m.content }}{{ sep }}", "{% if add_generation_prompt %}!{% endif %}"
    source = f"{{% for m in messages %}}{turn}{{% endfor %}}{end}"
    template = llm.tokenizer.chat_template(source)
    monkeypatch.setattr(llm._text, "_template", template)
    options: Any = {"max_tokens": 6, **SAMPLED}

    def equal(completion: Completion, prompt: str) -> bool:
        return content(completion) == content(llm.generate(prompt, **options)[0])

    assert equal(llm.chat(turns, **options), "thean!")
    assert equal(llm.chat(turns, chat_template_kwargs={"sep": " "}, **options), "the an !")
    assert equal(llm.chat(turns, continue_final_message=True, **options), "thean")


# ---------------------------------------------------------------- stop strings


def test_a_stop_string_ends_an_output_before_it(llm: LLM) -> None:
    whole = llm.generate(PROMPTS[0], max_tokens=30, **SAMPLED)[0]
    stop = whole.text[10:13]
    stopped = llm.generate(PROMPTS[0], max_tokens=30, stop=[stop, "never"], **SAMPLED)[0]
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert stopped.finish_reason is FinishReason.STOP
    count = len(stopped.token_ids)
    assert stopped.usage.completion_tokens == count < 30
    assert stopped.token_ids == whole.token_ids[:count]


def test_a_stopped_output_reports_its_cached_tokens(llm: LLM) -> None:
    prompt = "one prompt that is asked two times"
    text = llm.generate(prompt, max_tokens=30, **SAMPLED)[0].text
    stopped = llm.generate(prompt, max_tokens=30, stop=text[5:7], **SAMPLED)[0]
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.usage.cached_tokens > len(prompt) // 2


# ---------------------------------------------------------------- prefixes


def test_prefixes_stay_from_call_to_call(llm: LLM) -> None:
    prompt = "nobody has begun like this before, and whoever does so again finds it"
    first, again = (llm.generate(prompt, max_tokens=4)[0] for _ in range(2))
    assert first.usage.cached_tokens < 4
    assert again.usage.cached_tokens >= first.usage.prompt_tokens - 4
    assert content(again) == content(first)
    longer = llm.generate(prompt + " and more", max_tokens=1)[0]
    assert longer.usage.cached_tokens >= first.usage.prompt_tokens - 8


def test_without_the_prefix_cache_nothing_is_found(path: str) -> None:
    llm = LLM(path, disable_radix_cache=True, threads=1)
    completions = [llm.generate(PROMPTS[0] * 3, max_tokens=4)[0] for _ in range(2)]
    assert [completion.usage.cached_tokens for completion in completions] == [0, 0]
    assert content(completions[0]) == content(completions[1])


# ---------------------------------------------------------------- streams


def test_a_stream_that_is_closed_early_frees_its_pages(llm: LLM) -> None:
    stream = llm.stream(PROMPTS[0], max_tokens=1000, ignore_eos=True)
    next(stream)
    pages, requests = held(llm)
    assert (pages > 0, requests) == (True, 1)
    stream.close()
    assert held(llm) == (0, 0)


def test_a_stream_that_is_dropped_frees_its_pages(llm: LLM) -> None:
    for number, _ in enumerate(llm.stream(PROMPTS[0], max_tokens=1000, ignore_eos=True)):
        if number == 5:
            break
    assert held(llm) == (0, 0)


def test_a_stream_that_is_never_read_submits_nothing(llm: LLM) -> None:
    stream = llm.stream("the")
    assert held(llm) == (0, 0)
    stream.close()


def test_streams_may_be_read_in_turns(llm: LLM) -> None:
    expected = [content(c) for c in llm.generate(PROMPTS, max_tokens=16, **SAMPLED)]
    streams = [llm.stream(prompt, max_tokens=16, **sampled(i)) for i, prompt in enumerate(PROMPTS)]
    rounds = list(itertools.zip_longest(*streams))
    for number, whole in enumerate(expected):
        pieces = [row[number] for row in rounds if row[number] is not None]
        assert content(joined(pieces)) == whole


def test_other_work_within_a_stream_does_not_disturb_it(llm: LLM) -> None:
    expected = content(llm.generate(PROMPTS[0], max_tokens=16, **SAMPLED)[0])
    other = content(llm.generate(PROMPTS[1], max_tokens=40, **SAMPLED)[0])
    pieces = []
    for piece in llm.stream(PROMPTS[0], max_tokens=16, **SAMPLED):
        pieces.append(piece)
        if len(pieces) == 3:
            assert content(llm.generate(PROMPTS[1], max_tokens=40, **SAMPLED)[0]) == other
    assert content(joined(pieces)) == expected


# ---------------------------------------------------------------- scores, explanations, counts


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_score_has_the_bits_of_the_output_it_scores(path: str, llm: LLM, prompt: str) -> None:
    """Cold by another engine, and where all of it is cached."""
    output = llm.generate(prompt, max_tokens=20, **SAMPLED)[0]
    whole = [*llm.tokenizer.encode(prompt).tolist(), *output.token_ids]
    cold = LLM(path, disable_radix_cache=True, chunked_prefill_size=7, threads=1)
    for score in (*llm.score([whole]), *cold.score([whole])):
        assert list(score.token_ids) == whole
        assert len(score.logprobs) == len(whole) - 1
        assert score.logprobs[-20:] == output.logprobs


def test_scores_come_in_order_and_a_single_token_has_no_logprob(llm: LLM) -> None:
    scores = llm.score([[BOS], *PROMPTS])
    assert [len(score.logprobs) for score in scores] == [
        0,
        *(len(llm.tokenizer.encode(prompt)) - 1 for prompt in PROMPTS),
    ]
    assert scores[1] == llm.score(PROMPTS[0])[0]
    with pytest.raises(RequestTooLarge):
        llm.score([[5], [5] * (llm.context + 1)])


def test_an_explanation_says_how_much_of_a_prompt_is_cached(llm: LLM) -> None:
    prompt = "a text that only this test has, and long enough for pages"
    assert llm.explain(prompt).start < 4
    tokens = llm.generate(prompt, max_tokens=1)[0].usage.prompt_tokens
    assert tokens - 5 <= llm.explain(prompt).start < tokens


def test_stats_count_requests_and_tokens(llm: LLM) -> None:
    before = llm.stats()
    llm.generate(PROMPTS[:3], max_tokens=5, ignore_eos=True)
    after = llm.stats()
    assert after.requests_finished - before.requests_finished == 3
    assert after.generated_tokens - before.generated_tokens == 15


def test_every_setting_of_the_engine_is_a_keyword() -> None:
    settings = {field.name: field.default for field in dataclasses.fields(EngineConfig)}
    assert set(EngineOptions.__annotations__) == settings.keys() - {"model"}


# ---------------------------------------------------------------- the end


def test_a_closed_engine_frees_its_memory_and_refuses_calls(path: str) -> None:
    with LLM(path, threads=1) as llm:
        stream = llm.stream(PROMPTS[0], max_tokens=1000, ignore_eos=True)
        next(stream)
        store = weakref.ref(llm.engine.store)
    gc.collect()
    assert store() is None
    for ask in (lambda: next(stream), lambda: llm.generate("the"), lambda: llm.score("the"), llm.stats):
        with pytest.raises(TransomError, match="this LLM is closed"):
            ask()
    llm.close()


def test_a_stream_that_outlives_its_engine_may_be_dropped(path: str) -> None:
    with LLM(path, threads=1) as llm:
        stream = llm.stream(PROMPTS[0], max_tokens=1000, ignore_eos=True)
        next(stream)
    stream.close()


# ---------------------------------------------------------------- refusals


def test_one_bad_prompt_refuses_all_and_leaves_nothing_running(llm: LLM) -> None:
    too_long = [5] * (llm.context + 1)
    with pytest.raises(RequestTooLarge, match=str(llm.context + 1)) as caught:
        llm.generate([[5], too_long, [5]], max_tokens=500)
    assert caught.value.code == "context_length_exceeded"
    assert held(llm) == (0, 0)
    with pytest.raises(BadRequest):
        llm.generate([[5], [llm.tokenizer.vocab_size]], max_tokens=500)
    with pytest.raises(RequestTooLarge):
        list(llm.stream(too_long))


@pytest.mark.parametrize(
    "prompt",
    [[-1], [10**6], [10**30], [1.5], [[1, 2], [1.5]], [None], [[[1]]], [[]], [True, "a"]],
)
def test_an_invalid_prompt_is_refused(llm: LLM, prompt: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        llm.generate(prompt)
    assert caught.value.param == "prompt"
    with pytest.raises(BadRequest):
        list(llm.stream(prompt))


def test_a_text_that_is_not_unicode_is_refused(llm: LLM) -> None:
    with pytest.raises(BadRequest, match="Unicode"):
        llm.generate(["the", "\ud800"])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_tokens", -1),
        ("temperature", -0.5),
        ("temperature", float("nan")),
        ("top_p", 1.5),
        ("top_p", -0.1),
        ("min_p", 2.0),
        ("top_k", -1),
        ("stop", [""]),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(llm: LLM, option: str, value: object) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(BadRequest, match=option):
        llm.generate("the", **options)


def test_an_option_that_does_not_exist_is_an_error(llm: LLM, path: str) -> None:
    misspelt: dict[str, Any] = {"max_token": 5}
    with pytest.raises(TypeError, match="max_token"):
        llm.generate("the", **misspelt)
    with pytest.raises(TypeError, match="pagesize"):
        LLM(path, pagesize=5)  # type: ignore[call-arg]


def test_a_step_that_fails_is_raised_and_the_next_call_works(llm: LLM) -> None:
    expected = content(llm.generate(PROMPTS[0], max_tokens=4)[0])

    def broken(work: StepWork) -> StepResult:
        raise MemoryError("as asked")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm.engine.runner, "run", broken)
        with pytest.raises(Exception, match="as asked"):
            llm.generate(["the", "a"], max_tokens=4)
    assert held(llm) == (0, 0)
    assert content(llm.generate(PROMPTS[0], max_tokens=4)[0]) == expected


def test_a_model_that_cannot_be_loaded_is_an_error(path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--max-total-tokens"):
        LLM(path, max_total_tokens=0)
    with pytest.raises(ConfigError, match="KV pools"):
        LLM(path, max_total_tokens=8, swa_full_tokens_ratio=0.1)
    with pytest.raises(ModelFileError, match=r"nothing\.gguf"):
        LLM(str(tmp_path / "nothing.gguf"))


def test_request_ids_are_never_reused(llm: LLM) -> None:
    seen: list[RequestId] = []
    run = llm.engine.runner.run

    def record(work: StepWork) -> StepResult:
        seen.extend(span.request for span in work.spans)
        return run(work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm.engine.runner, "run", record)
        for _ in range(3):
            llm.generate(["a"], max_tokens=1)
    assert len(set(seen)) == 3


@pytest.fixture
def default_sigint() -> Iterator[None]:
    """As in a terminal: a program in the background of a shell begins with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def interrupting(monkeypatch: pytest.MonkeyPatch, target: object, name: str, times: int) -> None:
    """Raises SIGINT `times` times at the start of the next call of `target.name`, and at no later call."""
    called, left = getattr(target, name), [times]

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        while left[0]:
            left[0] -= 1
            signal.raise_signal(signal.SIGINT)
        return called(*arguments, **keywords)

    monkeypatch.setattr(target, name, interrupted)


@pytest.mark.usefixtures("default_sigint")
@pytest.mark.parametrize("where", ["runner.run", "cache.extend", "cache.publish", "scheduler.plan"])
def test_ctrl_c_takes_effect_after_the_step_and_no_stream_is_lost(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    whole = llm.generate(PROMPTS[:2], max_tokens=40, ignore_eos=True)
    first, second = (llm.stream(prompt, max_tokens=40, ignore_eos=True) for prompt in PROMPTS[:2])
    received = [*next(second).token_ids]
    part, name = where.split(".")
    with monkeypatch.context() as patch:
        interrupting(patch, getattr(llm.engine, part), name, 1)
        with pytest.raises(KeyboardInterrupt):
            list(first)
    received += [token for piece in second for token in piece.token_ids]
    assert received == [*whole[1].token_ids]
    check(llm.engine.cache)
    assert llm.generate(PROMPTS[0], max_tokens=40, ignore_eos=True)[0].token_ids == whole[0].token_ids
    assert llm.engine.scheduler.unfinished() == ()


@pytest.mark.usefixtures("default_sigint")
def test_a_second_ctrl_c_cuts_the_step_off(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = llm.stream(PROMPTS[0], max_tokens=20, ignore_eos=True)
    next(stream)
    with monkeypatch.context() as patch:
        interrupting(patch, llm.engine.runner, "run", 2)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS[1])
    with pytest.raises(TransomError, match="its step was interrupted"):
        list(stream)


def test_outside_the_main_thread_signals_are_not_deferred(llm: LLM) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(llm.generate, PROMPTS[0], max_tokens=3, ignore_eos=True).result()
    assert found[0].token_ids == llm.generate(PROMPTS[0], max_tokens=3, ignore_eos=True)[0].token_ids


def test_an_interrupted_step_ends_the_streams_it_computed_for_and_no_later_ones(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = llm.generate(PROMPTS[0], max_tokens=6, ignore_eos=True)[0]
    first, second = (llm.stream(prompt, max_tokens=20, ignore_eos=True) for prompt in PROMPTS[:2])
    next(first), next(second)

    def interrupted(work: StepWork) -> StepResult:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.runner, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(first)
    with pytest.raises(TransomError, match="its step was interrupted"):
        list(second)
    assert llm.generate(PROMPTS[0], max_tokens=6, ignore_eos=True)[0].token_ids == whole.token_ids


def test_outputs_fit_a_schema_an_expression_a_choice_or_a_grammar(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, "x"]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    options: Any = {"max_tokens": 400, "temperature": 1.0, "seed": 1, "ignore_eos": True}
    for text in llm.generate(PROMPTS[:3], json_schema=schema, **options):
        assert json.loads(text.text)["a"] in (1, "x")
        assert text.finish_reason is FinishReason.STOP
    assert llm.generate("the", regex="[0-9]{4}", **options)[0].text.isdigit()
    assert llm.generate("the", choice=["yes", "no"], **options)[0].text in ("yes", "no")
    assert llm.generate("the", ebnf='root ::= "a" "b"', **options)[0].text == "ab"
    with pytest.raises(BadRequest, match="both constrain"):
        llm.generate("the", regex="a", choice=["a"])
    with pytest.raises(BadRequest) as refused:
        llm.generate("the", json_schema={"type": "x"})
    assert refused.value.param == "json_schema"
