"""The engine in your own process.

from transom import LLM

llm = LLM()
for completion in llm.generate(["The capital of France is"], max_tokens=8):
    print(completion.text)
"""

import itertools
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from transom.config import EngineConfig
from transom.engine.engine import Engine, load_engine
from transom.errors import BadRequest, TransomError
from transom.sched.turn import Abort, Command, Submit
from transom.text.detokenize import Detokenizer
from transom.text.stops import StopMatcher
from transom.text.tokenizer import Tokenizer
from transom.values import (
    Ended,
    Event,
    FinishReason,
    PromptScored,
    Request,
    RequestId,
    Sampling,
    TokenChosen,
    Tokens,
    Usage,
)
from transom.weights.tokenizer import load_tokenizer

Prompt = str | Sequence[int] | NDArray[np.integer]
"""Text, or token ids as they are."""


class Options(TypedDict, total=False):
    """How to generate. Absent: greedy, 16 tokens, no stop strings."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stop: Sequence[str]
    ignore_eos: bool


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


class LLM:
    """Owns an engine; mutable, for one thread. Options are those of `transom.config.EngineConfig`.

    Prefixes stay cached from call to call, and prompts of one call run together. So do streams that are
    read in turns: a step serves all that is open, and what it brings for others waits for them.
    """

    def __init__(self, model: str | None = None, **engine: Unpack["EngineOptions"]) -> None:
        """Raises ModelFileError and ConfigError."""
        ready, self._engine = load_engine(EngineConfig(model=model, **engine))
        self.context = ready.context
        self.tokenizer: Tokenizer = load_tokenizer(model)
        self._ids = itertools.count(1)
        self._inboxes: dict[RequestId, deque[Event]] = {}
        """Events not heard yet, of every open output."""
        self._commands: list[Command] = []
        """For the next turn."""

    @property
    def engine(self) -> Engine:
        return self._engine

    def generate(self, prompts: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> list[Completion]:
        """One completion per prompt, in order. Raises BadRequest if any cannot be served: then none is."""
        outputs = [self._output(prompt, options) for prompt in _listed(prompts)]
        pieces: dict[RequestId, list[Piece]] = {output.id: [] for output in outputs}
        with closing(self._run(outputs)) as run:
            for request, piece in run:
                pieces[request].append(piece)
        return [_joined(pieces[output.id]) for output in outputs]

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Generator[Piece, None, None]:
        """Pieces as they come. Closing the generator ends the request. Raises BadRequest."""
        with closing(self._run([self._output(prompt, options)])) as pieces:
            for _, piece in pieces:
                yield piece

    def _output(self, prompt: Prompt, options: Options) -> "_Output":
        _check(options)
        tokens = self._tokens(prompt)
        stop_ids = frozenset() if options.get("ignore_eos") else self.tokenizer.stop_ids
        request = Request(
            id=RequestId(next(self._ids)),
            prompt=tokens,
            max_tokens=options.get("max_tokens", 16),
            stop_ids=stop_ids,
            sampling=_sampling(options),
        )
        return _Output(request, self.tokenizer.detokenizer(), options.get("stop", ()))

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

    def _run(self, outputs: Sequence["_Output"]) -> Generator[tuple[RequestId, Piece], None, None]:
        going = {output.id: output for output in outputs}
        self._inboxes |= {number: deque() for number in going}
        self._commands += [Submit(output.request) for output in outputs]
        try:
            while going:
                if not any(self._inboxes[number] for number in going):
                    self._turn()
                for output in tuple(going.values()):
                    yield from self._heard(output)
                    if output.ended:
                        del going[output.id], self._inboxes[output.id]
        finally:
            # A caller that stopped listening, or a refused neighbour.
            self._commands += map(Abort, going)
            for number in going:
                del self._inboxes[number]
            self._turn()

    def _heard(self, output: "_Output") -> Iterator[tuple[RequestId, Piece]]:
        """What has come for an output; one that has met a stop string is told to end."""
        inbox = self._inboxes[output.id]
        while inbox:
            went_on = not output.stopped
            piece = output.hear(inbox.popleft())
            if went_on and output.stopped:
                self._commands.append(Abort(output.id))
            if piece is not None:
                yield output.id, piece

    def _turn(self) -> None:
        """One step of all that is open. Raises BadRequest for a refused submission."""
        commands, self._commands = self._commands, []
        try:
            turn = self._engine.turn(commands)
        except BaseException:
            self._tell_the_lost()
            raise
        for event in turn.events:
            if event.request in self._inboxes:
                self._inboxes[event.request].append(event)
        for refused in turn.rejected:
            raise refused.error

    def _tell_the_lost(self) -> None:
        """A turn was interrupted, and what it said is lost: who is not there any more has ended with it."""
        alive = set(self._engine.scheduler.unfinished())
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


class _Output:
    """One output in the making. Mutable."""

    def __init__(self, request: Request, detokenizer: Detokenizer, stop: Sequence[str]) -> None:
        self.request = request
        self.id = request.id
        self.stopped = False
        """By a stop string; what the engine made beyond it is not told."""
        self.ended = False
        self._detokenizer = detokenizer
        self._stops = StopMatcher([stop] if isinstance(stop, str) else stop)
        self._tokens = 0

    def hear(self, event: Event) -> Piece | None:
        """What the caller gains by it. TransomError if the engine gave up."""
        match event:
            case Ended():
                return self._end(event)
            case TokenChosen():
                return None if self.stopped else self._token(event)
            case PromptScored():
                return None

    def _token(self, event: TokenChosen) -> Piece:
        self._tokens += 1
        said = "" if event.token in self.request.stop_ids else self._detokenizer.feed(event.token)
        return Piece(self._released(said), (event.token,), (event.logprob,), None, None)

    def _end(self, event: Ended) -> Piece:
        self.ended = True
        if event.reason is FinishReason.ERROR:
            raise TransomError(event.message or "the engine gave up on this request")
        text = "" if self.stopped else self._released(self._detokenizer.finish())
        if not self.stopped:
            text += self._stops.finish()
        reason = FinishReason.STOP if self.stopped else event.reason
        return Piece(text, (), (), reason, replace(event.usage, completion_tokens=self._tokens))

    def _released(self, said: str) -> str:
        released = self._stops.feed(said)
        self.stopped = released.stop is not None
        return released.text


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


__all__ = ["LLM", "Completion", "EngineOptions", "Options", "Piece", "Prompt"]
