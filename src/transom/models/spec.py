"""A model as data: the shape of its layers, the memory they use, and the weights."""

from dataclasses import dataclass

from transom.kv.component_specs import ComponentSpec
from transom.ops.protocol import F32, AttentionShape, FloatMatrix, Gate, Matrix
from transom.ops.store import KVType, PageShape


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: pair i of dim / 2 rotates by position / (factor * factors[i]) * base ** (-2 i / dim).

    Empty `factors` are all 1.
    """

    base: float
    dim: int
    factor: float = 1.0
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.factors) in (0, self.dim // 2), (len(self.factors), self.dim)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer. Its keys and values are layer `index` of component `component`."""

    component: int
    index: int
    attention: AttentionShape
    rope: Rope


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model without its weights. `context` is the number of tokens that it was trained for."""

    name: str
    architecture: str
    vocabulary: int
    dim: int
    context: int
    eps: float
    embed_scale: float
    gate: Gate
    components: tuple[ComponentSpec, ...]
    layers: tuple[LayerSpec, ...]

    def __post_init__(self) -> None:
        for component in range(len(self.components)):
            # `index` is the layer's place in a page, so the layers of a component must be numbered 0, 1, ...
            indices = [layer.index for layer in self.layers if layer.component == component]
            assert indices == list(range(len(indices))) and indices, (component, indices)

    def layers_of(self, component: int) -> tuple[LayerSpec, ...]:
        return tuple(layer for layer in self.layers if layer.component == component)

    def page_shapes(self, page_size: int, kv_type: KVType) -> tuple[PageShape, ...]:
        """The shape of a page, per component."""
        return tuple(
            self._page_shape(component, page_size, kv_type) for component in range(len(self.components))
        )

    def _page_shape(self, component: int, page_size: int, kv_type: KVType) -> PageShape:
        layers = self.layers_of(component)
        shapes = {(layer.attention.kv_heads, layer.attention.head_dim) for layer in layers}
        assert len(shapes) == 1, f"layers of one component must have the same KV shape, not {shapes}"
        kv_heads, head_dim = shapes.pop()
        return PageShape(len(layers), page_size, kv_heads, head_dim, kv_type)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one layer. A family may lack some norms.

    qkv         q, k and v, stacked along `out`
    gate_up     gate and up projections, stacked along `out`
    post norms  applied to the output of a block before it is added to the residual stream
    """

    attention_norm: F32
    query_norm: F32 | None
    key_norm: F32 | None
    qkv: Matrix
    output: Matrix
    attention_post_norm: F32 | None
    mlp_norm: F32
    gate_up: Matrix
    down: Matrix
    mlp_post_norm: F32 | None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """`embedding` and `head` are the same object if the model ties them."""

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    final_norm: F32
    head: Matrix


@dataclass(frozen=True, slots=True)
class Model:
    spec: ModelSpec
    weights: ModelWeights


def weights_bytes(weights: ModelWeights) -> int:
    """Bytes of all matrices, a tied one counted once. Norms are left out: they are negligibly small."""
    matrices = [weights.embedding, weights.head]
    for layer in weights.layers:
        matrices += [layer.qkv, layer.output, layer.gate_up, layer.down]
    return sum({id(matrix): _matrix_bytes(matrix) for matrix in matrices}.values())  # by id: tied once


def _matrix_bytes(matrix: Matrix) -> int:
    if isinstance(matrix, FloatMatrix):
        return matrix.values.nbytes
    return (
        matrix.codes.nbytes
        + matrix.scales.nbytes
        + (0 if matrix.zero_offsets is None else matrix.zero_offsets.nbytes)
    )
