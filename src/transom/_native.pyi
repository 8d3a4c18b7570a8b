"""The functions of the extension that `transom.ops.native` calls.

A wrong argument is a ValueError that names it.
"""

from typing import Any

from numpy.typing import NDArray

_Array = NDArray[Any]

def embed_packed(
    codes: _Array,
    scales: _Array,
    zero_offsets: _Array | None,
    group: int,
    out: int,
    inner: int,
    tokens: _Array,
    scale: float,
    result: _Array,
    /,
) -> None: ...
def embed_float(
    values: _Array, out: int, inner: int, tokens: _Array, scale: float, result: _Array, /
) -> None: ...
def norm(x: _Array, weight: _Array, eps: float, result: _Array, /) -> None: ...
def norm_prepare(x: _Array, weight: _Array, eps: float, precision: int, activations: _Array, /) -> None: ...
def add_norm(x: _Array, y: _Array, weight: _Array, eps: float, /) -> None: ...
def prepare(x: _Array, precision: int, activations: _Array, /) -> None: ...
def gated(gate_up: _Array, gate: int, result: _Array, /) -> None: ...
def gated_prepare(gate_up: _Array, gate: int, precision: int, activations: _Array, /) -> None: ...
def matmul_packed(
    activations: _Array,
    precision: int,
    codes: _Array,
    scales: _Array,
    zero_offsets: _Array | None,
    group: int,
    out: int,
    inner: int,
    result: _Array,
    /,
) -> None: ...
def matmul_float(x: _Array, values: _Array, out: int, inner: int, result: _Array, /) -> None: ...
def rope_store(
    qkv: _Array,
    heads: int,
    kv_heads: int,
    head_dim: int,
    q_norm: _Array | None,
    k_norm: _Array | None,
    eps: float,
    cos_sin: _Array,
    pages: _Array,
    table: _Array,
    page_size: int,
    layer: int,
    positions: _Array,
    token_rows: _Array,
    stored: _Array | None,
    result: _Array,
    /,
) -> None: ...
def attention(
    q: _Array,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int,
    scale: float,
    softcap: float,
    pages: _Array,
    table: _Array,
    page_size: int,
    layer: int,
    rows: _Array,
    starts: _Array,
    offsets: _Array,
    clips: _Array | None,
    result: _Array,
    /,
) -> None: ...
def sample(
    logits: _Array,
    /,
    *columns_and_results: _Array,  # the fields of SamplingRows in order, then tokens and logprobs
) -> None: ...
def logprobs(
    logits: _Array, tokens: _Array, result: _Array, top_tokens: _Array, top_logprobs: _Array, /
) -> None: ...
def copy_pages(
    pages: _Array, table: _Array, page_size: int, source: int, target: int, tokens: int, /
) -> None: ...
def set_threads(count: int, /) -> None: ...
def set_isa(name: str, /) -> None: ...
def uniform(seed: int, position: int, /) -> float: ...
def threads() -> int: ...
def isa() -> str: ...
def isas() -> list[str]: ...
def cpu_features() -> list[str]: ...
