"""The limits of the server: one table, from which flags, checks and docs/limits.md are derived.

A limit bounds something that a client can multiply, keep open or leave unread. Each one is a field of
`Limits`, with a default and a `Rule` that says what it bounds and what a client is told beyond it. Only the
standard library is imported, because `transom --help` must not wait.
"""

from dataclasses import dataclass, field, fields
from typing import TypeVar

from transom.errors import ConfigError

Number = TypeVar("Number", int, float)

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table.

    bounds   what is limited, with its unit
    answer   what a client is told, or what happens, beyond the limit
    flag     flag of `transom serve` that changes the limit; empty if it is fixed
    low, high  range of the flag's values
    """

    section: str
    bounds: str
    answer: str
    flag: str = ""
    low: float = 0
    high: float = 0
    is_size: bool = False


def limit(
    default: Number,
    section: str,
    bounds: str,
    answer: str,
    *,
    flag: str = "",
    low: float = 1,
    high: float = 0,
    is_size: bool = False,
) -> Number:
    """A field of `Limits`. `is_size`: shown and given in bytes, such as 512K."""
    rule = Rule(section, bounds, answer, flag, low, high, is_size)
    return field(default=default, metadata={"rule": rule})


BODY, REQUEST, TEXT = "The body", "Fields of a request", "Text"
GRAMMARS = "Constrained outputs"
QUEUE, CONNECTIONS, SHUTDOWN = "The queue", "Connections", "The engine and the end"
TOO_LARGE = "413 `request_too_large`, before the rest is read"
NAMED = "400 that names the field"
HEAD_TOO_LARGE = "431, and the connection is closed"
TIMED_OUT = "408, and the connection is closed"
BUSY = "429 with `Retry-After`"
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Limits:
    """Every limit, by name. The unit is last in a name. ConfigError, naming the flag, outside of a range."""

    body_bytes: int = limit(
        MIB, BODY, "bytes of a body", TOO_LARGE, flag="--max-body-bytes", low=KIB, high=1 << 30, is_size=True
    )

    prompts: int = limit(256, REQUEST, "prompts of a completion", NAMED)
    messages: int = limit(4096, REQUEST, "messages of a chat", NAMED)
    parts: int = limit(4096, REQUEST, "content parts of all messages together", NAMED)
    outputs_of_prompt: int = limit(128, REQUEST, "`n`: outputs of one prompt", NAMED)
    outputs: int = limit(512, REQUEST, "outputs of a request: prompts x `n`", NAMED)
    stop_strings: int = limit(16, REQUEST, "strings of `stop`", NAMED)
    stop_characters: int = limit(1024, REQUEST, "characters of a stop string", NAMED)
    stop_characters_in_all: int = limit(4096, REQUEST, "characters of all stop strings together", NAMED)
    stop_ids: int = limit(64, REQUEST, "ids of `stop_token_ids`", NAMED)
    biased_tokens: int = limit(1024, REQUEST, "tokens of `logit_bias`", NAMED)
    allowed_tokens: int = limit(4096, REQUEST, "ids of `allowed_token_ids`", NAMED)
    bad_words: int = limit(128, REQUEST, "texts of `bad_words`", NAMED)
    bad_word_characters: int = limit(128, REQUEST, "characters of a text of `bad_words`", NAMED)
    template_variables: int = limit(64, REQUEST, "variables of `chat_template_kwargs`", NAMED)
    top_logprobs: int = limit(20, REQUEST, "alternatives for each token", NAMED)
    name_characters: int = limit(256, REQUEST, "characters of `user` and of `cache_salt`", NAMED)
    timeout_seconds: float = limit(float(DAY), REQUEST, "seconds of `timeout`", NAMED)
    request_id_bytes: int = limit(
        128, REQUEST, "bytes of the header `x-request-id`", "the server chooses an id instead"
    )

    tools: int = limit(128, REQUEST, "`tools` of a chat", NAMED)

    grammar_bytes: int = limit(
        128 * KIB, GRAMMARS, "bytes of a schema, an expression or a grammar", NAMED, is_size=True
    )
    # llguidance's parser refuses about 120.
    schema_depth: int = limit(64, GRAMMARS, "levels of nested objects and lists in a schema", NAMED)
    # Compiling takes time that grows with their square: 0.3 seconds for a thousand optional ones.
    schema_properties: int = limit(1000, GRAMMARS, "properties in a whole schema", NAMED)
    repetitions: int = limit(
        10_000, GRAMMARS, "parts of an expression after counted repetitions are written out", NAMED
    )
    choices: int = limit(1000, GRAMMARS, "texts of a choice", NAMED)
    # A state takes 1 to 2 kB; ordinary grammars need some hundreds.
    lexer_states: int = limit(
        20_000,
        GRAMMARS,
        "states of the lexer of an output",
        "the output ends with an error, `grammar_failed`",
    )

    loop_characters: int = limit(
        4096,
        TEXT,
        "characters, or token ids, of a request that are prepared on the event loop",
        "longer prompts are prepared in a thread; the work ends when the client leaves",
    )
    loop_items: int = limit(
        64,
        TEXT,
        "prompts, messages and parts of a request that are prepared on the event loop",
        "larger requests are prepared in a thread",
    )
    text_threads: int = limit(2, TEXT, "threads that prepare large requests", "further requests wait")
    text_queue: int = limit(64, TEXT, "requests that wait for these threads", BUSY)
    text_seconds: float = limit(30.0, TEXT, "seconds in such a thread", "400 that says so")
    loop_steps: int = limit(
        5_000, TEXT, "steps of a chat template on the event loop", "the conversation is rendered in a thread"
    )
    template_steps: int = limit(
        # An iteration, a filter, 32 characters of text; a call counts as 5.
        250_000,
        TEXT,
        "steps of a chat template, and one more for each character of the conversation",
        "400 that says so",
    )

    queued_requests: int = limit(
        1024,
        QUEUE,
        "outputs in flight beyond those that run at the same time",
        BUSY,
        flag="--max-queued-requests",
        low=0,
        high=1_000_000,
    )
    queued_requests_of_key: int = limit(
        0,
        QUEUE,
        "the same for one API key; 0 is half of it if there are several keys",
        BUSY,
        flag="--max-queued-requests-per-key",
        low=0,
        high=1_000_000,
    )
    queued_tokens: int = limit(
        4_194_304,
        QUEUE,
        "prompt tokens of the requests in flight",
        BUSY,
        flag="--max-queued-tokens",
        high=1 << 40,
    )
    queued_tokens_of_key: int = limit(
        0,
        QUEUE,
        "the same for one API key; 0 is half of it if there are several keys",
        BUSY,
        flag="--max-queued-tokens-per-key",
        low=0,
        high=1 << 40,
    )
    request_seconds: float = limit(
        3600.0,
        QUEUE,
        "seconds of a request from its arrival to its end, or its own `timeout` if that is less",
        "the answer ends with the tokens so far, as at a `timeout`",
        flag="--request-timeout",
        low=0.001,
        high=DAY,
    )
    retry_seconds: int = limit(
        # A restarting engine usually serves again within this time.
        5,
        QUEUE,
        "seconds of a `Retry-After` while nothing is measured",
        "the header has this number",
    )
    retry_seconds_at_most: int = limit(
        600, QUEUE, "seconds of a measured `Retry-After`", "the header has this number"
    )

    connections: int = limit(
        1000,
        CONNECTIONS,
        "open connections; fewer if the descriptors of the process do not suffice",
        "the connection that has waited longest for its client is closed; if none waits, 503",
        flag="--max-connections",
        high=1_000_000,
    )
    head_bytes: int = limit(
        64 * KIB, CONNECTIONS, "bytes of a request's line and headers", HEAD_TOO_LARGE, is_size=True
    )
    headers: int = limit(100, CONNECTIONS, "headers of a request", HEAD_TOO_LARGE)
    pipelined: int = limit(
        16,
        CONNECTIONS,
        "requests that wait behind one that is being answered",
        "400, and the connection is closed",
    )
    head_seconds: float = limit(10.0, CONNECTIONS, "seconds for the headers of a request", TIMED_OUT)
    body_idle_seconds: float = limit(
        30.0, CONNECTIONS, "seconds for the next 64 KiB of a body, or its end", TIMED_OUT
    )
    keep_alive_seconds: float = limit(
        # Longer than the Retry-After of a restarting engine, so that clients can reuse their connections.
        60.0,
        CONNECTIONS,
        "seconds of a connection between two requests",
        "the connection is closed",
    )
    write_seconds: float = limit(
        30.0,
        CONNECTIONS,
        "seconds in which a client must read 64 KiB, or all that was sent",
        "the connection is closed, and its request is aborted",
        flag="--write-timeout",
        low=0.1,
        high=3600,
    )
    backlog: int = limit(
        2048, CONNECTIONS, "connections that wait to be accepted", "the operating system refuses further ones"
    )

    stalled_seconds: float = limit(
        # A step takes milliseconds, on the slowest path seconds.
        120.0,
        SHUTDOWN,
        "seconds of an engine without a finished step",
        "the engine is replaced, and requests in flight continue in the next one; `/health` answers 503",
        flag="--hang-seconds",
        low=0.1,
        high=86_400,
    )
    drain_seconds: float = limit(
        0.0,
        SHUTDOWN,
        "seconds after Ctrl-C or SIGTERM in which `/ready` is 503 and requests are still taken",
        "the port is closed",
        flag="--drain-seconds",
        low=0,
        high=3600,
    )
    finish_seconds: float = limit(
        5.0,
        SHUTDOWN,
        "seconds that running answers may take to finish after Ctrl-C or SIGTERM",
        "answers end with an error that says so",
        flag="--finish-seconds",
        low=0,
        high=3600,
    )
    close_seconds: int = limit(
        1,
        SHUTDOWN,
        "seconds for clients to read the ends of their answers after that",
        "connections are closed",
    )

    def __post_init__(self) -> None:
        for name, rule in RULES.items():
            value = getattr(self, name)
            if rule.flag and not rule.low <= value <= rule.high:
                raise ConfigError(
                    f"{rule.flag} is {value:g}; it must be between {rule.low:g} and {rule.high:g}"
                )


RULES: dict[str, Rule] = {one.name: one.metadata["rule"] for one in fields(Limits)}
"""The rule of each field of `Limits`, in order."""

LIMITS = Limits()
"""The defaults. Limits without a flag never differ from them outside of tests."""
