"""Tensors of a model file by name, checked to have the shape that the family expects."""

from collections.abc import Callable
from dataclasses import dataclass

from transom.models.spec import LayerSpec, LayerWeights, Model, ModelSpec, ModelWeights
from transom.ops.protocol import F32, Matrix, Precision
from transom.weights.gguf import GgufFile, GgufTensor
from transom.weights.packing import pack, vector


@dataclass(frozen=True, slots=True)
class Tensors:
    """The tensors of `file` named `{prefix}{name}.weight`. All methods raise ModelFileError."""

    file: GgufFile
    prefix: str = ""

    def __contains__(self, name: str) -> bool:
        return self._full(name) in self.file.tensors

    def _full(self, name: str) -> str:
        return f"{self.prefix}{name}.weight"

    def rows(self, name: str) -> int:
        """Rows of a matrix. The sizes of vocabulary and MLP are read off their tensors."""
        tensor = self.file.tensor(self._full(name))
        if len(tensor.shape) != 2:
            raise tensor.error(f"shape {tensor.shape}, where a matrix is expected")
        return tensor.shape[0]

    def matrix(self, name: str, out: int, width: int) -> GgufTensor:
        return self._shaped(name, (out, width))

    def packed(self, name: str, out: int, width: int, precision: Precision = Precision.INT8) -> Matrix:
        return pack([self.matrix(name, out, width)], precision)

    def vocabulary(self, name: str, pieces: int, width: int) -> Matrix:
        """A matrix with a row for each piece. Rows after them pad the file; they are not read."""
        tensor = self.matrix(name, max(pieces, self.rows(name)), width)
        return pack([tensor.first_rows(pieces)], Precision.INT16)

    def norm(self, name: str, size: int) -> F32:
        return vector(self._shaped(name, (size,)))

    def _shaped(self, name: str, shape: tuple[int, ...]) -> GgufTensor:
        tensor = self.file.tensor(self._full(name))
        if tensor.shape != shape:
            raise tensor.error(f"shape {tensor.shape}, where {shape} is expected")
        return tensor


def assemble(file: GgufFile, spec: ModelSpec, layer: Callable[[Tensors, LayerSpec], LayerWeights]) -> Model:
    """Reads the weights; `layer` reads one layer from the tensors of its block. ModelFileError.

    A file without an output matrix ties it to the embedding.
    """
    tensors = Tensors(file)
    # The output matrix takes 16-bit activations in every family: rounding errors go straight into the logits,
    # and its cost is reading the weights anyway.
    embedding = tensors.vocabulary("token_embd", spec.vocabulary, spec.dim)
    weights = ModelWeights(
        embedding=embedding,
        layers=tuple(layer(Tensors(file, f"blk.{number}."), one) for number, one in enumerate(spec.layers)),
        final_norm=tensors.norm("output_norm", spec.dim),
        head=tensors.vocabulary("output", spec.vocabulary, spec.dim) if "output" in tensors else embedding,
    )
    return Model(spec, weights)
