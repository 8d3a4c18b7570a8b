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
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any, Self, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from transom import wire
from transom.config import EngineConfig
from transom.engine.engine import Engine, load_engine
from transom.errors import BadRequest, TransomError
from transom.kv.explain import Explanation
from transom.sampling import SamplingOptions, check_range, output_seeds, sampling_arguments
from transom.text.chat import Rendering
from transom.text.grammar import GRAMMAR_OPTIONS, one_grammar
from transom.text.logit_rules import logit_rules
from transom.text.model_text import FileText, Message
from transom.text.output import OutputRules, OutputText
from transom.text.stops import StopStrings
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
"""Text, or token ids, which are used as they are."""


class Options(SamplingOptions, total=False):
    """How to generate. By default: greedy, 16 tokens, no stop strings."""

    max_tokens: int
    """At most this many tokens, 0 or more; default 16. An output also ends when the context is full."""
    stop: str | Sequence[str]
    """Strings that end the output. The output does not contain them."""
    stop_token_ids: Sequence[int]
    """Further tokens that end the output."""
    include_stop_str_in_output: bool
    """The text contains the stop string, or the text of the stop token, that ended it."""
    skip_special_tokens: bool
    """Whether control tokens have no text; default True."""
    logit_bias: Mapping[int, float]
    """Added to the logits of tokens, -100 to 100, by token id."""
    allowed_token_ids: Sequence[int]
    """No other token is sampled."""
    bad_words: Sequence[str]
    """Texts whose tokens the output does not contain, at its start or behind a space."""
    ignore_eos: bool
    """Continue past the tokens with which the model ends an output."""
    json_schema: Mapping[str, Any]
    """The output is JSON that is valid under this schema. At most one of this and the next three."""
    regex: str
    """The output matches this expression as a whole, in the syntax of Rust's regex."""
    choice: Sequence[str]
    """The output is one of these texts."""
    ebnf: str
    """The output is a text of this grammar, in GBNF or in Lark."""


