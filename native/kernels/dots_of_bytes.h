#pragma once
// Dots of activation codes with weight codes, where one instruction adds four products of bytes to an int32
// (AVX-512 VNNI, AVX-VNNI).
//
// The instruction takes unsigned weights, which is why they are stored as code + 128. Accumulators start from
// the activation block's bias, -128 * sum of its codes, which cancels the 128. Nothing can saturate. With two
// planes, code = 254 * high + low, the accumulator of the high plane is multiplied by 254 and continues with
// the low plane.

namespace transom::TRANSOM_ISA {
namespace {

// Activation blocks in the form that dots read: here, as they are.
template <typename ActivationBlock>
const ActivationBlock* for_dots(const ActivationBlock* blocks, int64_t) {
    return blocks;
}

// acc[r][t] += dot of the Group weights at w[t] with the codes of row r. `stride` is the bytes from row to
// row.
template <int Rows, int Tiles, int Group>
TRANSOM_INLINE void add_dots(Ints (&acc)[Rows][Tiles], const uint8_t* const* w, const int8_t* codes,
                             int64_t stride) {
#pragma GCC unroll 8
    for (int k = 0; k < Group; k += 4) {
        Ints weights[Tiles];
        for (int t = 0; t < Tiles; ++t) weights[t] = load_weights(w[t] + k * tile_out);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Ints x = broadcast(load_as<int32_t>(codes + r * stride + k));
            for (int t = 0; t < Tiles; ++t) acc[r][t] = dot_bytes(acc[r][t], weights[t], x);
        }
    }
}

template <int Rows, int Tiles>
TRANSOM_INLINE void start_from_bias(Ints (&acc)[Rows][Tiles], const int32_t* bias, int64_t stride) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        const Ints b = broadcast_at(bias, r * stride);
        for (int t = 0; t < Tiles; ++t) acc[r][t] = b;
    }
}

// acc = dots of one weight group with the codes of Rows rows; `part` numbers the groups of 16 within a block.
template <int Group, int Rows, int Tiles>
TRANSOM_INLINE void dots(Ints (&acc)[Rows][Tiles], const uint8_t* const* w, const ActivationBlock8& x,
                         int part, int64_t stride) {
    start_from_bias(acc, &x.bias[Group == 32 ? 2 : part], stride);
    add_dots<Rows, Tiles, Group>(acc, w, x.codes + part * Group, stride);
}

template <int Group, int Rows, int Tiles>
TRANSOM_INLINE void dots(Ints (&acc)[Rows][Tiles], const uint8_t* const* w, const ActivationBlock16& x,
                         int part, int64_t stride) {
    const int which = Group == 32 ? 2 : part;
    start_from_bias(acc, &x.bias_high[which], stride);
    add_dots<Rows, Tiles, Group>(acc, w, x.high + part * Group, stride);
    const Ints step = broadcast(254);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        const Ints b = broadcast_at(&x.bias_low[which], r * stride);
        for (int t = 0; t < Tiles; ++t) acc[r][t] = add(multiply(acc[r][t], step), b);
    }
    add_dots<Rows, Tiles, Group>(acc, w, x.low + part * Group, stride);
}

}  // namespace
}  // namespace transom::TRANSOM_ISA
