"""Messages between the server process and the engine process: msgspec structs, as msgpack.

Server to engine: `ToEngine`, a Launch first. Engine to server: `FromEngine`. Request ids are the server's own
numbers. `engine/channel.py` carries them; its end, in either direction, says stop.
"""

import msgspec

from transom.config import EngineConfig, LogConfig
from transom.values import FinishReason, Sampling, Usage


class Launch(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The first message: what kind of engine to be, and how it logs."""

    config: EngineConfig
    log: LogConfig = LogConfig()


class Submit(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """A checked, tokenized request. `prompt` is int32, little endian."""

    id: int
    prompt: bytes
    max_tokens: int
    stop_ids: tuple[int, ...]
    sampling: Sampling
    priority: int = 0
    salt: str = ""


class Abort(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The client is gone, or has all it wanted (a stop string). Unknown ids are ignored."""

    id: int


class Flush(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """Forget all cached prefixes; running requests go on."""

    id: int


Command = Submit | Abort | Flush
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
    id: int
    token: int
    logprob: float


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


class StepOut(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """What one step of the engine produced, in order: tokens, then ends."""

    tokens: tuple[TokenOut, ...]
    ends: tuple[EndOut, ...]
    stats: Stats


class Flushed(msgspec.Struct, tag=True, frozen=True, array_like=True):
    id: int


FromEngine = Ready | Failed | StepOut | Flushed

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
