"""Messages between the server process and the engine process: msgspec structs, encoded as msgpack.

The server sends one `Launch`, then commands. The engine sends `Ready` or `Failed`, then a `StepOut` per step,
`Computing` before a step of other requests than the last, a `Done` per answered command, and `Unsound` if a
check while idle fails. `engine/channel.py` carries the
messages; closing it, from either side, means stop.

Nothing translates between the scheduler and the wire: the scheduler takes these commands, counts in these
counters, and its events are sent as they are. Each is defined once, here or in `values`.
"""

from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from transom.config import EngineConfig, LogConfig
from transom.values import (
    Ended,
    IdleReason,
    PauseMode,
    PromptLogprobs,
    Request,
    RequestId,
    TokenSampled,
    UpdateMode,
)

# ---------------------------------------------------------------- server to engine


class Launch(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The first message: the configuration of the engine and of its log."""

    config: EngineConfig
    log: LogConfig = LogConfig()


class Submit(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """Queue a request. Its events arrive in `StepOut`; each of its outputs ends with an `Ended`."""

    request: Request


class Abort(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """End one output early: its client has disconnected or a stop string has matched.

    Unknown ids are ignored: the output may have ended while the message was on its way.
    """

    request: RequestId


# A command with a number is answered by one Done with that number. The loops of tests and of the lab, which
# wait for no answer, leave the number out.


class AbortAll(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """End every unfinished request."""

    number: int = 0


class Flush(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """Drop all cached prefixes. Running requests continue."""

    number: int = 0


class Pause(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """Compute no step until Resume. Requests may still arrive, wait, be aborted and pass their deadlines."""

    mode: PauseMode = PauseMode.IN_PLACE
    number: int = 0


class Resume(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """Compute steps again; each request continues where it stopped."""

    number: int = 0


class UpdateWeights(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """Load other weights from `source` once no request runs. Answered when they serve or are refused."""

    number: int
    source: str
    mode: UpdateMode


class Drain(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """Refuse new requests and finish the unfinished ones. Answered when no request is left."""

    number: int = 0


Answered = AbortAll | Flush | Pause | Resume | UpdateWeights | Drain
Command = Submit | Abort | Answered
ToEngine = Launch | Command

# ---------------------------------------------------------------- engine to server


class ComponentInfo(msgspec.Struct, frozen=True):
    """Static facts of one KV component, for banner and metrics."""

    name: str
    layers: int
    window: int | None
    tokens: int
    bytes: int
    shared: bool = False
    """Whether all components share one budget of bytes; `tokens` and `bytes` are then this one's maximum."""


class Ready(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The engine has loaded its model and accepts requests."""

    pid: int
    model: str
    architecture: str
    context: int
    """Served context in tokens: min(the model's, the longest request that fits alone)."""
    weights_bytes: int
    components: tuple[ComponentInfo, ...]
    page_size: int
    threads: int
    isa: str
    max_running_requests: int
    chunked_prefill_size: int
    load_seconds: float
    weights: str = ""
    """Identity of the weights' file: equal if and only if the same file is served."""


class Failed(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The engine could not start or has crashed; `message` is one line for the user."""

    message: str


class Unsound(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The engine serves, but must be replaced; `message` is one line."""

    message: str


class Computing(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The step that begins now computes these requests. If the engine dies, one of them may be the cause."""

    requests: tuple[RequestId, ...]


class ComponentUse(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one pool right now; used = owned by requests, cached = in the tree and unreferenced."""

    name: str
    capacity: int
    used: int
    cached: int


class Metric(NamedTuple):
    """Name (without prefix) and help text of the Prometheus counter that exposes a field."""

    name: str
    help: str


class Counters(msgspec.Struct, array_like=True):
    """Totals since the engine started. Owned and incremented by the scheduler, sent with every step.

    To add a counter, add a field with its metric here, increment it in the scheduler and describe it in
    docs/serving.md. `server/metrics.py` derives the Prometheus counters, in this order.
    """

    requests_finished: Annotated[int, Metric("num_requests", "Requests ended, for any reason")] = 0
    prompt_tokens: Annotated[int, Metric("prompt_tokens", "Prompt tokens of requests that ran")] = 0
    """Counted at the first admission of a request."""
    cached_tokens: Annotated[int, Metric("cached_tokens", "Prompt tokens found in the prefix cache")] = 0
    """Counted at the first admission of a request."""
    computed_tokens: Annotated[int, Metric("computed_tokens", "Positions computed, repetitions included")] = 0
    generated_tokens: Annotated[int, Metric("generation_tokens", "Tokens generated")] = 0
    retractions: Annotated[
        int,
        Metric("num_retracted_requests", "Retractions: a running request freed its pages and waits again"),
    ] = 0
    steps: Annotated[int, Metric("num_steps", "Forward passes of the model")] = 0
    spans: Annotated[int, Metric("num_spans", "Spans of requests in all steps")] = 0
    failed_steps: Annotated[int, Metric("num_failed_steps", "Steps whose computation raised")] = 0
    invalid_logits: Annotated[
        int, Metric("num_invalid_logits", "Outputs ended because their logits were not finite")
    ] = 0
    deferred_spans: Annotated[
        int, Metric("num_deferred_spans", "Planned spans left out of their step for lack of pages")
    ] = 0
    """Dropped at commit: admissions whose cached prefix was evicted for the copy of another's page. Rare."""
    repaired_tokens: Annotated[
        int, Metric("repaired_tokens", "Positions computed for their windows only")
    ] = 0
    """The full-attention components had these positions cached."""
    recomputed_tokens: Annotated[
        int, Metric("recomputed_tokens", "Positions computed again after a retraction")
    ] = 0
    queue_seconds: Annotated[float, Metric("queue_seconds", "Total waiting time of admitted requests")] = 0.0
    admissions: Annotated[int, Metric("num_admissions", "Admissions, including those after a retraction")] = 0
    aborted: Annotated[int, Metric("num_aborted_requests", "Requests ended by an abort")] = 0
    expired: Annotated[int, Metric("num_expired_requests", "Requests ended by their deadline")] = 0
    forks: Annotated[int, Metric("num_forks", "Further outputs of a prompt that were forked")] = 0
    forks_put_off: Annotated[
        int, Metric("num_forks_put_off", "Further outputs that had to wait for a row or pages")
    ] = 0
    idle: dict[IdleReason, int] = msgspec.field(default_factory=lambda: dict.fromkeys(IdleReason, 0))
    """Iterations without a step, by reason: one Prometheus counter with a label, so not a `Metric`."""

    def snapshot(self, *, running: int, waiting: int) -> "Stats":
        """A copy that later steps do not change."""
        counts = msgspec.structs.asdict(self) | {"idle": dict(self.idle)}
        return Stats(running=running, waiting=waiting, **counts)


class Stats(Counters, kw_only=True):
    """A snapshot of counters and current state, sent with every step and when the engine goes idle."""

    running: int = 0
    waiting: int = 0
    components: tuple[ComponentUse, ...] = ()
    """Filled in by the engine: the scheduler does not know the pools' sizes in tokens."""


class StepOut(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The events of one iteration, by kind. A reader takes prompt logprobs first, then tokens, then ends."""

    tokens: tuple[TokenSampled, ...]
    ends: tuple[Ended, ...]
    stats: Stats
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()


class Done(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """The command `number` is complete, or refused: then `message`, `code` and `param` say why."""

    number: int
    message: str = ""
    code: str | None = None
    param: str | None = None
    weights: str = ""
    """Identity of the weights that serve now, see `Ready`."""


FromEngine = Ready | Failed | Unsound | Computing | StepOut | Done

# ---------------------------------------------------------------- msgpack


def _encode_tokens(value: object) -> bytes:
    """A prompt as int32, little endian: a list of integers would cost an object per token on both sides."""
    assert isinstance(value, np.ndarray), type(value)
    return value.astype("<i4", copy=False).tobytes()


def _decode_tokens(_: type, value: bytes) -> np.ndarray:
    return np.frombuffer(value, dtype="<i4").astype(np.int32, copy=False)


encode = msgspec.msgpack.Encoder(enc_hook=_encode_tokens).encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine, dec_hook=_decode_tokens).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
