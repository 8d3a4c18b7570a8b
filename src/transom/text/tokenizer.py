"""Converts text to token ids and back, with Hugging Face's `tokenizers`."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from transom.errors import BadRequest, ConfigError
from transom.text.budget import UNBOUNDED, TextBudget
from transom.text.chat import GEMMA_TEMPLATE, ChatPrompt, ChatTemplate
from transom.text.control import ControlTokens
from transom.text.detokenize import Detokenizer, PieceBytes, decode
from transom.text.pieces import Cutter
from transom.text.spelling import SPACE, spelling_of
from transom.text.vocabulary import PieceKind, Vocabulary
from transom.values import Tokens


class Tokenizer:
    """A model's tokenizer. Immutable, and safe to use from several threads."""

    __slots__ = (
        "_cutter",
        "_encoder",
        "_kinds",
        "_pieces",
        "_spelling",
        "_vocabulary",
        "characters_of_token",
        "control",
    )

    control: ControlTokens
    """Finds control tokens that are written as text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._pieces = vocabulary.pieces
        # A list: one element of a list is read several times faster than one of an array.
        self._kinds = vocabulary.kinds.tolist()
        self._spelling = spelling_of(vocabulary)
        self._encoder = self._spelling.encoder
        control = vocabulary.ids_of(PieceKind.CONTROL) + vocabulary.ids_of(PieceKind.UNKNOWN)
        self.control = ControlTokens({self._pieces[i]: i for i in control})
        self.characters_of_token = max(map(len, self._pieces))
        """The most characters that one token stands for."""
        self._cutter = Cutter(vocabulary, SPACE)

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def bos(self) -> int | None:
        return self._vocabulary.bos

    @property
    def eos(self) -> int | None:
        return self._vocabulary.eos

    @property
    def stop_ids(self) -> frozenset[int]:
        return self._vocabulary.stop_ids

    def chat_template(self, source: str | None = None) -> ChatTemplate:
        """The template `source`, or the model file's own, or ours if the model has Gemma's turn tokens.

        Raises `ConfigError` if the template does not compile or there is no template.
        """
        source = source or self._vocabulary.chat_template
        if source is None and "<start_of_turn>" in self.control:
            source = GEMMA_TEMPLATE
        if source is None:
            raise ConfigError("the model has no chat template, and no other was given")
        bos, eos = ("" if token is None else self._pieces[token] for token in (self.bos, self.eos))
        return ChatTemplate(source, self.control, bos=bos, eos=eos)

    # ---------------------------------------------------------------- to ids

    def encode(self, text: str, *, bos: bool = True, budget: TextBudget = UNBOUNDED) -> Tokens:
        """The tokens of a prompt. Control tokens written in it count, as in llama.cpp and transformers.

        With `bos`, the begin token is prepended if the model needs it and the prompt does not start with it.
        Raises `BadRequest` for a string that is not valid Unicode (a lone surrogate), and RequestTooLarge as
        soon as it is known that the text exceeds the budget.
        """
        budget.check_characters(len(text), self.characters_of_token)
        return self._within(self.control.split(text), budget, bos=bos)

    def encode_batch(self, texts: Sequence[str], *, bos: bool = True) -> list[Tokens]:
        """`encode` of each text, in parallel."""
        return self._assemble([self.control.split(text) for text in texts], bos=bos)

    def encode_chat(self, prompt: ChatPrompt, budget: TextBudget = UNBOUNDED) -> Tokens:
        """The tokens of a rendered conversation. Only control tokens that the template wrote count."""
        budget.check_characters(
            len(prompt.marked) - prompt.marked.count(prompt.mark), self.characters_of_token
        )
        # Marks are removed only after control tokens were found: a literal that a user wrote is text by then.
        parts = self.control.split(prompt.marked)
        plain = [part.replace(prompt.mark, "") if isinstance(part, str) else part for part in parts]
        return self._within(plain, budget, bos=True)

    def _within(self, parts: Sequence[str | int], budget: TextBudget, *, bos: bool) -> Tokens:
        """The tokens of one prompt, in pieces, so that the work can end early."""
        ids: list[int] = []
        for part in parts:
            budget.check_tokens(len(ids))
            if isinstance(part, int):
                ids.append(part)
                continue
            for piece in self._cutter.cut(self._spelling.prepare(_valid_unicode(part))):
                budget.carry_on()
                # The batch call, because it computes no offsets.
                (encoding,) = self._encoder.encode_batch_fast([piece], add_special_tokens=False)
                ids += encoding.ids
                budget.check_tokens(len(ids))
        return self._with_bos(ids) if bos else np.array(ids, dtype=np.int32)

    def _assemble(self, prompts: Sequence[Sequence[str | int]], *, bos: bool) -> list[Tokens]:
        texts = [
            self._spelling.prepare(_valid_unicode(part))
            for parts in prompts
            for part in parts
            if isinstance(part, str)
        ]
        # One call for all texts of all prompts: `tokenizers` encodes them in parallel.
        encoded = iter(self._encoder.encode_batch_fast(texts, add_special_tokens=False))
        results = []
        for parts in prompts:
            ids: list[int] = []
            for part in parts:
                ids += [part] if isinstance(part, int) else next(encoded).ids
            results.append(self._with_bos(ids) if bos else np.array(ids, dtype=np.int32))
        return results

    def _with_bos(self, ids: list[int]) -> Tokens:
        bos = self.bos
        # Chat templates write the begin token themselves: it must not be doubled.
        if bos is not None and self._vocabulary.adds_bos and ids[:1] != [bos]:
            ids = [bos, *ids]
        return np.array(ids, dtype=np.int32)

    # ---------------------------------------------------------------- to text

    def decode(self, ids: Iterable[int] | NDArray[np.integer], *, skip_special: bool = True) -> str:
        """The text of any sequence of ids. `BadRequest` for an id that is not in the vocabulary."""
        return decode(_listed(ids), self._to_bytes(skip_special))

    def detokenizer(self, *, skip_special: bool = True, visible: Collection[str] = ()) -> Detokenizer:
        """A detokenizer for one stream of ids. Its texts, joined, equal `decode`.

        `visible`: literals of control tokens that appear in the text all the same.
        """
        shown = {token for literal in visible if (token := self.control.id_of(literal)) is not None}
        to_bytes = self._to_bytes(skip_special)
        if not shown:
            return Detokenizer(to_bytes)
        return Detokenizer(lambda token: self.piece_bytes(token) if token in shown else to_bytes(token))

    def piece(self, token: int) -> str:
        """The piece as the vocabulary spells it. `BadRequest` for an id that is not in the vocabulary."""
        self._check(token)
        return self._pieces[token]

    def piece_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for in text; of a control token, its name. Raises `BadRequest`."""
        self._check(token)
        return self._spelling.piece_bytes(self._pieces[token], self._kinds[token])

    def piece_id(self, piece: str) -> int | None:
        """The id of a piece as the vocabulary spells it, if there is one."""
        found: int | None = self._encoder.token_to_id(piece)
        return found

    def _to_bytes(self, skip_special: bool) -> PieceBytes:
        return self._text_bytes if skip_special else self.piece_bytes

    def _text_bytes(self, token: int) -> bytes:
        self._check(token)
        return b"" if self._kinds[token] in _SPECIAL else self.piece_bytes(token)

    def _check(self, token: int) -> None:
        if not 0 <= token < len(self._pieces):
            raise BadRequest(
                f"token id {token} is not in the vocabulary; ids are between 0 and {len(self._pieces) - 1}"
            )


_SPECIAL = (PieceKind.CONTROL, PieceKind.UNKNOWN)


def _listed(ids: Iterable[int] | NDArray[np.integer]) -> Iterable[int]:
    if isinstance(ids, np.ndarray):
        listed: list[int] = ids.tolist()
        return listed
    return ids


def _valid_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"the text is not valid Unicode: {error.reason} at character {error.start}"
        ) from error
    return text
