#pragma once
// Dots of rows with weights where two int16 and two int16 make one sum, exact in int32.
//
// Multiplying bytes instead, two products to a sum of 16 bits, would saturate. Codes of 16 bits need no
// planes here: 32 products of 255 and 32258 are within int32. Weights are stored as code + 128; sums start
// from what takes that back.

namespace transom::TRANSOM_ISA {
namespace {

// An activation group: of each four codes the first and third, then the second and fourth.
struct PairRecord {
    int16_t codes[32];
    float scale;
    int32_t bias[3];
    float sum[3];
    int32_t unused;
};

TRANSOM_INLINE void set_biases(const Record8& from, PairRecord& to) {
    for (int i = 0; i < 3; ++i) to.bias[i] = from.bias[i];
}
TRANSOM_INLINE void set_biases(const Record16& from, PairRecord& to) {
    for (int i = 0; i < 3; ++i) to.bias[i] = 254 * from.bias_high[i] + from.bias_low[i];
}
TRANSOM_INLINE int16_t code(const Record8& from, int i) { return from.codes[i]; }
TRANSOM_INLINE int16_t code(const Record16& from, int i) {
    return static_cast<int16_t>(254 * from.high[i] + from.low[i]);
}

// Records as dots read them, in this thread's memory.
template <typename Record>
const PairRecord* as_dotted(const Record* records, int64_t count) {
    PairRecord* pairs = scratch<PairRecord>(Scratch::row, count);
    for (int64_t i = 0; i < count; ++i) {
        const Record& from = records[i];
        PairRecord& to = pairs[i];
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

template <int Group, int Rows, int Tiles>
TRANSOM_INLINE void dots(Ints (&acc)[Rows][Tiles], const uint8_t* const* w, const PairRecord& x, int part,
                         int64_t stride) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        for (int t = 0; t < Tiles; ++t) acc[r][t] = each(&x.bias[Group == 32 ? 2 : part], r * stride);
    }
#pragma GCC unroll 8
    for (int k = 0; k < Group; k += 4) {
        Pairs weights[Tiles];
        for (int t = 0; t < Tiles; ++t) weights[t] = split(load_weights(w[t] + k * tile_out));
        const char* codes = reinterpret_cast<const char*>(x.codes + part * Group + k);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Ints even = all(load_as<int32_t>(codes + r * stride));
            const Ints odd = all(load_as<int32_t>(codes + r * stride + 4));
            for (int t = 0; t < Tiles; ++t) {
                acc[r][t] = dot_pairs(acc[r][t], weights[t].even, even);
                acc[r][t] = dot_pairs(acc[r][t], weights[t].odd, odd);
            }
        }
    }
}

#if defined(TRANSOM_SMALL_DOTS)
// Of weights of 6 bits products of bytes do fit: with 8-bit codes that is faster. The record's bias is for
// weights stored as code + 128; here they are code + 32.
template <int Group, int Rows, int Tiles>
TRANSOM_INLINE void dots(Ints (&acc)[Rows][Tiles], const uint8_t* const* w, const Record8& x, int part,
                         int64_t stride) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        const auto* bias = reinterpret_cast<const char*>(&x.bias[Group == 32 ? 2 : part]) + r * stride;
        for (int t = 0; t < Tiles; ++t) acc[r][t] = all(load_as<int32_t>(bias) / 4);
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
            const Ints x_0 = all(load_as<int32_t>(codes + r * stride));
            const Ints x_1 = all(load_as<int32_t>(codes + r * stride + 4));
            for (int t = 0; t < Tiles; ++t)
                acc[r][t] = dot_small(acc[r][t], weights[t][0], x_0, weights[t][1], x_1);
        }
    }
}
#endif

}  // namespace
}  // namespace transom::TRANSOM_ISA
