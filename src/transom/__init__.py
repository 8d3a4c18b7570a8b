"""Transom: a serving engine for models that mix full and sliding-window attention."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transom.llm import LLM as LLM

__version__ = "0.1.0"
__all__ = ["LLM", "__version__"]


def __getattr__(name: str) -> Any:
    # The import of LLM pulls in numpy and the tokenizer; `transom --help` should not pay for it.
    if name == "LLM":
        from transom.llm import LLM

        return LLM
    raise AttributeError(f"module 'transom' has no attribute {name!r}")
