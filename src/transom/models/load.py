"""Loads a `Model` from an open model file. The architecture named in the file selects the family.

To add a family: a module with `read_spec` and `load`, like gemma3.py, and an entry in _FAMILIES.
"""

from collections.abc import Callable
from dataclasses import dataclass

from transom.errors import ModelFileError
from transom.models import gemma3, llama
from transom.models.spec import Model, ModelSpec
from transom.weights.gguf import GgufFile


@dataclass(frozen=True, slots=True)
class _Family:
    spec: Callable[[GgufFile], ModelSpec]
    load: Callable[[GgufFile], Model]


# By the value of `general.architecture`.
_FAMILIES = {
    gemma3.ARCHITECTURE: _Family(gemma3.read_spec, gemma3.load),
    llama.ARCHITECTURE: _Family(llama.read_spec, llama.load),
}


def load_model(file: GgufFile) -> Model:
    """Repacks the weights into memory of their own; the file may be closed afterwards. ModelFileError."""
    return _family(file).load(file)


def read_spec(file: GgufFile) -> ModelSpec:
    """The model without its weights. ModelFileError."""
    return _family(file).spec(file)


def _family(file: GgufFile) -> _Family:
    architecture = file.metadata.text("general.architecture")
    family = _FAMILIES.get(architecture)
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        raise ModelFileError(
            f"{file.path}: architecture {architecture!r} is not supported; supported are: {known}"
        )
    return family
