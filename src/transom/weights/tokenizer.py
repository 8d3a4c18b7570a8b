"""A model's tokenizer, from its argument alone: what a process needs that does not compute."""

from transom.text.model_text import FileText, ModelText
from transom.text.tokenizer import Tokenizer
from transom.weights.builtin import resolve_model
from transom.weights.gguf import read_gguf
from transom.weights.vocabulary import read_vocabulary


def load_tokenizer(model: str | None) -> Tokenizer:
    """Of a built-in model (None: the default) or a file. Raises `ModelFileError`."""
    return Tokenizer(read_vocabulary(read_gguf(resolve_model(model))))


def load_text(model: str | None) -> ModelText:
    """Tokenizer and chat template of a model, by name or file. Raises `ModelFileError`."""
    return FileText(load_tokenizer(model))