MAX_TOKENS_MAX = 1 << 31
"""Any context is far smaller; the limit only keeps the number within an int64."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The next part of one output.

    Only the last piece has a `finish_reason` and `usage`; its text may be empty.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason | None
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Completion:
    """One whole output.

    `logprobs[i]` belongs to `token_ids[i]`, in the model's own distribution: before temperature and cuts.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Score:
    """How probable a text is. `logprobs[i]` belongs to `token_ids[i + 1]`."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    usage: Usage


class EngineOptions(TypedDict, total=False):
    """Keyword arguments of `LLM`; `EngineConfig` explains them."""

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


class LLM:
    """A model and its engine in this process. Mutable, for one thread at a time.

    Prefixes stay cached between calls, and prompts of one call run in one batch. Streams may be read in turn:
    each step computes for all open outputs, and events of the other streams wait in their inboxes.
    """

    def __init__(self, model: str | None = None, **engine: Unpack[EngineOptions]) -> None:
        """Loads a model: a GGUF file, a name listed by `transom models`, or None for the default model.

        Raises ModelFileError and ConfigError.
        """
        ready, loaded = load_engine(EngineConfig(model=model, **engine))
        self._engine: Engine | None = loaded
        self.context = ready.context
        """Prompt and output together have at most this many tokens."""
        self.tokenizer: Tokenizer = load_tokenizer(model)
        self._text: FileText | None = None
        """Has the compiled chat template, once there was a chat."""
        self._ids = itertools.count(1)
        self._inboxes: dict[RequestId, deque[Event]] = {}
        """Events of each open output that have not been processed yet."""
        self._commands: list[Command] = []
        """Commands for the next iteration of the engine."""

    @property
    def engine(self) -> Engine:
        """The engine itself; its attributes are not a stable interface. TransomError once closed."""
        if self._engine is None:
            raise TransomError("this LLM is closed")
        return self._engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory of the model and the cache. Later calls raise TransomError, open streams too."""
        self._engine = None

    def generate(self, prompts: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> list[Completion]:
        """One completion per prompt, in order. Completion i has the seed `seed + i`.

        Raises BadRequest if any prompt is invalid; then no prompt is answered.
        """
        outputs = self._outputs(_listed(prompts), options)
        self._complete(outputs)
        return [_completion(output.text) for output in outputs]

    def chat(
        self,
        messages: Sequence[Message],
        *,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """The assistant's next message in a conversation, by the model's chat template.

        Each message has a `role` and a `content`. With `continue_final_message`, the completion goes on with
        the last message. `chat_template_kwargs` are variables of the template. Raises BadRequest.
        """
        if self._text is None:
            self._text = FileText(self.tokenizer)
        rendering = Rendering(not continue_final_message, continue_final_message, chat_template_kwargs or {})
        (completion,) = self.generate(self._text.encode_chat(messages, rendering), **options)
        return completion

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Generator[Piece, None, None]:
        """Pieces as tokens are sampled. Closing the generator ends the request. Raises BadRequest."""
        (output,) = self._outputs([prompt], options)
        with closing(self._run([output])) as updates:
            for _ in updates:
                yield _piece(output.text)

    def score(self, prompts: Prompt | Sequence[Prompt]) -> list[Score]:
        """How probable the tokens of each text are, in order; nothing is generated. Raises BadRequest.

        Sampling the same tokens with `generate` gives bit-identical log-probabilities, no matter which part
        of the text is cached.
        """
        outputs = [self._scored(prompt) for prompt in _listed(prompts)]
        self._complete(outputs)
        return [_score(output.text) for output in outputs]

    def explain(self, prompt: Prompt) -> Explanation:
        """How much of a prompt is cached, and why not more. Changes nothing."""
        cache = self.engine.cache
        return cache.explain(cache.namespace(RequestId(0), ""), self._tokens(prompt))

    def stats(self) -> wire.Stats:
        """Counters since the engine was loaded, and the current use of the page pools."""
        return self.engine.stats()

    # ---------------------------------------------------------------- requests

    def _outputs(self, prompts: Sequence[Prompt], options: Options) -> "list[_Output]":
        _check(options)
        sampling = Sampling(**sampling_arguments({**options, "seed": None}))
        seeds = output_seeds(sampling_arguments(options).get("seed"), range(len(prompts)))
        return [
            self._output(prompt, options, replace(sampling, seed=seed))
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]

    def _output(self, prompt: Prompt, options: Options, sampling: Sampling) -> "_Output":
        stop = options.get("stop", ())
        rules = logit_rules(options, self.tokenizer.vocab_size, partial(self.tokenizer.encode, bos=False))
        grammar = one_grammar({name: options.get(name) for name in GRAMMAR_OPTIONS})
        endless = options.get("ignore_eos") and not grammar
        own_ends = frozenset[int]() if endless else self.tokenizer.stop_ids
        stop_ids = own_ends | frozenset(self._stop_ids(options.get("stop_token_ids", ())))
        request = Request(
            id=RequestId(next(self._ids)),
            prompt=self._tokens(prompt),
            max_tokens=options.get("max_tokens", 16),
            stop_ids=stop_ids,
            sampling=sampling,
            rules=rules,
            grammar=grammar,
        )
        text_rules = OutputRules(
            detokenizer=partial(
                self.tokenizer.detokenizer, skip_special=options.get("skip_special_tokens", True)
            ),
            stops=StopStrings((stop,) if isinstance(stop, str) else stop),
            stop_ids=request.stop_ids,
            logprobs=True,
            include_stop=options.get("include_stop_str_in_output", False),
            min_tokens=options.get("min_tokens", 0),
        )
        return _Output(request, OutputText(text_rules))

    def _stop_ids(self, ids: Sequence[int]) -> Sequence[int]:
        for token in ids:
            check_range("stop_token_ids", token, 0, self.tokenizer.vocab_size - 1)
        return ids

    def _scored(self, prompt: Prompt) -> "_Output":
        """An output that is the prompt itself, with log-probabilities and no token more."""
        tokens = self._tokens(prompt)
        logprobs = Logprobs(prompt_from=0)
        request = Request(id=RequestId(next(self._ids)), prompt=tokens, max_tokens=0, logprobs=logprobs)
        rules = OutputRules(self.tokenizer.detokenizer, logprobs=True)
        return _Output(request, OutputText(rules, echo=tokens))

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

    # ---------------------------------------------------------------- the loop

    def _complete(self, outputs: Sequence["_Output"]) -> None:
        with closing(self._run(outputs)) as updates:
            for _ in updates:
                pass

    def _run(self, outputs: Sequence["_Output"]) -> Generator[None, None, None]:
        """Submits the outputs and iterates the engine until all have ended. Yields after every change.

        Closing the generator early aborts the outputs that have not ended.
        """
        in_flight = {output.request.id: output for output in outputs}
        self._inboxes |= {number: deque() for number in in_flight}
        self._commands += [Submit(output.request) for output in outputs]
        try:
            while in_flight:
                # An iteration for another stream may already have produced events for these outputs.
                if not any(self._inboxes[number] for number in in_flight):
                    self._iterate()
                for number, output in tuple(in_flight.items()):
                    yield from self._updates(output)
                    if output.text.ended:
                        del in_flight[number], self._inboxes[number]
        finally:
            # Reached with requests in flight if the caller closed a stream, or if one of several was refused.
            self._commands += map(Abort, in_flight)
            for number in in_flight:
                del self._inboxes[number]
            if self._engine is not None:
                # The aborts must take effect now: there may be no further call, and pages would stay held.
                self._iterate()

    def _updates(self, output: "_Output") -> Iterator[None]:
        """Processes the events that have arrived for an output; aborts it once it meets a stop string."""
        number, text = output.request.id, output.text
        inbox = self._inboxes[number]
        while inbox:
            match inbox.popleft():
                case TokenSampled() as sampled:
                    if text.finish is not None:
                        continue
                    if text.add(sampled.token, sampled.logprob):
                        self._commands.append(Abort(number))
                    yield
                case PromptLogprobs() as scored:
                    for token in scored.tokens:
                        text.add_prompt_logprob(token.logprob)
                case Ended() as end:
                    if end.reason is FinishReason.ERROR:
                        raise TransomError(end.message or "the engine gave up on this request")
                    text.end(end.reason, end.usage)
                    yield

    def _iterate(self) -> None:
        """One iteration of the engine, for all open outputs. Raises BadRequest for a refused request."""
        engine = self.engine
        with _interrupt_held_back():
            commands, self._commands = self._commands, []
            try:
                iteration = engine.iterate(commands)
            except BaseException:
                self._end_lost_outputs()
                raise
            for event in iteration.events:
                # A request without an inbox was aborted when its stream was closed.
                if event.request in self._inboxes:
                    self._inboxes[event.request].append(event)
        for refused in iteration.rejected:
            raise refused.error

    def _end_lost_outputs(self) -> None:
        """Ends every output that an interrupted iteration has ended in the engine: its events are lost."""
        alive = set(self.engine.scheduler.unfinished())
        for request in self._inboxes.keys() - alive:
            self._inboxes[request].append(
                Ended(request, FinishReason.ERROR, Usage(0, 0, 0), "its step was interrupted")
            )


@dataclass(frozen=True, slots=True)
class _Output:
    """A request to the engine, and the text made of its tokens."""

    request: Request
    text: OutputText


def _piece(output: OutputText) -> Piece:
    delta = output.take()
    return Piece(
        text=delta.text,
        token_ids=tuple(entry.token for entry in delta.tokens),
        logprobs=tuple(entry.logprob for entry in delta.tokens if entry.logprob is not None),
        finish_reason=output.finish if output.ended else None,
        usage=output.usage,
    )


def _completion(output: OutputText) -> Completion:
    whole = _piece(output)
    assert whole.finish_reason is not None and whole.usage is not None, whole
    return Completion(whole.text, whole.token_ids, whole.logprobs, whole.finish_reason, whole.usage)


def _score(output: OutputText) -> Score:
    whole = _piece(output)
    assert whole.usage is not None, whole
    return Score(whole.token_ids, whole.logprobs, whole.usage)


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A single prompt, text or ids, becomes a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) and all(isinstance(entry, int | np.integer) for entry in prompts):
        return [cast("Sequence[int]", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def _array(prompt: Sequence[int] | NDArray[np.integer]) -> NDArray[Any]:
    """Token ids with the dtype that they came with; an empty prompt is int32."""
    try:
        return np.asarray(prompt) if len(prompt) else np.zeros(0, np.int32)
    except (TypeError, ValueError):  # not a sequence, or a ragged one
        return np.asarray(prompt, dtype=np.object_)


def _check(options: Options) -> None:
    """TypeError for an unknown option, BadRequest for a value out of range."""
    for name in options:
        if name not in Options.__annotations__:
            raise TypeError(f"there is no option {name!r}; there are {', '.join(Options.__annotations__)}")
    if "max_tokens" in options:
        check_range("max_tokens", options["max_tokens"], 0, MAX_TOKENS_MAX)


__all__ = ["LLM", "Completion", "EngineOptions", "Options", "Piece", "Prompt", "Score"]


@contextmanager
def _interrupt_held_back() -> Iterator[None]:
    """Defers the first SIGINT until the block has ended; a second one interrupts at once.

    A step that is cut off in the middle loses track of its pages. Python runs signal handlers in the main
    thread only: in other threads, and where SIGINT has no handler in Python, this does nothing.
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
