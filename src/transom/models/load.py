"""Loads a `Model` from an open model file. The architecture named in the file selects the family.

To add a family: a module with `read_spec` and `read_layer`, like gemma3.py, and an entry in _FAMILIES.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from transom.errors import ModelFileError
from transom.models import gemma3, llama
from transom.models.keys import require_keys_read, require_tensors_read
from transom.models.spec import LayerWeights, Model, ModelSpec
from transom.models.tensors import Tensors, assemble
from transom.ops.protocol import AttentionShape
from transom.weights.gguf import GgufFile


@dataclass(frozen=True, slots=True)
class _Family:
    spec: Callable[[GgufFile], ModelSpec]
    layer: Callable[[Tensors, AttentionShape, int], LayerWeights]


# By the value of `general.architecture`.
_FAMILIES = {
    gemma3.ARCHITECTURE: _Family(gemma3.read_spec, gemma3.read_layer),
    llama.ARCHITECTURE: _Family(llama.read_spec, llama.read_layer),
}


def load_model(file: GgufFile) -> Model:
    """Repacks the weights into memory of their own; the file may be closed afterwards.

    ModelFileError also for a key of the architecture or a tensor that the family has no use for.
    """
    family = _family(file)
    spec = read_spec(file)
    model = assemble(file, spec, lambda block, layer: family.layer(block, layer.attention, spec.dim))
    require_tensors_read(file)
    return model


def read_spec(file: GgufFile) -> ModelSpec:
    """The model without its weights. Reads metadata and shapes only. ModelFileError."""
    spec = _family(file).spec(file)
    require_keys_read(file, spec.architecture)
    return replace(spec, vocabulary=_pieces(file, spec.vocabulary))


def _pieces(file: GgufFile, rows: int) -> int:
    """Number of token ids: those with a piece. A row without one could be chosen and not be spelled.

    ModelFileError if a piece has no row: a text with it could not be computed.
    """
    key = "tokenizer.ggml.tokens"
    pieces = len(file.metadata.strings(key))
    if pieces > rows:
        raise file.metadata.error(key, f"has {pieces} tokens; 'token_embd.weight' has {rows} rows")
    return pieces


def _family(file: GgufFile) -> _Family:
    architecture = file.metadata.text("general.architecture")
    family = _FAMILIES.get(architecture)
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        raise ModelFileError(
            f"{file.path}: architecture {architecture!r} is not supported; supported are: {known}"
        )
    return family
