"""Grammars compiled for a model's vocabulary, and the masks of the tokens that they allow next.

A mask is a function of the grammar and the output tokens so far. The state of a matcher is only a shortcut:
an output that returns from a retraction, a fork or a crash is matched again from its first token, and gets
the same masks.

Compiling and masking run in two threads. llguidance computes without Python's lock, except while it reads the
vocabulary: about a second for 262,144 tokens, once, for the first grammar.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transom import wire
from transom.errors import BadRequest
from transom.ops.protocol import F32
from transom.sched.loop import Rejected
from transom.steps import Constraint, SpanFailure, SpanWork, StepWork
from transom.text.grammar import one_line, parser_limits
from transom.text.spelling import all_piece_bytes
from transom.text.vocabulary import PieceKind, Vocabulary
from transom.values import RequestId

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

GRAMMAR_FAILED = "grammar_failed"
GRAMMARS_KEPT = 64
"""Compiled grammars, most of them below 100 kB."""
MASKS_KEPT = 64
"""Masks whose lists of tokens are kept: at most a megabyte each for 262,144 tokens."""
WAIT_SECONDS = 0.01
"""How long an idle engine waits for a grammar before it looks for messages again."""
FORCED_PIECE_BYTES_MAX = 32
"""Text that a grammar leaves no choice about is cut into pieces up to this length, the longest first."""

ReadVocabulary = Callable[[], Vocabulary]

Ids = NDArray[np.intp]


class Only(NamedTuple):
    """Only these tokens may be sampled."""

    ids: Ids

    def apply(self, row: F32) -> None:
        kept = row[self.ids]
        row.fill(-np.inf)
        row[self.ids] = kept


class AllBut(NamedTuple):
    """All tokens but these may be sampled."""

    ids: Ids

    def apply(self, row: F32) -> None:
        row[self.ids] = -np.inf


Mask = Only | AllBut
"""The shorter list: inside of a string nearly all tokens are allowed, and outside of one only a few."""


def mask_of(bits: NDArray[np.uint8], width: int) -> Mask:
    """The mask of one bit per token, lowest bit first, 0 from `width` on. A set bit allows its token."""
    if 2 * np.count_nonzero(bits) <= len(bits):
        return Only(_set_bits(bits))
    banned = _set_bits(~bits)
    return AllBut(banned[banned < width])


def _set_bits(bits: NDArray[np.uint8]) -> Ids:
    # Only bytes with a set bit are unpacked: a vocabulary has hundreds of thousands of bits.
    used = np.flatnonzero(bits)
    rows, columns = np.nonzero(np.unpackbits(bits[used, None], axis=1, bitorder="little"))
    return used[rows] * 8 + columns


class Masks:
    """Owns the compiled grammars of one vocabulary and the matchers of running outputs. Mutable.

    `vocabulary` is read for the first grammar; its tokens are those of logits of `width` columns.
    `matchers_max` outputs keep their matchers; it should be the number of outputs that run at once.
    """

    def __init__(self, vocabulary: ReadVocabulary, width: int, matchers_max: int) -> None:
        self._read_vocabulary = vocabulary
        self._width = width
        self._matchers_max = matchers_max
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._lock = threading.Lock()
        """Guards `_compiled`, which both the engine's thread and the masking thread use."""
        self._matchers: OrderedDict[RequestId, _Matched] = OrderedDict()
        """Used by the masking thread only. The least recently used first; outputs that ended drop out."""
        self._known: dict[bytes, Mask] = {}
        """Used by the masking thread only: masks by their bits."""
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._masking = ThreadPoolExecutor(1, thread_name_prefix="mask")

    # ------------------------------------------------------------ grammars

    def compile(self, grammar: str) -> "Future[LLMatcher]":
        """The compiled grammar, at the beginning of an output. Fails with BadRequest. Equal ones share it."""
        with self._lock:
            found = self._compiled.get(grammar)
            if found is None:
                found = self._compiled[grammar] = self._compiling.submit(self._compile, grammar)
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > GRAMMARS_KEPT:
                self._compiled.popitem(last=False)
        return found

    def _compile(self, grammar: str) -> "LLMatcher":
        from llguidance import LLMatcher

        if self._tokenizer is None:
            self._tokenizer = _tokenizer(self._read_vocabulary(), self._width)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise BadRequest(f"the output cannot be constrained: {one_line(matcher.get_error())}")
        return matcher

    # ------------------------------------------------------------ masks

    def begin(self, work: StepWork) -> "Future[StepMasks] | None":
        """Computes the masks of a step in the background. None if no span is constrained."""
        if all(span.constraint is None for span in work.spans):
            return None
        return self._masking.submit(self._of_step, work)

    def _of_step(self, work: StepWork) -> "StepMasks":
        found: list[Mask | None] = []
        failures: dict[int, SpanFailure] = {}
        for number, span in enumerate(work.spans):
            if span.sampling is None:
                continue
            try:
                found.append(None if span.constraint is None else self._mask(span, span.constraint))
            except BadRequest as error:
                failures[number] = SpanFailure(error.message, GRAMMAR_FAILED)
                found.append(None)
        return StepMasks(tuple(found), failures)

    def _mask(self, span: SpanWork, constraint: Constraint) -> Mask:
        """BadRequest if the grammar is too complex at this point of the output."""
        matched = self._advanced(span.request, constraint)
        words = np.zeros((self._width + 31) // 32, dtype=np.uint32)
        matched.matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if matched.matcher.is_error():
            raise _too_complex(matched.matcher)
        # Outputs meet the same few masks again and again, such as the one inside of a string.
        key = words.tobytes()
        if (known := self._known.get(key)) is None:
            if len(self._known) == MASKS_KEPT:
                self._known.clear()
            known = self._known[key] = mask_of(words.view(np.uint8), self._width)
        return known

    def _advanced(self, request: RequestId, constraint: Constraint) -> "_Matched":
        """The matcher of an output, behind its last token."""
        matched = self._matchers.pop(request, None)
        if matched is None:
            matched = _Matched(self.compile(constraint.grammar).result().deep_copy())
        new = constraint.outputs[matched.tokens :].tolist()
        if new and not matched.matcher.consume_tokens(new):
            raise _too_complex(matched.matcher)
        matched.tokens += len(new)
        self._matchers[request] = matched
        if len(self._matchers) > self._matchers_max:
            self._matchers.popitem(last=False)
        return matched

    def close(self) -> None:
        """Ends the threads once they have nothing to do."""
        self._compiling.shutdown(wait=False, cancel_futures=True)
        self._masking.shutdown(wait=False)


@dataclass(slots=True)
class _Matched:
    """A matcher that has read the first `tokens` tokens of an output. Mutable."""

    matcher: "LLMatcher"
    tokens: int = 0


def _too_complex(matcher: "LLMatcher") -> BadRequest:
    return BadRequest(f"the grammar cannot go on after this output: {one_line(matcher.get_error())}")


class StepMasks(NamedTuple):
    """The masks of one step: one per span that samples, None for an output without a grammar.

    `failures` has a message for each span, by number, whose grammar failed.
    """

    masks: tuple[Mask | None, ...]
    failures: Mapping[int, SpanFailure]

    def apply(self, logits: F32) -> None:
        """Sets the logits of banned tokens to minus infinity, in place; one row per span that samples."""
        for row, mask in zip(logits, self.masks, strict=True):
            if mask is not None:
                mask.apply(row)


# ---------------------------------------------------------------- the vocabulary


def _tokenizer(vocabulary: Vocabulary, width: int) -> "LLTokenizer":
    """BadRequest if the model cannot end an output: a grammar that is complete allows the end only."""
    from llguidance import LLTokenizer, TokenizerWrapper

    if not vocabulary.stop_ids:
        raise BadRequest("the model has no token that ends an output, so outputs cannot be constrained")
    # Padding of the embedding matrix: tokens without bytes are never allowed.
    tokens = all_piece_bytes(vocabulary)
    tokens += [b""] * (width - len(tokens))
    wrapper = TokenizerWrapper(_Pieces(vocabulary, tokens))
    # Slices are sets of tokens that are tested at once, here those that occur inside of JSON strings.
    return LLTokenizer(wrapper, eos_token=sorted(vocabulary.stop_ids), slices=LLTokenizer.json_slices())


class _Pieces:
    """The vocabulary as llguidance's `TokenizerWrapper` expects it: attributes, and a call that tokenizes."""

    def __init__(self, vocabulary: Vocabulary, tokens: list[bytes]) -> None:
        special = (PieceKind.CONTROL, PieceKind.UNKNOWN, PieceKind.UNUSED)
        self.eos_token_id = min(vocabulary.stop_ids)
        self.bos_token_id = vocabulary.bos
        self.tokens = tokens
        # llguidance never takes a special token for text.
        self.special_token_ids = np.flatnonzero(np.isin(vocabulary.kinds, special)).tolist()
        ordinary = sorted(set(range(len(vocabulary.pieces))).difference(self.special_token_ids), reverse=True)
        self._ids = {tokens[i]: i for i in ordinary if len(tokens[i]) <= FORCED_PIECE_BYTES_MAX}

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokens of a text that the grammar forces. Bytes without a token are left out, as in spelling."""
        rest = text if isinstance(text, bytes) else text.encode()
        found = []
        while rest:
            for length in range(min(len(rest), FORCED_PIECE_BYTES_MAX), 0, -1):
                if (token := self._ids.get(rest[:length])) is not None:
                    found.append(token)
                    break
            rest = rest[length:]
        return found


# ---------------------------------------------------------------- waiting for grammars


class Passed(NamedTuple):
    """Commands for the scheduler, and requests whose grammars cannot be compiled."""

    commands: Sequence[wire.Command]
    rejected: tuple[Rejected, ...] = ()


class _Held(NamedTuple):
    command: wire.Submit
    compiled: "Future[LLMatcher]"


@dataclass(slots=True)
class GrammarGate:
    """Holds requests back until their grammars are compiled, so that no step waits for one. Mutable."""

    masks: Masks | None
    """None: the engine has no vocabulary, and refuses grammars."""
    _held: dict[RequestId, _Held] = field(default_factory=dict)

    def __len__(self) -> int:
        """Outputs that wait for their grammars."""
        return sum(len(held.command.request.ids) for held in self._held.values())

    def pass_on(self, commands: Sequence[wire.Command], *, idle: bool) -> Passed:
        """The commands that are due now. If the engine is `idle`, waits a moment for a grammar."""
        if not self._held and not any(map(_grammar, commands)):
            return Passed(commands)
        if self.masks is None:
            plain = [command for command in commands if not _grammar(command)]
            refusal = BadRequest("this engine has no vocabulary, so it cannot constrain outputs")
            refused = [one for one in commands if isinstance(one, wire.Submit) and _grammar(one)]
            return Passed(plain, tuple(one for submit in refused for one in _rejected(submit, refusal)))
        due = [one for command in commands for one in self._due(command, self.masks)]
        if idle and not due:
            wait([held.compiled for held in self._held.values()], WAIT_SECONDS, FIRST_COMPLETED)
        rejected: list[Rejected] = []
        for number, held in tuple(self._held.items()):
            if held.compiled.done():
                del self._held[number]
                if isinstance(error := held.compiled.exception(), BadRequest):
                    rejected += _rejected(held.command, error)
                else:
                    due.append(held.command)
        return Passed(due, tuple(rejected))

    def _due(self, command: wire.Command, masks: Masks) -> list[wire.Command]:
        match command:
            case wire.Submit(request) if request.grammar:
                self._held[request.id] = _Held(command, masks.compile(request.grammar))
                return []
            case wire.Submit():
                return [command]
            case wire.Abort(number):
                # The scheduler ends a request that it knows, so the request goes first.
                known = [first for first, held in self._held.items() if number in held.command.request.ids]
                return [*(self._held.pop(first).command for first in known), command]
            case _:
                # Other commands are about all requests that were sent before them.
                held, self._held = tuple(self._held.values()), {}
                return [*(one.command for one in held), command]


def _grammar(command: wire.Command) -> str:
    return command.request.grammar if isinstance(command, wire.Submit) else ""


def _rejected(submit: wire.Submit, error: BadRequest) -> list[Rejected]:
    return [Rejected(request, error) for request in submit.request.ids]
