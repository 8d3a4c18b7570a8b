"""The decoder of all model families: runs a `Model` on any backend."""

from dataclasses import dataclass

import numpy as np

from transom.models.rope import rope_table
from transom.models.spec import LayerSpec, LayerWeights, Model, ModelSpec, Rope
from transom.ops.protocol import F32, I32, Ops, PagedKV, SpanRows


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of one step, all spans end to end.

    spans   one entry per component: the same spans, with the clips and stored tokens of the component
    wanted  int32, indices of the tokens to return hidden states of
    """

    tokens: I32
    spans: tuple[SpanRows, ...]
    wanted: I32


def hidden(ops: Ops, model: Model, kv: tuple[PagedKV, ...], batch: Batch) -> F32:
    """Stores the keys and values of all tokens; returns the last layer's output, `[wanted, dim]`.

    `kv` has one entry per component. The pages of every row must cover the positions that its span reads and
    stores.
    """
    spec, weights = model.spec, model.weights
    rotations = _rotations(model, batch.spans[0].positions)
    x = ops.embed(weights.embedding, batch.tokens, spec.embed_scale)
    last = len(spec.layers) - 1
    for number, (layer, layer_weights) in enumerate(zip(spec.layers, weights.layers, strict=True)):
        spans = batch.spans[layer.component]
        # All keys of the step are stored before attention reads any, so that a span reads its own tokens too.
        q = _store(ops, spec.eps, layer, layer_weights, x, rotations[layer.rope], kv, spans)
        if number == last and len(batch.wanted) == 0:
            # No span samples: chunks within a prompt need the last layer's keys and values, not its output.
            return x[:0]
        attended = ops.attention(q, layer.attention, kv[layer.component], layer.index, spans)
        if number == last:
            # Rows are independent from here on, so compute only the wanted ones.
            x, attended = x[batch.wanted], attended[batch.wanted]
        _mix(ops, spec, layer_weights, x, attended)
    return x


def head(ops: Ops, model: Model, x: F32) -> F32:
    """Logits `[rows, vocabulary]` of rows that `hidden` returned."""
    if len(x) == 0:
        return np.empty((0, model.spec.vocabulary), dtype=np.float32)
    weights = model.weights
    # The final norm belongs to the head: it is computed only for rows whose logits are wanted.
    return ops.matmul(ops.norm_prepare(x, weights.final_norm, model.spec.eps, weights.head), weights.head)


def _store(
    ops: Ops,
    eps: float,
    layer: LayerSpec,
    weights: LayerWeights,
    x: F32,
    cos_sin: F32,
    kv: tuple[PagedKV, ...],
    spans: SpanRows,
) -> F32:
    """Queries `[tokens, heads, head_dim]`; writes keys and values to their pages."""
    qkv = ops.matmul(ops.norm_prepare(x, weights.attention_norm, eps, weights.qkv), weights.qkv)
    return ops.rope_store(
        qkv,
        layer.attention,
        weights.query_norm,
        weights.key_norm,
        eps,
        cos_sin,
        kv[layer.component],
        layer.index,
        spans,
    )


def _mix(ops: Ops, spec: ModelSpec, weights: LayerWeights, x: F32, attended: F32) -> None:
    """Adds the outputs of attention and of the MLP to `x`, in place."""
    o = ops.matmul(ops.prepare(attended, weights.output), weights.output)
    _add(ops, x, o, weights.attention_post_norm, spec.eps)
    gate_up = ops.matmul(ops.norm_prepare(x, weights.mlp_norm, spec.eps, weights.gate_up), weights.gate_up)
    down = ops.matmul(ops.gated_prepare(gate_up, spec.gate, weights.down), weights.down)
    _add(ops, x, down, weights.mlp_post_norm, spec.eps)


def _add(ops: Ops, x: F32, y: F32, norm: F32 | None, eps: float) -> None:
    if norm is None:
        ops.add(x, y)
    else:
        ops.add_norm(x, y, norm, eps)


def _rotations(model: Model, positions: I32) -> dict[Rope, F32]:
    """Cosines and sines of the batch, once for each kind of rope that layers use."""
    return {rope: rope_table(rope).at(positions) for rope in {layer.rope for layer in model.spec.layers}}
