"""A model's tokenizer, from its argument alone: what a process needs that does not compute."""

from transom.text.tokenizer import Tokenizer
from transom.weights.builtin import resolve_model
from transom.weights.gguf import read_gguf
from transom.weights.vocabulary import read_vocabulary


def load_tokenizer(model: str | None) -> Tokenizer:
    """Of a built-in model (None: the default) or a file. Raises `ModelFileError`."""
    return Tokenizer(read_vocabulary(read_gguf(resolve_model(model))))
