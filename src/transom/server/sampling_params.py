"""Checks the values of a request. The rest of the server relies on the result, `SamplingParams`."""

from dataclasses import dataclass, replace

import msgspec

from transom.limits import LIMITS
from transom.sampling import check_range, output_seeds, sampling_arguments
from transom.server.errors import bad_request
from transom.server.fields import unsupported
from transom.server.protocol import ChatRequest, CompletionRequest, GenerationRequest
from transom.text.chat import RESERVED, Rendering
from transom.text.logit_rules import Encode, logit_rules
from transom.values import LogitRules, Sampling

PRIORITY_MAX = 100
COMPLETION_TOKENS = 16
"""Default `max_tokens` of a completion, as in OpenAI's API."""
TEMPERATURE = 1.0
"""Default temperature of the API, as in OpenAI's; `LLM` and the command line default to 0."""
TOP_K_OFF = -1
"""vLLM and SGLang write -1 for no cut; inside Transom it is 0."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """When a streamed answer reports usage."""

    usage_at_end: bool
    usage_always: bool


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Checked parameters of a request.

    max_tokens  None: generate until the context is full
    outputs     for each prompt
    seed        unset: each output has draws of its own
    top         the most probable tokens listed with each log-probability
    echo        each output begins with the prompt
    grammar     constrains the outputs, see `text/grammar.py`; empty: they are free
    visible     control tokens that are part of the text although others are skipped
    skip_special, include_stop
                whether control tokens, and what ended an output, are part of its text
    token_ids   the answer has the tokens of prompt and outputs by id
    names_are_ids
                log-probabilities name tokens by id, not by text
    prompt_top  the most probable tokens listed for each token of the prompt; unset: none is reported
    """

    max_tokens: int | None
    outputs: int
    seed: int | None
    sampling: Sampling
    stop: tuple[str, ...]
    stop_ids: tuple[int, ...]
    ignore_eos: bool
    logprobs: bool
    top: int
    echo: bool
    priority: int
    salt: str
    tenant: str
    timeout_seconds: float | None
    streaming: Streaming | None
    rules: LogitRules | None
    skip_special: bool
    include_stop: bool
    token_ids: bool
    names_are_ids: bool
    prompt_top: int | None
    grammar: str = ""
    visible: frozenset[str] = frozenset()

    def samplings(self, prompt: int) -> tuple[Sampling, ...]:
        """One for each output of the prompt with this number. With a seed, choice i has `seed + i`."""
        numbers = range(prompt * self.outputs, (prompt + 1) * self.outputs)
        return tuple(replace(self.sampling, seed=seed) for seed in output_seeds(self.seed, numbers))


def completion_params(request: CompletionRequest, vocabulary: int, encode: Encode) -> SamplingParams:
    """Refused or BadRequest, naming the field, for a value out of range or not supported."""
    logprobs = _integer("logprobs", request.logprobs, 0, LIMITS.top_logprobs)
    max_tokens = _max_tokens(request, 0)
    params = _params(
        request,
        vocabulary,
        encode,
        max_tokens=COMPLETION_TOKENS if max_tokens is None else max_tokens,
        logprobs=logprobs is not None,
        top=logprobs or 0,
        echo=bool(request.echo),
    )
    if request.best_of is not None and request.best_of != params.outputs:
        raise unsupported("best_of", f"every output is returned, so it must equal n, {params.outputs}")
    # max_tokens 0 scores a prompt or warms the cache: several such outputs are surely a mistake.
    if params.max_tokens == 0 and params.outputs > 1:
        raise bad_request(f"n is {params.outputs}, and max_tokens 0: all outputs would be empty", "n")
    return params


def chat_params(request: ChatRequest, vocabulary: int, encode: Encode) -> SamplingParams:
    """Refused or BadRequest, naming the field, for a value out of range or not supported."""
    max_tokens = _max_tokens(request, 1)
    top = _integer("top_logprobs", request.top_logprobs, 0, LIMITS.top_logprobs) or 0
    if top and not request.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    return _params(
        request,
        vocabulary,
        encode,
        max_tokens=max_tokens,
        logprobs=bool(request.logprobs),
        top=top,
        echo=False,
    )


def _params(
    request: GenerationRequest,
    vocabulary: int,
    encode: Encode,
    *,
    max_tokens: int | None,
    logprobs: bool,
    top: int,
    echo: bool,
) -> SamplingParams:
    rules = logit_rules(msgspec.structs.asdict(request), vocabulary, encode)
    if rules is not None and max_tokens is not None and rules.min_tokens > max_tokens:
        raise bad_request(f"min_tokens is {rules.min_tokens}, and max_tokens {max_tokens}", "min_tokens")
    return SamplingParams(
        max_tokens=max_tokens,
        outputs=_integer("n", request.n, 1, LIMITS.outputs_of_prompt) or 1,
        seed=request.seed,
        sampling=_sampling(request),
        stop=_stop(request.stop),
        stop_ids=_stop_ids(request.stop_token_ids, vocabulary),
        ignore_eos=bool(request.ignore_eos),
        logprobs=logprobs,
        top=top,
        echo=echo,
        priority=_integer("priority", request.priority, -PRIORITY_MAX, PRIORITY_MAX) or 0,
        salt=_name("cache_salt", request.cache_salt),
        tenant=_name("user", request.user),
        timeout_seconds=_timeout(request.timeout),
        streaming=_streaming(request),
        rules=rules,
        skip_special=request.skip_special_tokens is not False,
        # vLLM's name and SGLang's.
        include_stop=bool(request.include_stop_str_in_output or request.no_stop_trim),
        token_ids=bool(request.return_token_ids),
        names_are_ids=bool(request.return_tokens_as_token_ids),
        prompt_top=_prompt_top(request),
    )


