#pragma once
// Dots of activation codes with weight codes, where one instruction adds two products of int16, exact in
// int32 (`madd` of AVX2 and SSE2, or the compiler's vectors).
//
// The byte instruction of these CPUs, `maddubs`, adds two products of bytes in int16 and saturates. Codes of
// 16 bits need no planes here: a sum of 32 products of 255 and 32258 fits int32. Weights are stored as code +
// 128; accumulators start from the bias that cancels the 128.

namespace transom::TRANSOM_ISA {
namespace {

// An activation block widened to int16. Of each four codes, the first and third come first, then the second
// and fourth: `split` takes the bytes of a weight word apart in the same order.
struct PairBlock {
    int16_t codes[32];
    float scale;
    int32_t bias[3];
    float sum[3];
    int32_t unused;
};

TRANSOM_INLINE void set_biases(const ActivationBlock8& from, PairBlock& to) {
    for (int i = 0; i < 3; ++i) to.bias[i] = from.bias[i];
}
TRANSOM_INLINE void set_biases(const ActivationBlock16& from, PairBlock& to) {
    for (int i = 0; i < 3; ++i) to.bias[i] = 254 * from.bias_high[i] + from.bias_low[i];
}
TRANSOM_INLINE int16_t code(const ActivationBlock8& from, int i) { return from.codes[i]; }
TRANSOM_INLINE int16_t code(const ActivationBlock16& from, int i) {
    return static_cast<int16_t>(254 * from.high[i] + from.low[i]);
}

// Activation blocks in the form that dots read: widened, in the scratch memory of this thread. A call of a
// matmul widens its rows once, for all its tiles.
template <typename ActivationBlock>
const PairBlock* for_dots(const ActivationBlock* blocks, int64_t count) {
    PairBlock* pairs = scratch<PairBlock>(Scratch::row, count);
    for (int64_t i = 0; i < count; ++i) {
        const ActivationBlock& from = blocks[i];
        PairBlock& to = pairs[i];
        for (int k = 0; k < 32; k += 4) {
            to.codes[k] = code(from, k);
            to.codes[k + 1] = code(from, k + 2);
            to.codes[k + 2] = code(from, k + 1);
            to.codes[k + 3] = code(from, k + 3);
        }
        to.scale = from.scale;
        set_biases(from, to);
        for (int s = 0; s < 3; ++s) to.sum[s] = from.sum[s];
    }
    return pairs;
}

// acc = dots of one weight group with the codes of Rows rows; `part` numbers the groups of 16 within a block.
template <int Group, int Rows, int Tiles>
TRANSOM_INLINE void dots(Ints (&acc)[Rows][Tiles], const uint8_t* const* w, const PairBlock& x, int part,
                         int64_t stride) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        for (int t = 0; t < Tiles; ++t) acc[r][t] = broadcast_at(&x.bias[Group == 32 ? 2 : part], r * stride);
    }
#pragma GCC unroll 8
    for (int k = 0; k < Group; k += 4) {
        Pairs weights[Tiles];
        for (int t = 0; t < Tiles; ++t) weights[t] = split(load_weights(w[t] + k * tile_out));
        const char* codes = reinterpret_cast<const char*>(x.codes + part * Group + k);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Ints even = broadcast(load_as<int32_t>(codes + r * stride));
            const Ints odd = broadcast(load_as<int32_t>(codes + r * stride + 4));
            for (int t = 0; t < Tiles; ++t) {
                acc[r][t] = dot_pairs(acc[r][t], weights[t].even, even);
                acc[r][t] = dot_pairs(acc[r][t], weights[t].odd, odd);
            }
        }
    }
}

#if defined(TRANSOM_SMALL_DOTS)
// Weight codes in [-32, 32]: with such codes, `maddubs` cannot saturate, and with int8 activations it is
// faster than pairs. Weights are loaded as code + 32, so the bias for code + 128 is divided by 4.
template <int Group, int Rows, int Tiles>
TRANSOM_INLINE void dots(Ints (&acc)[Rows][Tiles], const uint8_t* const* w, const ActivationBlock8& x,
                         int part, int64_t stride) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        const auto* bias = reinterpret_cast<const char*>(&x.bias[Group == 32 ? 2 : part]) + r * stride;
        for (int t = 0; t < Tiles; ++t) acc[r][t] = broadcast(load_as<int32_t>(bias) / 4);
    }
#pragma GCC unroll 4
    for (int k = 0; k < Group; k += 8) {
        Ints weights[Tiles][2];
        for (int t = 0; t < Tiles; ++t) {
            weights[t][0] = load_small_weights(w[t] + k * tile_out);
            weights[t][1] = load_small_weights(w[t] + (k + 4) * tile_out);
        }
        const int8_t* codes = x.codes + part * Group + k;
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Ints x_0 = broadcast(load_as<int32_t>(codes + r * stride));
            const Ints x_1 = broadcast(load_as<int32_t>(codes + r * stride + 4));
            for (int t = 0; t < Tiles; ++t)
                acc[r][t] = dot_small(acc[r][t], weights[t][0], x_0, weights[t][1], x_1);
        }
    }
}
#endif

}  // namespace
}  // namespace transom::TRANSOM_ISA
