"""The array operations that a decoder needs, and the specification of their arithmetic, to the bit.

Every backend computes the same bits (docs/numerics.md). Row m of a result depends on row m of the inputs
alone, never on the number of rows, the threads or the vector width. Backends: `reference` (numpy, the oracle
of the tests) and `native` (C++). Arrays are float32 and C-contiguous unless said otherwise.

`fma(a, b, c)` is one rounding of a * b + c. `rne` rounds to nearest, ties to even. Every other operation is
one float32 operation, rounded to nearest even; subnormals are kept, never flushed; Python floats and integers
are converted to float32 before they are used. A result that is NaN is NaN in every backend, but its sign and
payload may differ.

Folded sums ("lanes"): lane j of 16 takes elements j, j + 16, ... in order, starting from +0, by fma for
dots and sums of squares, by plain add for sums; then lanes fold: j += j + 8 for j < 8, then + 4, + 2, + 1.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

# Lanes of a folded sum, and outputs of a weight tile. Part of the specification: 16 float32 are one AVX-512
# register, two of AVX2 or four of NEON, so that every instruction set adds in the same order.
LANES = 16
# Activations that share a scale.
ACTIVATION_GROUP = 32


class Precision(IntEnum):
    """Bits of activation codes in a quantized matmul; a property of the weight matrix, fixed at load."""

    INT8 = 8
    INT16 = 16

    @property
    def code_limit(self) -> int:
        """Codes lie in [-code_limit, code_limit]."""
        # 127 * 254 splits exactly into two planes of int8: code = 254 * high + low.
        return 127 if self is Precision.INT8 else 127 * 254


class Gate(IntEnum):
    """The activation function of an MLP's gates."""

    GELU_TANH = 0
    SILU = 1


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """Quantized weights `[out, in]`: value[n, k] = scale[n, g] * code[n, k] + zero_offset[n, g].

    g is k // group; group is 16 or 32. A zero offset is the value of code 0: `min` in ggml's formats.

    codes         uint8   [out_padded / 16, in / 4, 16, 4], holding code + 128 with code in [-128, 127]
    scales        float32 [out_padded / 16, in / group, 16]
    zero_offsets  float32 like scales, or None
    out is padded to a multiple of 16 with code 0 and scale 0; `in` is a multiple of 32.
    """

    codes: NDArray[np.uint8]
    scales: F32
    zero_offsets: F32 | None
    group: int
    out_features: int
    in_features: int
    precision: Precision


@dataclass(frozen=True, slots=True)
class FloatMatrix:
    """Float weights `[out, in]`, float32 `[out_padded / 16, in, 16]`, padded with zeros.

    Result: acc = 0; for k ascending: acc = fma(x[m, k], w[n, k], acc).
    """

    values: F32
    out_features: int
    in_features: int


Matrix = PackedMatrix | FloatMatrix


@dataclass(frozen=True, slots=True)
class Activations:
    """Quantized rows.

    codes    int16   [tokens, in]
    scales   float32 [tokens, in / 32]
    sums     int32   [tokens, in / 16], of the codes

    Per group of 32: amax = max |x|. If amax < 1e-30, the codes and the scale are 0. Otherwise
    inverse = P / amax in float32, code = rne(x * inverse) clamped to [-P, P], scale = amax / P, where P is
    the precision's code_limit. A row that contains inf or NaN has codes 0 and scale NaN in all its groups.
    The native backend keeps all three in a layout of its own, in `codes`: only it reads them.
    """

    codes: NDArray[np.int16]
    scales: F32
    sums: I32
    precision: Precision


Prepared = Activations | F32
"""The input of `matmul`: Activations for a PackedMatrix, float32 rows for a FloatMatrix."""


@dataclass(frozen=True, slots=True)
class SpanRows:
    """The spans of one step, as arrays. Span i computes tokens [offsets[i], offsets[i + 1]) of the batch.

    rows       int32 [spans]      row of the span in the page tables
    starts     int32 [spans]      position of the span's first token
    offsets    int32 [spans + 1]
    positions  int32 [tokens]
    token_rows int32 [tokens]     row of each token in the page tables
    clips      int32 [spans]      first position that the span's queries may read, at most its start; None: 0
    stored     bool  [tokens]     whether the token's key and value are stored; None: all are
    """

    rows: I32
    starts: I32
    offsets: I32
    positions: I32
    token_rows: I32
    clips: I32 | None = None
    stored: NDArray[np.bool_] | None = None

    def clip(self, span: int) -> int:
        return 0 if self.clips is None else int(self.clips[span])