def _prompt_top(request: GenerationRequest) -> int | None:
    if request.prompt_logprobs is not None and request.stream:
        raise bad_request("prompt_logprobs is not available with stream: true", "prompt_logprobs")
    return _integer("prompt_logprobs", request.prompt_logprobs, 0, LIMITS.top_logprobs)


def rendering_of(request: ChatRequest) -> Rendering:
    """How a conversation becomes a prompt. Refused, naming the field, for contradictions."""
    continues = bool(request.continue_final_message)
    if continues and request.add_generation_prompt:
        reason = "continue_final_message and add_generation_prompt are both true; the prompt ends in one way"
        raise bad_request(reason, "continue_final_message")
    variables = request.chat_template_kwargs or {}
    if len(variables) > LIMITS.template_variables:
        reason = f"{len(variables)} variables; at most {LIMITS.template_variables} are allowed"
        raise bad_request(f"chat_template_kwargs holds {reason}", "chat_template_kwargs")
    for name in variables:
        if name in RESERVED or not name.isidentifier() or len(name) > LIMITS.name_characters:
            reason = f"has {name[:64]!a}, which is not a name of a further variable"
            raise bad_request(f"chat_template_kwargs {reason}", "chat_template_kwargs")
    if request.reasoning_effort is not None:
        # As in vLLM, a variable that the templates of reasoning models read.
        variables = {"reasoning_effort": _name("reasoning_effort", request.reasoning_effort), **variables}
    generation_prompt = request.add_generation_prompt is not False and not continues
    return Rendering(generation_prompt, continues, variables)


def _max_tokens(request: GenerationRequest, low: int) -> int | None:
    """OpenAI replaced `max_tokens` by `max_completion_tokens`, which takes precedence."""
    older = _integer("max_tokens", request.max_tokens, low, None)
    newer = _integer("max_completion_tokens", request.max_completion_tokens, low, None)
    return older if newer is None else newer


def _sampling(request: GenerationRequest) -> Sampling:
    fields = msgspec.structs.asdict(request)
    if fields["top_k"] == TOP_K_OFF:
        fields["top_k"] = 0
    arguments = {"temperature": TEMPERATURE, **sampling_arguments(fields)}
    return Sampling(**{**arguments, "seed": 0})


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = [stop] if isinstance(stop, str) else stop or []
    if len(strings) > LIMITS.stop_strings:
        raise bad_request(
            f"stop holds {len(strings)} strings; at most {LIMITS.stop_strings} are allowed", "stop"
        )
    for string in strings:
        if not 1 <= len(string) <= LIMITS.stop_characters:
            raise bad_request(
                f"a stop string has {len(string)} characters; it must have 1 to {LIMITS.stop_characters}",
                "stop",
            )
    # The automaton that finds them has a state for each character.
    total = sum(map(len, strings))
    if total > LIMITS.stop_characters_in_all:
        raise bad_request(
            f"the stop strings have {total} characters; "
            f"together they may have {LIMITS.stop_characters_in_all}",
            "stop",
        )
    # Without duplicates, in order.
    return tuple(dict.fromkeys(strings))


def _stop_ids(ids: list[int] | None, vocabulary: int) -> tuple[int, ...]:
    ids = ids or []
    if len(ids) > LIMITS.stop_ids:
        raise bad_request(
            f"stop_token_ids holds {len(ids)} ids; at most {LIMITS.stop_ids} are allowed", "stop_token_ids"
        )
    for token in ids:
        check_range("stop_token_ids", token, 0, vocabulary - 1)
    return tuple(dict.fromkeys(ids))


def _name(field: str, text: str | None) -> str:
    if text is not None and len(text) > LIMITS.name_characters:
        raise bad_request(
            f"{field} has {len(text)} characters; at most {LIMITS.name_characters} are allowed", field
        )
    return text or ""


def _timeout(seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds <= LIMITS.timeout_seconds:
        bounds = f"above 0 and at most {LIMITS.timeout_seconds:.0f} seconds"
        raise bad_request(f"timeout is {seconds:g}; it must be {bounds}", "timeout")
    return seconds


def _streaming(request: GenerationRequest) -> Streaming | None:
    options = request.stream_options
    if not request.stream:
        if options is not None:
            raise bad_request("stream_options is only allowed with stream: true", "stream_options")
        return None
    # `continuous_usage_stats` is vLLM's extension, and like there it needs `include_usage`.
    at_end = bool(options and options.include_usage)
    return Streaming(at_end, at_end and bool(options and options.continuous_usage_stats))


def _integer(param: str, value: int | None, low: int, high: int | None) -> int | None:
    if value is not None:
        check_range(param, value, low, high)
    return value
