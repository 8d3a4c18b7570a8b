"""The engine in your own process.

from transom import LLM

llm = LLM()
for completion in llm.generate(["The capital of France is"], max_tokens=8):
    print(completion.text)
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack, cast

import numpy as np

from transom.config import EngineConfig
from transom.engine.engine import Engine, load_engine
from transom.errors import BadRequest, TransomError
from transom.sched.turn import Abort, Command, Submit
from transom.text.detokenize import Detokenizer
from transom.text.stops import StopMatcher
from transom.text.tokenizer import Tokenizer
from transom.values import Ended, FinishReason, Request, RequestId, Sampling, TokenChosen, Tokens, Usage
from transom.weights.tokenizer import load_tokenizer

Prompt = str | Sequence[int]
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

    Prefixes stay cached from call to call, and prompts of one call run together.
    """

    def __init__(self, model: str | None = None, **engine: Unpack["EngineOptions"]) -> None:
        """Raises ModelFileError and ConfigError."""
        ready, self._engine = load_engine(EngineConfig(model=model, **engine))
        self.context = ready.context
        self.tokenizer: Tokenizer = load_tokenizer(model)
        self._ids = itertools.count(1)

    @property
    def engine(self) -> Engine:
        return self._engine

    def generate(self, prompts: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> list[Completion]:
        """One completion per prompt, in order. Raises BadRequest if any cannot be served: then none is."""
        outputs = [self._output(prompt, options) for prompt in _listed(prompts)]
        pieces: dict[RequestId, list[Piece]] = {output.id: [] for output in outputs}
        for request, piece in self._run(outputs):
            pieces[request].append(piece)
        return [_joined(pieces[output.id]) for output in outputs]

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Iterator[Piece]:
        """Pieces as they come. Closing the iterator ends the request. Raises BadRequest."""
        output = self._output(prompt, options)
        for _, piece in self._run([output]):
            yield piece

    def _output(self, prompt: Prompt, options: Options) -> "_Output":
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
        tokens = np.array(prompt, dtype=np.int64)
        if tokens.ndim != 1 or (
            len(tokens) and not 0 <= tokens.min() <= tokens.max() < self.tokenizer.vocab_size
        ):
            raise BadRequest(
                f"token ids are integers from 0 to {self.tokenizer.vocab_size - 1}", param="prompt"
            )
        return tokens.astype(np.int32)

    def _run(self, outputs: Sequence["_Output"]) -> Iterator[tuple[RequestId, Piece]]:
        open_outputs = {output.id: output for output in outputs}
        commands: list[Command] = [Submit(output.request) for output in outputs]
        try:
            while open_outputs:
                turn = self._engine.turn(commands)
                commands = []
                for refused in turn.rejected:
                    raise refused.error
                for event in turn.events:
                    output = open_outputs.get(event.request)
                    if output is None:
                        continue
                    yield output.id, output.hear(event)
                    if output.finished:
                        del open_outputs[output.id]
                        if isinstance(event, TokenChosen):
                            commands.append(Abort(output.id))
        finally:
            # A caller that stopped listening, a refused neighbour, or a stop string in the last turn.
            self._engine.turn([*commands, *map(Abort, open_outputs)])


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
        self.finished = False
        self._detokenizer = detokenizer
        self._stops = StopMatcher([stop] if isinstance(stop, str) else stop)
        self._tokens = 0

    def hear(self, event: TokenChosen | Ended) -> Piece:
        return self._token(event) if isinstance(event, TokenChosen) else self._end(event)

    def _token(self, event: TokenChosen) -> Piece:
        self._tokens += 1
        said = "" if event.token in self.request.stop_ids else self._detokenizer.feed(event.token)
        released = self._stops.feed(said)
        self.finished = released.stop is not None
        reason = FinishReason.STOP if self.finished else None
        usage = Usage(len(self.request.prompt), self._tokens, 0) if self.finished else None
        return Piece(released.text, (event.token,), (event.logprob,), reason, usage)

    def _end(self, event: Ended) -> Piece:
        self.finished = True
        if event.reason is FinishReason.ERROR:
            raise TransomError(event.message or "the engine gave up on this request")
        released = self._stops.feed(self._detokenizer.finish())
        text = released.text if released.stop is not None else released.text + self._stops.finish()
        reason = event.reason if released.stop is None else FinishReason.STOP
        return Piece(text, (), (), reason, event.usage)


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
    if isinstance(prompts, str) or all(isinstance(entry, int | np.integer) for entry in prompts):
        return [cast("Prompt", prompts)] if len(prompts) else []
    return list(cast("Sequence[Prompt]", prompts))


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
