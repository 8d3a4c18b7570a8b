"""A wrong argument of a native kernel is a ValueError that names it; nothing out of range is touched."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from transom.ops.native import NativeOps, set_isa, set_threads
from transom.ops.pack import pack, pack_float
from transom.ops.protocol import (
    AttentionShape,
    Gate,
    PackedMatrix,
    PagedKV,
    Precision,
    Prepared,
    SamplingRows,
    SpanRows,
)

OPS = NativeOps()
SHAPE = AttentionShape(2, 1, 16, None, 1.0)
TWO_HEADS = np.zeros((4, 2, 2, 8, 2, 16), np.float16)


def zeros(*shape: int) -> NDArray[np.float32]:
    return np.zeros(shape, dtype=np.float32)


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def packed(group: int = 32, precision: Precision = Precision.INT8) -> PackedMatrix:
    codes = np.ones((20, 64), dtype=np.int8)
    return pack(codes, zeros(20, 64 // group), zeros(20, 64 // group), group, precision)


def kv(**changes: object) -> PagedKV:
    pages = np.zeros((4, 2, 2, 8, 1, 16), dtype=np.float16)
    return replace(PagedKV(pages, ints(1, 2, 3, 0).reshape(2, 2), 8), **changes)  # type: ignore[arg-type]


def spans(**changes: object) -> SpanRows:
    """Three tokens at the end of row 0."""
    usual = SpanRows(ints(0), ints(13), ints(0, 3), ints(13, 14, 15), ints(0, 0, 0))
    return replace(usual, **changes)  # type: ignore[arg-type]


def attention(kv: PagedKV, spans: SpanRows, layer: int = 0, shape: AttentionShape = SHAPE) -> object:
    return OPS.attention(zeros(3, shape.heads, 16), shape, kv, layer, spans)


def rope(kv: PagedKV, spans: SpanRows, layer: int = 0, width: int = 64) -> object:
    return OPS.rope_store(zeros(3, width), SHAPE, None, None, 1e-6, zeros(3, 2, 8), kv, layer, spans)


def choice(**changes: object) -> SamplingRows:
    usual = SamplingRows(zeros(1), ints(0), zeros(1) + 1, zeros(1), np.zeros(1, np.uint64), ints(0))
    return replace(usual, **changes)  # type: ignore[arg-type]


def prepared(precision: Precision = Precision.INT8) -> Prepared:
    return OPS.prepare(zeros(2, 64), packed(precision=precision))


BAD: dict[str, tuple[str, Callable[[], object]]] = {
    "token too high": ("tokens", lambda: OPS.embed(packed(), ints(0, 20), 1.0)),
    "token negative": ("tokens", lambda: OPS.embed(pack_float(zeros(20, 3)), ints(-1), 1.0)),
    "tokens of 64 bits": ("tokens", lambda: OPS.embed(packed(), np.zeros(1, np.int64), 1.0)),
    "group of 8": ("group", lambda: OPS.embed(replace(packed(), group=8), ints(0), 1.0)),
    "scales too short": (
        "scales",
        lambda: OPS.embed(replace(packed(), scales=zeros(2, 1, 16)), ints(0), 1.0),
    ),
    "zero_offsets of another group": (
        "zero_offsets",
        lambda: OPS.embed(replace(packed(), zero_offsets=zeros(2, 4, 16)), ints(0), 1.0),
    ),
    "more outputs than codes": ("codes", lambda: OPS.embed(replace(packed(), out_features=33), ints(0), 1.0)),
    "no outputs": ("matrix", lambda: OPS.embed(replace(packed(), out_features=0), ints(), 1.0)),
    "norm of 20": ("x", lambda: OPS.norm(zeros(1, 20), zeros(20), 1e-6)),
    "norm of another width": ("weight", lambda: OPS.norm(zeros(1, 32), zeros(16), 1e-6)),
    "float64 rows": ("x", lambda: OPS.norm(zeros(1, 16).astype(np.float64), zeros(16), 1e-6)),
    "strided rows": ("x", lambda: OPS.norm(zeros(16, 32).T, zeros(16), 1e-6)),
    "add to fewer rows": ("x", lambda: OPS.add_norm(zeros(1, 16), zeros(2, 16), zeros(16), 1e-6)),
    "rows for another matrix": ("x", lambda: OPS.matmul(OPS.prepare(zeros(2, 32), packed()), packed())),
    "rows of another precision": ("x", lambda: OPS.matmul(prepared(Precision.INT16), packed())),
    "rows not prepared": ("x", lambda: OPS.matmul(zeros(2, 64), packed())),
    "float rows too narrow": ("x", lambda: OPS.matmul(zeros(2, 63), pack_float(zeros(20, 64)))),
    "odd gates": ("gate_up", lambda: OPS.gated_prepare(zeros(1, 65), Gate.GELU_TANH, packed())),
    "page above the pool": ("kv.rows", lambda: attention(kv(rows=ints(1, 4).reshape(1, 2)), spans())),
    "null page": ("kv.rows", lambda: attention(kv(rows=ints(1, 0).reshape(1, 2)), spans())),
    "page negative": ("kv.rows", lambda: rope(kv(rows=ints(1, -1).reshape(1, 2)), spans())),
    "row too high": ("rows", lambda: attention(kv(), spans(rows=ints(2)))),
    "row negative": ("rows", lambda: rope(kv(), spans(token_rows=ints(0, -1, 0)))),
    "past the row": ("positions", lambda: attention(kv(), spans(starts=ints(14)))),
    "start negative": ("positions", lambda: attention(kv(), spans(starts=ints(-1)))),
    "position past the row": ("positions", lambda: rope(kv(), spans(positions=ints(14, 15, 16)))),
    "clip after the start": ("clips", lambda: attention(kv(), spans(clips=ints(14)))),
    "clip negative": ("clips", lambda: attention(kv(), spans(clips=ints(-1)))),
    "clips for other spans": ("clips", lambda: attention(kv(), spans(clips=ints(0, 0)))),
    "stored for other tokens": ("stored", lambda: rope(kv(), spans(stored=np.ones(2, np.bool_)))),
    "position negative": ("positions", lambda: rope(kv(), spans(positions=ints(-1, 0, 1)))),
    "offsets short of the tokens": ("offsets", lambda: attention(kv(), spans(offsets=ints(0, 2)))),
    "offsets that fall": (
        "offsets",
        lambda: attention(kv(), spans(rows=ints(0, 0), starts=ints(0, 0), offsets=ints(0, 5, 3))),
    ),
    "layer too high": ("layer", lambda: attention(kv(), spans(), layer=2)),
    "layer negative": ("layer", lambda: rope(kv(), spans(), layer=-1)),
    "pages of another size": ("pages", lambda: attention(kv(page_size=4), spans())),
    "page size 0": ("pages", lambda: attention(kv(page_size=0), spans())),
    "pages strided within": ("pages", lambda: attention(kv(pages=TWO_HEADS[:, :, :, :, ::2]), spans())),
    "pages of float64": ("pages", lambda: attention(kv(pages=np.zeros((4, 2, 2, 8, 1, 16))), spans())),
    "heads that do not divide": (
        "shape",
        lambda: attention(kv(pages=TWO_HEADS), spans(), shape=replace(SHAPE, heads=3, kv_heads=2)),
    ),
    "kv heads of another model": (
        "shape",
        lambda: attention(kv(), spans(), shape=replace(SHAPE, kv_heads=2)),
    ),
    "window negative": ("window", lambda: attention(kv(), spans(), shape=replace(SHAPE, window=-1))),
    "qkv too narrow": ("qkv", lambda: rope(kv(), spans(), width=48)),
    "top-k negative": ("top_k", lambda: OPS.sample(zeros(1, 9), choice(top_k=ints(-1)))),
    "top-p above 1": ("top_p", lambda: OPS.sample(zeros(1, 9), choice(top_p=zeros(1) + 2))),
    "min-p NaN": ("min_p", lambda: OPS.sample(zeros(1, 9), choice(min_p=zeros(1) * np.nan))),
    "temperature negative": (
        "temperature",
        lambda: OPS.sample(zeros(1, 9), choice(temperature=zeros(1) - 1)),
    ),
    "fewer choices than rows": ("temperature", lambda: OPS.sample(zeros(2, 9), choice())),
    "no vocabulary": ("logits", lambda: OPS.sample(zeros(1, 0), choice())),
    "no vocabulary to score": ("logits", lambda: OPS.logprobs(zeros(1, 0), ints(0), 0)),
    "scored token beyond the vocabulary": ("tokens", lambda: OPS.logprobs(zeros(1, 9), ints(9), 1)),
    "more scored tokens than rows": ("tokens", lambda: OPS.logprobs(zeros(1, 9), ints(1, 2), 1)),
    "more alternatives than tokens": ("top_tokens", lambda: OPS.logprobs(zeros(1, 9), ints(1), 10)),
    "copy of page 0": ("source", lambda: OPS.copy_pages(kv(), 0, 1, 1)),
    "copy past the pool": ("target", lambda: OPS.copy_pages(kv(), 1, 4, 1)),
    "copy of more than a page": ("tokens", lambda: OPS.copy_pages(kv(), 1, 2, 9)),
    "threads 0": ("count", lambda: set_threads(0)),
    "isa unknown": ("mmx", lambda: set_isa("mmx")),
}


@pytest.mark.parametrize("what", BAD)
def test_a_wrong_argument_is_named(what: str) -> None:
    name, call = BAD[what]
    with pytest.raises(ValueError, match=name):
        call()


def test_read_only_pages_are_refused_for_writing_and_can_be_read() -> None:
    fixed = kv()
    fixed.pages.setflags(write=False)
    with pytest.raises(ValueError, match="pages"):
        rope(fixed, spans())
    attention(fixed, spans())


def test_a_window_does_not_need_the_pages_before_it() -> None:
    attention(kv(rows=ints(0, 2).reshape(1, 2)), spans(), shape=replace(SHAPE, window=4))
    with pytest.raises(ValueError, match=r"kv\.rows"):
        attention(kv(rows=ints(0, 2).reshape(1, 2)), spans(), shape=replace(SHAPE, window=7))


def test_a_clip_does_not_need_the_pages_before_it() -> None:
    attention(kv(rows=ints(0, 2).reshape(1, 2)), spans(clips=ints(8)))
    with pytest.raises(ValueError, match=r"kv\.rows"):
        attention(kv(rows=ints(0, 2).reshape(1, 2)), spans(clips=ints(7)))


def test_empty_inputs_give_empty_results() -> None:
    assert OPS.embed(packed(), ints(), 1.0).shape == (0, 64)
    assert OPS.matmul(OPS.prepare(zeros(0, 64), packed()), packed()).shape == (0, 20)
    assert OPS.norm(zeros(0, 16), zeros(16), 1e-6).shape == (0, 16)
    nothing = SpanRows(ints(), ints(), ints(0), ints(), ints())
    assert OPS.attention(zeros(0, 2, 16), SHAPE, kv(), 0, nothing).shape == (0, 32)
