"""The engine in your own process.

from transom import LLM

llm = LLM()
for completion in llm.generate(["The capital of France is"], max_tokens=8):
    print(completion.text)
"""

import itertools
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Protocol, Self, TypedDict, TypeVar, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from transom import wire
from transom.config import EngineConfig
from transom.engine.engine import Engine, load_engine
from transom.errors import BadRequest, TransomError
from transom.kv.explain import Explanation
from transom.text.detokenize import Detokenizer
from transom.text.stops import StopMatcher
from transom.text.tokenizer import Tokenizer
from transom.values import (
    Ended,
    Event,
    FinishReason,
    Logprobs,
    PromptLogprobs,
    Request,
    RequestId,
    Sampling,
    Tokens,
    TokenSampled,
    Usage,
)
from transom.weights.tokenizer import load_tokenizer
from transom.wire import Abort, Command, Submit

Prompt = str | Sequence[int] | NDArray[np.integer]
"""Text, or token ids as they are."""

Heard = TypeVar("Heard")
Told = TypeVar("Told", covariant=True)


class Options(TypedDict, total=False):
    """How to generate. Absent: greedy, 16 tokens, no stop strings."""

    max_tokens: int
    """From 0 on. An output also ends with the context."""
    temperature: float
    """0 to 2; 0 takes the likeliest token."""
    top_k: int
    """Only the so many likeliest tokens; 0 is all."""
    top_p: float
    """Only the likeliest tokens that reach this probability together; 1 is all."""
    min_p: float
    """Only tokens at least so probable, as a share of the likeliest one's; 0 is all."""
    seed: int
    """The same seed is the same text, 0 unless said. It is not read with temperature 0."""
    stop: str | Sequence[str]
    """The output ends before the first of them."""
    ignore_eos: bool
    """Go on past the tokens that end an output."""


