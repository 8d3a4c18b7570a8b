"""Fields of request bodies that Transom does not honour: the table of refused fields, and of harmless ones.

Every field of a body is one of four:

  honoured   a field of the endpoint's struct in `protocol`
  refused    in `REFUSED`: the field asks for a different answer. Its neutral values ask for nothing and pass
  harmless   in `HARMLESS`: the field cannot change the answer
  unknown    any other name. The request is served; the name is logged once and told in `IGNORED_HEADER`

A field moves from refused to honoured when an endpoint's struct gets it; its row here then applies to the
other endpoints only.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from transom.server.errors import Refused, bad_request

log = logging.getLogger("transom.server")

IGNORED_HEADER = b"x-transom-ignored-fields"
IGNORED = "transom.ignored_fields"
"""Key of the ASGI scope: the value of the header, if the request had unknown fields."""

NEUTRAL_BYTES_MAX = 64
"""Neutral values are short: a longer JSON text need not be decoded."""
NAMES_TOLD_MAX = 16
NAMES_LOGGED_MAX = 1024
NAME_SHOWN_MAX = 64

Neutral = tuple[object, ...]
"""Values that ask for nothing, beside null."""


@dataclass(frozen=True, slots=True)
class Group:
    """Refused fields for one reason, each with its neutral values. `instead` tells a client what to do."""

    instead: str
    fields: Mapping[str, Neutral]


def _all(names: str, *neutral: object) -> dict[str, Neutral]:
    return dict.fromkeys(names.split(), neutral)


GROUPS = (
    Group(
        "outputs cannot be constrained in this way",
        _all("structural_tag output_format grammar_triggers stop_regex")
        | _all("format guided_whitespace stop_sequences stop_words", "", [])
        | _all("grammar_lazy", False),
    ),
    Group(
        "tools are for chats, in the fields tools and tool_choice",
        _all("tools functions", [])
        | _all("tool_choice", "none", "auto")
        | _all("function_call", "none", "auto")
        | _all("parallel_tool_calls", True, False)
        | _all("web_search_options mcp_servers plugins"),
    ),
    Group(
        "sampling has no such step",
        _all("no_repeat_ngram_size frequency_penalty_range", 0)
        | _all("repeat_penalty encoder_repetition_penalty", 1)
        | _all("typical_p typical tfs_z tfs guidance_scale cfg_scale num_beams length_penalty", 1)
        | _all("top_a mirostat mirostat_mode dry_multiplier xtc_probability smoothing_factor", 0)
        | _all("dynatemp_range epsilon_cutoff eta_cutoff penalty_alpha", 0)
        | _all("top_n_sigma nsigma", 0, -1)
        | _all("min_length min_new_tokens min_keep", 0)
        | _all("use_beam_search dynamic_temperature early_stopping ban_eos_token", False)
        | _all("do_sample", True)
        | _all("num_return_sequences", 1)
        | _all("bad_words_ids banned_tokens custom_token_bans", [], "")
        | _all("logits_processors logit_processors custom_logit_processor samplers sampler_priority", [])
        | _all("vllm_xargs custom_params repetition_detection", {})
        | _all("negative_prompt", ""),
    ),
    Group(
        "the prompt is made by the model's own template and tokenizer",
        _all("add_generation_prompt", True)
        | _all("add_special_tokens", True, False)
        | _all("continue_final_message raw enable_thinking", False)
        | _all("chat_template_kwargs", {})
        | _all("chat_template template system context", "", [])
        | _all("documents", [])
        | _all("truncate_prompt_tokens truncation", "disabled")
        | _all("think", False)
        | _all("suffix input_suffix input_prefix", "")
        | _all("prompt_embeds input_embeds"),
    ),
    Group(
        "inputs and outputs are texts",
        _all("modalities", ["text"])
        | _all("audio image_data video_data audio_data mm_processor_kwargs")
        | _all("images", []),
    ),
    Group(
        "answers do not contain this",
        _all("detokenize", True)
        | _all("return_hidden_states return_logprob return_routed_experts return_tokens echo", False)
        | _all("token_ids_logprob logprob_token_ids logprob_start_len", -1)
        | _all("n_probs top_logprobs_num top_logprobs", 0),
    ),
    Group(
        "the limit of an output's length is max_tokens",
        _all(
            "max_new_tokens max_length n_predict num_predict max_output_tokens max_tokens_to_sample "
            "thinking_token_budget",
            -1,
        )
        | _all("t_max_predict_ms", 0, -1),
    ),
    Group(
        "only the served model's own weights answer",
        _all("lora_path lora_request lora_name lora adapter adapter_id", "", [])
        | _all("session_params kv_transfer_params bootstrap_host"),
    ),
    Group("cache_salt keeps cached prefixes apart", _all("extra_key", "")),
    Group("write its fields beside `model`", _all("extra_body sampling_params options", {})),
)

REFUSED: Mapping[str, tuple[Neutral, str]] = {
    name: (neutral, group.instead) for group in GROUPS for name, neutral in group.fields.items()
}
"""By name: the neutral values, and what the refusal tells."""

HARMLESS = frozenset(
    _all(
        # OpenAI's accounting, storage and routing.
        "store metadata service_tier safety_identifier prompt_cache_key prompt_cache_retention prediction "
        "verbosity moderation "
        # Identities and routing of other servers.
        "rid request_id session_id conversation_id data_parallel_rank routed_dp_rank keep_alive id_slot "
        "slot_id cache_prompt bootstrap_port bootstrap_room return_progress timings_per_token "
        # Settings of a feature that is off: the field that turns it on is refused.
        "guided_decoding_backend spaces_between_special_tokens "
        "repeat_last_n dry_base dry_allowed_length dry_penalty_last_n "
        "dry_sequence_breakers xtc_threshold mirostat_tau mirostat_eta dynatemp_exponent penalize_nl "
        "separate_reasoning stream_reasoning include_reasoning logprobs_mode include_obfuscation "
    )
)


class IgnoredFields:
    """Logs each unknown name once. Mutable: it owns the names that were logged, a bounded number."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def tell(self, names: Iterable[str]) -> str | None:
        """The header's value for these unknown names; None if there are none."""
        shown = [_shown_name(name) for name in names]
        for name in shown[:NAMES_TOLD_MAX]:
            if name not in self._logged and len(self._logged) < NAMES_LOGGED_MAX:
                self._logged.add(name)
                log.warning("the request field %s is unknown and has no effect; this is logged once", name)
        if len(shown) > NAMES_TOLD_MAX:
            shown[NAMES_TOLD_MAX:] = [f"and {len(shown) - NAMES_TOLD_MAX} more"]
        return ", ".join(shown) or None


