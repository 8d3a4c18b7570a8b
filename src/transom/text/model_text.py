"""What the HTTP side asks of a model's text, and the answer for a model file."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from transom.errors import BadRequest, ConfigError
from transom.text.chat import ChatTemplate
from transom.text.detokenize import Detokenizer
from transom.text.tokenizer import Tokenizer
from transom.values import Tokens

Message = Mapping[str, Any]
"""`role` and `content`, the content as the client sent it."""


class ModelText(Protocol):
    """A model's tokenizer and chat template. Safe to use from several threads."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end an output."""
        ...

    def encode(self, text: str) -> Tokens:
        """With the begin token if the model wants one. BadRequest for what is no text."""
        ...

    def encode_chat(self, messages: Sequence[Message]) -> Tokens:
        """A conversation, ready for the assistant's answer. BadRequest for what the template refuses."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes one token stands for."""
        ...

    def detokenizer(self) -> Detokenizer:
        """Of one output."""
        ...


class FileText:
    """The text side of a model file."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = _template(tokenizer)
        self.vocabulary = tokenizer.vocab_size
        self.stop_ids = tokenizer.stop_ids

    def encode(self, text: str) -> Tokens:
        return self._tokenizer.encode(text)

    def encode_chat(self, messages: Sequence[Message]) -> Tokens:
        if isinstance(self._template, ConfigError):
            raise BadRequest(f"this model cannot chat: {self._template}", param="messages")
        return self._tokenizer.encode_chat(self._template.render(messages))

    def piece(self, token: int) -> bytes:
        return self._tokenizer.piece_bytes(token)

    def detokenizer(self) -> Detokenizer:
        return self._tokenizer.detokenizer()


def _template(tokenizer: Tokenizer) -> ChatTemplate | ConfigError:
    """Without a template that works a model is still good for completions."""
    try:
        return tokenizer.chat_template()
    except ConfigError as error:
        return error