@dataclass(frozen=True, slots=True)
class PagedKV:
    """The keys and values of one component, and the page tables of its rows.

    pages   float16 or float32 [pages + 1, layers, 2, page_size, kv_heads, head_dim]; page 0 is never read.
            Axis 0 may be strided (the stride of a page is a multiple of 4 KiB); the rest is contiguous.
    rows    int32 [rows, pages per row]: the page of position p of row r is rows[r, p // page_size]
    """

    pages: NDArray[np.float16] | F32
    rows: I32
    page_size: int


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """heads query heads share kv_heads key heads: head h reads key head h // (heads / kv_heads).

    window   None: full attention. Otherwise a query at position q reads keys k with q - window < k <= q.
    softcap  None: off. Otherwise score = softcap * tanh(score / softcap), before masking.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    scale: float
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Sampling parameters, one per row of logits.

    temperature float32, top_k int32, top_p float32, min_p float32, seed uint64, position int32. `position`
    is the position of the sampled token, the counter of the random generator. The native backend passes the
    fields to the extension in this order.
    """

    temperature: F32
    top_k: I32
    top_p: F32
    min_p: F32
    seed: NDArray[np.uint64]
    position: I32


class Ops(Protocol):
    """Pure, except that `rope_store` and `copy_pages` write pages, and `add` and `add_norm` write `x`."""

    @property
    def isa(self) -> str:
        """Name of the instruction set or library, for people: `avx512`, `avx2`, `portable`, `numpy`."""
        ...

    def embed(self, table: Matrix, tokens: I32, scale: float) -> F32:
        """`[tokens, dim]`. Packed: fma(scale_w, code, zero_offset or +0) * scale. Float: value * scale."""
        ...

    def norm(self, x: F32, weight: F32, eps: float) -> F32:
        """RMS norm of every row `[tokens, dim]`, dim a multiple of 16.

        s = folded sum of squares; r = 1 / sqrt(s / dim + eps); y = (x * r) * weight.
        """
        ...

    def norm_prepare(self, x: F32, weight: F32, eps: float, matrix: Matrix) -> Prepared:
        """`norm`, then `prepare`."""
        ...

    def prepare(self, x: F32, matrix: Matrix) -> Prepared:
        """The input of `matmul` with `matrix`: quantized to its precision; for a FloatMatrix, x itself."""
        ...

    def matmul(self, x: Prepared, matrix: Matrix) -> F32:
        """`[tokens, out]`. Packed: acc = +0; for groups g ascending, dot exact in int32, float() rne:
        acc = fma(float(dot), sx * sw, acc), then with zero offsets acc = fma(float(sum_q), sx * zw, acc),
        before the next group. sum_q is the sum of the activation codes of g; sx is the scale of the
        activation group of 32 that holds g; sw and zw are scale and zero offset of the weight group; the
        products sx * sw and sx * zw round to float32. x must have the matrix's precision.
        Float: see FloatMatrix.
        """
        ...

    def gated_prepare(self, gate_up: F32, gate: Gate, matrix: Matrix) -> Prepared:
        """act(gate) * up, then `prepare`. gate_up is `[tokens, 2 * hidden]`, gates first.

        GELU_TANH: u = 0.7978845608 * fma((0.044715 * x) * x, x, x); act = x / (1 + exp(-2 * u)).
        SILU: act = x / (1 + exp(-x)). exp is specified below.
        """
        ...

    def add(self, x: F32, y: F32) -> None:
        """x += y, in place."""
        ...

    def add_norm(self, x: F32, y: F32, weight: F32, eps: float) -> None:
        """x += norm(y, weight, eps), in place."""
        ...

    def rope_store(
        self,
        qkv: F32,
        shape: AttentionShape,
        q_norm: F32 | None,
        k_norm: F32 | None,
        eps: float,
        cos_sin: F32,
        kv: PagedKV,
        layer: int,
        spans: SpanRows,
    ) -> F32:
        """Norm q and k per head (if weights are given), rotate them, store k and v; return q.

        qkv `[tokens, (heads + 2 * kv_heads) * head_dim]`: q, k, v. The norm is `norm` with dim = head_dim,
        the same weight `[head_dim]` for every head. cos_sin `[tokens, 2, head_dim / 2]`: cosines, sines.
        Rotation pairs i with i + head_dim / 2: (a, b) -> (fma(a, c, -(b * s)), fma(b, c, a * s)).
        Stored as float32, or clamped to +-65504 (NaN stays NaN), then rne to float16. A token that is not
        `stored` writes nothing and needs no page. `layer` is the index within the component.
        Returns q `[tokens, heads, head_dim]`, of all tokens.
        """
        ...

    def attention(self, q: F32, shape: AttentionShape, kv: PagedKV, layer: int, spans: SpanRows) -> F32:
        """`[tokens, heads * head_dim]`. Queries read all keys, even of their own span, from the pages.

        Keys come in tiles of 64 at absolute multiples of 64. Per tile, from scratch, over keys not masked:
        score = folded dot(q, k) * scale (then, softcapped: softcap * tanh(score / softcap));
        m = max; p = exp(score - m);
        l = folded sum of p (key j of the tile in lane j % 16, masked keys add nothing);
        a[d] = fma(p, v[d], a[d]), keys ascending from 0, masked keys not touched at all.
        A key is masked if it is after the query, outside of the query's window or before the span's clip.
        A tile is skipped if all its keys are masked. Merge ascending: the first tile not skipped is taken as
        it is; then M' = max(M, m); s = exp(M - M'); t = exp(m - M'); L = fma(l, t, L * s);
        A = fma(a, t, A * s). Result A * (1 / L).
        """
        ...

    def sample(self, logits: F32, sampling: SamplingRows) -> tuple[I32, F32]:
        """Token and log-probability (of the untempered distribution) per row of `[rows, vocab]`.

        Temperature 0 (greedy): the lowest id of the highest logit. Otherwise order tokens by (logit
        descending, id ascending; -0 equals +0); weight = exp((logit - max) / temperature). Keep the first
        top_k (0: all); of these, the tokens with weight >= min_p; of these, the shortest prefix with
        cumulated weight >= top_p * total, where total is the last cumulated weight before this cut (at least
        one token is always kept). Cumulated weights are float64, added one by one in that order. Draw u in
        [0, 1) from Philox4x32-10 with key = (low, high 32 bits of seed) and counter = (position, 0, 0, 0),
        u = first output word / 2**32; take the first token whose cumulated weight > u * (last cumulated
        weight kept). top_p and min_p are converted to float64 to compare and multiply.

        Log-probability: z = sum over ids of exp(logit - max), in float64, in 16 lanes (id j in lane j % 16,
        plain adds, ids ascending), folded like the other sums; float32(float64(logit - max) - log64(z)).
        -inf is a legal logit of weight 0. A row with NaN or +inf, or without a finite logit, yields token 0
        and NaN.
        """
        ...

    def logprobs(self, logits: F32, tokens: I32, top: int) -> tuple[F32, I32, F32]:
        """Log-probabilities of `tokens`, one per row of `[rows, vocab]`; the `top` most probable tokens of
        each row, `[rows, top]`, and their log-probabilities. `top` is at most vocab.

        Log-probabilities and the order of tokens are as in `sample`. A row for which `sample` returns
        token 0 and NaN has NaN throughout, and token 0 `top` times.
        """
        ...

    def copy_pages(self, kv: PagedKV, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` slots of every layer of page `source` to page `target`."""
        ...


# exp(x), float32, the only transcendental function of the model. x > 88 is clamped to 88; x < -87 yields +0;
# NaN stays NaN. r * r and p * 2**n (never subnormal here) are float32 products.
#   n = rne(x * LOG2E); r = fma(n, -LN2_HIGH, x); r = fma(n, -LN2_LOW, r)
#   p = EXP[0]; for c in EXP[1:]: p = fma(p, r, c);  p = fma(p, r * r, r); p = p + 1;  result = p * 2**n
# tanh(x) = 1 - 2 / (exp(2 * x) + 1).
LOG2E = np.float32(1.44269504088896341)
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
EXP = np.array(
    [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1],
    dtype=np.float32,
)

# log64(z), z >= 1, finite: float64 operations, not fused.
#   z = m * 2**e with m in [0.5, 1) (frexp); if m < SQRT_HALF: m = 2 * m, e = e - 1
#   s = (m - 1) / (m + 1); t = s * s; p = LOG[0]; for c in LOG[1:]: p = p * t + c
#   result = e * LN2 + 2 * (s * p)
LN2 = 0.6931471805599453
SQRT_HALF = 0.7071067811865476
LOG = tuple(1.0 / k for k in range(23, 0, -2))