def check_unhonoured(
    given: Mapping[str, msgspec.Raw], honoured: frozenset[str], path: str = ""
) -> tuple[str, ...]:
    """The unknown names among the fields of an object. Refused if a field asks for what is not there.

    `path` is written before each name: that of the object within the body.
    """
    if honoured.issuperset(given):
        return ()
    unknown = []
    for name, value in given.items():
        if name in honoured or name in HARMLESS:
            continue
        if name in REFUSED:
            _check_neutral(name, value, path)
        else:
            unknown.append(f"{path}{name}")
    return tuple(unknown)


def _check_neutral(name: str, value: msgspec.Raw, path: str) -> None:
    neutral, instead = REFUSED[name]
    text = bytes(value)
    if len(text) <= NEUTRAL_BYTES_MAX and is_neutral(_decoded(text), neutral):
        return
    accepted = " or ".join(msgspec.json.encode(entry).decode() for entry in (None, *neutral))
    given = f"{path}{name} is {_shown_value(text)}, which is not supported"
    raise bad_request(
        f"{given}: {instead}; only {accepted} is accepted", f"{path}{name}", "unsupported_value"
    )


def _decoded(text: bytes) -> object:
    """The value of a JSON text; the text itself, which is never neutral, if its strings are not valid."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return text


def is_neutral(value: object, neutral: Neutral) -> bool:
    """Whether a decoded value asks for nothing: null, or equal to a neutral value and of its JSON type."""
    return value is None or any(_kind(value) is _kind(entry) and value == entry for entry in neutral)


def _kind(value: object) -> type[object]:
    """JSON's type: Python's False equals 0, but true and 1 mean different things to a client."""
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def unsupported(name: str, reason: str) -> Refused:
    """The refusal of an honoured field whose value is not supported."""
    return bad_request(f"{name} is not supported with this value; {reason}", name, "unsupported_value")


_PUNCTUATION = str.maketrans(".[]-", "____")


def _shown_name(name: str) -> str:
    """A client's text as a header and a log line may hold it: printable ASCII, without separators."""
    cut = name if len(name) <= NAME_SHOWN_MAX else f"{name[: NAME_SHOWN_MAX - 3]}..."
    plain = cut.translate(_PUNCTUATION)
    return cut if plain.isascii() and plain.isidentifier() else ascii(cut)


def _shown_value(text: bytes) -> str:
    shown = ascii(text[:NAME_SHOWN_MAX].decode("utf-8", "replace"))[1:-1]
    return shown if len(text) <= NAME_SHOWN_MAX else f"{shown}..."
