"""What the HTTP side asks of a model's text: the seam to `transom.text`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from transom.values import Tokens

Turn = tuple[str, str]
"""(role, content) of one chat message."""


class Detokenizer(Protocol):
    """Tokens of one output to text, never half a character. Mutable."""

    def push(self, token: int) -> str:
        """The text that is certain now; empty while a character is incomplete or for a control token."""
        ...

    def finish(self) -> str:
        """What was held back."""
        ...


class ModelText(Protocol):
    """A model's tokenizer and chat template."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end an output."""
        ...

    def encode(self, text: str) -> Tokens:
        """With the begin token if the model wants one."""
        ...

    def encode_chat(self, turns: Sequence[Turn]) -> Tokens:
        """A conversation, ready for the assistant's answer. BadRequest for roles the template refuses."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes one token stands for."""
        ...

    def detokenizer(self) -> Detokenizer: ...


def load_text(path: Path) -> ModelText:
    """The text side of a GGUF model. ModelFileError."""
    raise NotImplementedError
