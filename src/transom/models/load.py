"""From an open model file to a `Model`: the architecture's name picks the family."""

from transom.errors import ModelFileError
from transom.models import gemma3, llama
from transom.models.spec import Model
from transom.weights.gguf import GgufFile

_FAMILIES = {gemma3.ARCHITECTURE: gemma3.load, llama.ARCHITECTURE: llama.load}


def load_model(file: GgufFile) -> Model:
    """Repacks the weights; the file may be closed after. Raises ModelFileError."""
    architecture = file.metadata.text("general.architecture")
    load = _FAMILIES.get(architecture)
    if load is None:
        known = ", ".join(sorted(_FAMILIES))
        raise ModelFileError(f"{file.path}: architecture {architecture!r} is not supported ({known} are)")
    return load(file)
