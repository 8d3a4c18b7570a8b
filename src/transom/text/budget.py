"""Bounds of the work on one prompt: rendering a template and tokenizing a text."""

from collections.abc import Callable
from dataclasses import dataclass

from transom.errors import BadRequest, RequestTooLarge

UNLIMITED = 1 << 62


def _carry_on() -> None:
    """Work that is wanted until its end."""


@dataclass(frozen=True, slots=True)
class TextBudget:
    """Bounds of the work on one prompt.

    tokens    the most that the prompt may have
    steps     the most that its template may take, besides those for the length of the conversation: `sandbox`
    carry_on  called between pieces of the work; raises if the client does not want the answer any more
    """

    tokens: int = UNLIMITED
    steps: int = UNLIMITED
    carry_on: Callable[[], None] = _carry_on

    def check_characters(self, characters: int, of_token: int) -> None:
        """RequestTooLarge if so many characters cannot fit: a token stands for at most `of_token` of them."""
        if characters > self.tokens * of_token:
            raise RequestTooLarge(
                f"the prompt has {characters} characters or more; "
                f"at most {self.tokens * of_token} can fit the served context of {self.tokens} tokens"
            )

    def check_tokens(self, tokens: int) -> None:
        """RequestTooLarge if there are too many: the rest of the text need not be tokenized."""
        if tokens > self.tokens:
            raise RequestTooLarge(
                f"the prompt has more than {self.tokens} tokens, which is the served context"
            )


UNBOUNDED = TextBudget()


class StepsSpent(BadRequest):
    """A template takes more steps than the budget has."""
