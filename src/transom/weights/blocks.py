"""Decodes quantized GGUF blocks to codes, scales and zero offsets, in numpy: the bits of native/packing.cpp.

value[n, k] = scale[n, k // group] * code[n, k] + zero_offset[n, k // group]. Source of the block layouts:
ggml-common.h of the ggml project.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transom.weights.gguf import BLOCKS, GgufTensor, TensorType

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
Blocks = NDArray[np.uint8]
"""`[blocks, bytes of a block]`."""


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """codes `[n, in]`, scales and zero_offsets `[n, in / group]`; of whole rows or of single blocks."""

    codes: I8
    scales: F32
    zero_offsets: F32 | None


@dataclass(frozen=True, slots=True)
class BlockFormat:
    group: int
    has_zero_offsets: bool
    decode: Callable[[Blocks], Decoded]


def decode_rows(tensor: GgufTensor) -> Decoded:
    """A whole matrix of a quantized type."""
    out, width = tensor.shape
    blocks = tensor.data.reshape(-1, BLOCKS[tensor.type][1])
    some = FORMATS[tensor.type].decode(blocks)
    zero_offsets = None if some.zero_offsets is None else some.zero_offsets.reshape(out, -1)
    return Decoded(some.codes.reshape(out, width), some.scales.reshape(out, -1), zero_offsets)


def _half(blocks: Blocks, at: int) -> F32:
    """The float16 at byte `at` of every block, `[blocks, 1]`."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


# One function per type. Where a block of 4 to 6 bits has no minimum, its codes count from the middle of their
# range (8, 16 or 32), which is subtracted here.


def _q8_0(blocks: Blocks) -> Decoded:
    return Decoded(blocks[:, 2:].view(np.int8), _half(blocks, 0), None)


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`[..., n]` to `[..., 2, n]`: the low halves, then the high halves."""
    return np.stack([packed & 15, packed >> 4], axis=-2)


def _four_bits(blocks: Blocks) -> NDArray[np.uint8]:
    """The 32 codes of a block of nibbles."""
    return _nibbles(blocks).reshape(-1, 32)


def _five_bits(blocks: Blocks) -> NDArray[np.uint8]:
    """The 32 codes of a block of fifth bits, in four bytes, and nibbles."""
    fifth = np.unpackbits(blocks[:, :4], axis=1, bitorder="little")
    codes: NDArray[np.uint8] = np.bitwise_or(_four_bits(blocks[:, 4:]), fifth << 4)
    return codes


def _q4_0(blocks: Blocks) -> Decoded:
    return Decoded(_four_bits(blocks[:, 2:]).view(np.int8) - np.int8(8), _half(blocks, 0), None)


def _q4_1(blocks: Blocks) -> Decoded:
    return Decoded(_four_bits(blocks[:, 4:]).view(np.int8), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Blocks) -> Decoded:
    return Decoded(_five_bits(blocks[:, 2:]).view(np.int8) - np.int8(16), _half(blocks, 0), None)


def _q5_1(blocks: Blocks) -> Decoded:
    return Decoded(_five_bits(blocks[:, 4:]).view(np.int8), _half(blocks, 0), _half(blocks, 2))


def _q4_k(blocks: Blocks) -> Decoded:
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256).view(np.int8)
    return Decoded(codes, *_eight_groups(blocks))


def _q5_k(blocks: Blocks) -> Decoded:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    # Bit g of byte i is the fifth bit of element i of group g.
    fifth = np.unpackbits(blocks[:, 16:48, np.newaxis], axis=2, bitorder="little").transpose(0, 2, 1)
    return Decoded((low | fifth << 4).reshape(-1, 256).view(np.int8), *_eight_groups(blocks))


def _eight_groups(blocks: Blocks) -> tuple[F32, F32]:
    """Scales and zero_offsets `[blocks, 8]` at the beginning of a block of Q4_K or Q5_K."""
    # Eight pairs (scale, minimum) of 6 bits in 12 bytes: the first four pairs in whole bytes; their top bits
    # complete the nibbles of the last four. ggml subtracts the minimum; a zero offset is added.
    first, second, nibbles = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.hstack([first & 63, nibbles & 15 | (first >> 6) << 4]).astype(np.float32)
    zero_offsets = np.hstack([second & 63, nibbles >> 4 | (second >> 6) << 4]).astype(np.float32)
    return _half(blocks, 0) * scales, -(_half(blocks, 2) * zero_offsets)


def _q6_k(blocks: Blocks) -> Decoded:
    # Two halves of 128 elements, each four groups of 32: 64 bytes with the low four bits of two groups each,
    # then 32 bytes with the upper two bits of one element of each group.
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    codes = (low | high << 4).reshape(-1, 256).view(np.int8) - np.int8(32)
    return Decoded(codes, _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32), None)


FORMATS: Mapping[TensorType, BlockFormat] = {
    TensorType.Q8_0: BlockFormat(32, False, _q8_0),
    TensorType.Q4_0: BlockFormat(32, False, _q4_0),
    TensorType.Q4_1: BlockFormat(32, True, _q4_1),
    TensorType.Q5_0: BlockFormat(32, False, _q5_0),
    TensorType.Q5_1: BlockFormat(32, True, _q5_1),
    TensorType.Q4_K: BlockFormat(32, True, _q4_k),
    TensorType.Q5_K: BlockFormat(32, True, _q5_k),
    TensorType.Q6_K: BlockFormat(16, False, _q6_k),
}


def expand_floats(tensor: GgufTensor) -> F32:
    """A tensor of a float type, as float32 in its own shape."""
    match tensor.type:
        case TensorType.F32:
            values = tensor.data.view("<f4")
        case TensorType.F16:
            values = tensor.data.view("<f2").astype(np.float32)
        case TensorType.BF16:
            # A bfloat16 is the upper half of a float32.
            values = (tensor.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
        case _:
            raise tensor.error(f"type {tensor.type.name}, where floats are expected")
    return values.astype(np.float32).reshape(tensor.shape)


def expand(tensor: GgufTensor) -> F32:
    """Any matrix as float32 `[out, in]`. The product is rounded before the offset is added, as in ggml."""
    if tensor.type not in FORMATS:
        return expand_floats(tensor)
    decoded = decode_rows(tensor)
    group = FORMATS[tensor.type].group
    values = np.repeat(decoded.scales, group, axis=1) * decoded.codes
    return values if decoded.zero_offsets is None else values + np.repeat(decoded.zero_offsets, group, axis=1)
