"""Messages between the server process and the engine process: msgspec structs, as msgpack.

Server to engine: `ToEngine`, a Launch first. Engine to server: `FromEngine`. Request ids are the server's own
numbers. `engine/channel.py` carries them; its end, in either direction, says stop.
"""

import msgspec

from transom.config import EngineConfig, LogConfig
from transom.values import NO_LOGPROBS, FinishReason, Logprobs, PauseMode, Sampling, UpdateMode, Usage


class Launch(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The first message: what kind of engine to be, and how it logs."""

    config: EngineConfig
    log: LogConfig = LogConfig()


class Submit(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """A checked, tokenized request. `prompt` is int32, little endian.

    Further outputs, one for each of `siblings`, have the numbers that follow `id`. `deadline` is of the
    monotonic clock, which both processes read alike.
    """

    id: int
    prompt: bytes
    max_tokens: int
    stop_ids: tuple[int, ...]
    sampling: Sampling
    priority: int = 0
    salt: str = ""
    siblings: tuple[Sampling, ...] = ()
    logprobs: Logprobs = NO_LOGPROBS
    deadline: float | None = None
    tenant: str = ""


class Abort(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The client is gone, or has all it wanted (a stop string). Unknown ids are ignored."""

    id: int


class AbortAll(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """End every request there is. Answered by Done."""

    id: int


class Flush(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """Forget all cached prefixes; running requests go on. Answered by Done."""

    id: int


class Pause(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """No steps until Resume. Answered by Done."""

    id: int
    mode: PauseMode


class Resume(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """Answered by Done."""

    id: int


class UpdateWeights(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """Other weights, from the file `source`. Answered by Done when they serve, or are refused."""

    id: int
    source: str
    mode: UpdateMode


class Drain(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """Take no more requests. Answered by Done when nothing is left."""

    id: int


Answered = AbortAll | Flush | Pause | Resume | UpdateWeights | Drain
Command = Submit | Abort | Answered
ToEngine = Launch | Command


class ComponentInfo(msgspec.Struct, frozen=True):
    """Static facts of one KV component, for banner and metrics."""

    name: str
    layers: int
    window: int | None
    tokens: int
    bytes: int
    shared: bool = False
    """Whether it shares its bytes with the others: `tokens` and `bytes` are the most it may come to."""


class Ready(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The engine has loaded its model and serves."""

    pid: int
    model: str
    architecture: str
    context: int
    """Served context in tokens: min(model's, what fits alone)."""
    weights_bytes: int
    components: tuple[ComponentInfo, ...]
    page_size: int
    threads: int
    isa: str
    max_running_requests: int
    chunked_prefill_size: int
    load_seconds: float


class Failed(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The engine could not start; `message` is one line for the user."""

    message: str


class TokenOut(msgspec.Struct, frozen=True, array_like=True):
    """One more token of an output. `top`: the most probable tokens at its place, with their logprobs."""

    id: int
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class ScoreOut(msgspec.Struct, frozen=True, array_like=True):
    """One more token of a prompt whose log-probabilities were asked for, in order, before any output."""

    id: int
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class EndOut(msgspec.Struct, frozen=True, array_like=True):
    """The one terminal message of a request. `message`, with `code` and `param`, is set on errors.

    `queue_seconds` is how long it waited for its first step, or for its end if it never had one.
    """

    id: int
    reason: FinishReason
    usage: Usage
    message: str = ""
    code: str | None = None
    param: str | None = None
    queue_seconds: float = 0.0


class ComponentUse(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one pool right now; used = owned by requests, cached = in the tree and unreferenced."""

    name: str
    capacity: int
    used: int
    cached: int


class Stats(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot of the engine, sent with every step's output and when it goes idle. Counters only grow."""

    running: int
    waiting: int
    requests_finished: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    retractions: int
    steps: int
    components: tuple[ComponentUse, ...]
    spans: int = 0
    repaired_tokens: int = 0
    recomputed_tokens: int = 0
    admissions: int = 0
    queue_seconds: float = 0.0
    aborted: int = 0
    expired: int = 0
    forks: int = 0
    forks_put_off: int = 0
    deferred_spans: int = 0
    failed_steps: int = 0
    idle: dict[str, int] = {}
    """Turns without a step, by reason."""


class StepOut(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """What one step of the engine produced, in order: scores, then tokens, then ends."""

    tokens: tuple[TokenOut, ...]
    ends: tuple[EndOut, ...]
    stats: Stats
    scores: tuple[ScoreOut, ...] = ()


class Done(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """A command is carried out; or refused, if there is a `message`, with `code` and `param`."""

    id: int
    message: str = ""
    code: str | None = None
    param: str | None = None


FromEngine = Ready | Failed | StepOut | Done

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
