"""Shapes of models, as far as memory and time need them, and what their steps take on a given machine.

Source of the shapes: the models' published configurations.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from transom.errors import ConfigError
from transom.kv.component_specs import ComponentSpec, Full, Window
from transom.models.spec import LayerSpec, ModelSpec, Rope
from transom.ops.protocol import AttentionShape, Gate
from transom_lab.sim.costs import MachineCost


@dataclass(frozen=True, slots=True)
class ModelShape:
    """`full_every`: each so manieth layer is full, the others read `window`; 1 is full layers only.

    `weights_bytes` are all that a step reads (with many tokens, every expert), as published; `active` are the
    parameters that one token is multiplied with.
    """

    layers: int
    full_every: int
    window: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    weights_bytes: float
    active: float

    @property
    def full_layers(self) -> int:
        return self.layers // self.full_every

    @property
    def window_layers(self) -> int:
        return self.layers - self.full_layers

    def spec(self, name: str) -> ModelSpec:
        """What the engine sizes pools from."""
        kinds: tuple[ComponentSpec, ...] = (Full(),)
        if self.window_layers:
            kinds = (Full(), Window(self.window))
        return ModelSpec(
            name=name,
            architecture="shape",
            vocabulary=0,
            dim=0,
            context=self.context,
            eps=0.0,
            embed_scale=0.0,
            gate=Gate.GELU_TANH,
            components=kinds,
            layers=self._layers(),
        )

    def _layers(self) -> tuple[LayerSpec, ...]:
        counts = [0, 0]
        layers = []
        for number in range(self.layers):
            component = int((number + 1) % self.full_every != 0)
            window = self.window if component else None
            attention = AttentionShape(self.heads, self.kv_heads, self.head_dim, window, 1.0)
            layers.append(LayerSpec(component, counts[component], attention, Rope(1.0, self.head_dim)))
            counts[component] += 1
        return tuple(layers)


DEFAULT_SHAPE = "gemma3-270m"
SHAPES: Mapping[str, ModelShape] = {
    "gemma3-270m": ModelShape(18, 6, 512, 4, 1, 256, 32_768, 0.54e9, 0.27e9),
    "gemma3-27b": ModelShape(62, 6, 1024, 32, 16, 128, 131_072, 54e9, 27e9),
    "gpt-oss-20b": ModelShape(24, 2, 128, 64, 8, 64, 131_072, 12.8e9, 3.6e9),
    "llama-8b": ModelShape(32, 1, 0, 32, 8, 128, 131_072, 16e9, 8e9),
}


def shape_of(name: str) -> ModelShape:
    """Raises ConfigError for one that is not known."""
    if name not in SHAPES:
        raise ConfigError(f"--model-shape is {name!r}; it must be one of {', '.join(SHAPES)}")
    return SHAPES[name]


# ---------------------------------------------------------------- machines by data sheet


@dataclass(frozen=True, slots=True)
class DataSheet:
    """What is assumed of a GPU: rates that good kernels reach, not the peaks of its data sheet."""

    read_bytes_per_s: float
    flops_per_s: float
    step_s: float
    """Launches, sampling and scheduling of a step, once."""
    span_s: float


ASSUMED: Mapping[str, DataSheet] = {
    "h200": DataSheet(3.4e12, 5.0e14, 2.5e-3, 10e-6),
    "h100": DataSheet(2.4e12, 5.0e14, 2.5e-3, 10e-6),
}
"""Assumptions, not measurements: 70% of 4.8 and 3.35 TB/s, half of 989 TFLOP/s in bfloat16."""


def assumed_cost(sheet: DataSheet, shape: ModelShape) -> MachineCost:
    """A roofline: weights are read once in a step, and hide the arithmetic of the first tokens."""
    read_s = shape.weights_bytes / sheet.read_bytes_per_s
    token_s = 2 * shape.active / sheet.flops_per_s
    key_read_s = 2 * 2 * shape.kv_heads * shape.head_dim / sheet.read_bytes_per_s
    key_multiply_s = 4 * shape.heads * shape.head_dim / sheet.flops_per_s
    return MachineCost(
        base=sheet.step_s + read_s,
        per_span=sheet.span_s,
        per_token=token_s,
        per_decode_key=key_read_s * shape.full_layers,
        per_decode_near_key=key_read_s * shape.window_layers,
        per_chunk_key=key_multiply_s * shape.full_layers,
        per_chunk_near_key=key_multiply_s * shape.window_layers,
        tokens_free=int(read_s / token_s),
        window=shape.window,
    )
