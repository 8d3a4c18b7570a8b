"""Checks the values of a request; what comes out can be trusted by the rest of the server."""

import secrets
from dataclasses import dataclass, replace

import msgspec

from transom.server.errors import Refused, bad_request
from transom.server.protocol import ChatRequest, CompletionRequest, Generation
from transom.values import Sampling

STOP_STRINGS_MAX = 16
STOP_CHARACTERS_MAX = 1024
STOP_IDS_MAX = 64
NAME_CHARACTERS_MAX = 256
PRIORITY_MAX = 100
TOP_K_MAX = 2**31 - 1
TEMPERATURE_MAX = 2.0
OUTPUTS_MAX = 128
TOP_LOGPROBS_MAX = 20
TIMEOUT_SECONDS_MAX = 86_400.0
COMPLETION_TOKENS = 16
"""What a completion without max_tokens gets, as at OpenAI."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """How a streamed answer reports usage."""

    usage_at_end: bool
    usage_always: bool


@dataclass(frozen=True, slots=True)
class Params:
    """A request's wishes, checked. `max_tokens` None fills up to the context.

    `outputs` of each prompt, with consecutive seeds. `echo`: the prompt is the beginning of each. With each
    log-probability, if they are wanted, come those of the `top` most probable tokens.
    """

    max_tokens: int | None
    outputs: int
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

    @property
    def samplings(self) -> tuple[Sampling, ...]:
        """Of each output: the seed plus its index, modulo 2**64."""
        seed = self.sampling.seed
        return tuple(replace(self.sampling, seed=(seed + i) % 2**64) for i in range(self.outputs))


def completion_params(request: CompletionRequest, vocabulary: int) -> Params:
    """Refused, naming the field, for anything out of range or not offered."""
    _only("suffix", request.suffix, (None, ""))
    logprobs = _integer("logprobs", request.logprobs, 0, TOP_LOGPROBS_MAX)
    max_tokens = _integer("max_tokens", request.max_tokens, 0, None)
    params = _params(
        request,
        vocabulary,
        max_tokens=COMPLETION_TOKENS if max_tokens is None else max_tokens,
        logprobs=logprobs is not None,
        top=logprobs or 0,
        echo=bool(request.echo),
    )
    if request.best_of is not None and request.best_of != params.outputs:
        raise _unsupported("best_of", f"no output is made to be thrown away; it must be n, {params.outputs}")
    if params.max_tokens == 0 and params.outputs > 1:
        raise bad_request(f"n is {params.outputs}, and max_tokens 0: all outputs would be empty", "n")
    return params


def chat_params(request: ChatRequest, vocabulary: int) -> Params:
    """Refused, naming the field, for anything out of range or not offered."""
    _only("tools", request.tools, (None, []))
    _only("functions", request.functions, (None, []))
    _only("tool_choice", request.tool_choice, (None, "none", "auto"))
    _integer("max_tokens", request.max_tokens, 1, None)
    _integer("max_completion_tokens", request.max_completion_tokens, 1, None)
    newer = request.max_completion_tokens is not None
    top = _integer("top_logprobs", request.top_logprobs, 0, TOP_LOGPROBS_MAX) or 0
    if top and not request.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    return _params(
        request,
        vocabulary,
        max_tokens=request.max_completion_tokens if newer else request.max_tokens,
        logprobs=bool(request.logprobs),
        top=top,
        echo=False,
    )


def _params(
    request: Generation, vocabulary: int, *, max_tokens: int | None, logprobs: bool, top: int, echo: bool
) -> Params:
    _refuse_what_is_not_offered(request)
    return Params(
        max_tokens=max_tokens,
        outputs=_integer("n", request.n, 1, OUTPUTS_MAX) or 1,
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
    )


def _refuse_what_is_not_offered(request: Generation) -> None:
    _only("presence_penalty", request.presence_penalty, (None, 0))
    _only("frequency_penalty", request.frequency_penalty, (None, 0))
    _only("repetition_penalty", request.repetition_penalty, (None, 1))
    _only("logit_bias", request.logit_bias, (None, {}))
    _only("min_tokens", request.min_tokens, (None, 0))
    if request.response_format is not None and request.response_format.get("type") != "text":
        raise _unsupported("response_format", 'only {"type": "text"} is offered')


def _sampling(request: Generation) -> Sampling:
    top_k = _integer("top_k", request.top_k, -1, TOP_K_MAX) or 0
    return Sampling(
        temperature=_number("temperature", request.temperature, TEMPERATURE_MAX, default=1.0),
        top_k=max(top_k, 0),
        top_p=_number("top_p", request.top_p, 1.0, default=1.0),
        min_p=_number("min_p", request.min_p, 1.0, default=0.0),
        seed=_seed(request.seed),
    )


def _seed(seed: int | None) -> int:
    """64 bits; none asked for is a fresh one, so that two such requests differ."""
    if seed is None:
        return secrets.randbits(64)
    return _checked("seed", seed, -(2**63), 2**64 - 1) % 2**64


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = [stop] if isinstance(stop, str) else stop or []
    if len(strings) > STOP_STRINGS_MAX:
        raise bad_request(
            f"stop holds {len(strings)} strings; at most {STOP_STRINGS_MAX} are allowed", "stop"
        )
    for string in strings:
        if not 1 <= len(string) <= STOP_CHARACTERS_MAX:
            raise bad_request(
                f"a stop string has {len(string)} characters; it must have 1 to {STOP_CHARACTERS_MAX}", "stop"
            )
    return tuple(dict.fromkeys(strings))


def _stop_ids(ids: list[int] | None, vocabulary: int) -> tuple[int, ...]:
    ids = ids or []
    if len(ids) > STOP_IDS_MAX:
        raise bad_request(
            f"stop_token_ids holds {len(ids)} ids; at most {STOP_IDS_MAX} are allowed", "stop_token_ids"
        )
    return tuple(_checked("stop_token_ids", token, 0, vocabulary - 1) for token in dict.fromkeys(ids))


def _name(field: str, text: str | None) -> str:
    if text is not None and len(text) > NAME_CHARACTERS_MAX:
        raise bad_request(
            f"{field} has {len(text)} characters; at most {NAME_CHARACTERS_MAX} are allowed", field
        )
    return text or ""


def _timeout(seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds <= TIMEOUT_SECONDS_MAX:
        bounds = f"above 0 and at most {TIMEOUT_SECONDS_MAX:.0f} seconds"
        raise bad_request(f"timeout is {seconds:g}; it must be {bounds}", "timeout")
    return seconds


def _streaming(request: Generation) -> Streaming | None:
    options = request.stream_options
    if not request.stream:
        if options is not None:
            raise bad_request("stream_options is only allowed with stream: true", "stream_options")
        return None
    at_end = bool(options and options.include_usage)
    return Streaming(at_end, at_end and bool(options and options.continuous_usage_stats))


# ---------------------------------------------------------------- single values


def _integer(param: str, value: int | None, low: int, high: int | None) -> int | None:
    return None if value is None else _checked(param, value, low, high)


def _checked(param: str, value: int, low: int, high: int | None) -> int:
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise bad_request(f"{param} is {_short(value)}; it must be {bounds}", param)
    return value


def _number(param: str, value: float | None, high: float, *, default: float) -> float:
    if value is None:
        return default
    if not 0 <= value <= high:
        raise bad_request(f"{param} is {value:g}; it must be between 0 and {high:g}", param)
    return value


def _only(param: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise _unsupported(param, f"this server takes only {_short(allowed[-1])} here")


def _unsupported(param: str, reason: str) -> Refused:
    return bad_request(f"{param} is not supported with this value; {reason}", param, "unsupported_value")


def _short(value: object) -> str:
    """A value for a message; a client may have sent a number of a thousand digits."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    return msgspec.json.encode(value).decode()
