"""Loads the tokenizer of a model without its weights, for processes that do not compute: the HTTP server."""

from transom.text.model_text import FileText, ModelText
from transom.text.tokenizer import Tokenizer
from transom.weights.builtin import resolve_model
from transom.weights.gguf import read_gguf
from transom.weights.vocabulary import read_vocabulary


def load_tokenizer(model: str | None) -> Tokenizer:
    """Tokenizer of a model: the name of a built-in one (None: the default) or a file. ModelFileError."""
    return Tokenizer(read_vocabulary(read_gguf(resolve_model(model))))


def load_text(model: str | None) -> ModelText:
    """Tokenizer and chat template of a model, by name or file. ModelFileError."""
    return FileText(load_tokenizer(model))
