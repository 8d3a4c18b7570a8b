#pragma once
// Dots of rows with weights where four bytes and four bytes make one sum in one instruction.
//
// It wants unsigned weights: they are stored as code + 128, and every accumulator starts from the record's
// bias, -128 * sum of codes. Nothing can saturate. With two planes, 254 * high + low, the accumulator of the
// high plane is multiplied and goes on to the low one.

namespace transom::TRANSOM_ISA {
namespace {

// Records as dots read them.
template <typename Record>
const Record* as_dotted(const Record* records, int64_t) {
    return records;
}

// acc[r][t] += dot of weights (group of 32 or 16 at w) with 4-byte runs of the rows' codes.
template <int Rows, int Tiles, int Group>
TRANSOM_INLINE void add_dots(Ints (&acc)[Rows][Tiles], const uint8_t* const* w, const int8_t* codes,
                             int64_t stride) {
#pragma GCC unroll 8
    for (int k = 0; k < Group; k += 4) {
        Ints weights[Tiles];
        for (int t = 0; t < Tiles; ++t) weights[t] = load_weights(w[t] + k * tile_out);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Ints x = all(load_as<int32_t>(codes + r * stride + k));
            for (int t = 0; t < Tiles; ++t) acc[r][t] = dot_bytes(acc[r][t], weights[t], x);
        }
    }
}

template <int Rows, int Tiles>
TRANSOM_INLINE void start(Ints (&acc)[Rows][Tiles], const int32_t* bias, int64_t stride) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        const Ints b = each(bias, r * stride);
        for (int t = 0; t < Tiles; ++t) acc[r][t] = b;
    }
}

template <int Group, int Rows, int Tiles>
TRANSOM_INLINE void dots(Ints (&acc)[Rows][Tiles], const uint8_t* const* w, const Record8& x, int part,
                         int64_t stride) {
    start(acc, &x.bias[Group == 32 ? 2 : part], stride);
    add_dots<Rows, Tiles, Group>(acc, w, x.codes + part * Group, stride);
}

template <int Group, int Rows, int Tiles>
TRANSOM_INLINE void dots(Ints (&acc)[Rows][Tiles], const uint8_t* const* w, const Record16& x, int part,
                         int64_t stride) {
    const int which = Group == 32 ? 2 : part;
    start(acc, &x.bias_high[which], stride);
    add_dots<Rows, Tiles, Group>(acc, w, x.high + part * Group, stride);
    const Ints step = all(254);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        const Ints b = each(&x.bias_low[which], r * stride);
        for (int t = 0; t < Tiles; ++t) acc[r][t] = add(multiply(acc[r][t], step), b);
    }
    add_dots<Rows, Tiles, Group>(acc, w, x.low + part * Group, stride);
}

}  // namespace
}  // namespace transom::TRANSOM_ISA