SCORED = Logprobs(prompt_from=0)
BOUNDS: dict[str, tuple[float, float]] = {
    "max_tokens": (0, 1 << 31),
    "temperature": (0, 2),
    "top_k": (0, (1 << 31) - 1),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "seed": (-(1 << 63), (1 << 64) - 1),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A bit more of one output. The last one has a `finish_reason`; its text may be empty."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason | None
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Completion:
    """One whole output. `logprobs[i]` is of `token_ids[i]`, in the model's own distribution."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Score:
    """How probable a text is. `logprobs[i]` is of `token_ids[i + 1]`: the first token has none."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    usage: Usage


class LLM:
    """Owns an engine; mutable, for one thread. Options are those of `transom.config.EngineConfig`.

    Prefixes stay cached from call to call, and prompts of one call run together. So do streams that are
    read in turns: a step serves all that is open, and what it brings for others waits for them.
    """

    def __init__(self, model: str | None = None, **engine: Unpack["EngineOptions"]) -> None:
        """Loads a model: a GGUF file, a name of `transom models`, or None, the default.

        Raises ModelFileError and ConfigError.
        """
        ready, loaded = load_engine(EngineConfig(model=model, **engine))
        self._engine: Engine | None = loaded
        self.context = ready.context
        """Tokens of prompt and output together that fit."""
        self.tokenizer: Tokenizer = load_tokenizer(model)
        self._ids = itertools.count(1)
        self._inboxes: dict[RequestId, deque[Event]] = {}
        """Events not heard yet, of every open output."""
        self._commands: list[Command] = []
        """For the next turn."""

    @property
    def engine(self) -> Engine:
        """What computes; its insides may change. TransomError once closed."""
        if self._engine is None:
            raise TransomError("this LLM is closed")
        return self._engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory of model and cache back. Whatever is asked later, of streams too, is refused."""
        self._engine = None

    def generate(self, prompts: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> list[Completion]:
        """One completion per prompt, in order. Raises BadRequest if any cannot be served: then none is."""
        outputs = [self._output(prompt, options) for prompt in _listed(prompts)]
        pieces: dict[RequestId, list[Piece]] = {output.request.id: [] for output in outputs}
        with closing(self._run(outputs)) as run:
            for request, piece in run:
                pieces[request].append(piece)
        return [_joined(pieces[output.request.id]) for output in outputs]

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Generator[Piece, None, None]:
        """Pieces as they come. Closing the generator ends the request. Raises BadRequest."""
        with closing(self._run([self._output(prompt, options)])) as pieces:
            for _, piece in pieces:
                yield piece

    def score(self, prompts: Prompt | Sequence[Prompt]) -> list[Score]:
        """Of each text, how probable its tokens are, in order; nothing is generated. Raises BadRequest.

        The bits are those that `generate` told when it chose the same tokens, whatever is cached.
        """
        scorings = [_Scoring(self._request(prompt, {"max_tokens": 0}, SCORED)) for prompt in _listed(prompts)]
        with closing(self._run(scorings)) as run:
            scores = dict(run)
        return [scores[scoring.request.id] for scoring in scorings]

    def explain(self, prompt: Prompt) -> Explanation:
        """What of a prompt is in memory, and why no more. Changes nothing."""
        cache = self.engine.cache
        return cache.explain(cache.namespace(RequestId(0), ""), self._tokens(prompt))

    def stats(self) -> wire.Stats:
        """What was done since the engine was loaded, and the pools as they are."""
        return self.engine.stats()

    def _output(self, prompt: Prompt, options: Options) -> "_Output":
        _check(options)
        request = self._request(prompt, options, Logprobs())
        return _Output(request, self.tokenizer.detokenizer(), options.get("stop", ()))

    def _request(self, prompt: Prompt, options: Options, logprobs: Logprobs) -> Request:
        return Request(
            id=RequestId(next(self._ids)),
            prompt=self._tokens(prompt),
            max_tokens=options.get("max_tokens", 16),
            stop_ids=frozenset() if options.get("ignore_eos") else self.tokenizer.stop_ids,
            sampling=_sampling(options),
            logprobs=logprobs,
        )

    def _tokens(self, prompt: Prompt) -> Tokens:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        ids = _array(prompt)
        last = self.tokenizer.vocab_size - 1
        if (
            ids.ndim != 1
            or ids.dtype.kind not in "iu"
            or (len(ids) and not 0 <= ids.min() <= ids.max() <= last)
        ):
            raise BadRequest(f"a prompt is a text, or token ids, integers from 0 to {last}", param="prompt")
        return ids.astype(np.int32)

    def _run(self, listeners: Sequence["_Listener[Heard]"]) -> Generator[tuple[RequestId, Heard], None, None]:
        going = {listener.request.id: listener for listener in listeners}
        self._inboxes |= {number: deque() for number in going}
        self._commands += [Submit(listener.request) for listener in listeners]
        try:
            while going:
                if not any(self._inboxes[number] for number in going):
                    self._turn()
                for number, listener in tuple(going.items()):
                    yield from self._heard(listener)
                    if listener.ended:
                        del going[number], self._inboxes[number]
        finally:
            # A caller that stopped listening, or a refused neighbour.
            self._commands += map(Abort, going)
            for number in going:
                del self._inboxes[number]
            if self._engine is not None:
                self._turn()

    def _heard(self, listener: "_Listener[Heard]") -> Iterator[tuple[RequestId, Heard]]:
        """What has come for a request; one that has met a stop string is told to end."""
        number = listener.request.id
        inbox = self._inboxes[number]
        while inbox:
            went_on = not listener.stopped
            gained = listener.hear(inbox.popleft())
            if went_on and listener.stopped:
                self._commands.append(Abort(number))
            if gained is not None:
                yield number, gained

    def _turn(self) -> None:
        """One whole step of all that is open. Raises BadRequest for a refused submission."""
        engine = self.engine
        with _interrupt_held_back():
            commands, self._commands = self._commands, []
            try:
                iteration = engine.iterate(commands)
            except BaseException:
                self._tell_the_lost()
                raise
            for event in iteration.events:
                if event.request in self._inboxes:
                    self._inboxes[event.request].append(event)
        for refused in iteration.rejected:
            raise refused.error

    def _tell_the_lost(self) -> None:
        """A turn was interrupted, and what it said is lost: who is not there any more has ended with it."""
        alive = set(self.engine.scheduler.unfinished())
        for request in self._inboxes.keys() - alive:
            self._inboxes[request].append(
                Ended(request, FinishReason.ERROR, Usage(0, 0, 0), "its step was interrupted")
            )


class EngineOptions(TypedDict, total=False):
    """Keyword arguments of `LLM`: see `EngineConfig`."""

    page_size: int
    chunked_prefill_size: int
    max_total_tokens: int
    kv_bytes: int
    swa_full_tokens_ratio: float
    max_running_requests: int
    disable_radix_cache: bool
    threads: int
    paranoid: bool
    kv_dtype: str
    cache_policy: str
    schedule_policy: str
    target_itl_ms: float


class _Listener(Protocol[Told]):
    """Whoever made a request, and makes something of its events."""

    @property
    def request(self) -> Request: ...

    @property
    def stopped(self) -> bool:
        """It wants no more, though the engine would go on."""
        ...

    @property
    def ended(self) -> bool: ...

    def hear(self, event: Event) -> Told | None:
        """What the caller gains by it. TransomError if the engine gave up."""
        ...


class _Scoring:
    """A prompt's log-probabilities as they come. Mutable."""

    stopped = False

    def __init__(self, request: Request) -> None:
        self.request = request
        self.ended = False
        self._logprobs: list[float] = []

    def hear(self, event: Event) -> Score | None:
        match event:
            case PromptLogprobs():
                self._logprobs += [choice.logprob for choice in event.scores]
            case Ended():
                self.ended = True
                _raise_if_failed(event)
                return Score(tuple(self.request.prompt.tolist()), tuple(self._logprobs), event.usage)
            case TokenSampled():
                raise AssertionError(event)
        return None


class _Output:
    """One output in the making. Mutable."""

    def __init__(self, request: Request, detokenizer: Detokenizer, stop: str | Sequence[str]) -> None:
        self.request = request
        self.stopped = False
        """By a stop string; what the engine made beyond it is not told."""
        self.ended = False
        self._detokenizer = detokenizer
        self._stops = StopMatcher([stop] if isinstance(stop, str) else stop)
        self._tokens = 0

    def hear(self, event: Event) -> Piece | None:
        match event:
            case Ended():
                return self._end(event)
            case TokenSampled():
                return None if self.stopped else self._token(event)
            case PromptLogprobs():
                return None

    def _token(self, event: TokenSampled) -> Piece:
        self._tokens += 1
        said = "" if event.token in self.request.stop_ids else self._detokenizer.feed(event.token)
        return Piece(self._released(said), (event.token,), (event.logprob,), None, None)

    def _end(self, event: Ended) -> Piece:
        self.ended = True
        _raise_if_failed(event)
        text = "" if self.stopped else self._released(self._detokenizer.finish())
        if not self.stopped:
            text += self._stops.finish()
        reason = FinishReason.STOP if self.stopped else event.reason
        return Piece(text, (), (), reason, replace(event.usage, completion_tokens=self._tokens))

    def _released(self, said: str) -> str:
        released = self._stops.feed(said)
        self.stopped = released.stop is not None
        return released.text


def _raise_if_failed(event: Ended) -> None:
    if event.reason is FinishReason.ERROR:
        raise TransomError(event.message or "the engine gave up on this request")


def _joined(pieces: Sequence[Piece]) -> Completion:
    last = pieces[-1]
    assert last.finish_reason is not None and last.usage is not None, last
    return Completion(
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(token for piece in pieces for token in piece.token_ids),
        logprobs=tuple(logprob for piece in pieces for logprob in piece.logprobs),
        finish_reason=last.finish_reason,
        usage=last.usage,
    )


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A lone prompt, text or ids, is a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) and all(isinstance(entry, int | np.integer) for entry in prompts):
        return [cast("Sequence[int]", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def _array(prompt: Sequence[int] | NDArray[np.integer]) -> NDArray[Any]:
    """Ids as they were given, of whatever kind that is; none are int32."""
    try:
        return np.asarray(prompt) if len(prompt) else np.zeros(0, np.int32)
    except (TypeError, ValueError):  # not a sequence, or a ragged one
        return np.asarray(prompt, dtype=np.object_)


def _check(options: Options) -> None:
    """TypeError for an option there is not, BadRequest for a value out of bounds."""
    for name, value in options.items():
        if name not in Options.__annotations__:
            raise TypeError(f"there is no option {name!r}; there are {', '.join(Options.__annotations__)}")
        if name in BOUNDS:
            low, high = BOUNDS[name]
            if not low <= cast("float", value) <= high:
                raise BadRequest(f"{name} is {value}; it must be between {low} and {high}", param=name)


def _sampling(options: Options) -> Sampling:
    plain = Sampling()
    return Sampling(
        temperature=options.get("temperature", plain.temperature),
        top_k=options.get("top_k", plain.top_k),
        top_p=options.get("top_p", plain.top_p),
        min_p=options.get("min_p", plain.min_p),
        seed=options.get("seed", plain.seed),
    )


__all__ = ["LLM", "Completion", "EngineOptions", "Options", "Piece", "Prompt", "Score"]


@contextmanager
def _interrupt_held_back() -> Iterator[None]:
    """A block that the first SIGINT does not cut short: it is handled after it. A second one is at once.

    Only Python's main thread is ever interrupted; in others, and where SIGINT has no handler in Python, this
    does nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[FrameType | None] = []

    def hold(number: int, frame: FrameType | None) -> None:
        signal.signal(number, handler)
        held.append(frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(signal.SIGINT, held[0])
