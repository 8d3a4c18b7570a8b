"""The text side of a model, as the server uses it: tokenizer and chat template behind one interface."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from transom.errors import BadRequest, ConfigError
from transom.text.budget import UNBOUNDED, TextBudget
from transom.text.chat import ANSWER, ChatTemplate, Rendering
from transom.text.detokenize import Detokenizer
from transom.text.tokenizer import Tokenizer
from transom.text.tools import GEMMA, ToolFormat
from transom.values import Tokens

log = logging.getLogger("transom.text")

Message = Mapping[str, Any]
"""`role` and `content`; the content has not been checked yet."""


class ModelText(Protocol):
    """A model's tokenizer and chat template. Safe to use from several threads."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens with which the model ends an output."""
        ...

    @property
    def begin_and_end(self) -> tuple[int | None, int | None]:
        """The begin token and the end token of a text, where the model has them."""
        ...

    def encode(self, text: str, *, bos: bool = True, budget: TextBudget = UNBOUNDED) -> Tokens:
        """With the begin token if `bos` and the model needs it. BadRequest if it is not valid Unicode.

        RequestTooLarge as soon as it is known that the text exceeds the budget.
        """
        ...

    def encode_chat(
        self,
        messages: Sequence[Message],
        rendering: Rendering = ANSWER,
        *,
        tools: Sequence[Message] = (),
        budget: TextBudget = UNBOUNDED,
    ) -> Tokens:
        """A conversation up to where the answer goes on. BadRequest if the template rejects it.

        `tools` are descriptions of functions, as OpenAI's API has them. RequestTooLarge as soon as it is
        known that the conversation exceeds the budget.
        """
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that one token stands for."""
        ...

    @property
    def tool_format(self) -> ToolFormat:
        """How the model writes calls of tools."""
        ...

    def control_id(self, literal: str) -> int | None:
        """The id of the control token with this literal, if there is one."""
        ...

    def detokenizer(self, *, skip_special: bool = True, visible: Collection[str] = ()) -> Detokenizer:
        """A new detokenizer, for one output. With `skip_special`, control tokens have no text.

        `visible`: literals of control tokens that appear in the text all the same.
        """
        ...


class FileText:
    """`ModelText` of a model file."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Compiled once, not for each conversation.
        self._template = _template(tokenizer)
        self.vocabulary = tokenizer.vocab_size
        self.stop_ids = tokenizer.stop_ids
        self.begin_and_end = (tokenizer.bos, tokenizer.eos)

    def encode(self, text: str, *, bos: bool = True, budget: TextBudget = UNBOUNDED) -> Tokens:
        return self._tokenizer.encode(text, bos=bos, budget=budget)

    @property
    def tool_format(self) -> ToolFormat:
        return GEMMA if isinstance(self._template, ConfigError) else self._template.tool_format

    def control_id(self, literal: str) -> int | None:
        return self._tokenizer.control.id_of(literal)

    def encode_chat(
        self,
        messages: Sequence[Message],
        rendering: Rendering = ANSWER,
        *,
        tools: Sequence[Message] = (),
        budget: TextBudget = UNBOUNDED,
    ) -> Tokens:
        if isinstance(self._template, ConfigError):
            raise BadRequest(f"this model cannot chat: {self._template}", param="messages")
        prompt = self._template.render(
            messages,
            tools=tools,
            rendering=rendering,
            budget=budget,
            of_token=self._tokenizer.characters_of_token,
        )
        return self._tokenizer.encode_chat(prompt, budget)

    def piece(self, token: int) -> bytes:
        return self._tokenizer.piece_bytes(token)

    def detokenizer(self, *, skip_special: bool = True, visible: Collection[str] = ()) -> Detokenizer:
        return self._tokenizer.detokenizer(skip_special=skip_special, visible=visible)


def _template(tokenizer: Tokenizer) -> ChatTemplate | ConfigError:
    """A model without a working template can still serve completions: chat requests get the error."""
    try:
        return tokenizer.chat_template()
    except ConfigError as error:
        log.warning("chat requests will be refused, completions are served: %s", error)
        return error
