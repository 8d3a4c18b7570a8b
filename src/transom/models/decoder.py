"""The one decoder: a `Model` run over the ops Protocol. Arrays are opaque to it."""

from dataclasses import dataclass

import numpy as np

from transom.models.rope import rope_table
from transom.models.spec import LayerSpec, LayerWeights, Model, ModelSpec, Rope
from transom.ops.protocol import F32, I32, Ops, PagedKV, SpanRows


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of one step, all spans end to end.

    spans  one entry per component: the same spans, but what may be read and is stored is the component's
    wanted int32 indices of tokens to have logits
    """

    tokens: I32
    spans: tuple[SpanRows, ...]
    wanted: I32


def forward(ops: Ops, model: Model, kv: tuple[PagedKV, ...], batch: Batch) -> F32:
    """Stores the keys and values of all tokens; returns logits `[wanted, vocabulary]`: see `hidden`."""
    return head(ops, model, hidden(ops, model, kv, batch))


def head(ops: Ops, model: Model, x: F32) -> F32:
    """From what `hidden` returns, or any part of it, to logits `[rows, vocabulary]`."""
    if len(x) == 0:
        return np.empty((0, model.spec.vocabulary), dtype=np.float32)
    weights = model.weights
    return ops.matmul(ops.norm_prepare(x, weights.final_norm, model.spec.eps, weights.head), weights.head)


def hidden(ops: Ops, model: Model, kv: tuple[PagedKV, ...], batch: Batch) -> F32:
    """Stores the keys and values of all tokens; returns what the last layer says, `[wanted, dim]`.

    `kv` has one entry per component. Every row's pages must cover what its span reads and stores.
    """
    spec, weights = model.spec, model.weights
    rotations = _rotations(model, batch.spans[0].positions)
    x = ops.embed(weights.embedding, batch.tokens, spec.embed_scale)
    last = len(spec.layers) - 1
    for number, (layer, layer_weights) in enumerate(zip(spec.layers, weights.layers, strict=True)):
        spans = batch.spans[layer.component]
        q = _store(ops, spec.eps, layer, layer_weights, x, rotations[layer.rope], kv, spans)
        if number == last and len(batch.wanted) == 0:
            # Nobody asks what the top layer says of these tokens; its keys and values are stored.
            return x[:0]
        attended = ops.attention(q, layer.attention, kv[layer.component], layer.index, spans)
        if number == last:
            # Rows are independent, so those not wanted need not be computed further.
            x, attended = x[batch.wanted], attended[batch.wanted]
        _mix(ops, spec, layer_weights, x, attended)
    return x


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
    """Queries `[tokens, heads, head_dim]`; keys and values go to their pages."""
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
    """Adds attention's and the MLP's part to `x`, in place."""
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
    context = model.spec.context
    return {
        rope: rope_table(rope, context).at(positions) for rope in {layer.rope for layer in model.spec.layers}
    }
