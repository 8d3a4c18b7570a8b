"""Model presets: the dimensions that memory and time depend on. And cost models assumed for GPUs.

The dimensions are from the models' published configurations.
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
    """Dimensions of a model.

    full_every     every `full_every`-th layer is full (1: all), the rest have windows of `window` tokens
    weights_bytes  published size of the weights. A step with many tokens reads them all, of every expert too.
    active         parameters that one token is multiplied by
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
        """A model specification that the engine can size its pools from. Other fields are zero."""
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


DEFAULT_MODEL_SHAPE = "gemma3-270m"
MODEL_SHAPES: Mapping[str, ModelShape] = {
    "gemma3-270m": ModelShape(18, 6, 512, 4, 1, 256, 32_768, 0.54e9, 0.27e9),
    "gemma3-27b": ModelShape(62, 6, 1024, 32, 16, 128, 131_072, 54e9, 27e9),
    "gpt-oss-20b": ModelShape(24, 2, 128, 64, 8, 64, 131_072, 12.8e9, 3.6e9),
    "llama-8b": ModelShape(32, 1, 0, 32, 8, 128, 131_072, 16e9, 8e9),
}


def model_shape(name: str) -> ModelShape:
    """Raises ConfigError for an unknown name."""
    if name not in MODEL_SHAPES:
        raise ConfigError(f"--model-shape is {name!r}; it must be one of {', '.join(MODEL_SHAPES)}")
    return MODEL_SHAPES[name]


# ---------------------------------------------------------------- GPUs, assumed


@dataclass(frozen=True, slots=True)
class AssumedGpu:
    """Rates that good kernels reach on a GPU; the peaks of its data sheet are higher.

    `step_s` is spent once per step, on launches, sampling and scheduling; `span_s` once per span.
    """

    read_bytes_per_s: float
    flops_per_s: float
    step_s: float
    span_s: float


ASSUMED_GPUS: Mapping[str, AssumedGpu] = {
    "h200": AssumedGpu(3.4e12, 5.0e14, 2.5e-3, 10e-6),
    "h100": AssumedGpu(2.4e12, 5.0e14, 2.5e-3, 10e-6),
}
"""Assumptions, not measurements: 70% of 4.8 and 3.35 TB/s, and half of 989 TFLOP/s in bfloat16."""


def assumed_cost(gpu: AssumedGpu, shape: ModelShape) -> MachineCost:
    """A roofline: each step reads the weights once, which hides the arithmetic of its first tokens."""
    weights_s = shape.weights_bytes / gpu.read_bytes_per_s
    token_s = 2 * shape.active / gpu.flops_per_s  # a multiplication and an addition per parameter
    # Decodes are bound by reading keys and values, of two bytes per number; prompt chunks by arithmetic.
    key_read_s = 2 * 2 * shape.kv_heads * shape.head_dim / gpu.read_bytes_per_s
    key_multiply_s = 4 * shape.heads * shape.head_dim / gpu.flops_per_s
    return MachineCost(
        base=gpu.step_s + weights_s,
        per_span=gpu.span_s,
        per_token=token_s,
        per_decode_key=key_read_s * shape.full_layers,
        per_decode_near_key=key_read_s * shape.window_layers,
        per_chunk_key=key_multiply_s * shape.full_layers,
        per_chunk_near_key=key_multiply_s * shape.window_layers,
        tokens_free=int(weights_s / token_s),
        window=shape.window,
    )
