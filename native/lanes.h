#pragma once
// 16 lanes, whatever registers the CPU has: the type that kernels are written over. Every file of kernels/ is
// compiled once for each instruction set, in a namespace of that name (TRANSOM_ISA), with the header below
// that fits. Lane j of a result depends on lane j of the arguments alone, by one rounded operation, so all
// instruction sets compute the same bits. lanes_portable.h documents each function.
//
//   Lanes    16 float32: + - * / round to nearest even
//   Ints     16 int32, exact
//   Bytes    32 int8
//   Doubles  16 float64
//   Mask     one bit, or all bits, of each of 16 lanes
//
// Internal linkage throughout: the linker must not mix functions that were compiled for different sets.

#include <cstdint>

#include "numbers.h"

#if defined(__AVX512VNNI__)
#include "lanes_avx512.h"
#elif defined(__AVX2__)
#include "lanes_avx2.h"
#else
#include "lanes_portable.h"
#endif

namespace transom::TRANSOM_ISA {
namespace {

// Unrolled at every level: otherwise gcc 12 clears the sums in memory first and then loads them.
template <int Rows, int Columns>
TRANSOM_INLINE void clear(Lanes (&sums)[Rows][Columns]) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < Columns; ++c) sums[r][c] = broadcast(0.0f);
    }
}

// exp of the specification: polynomial, clamped at 88, +0 below -87, NaN stays NaN.
[[maybe_unused]] inline Lanes exp(Lanes x) {
    const Mask low = below(x, broadcast(exp_lowest));
    x = lower(broadcast(exp_highest), x);  // NaN stays
    const Lanes n = rounded(x * broadcast(log2e));
    Lanes r = fma(n, broadcast(-ln2_high), x);
    r = fma(n, broadcast(-ln2_low), r);
    Lanes p = broadcast(exp_terms[0]);
    for (int i = 1; i < 6; ++i) p = fma(p, r, broadcast(exp_terms[i]));
    p = fma(p, r * r, r);
    p = p + broadcast(1.0f);
    return pick(low, broadcast(0.0f), p * power_of_two(n));
}

[[maybe_unused]] inline Lanes softcapped(Lanes score, float cap) {
    const Lanes c = broadcast(cap), one = broadcast(1.0f), two = broadcast(2.0f);
    const Lanes e = exp(two * (score / c));
    return c * (one - two / (e + one));
}

// The folded sum of squares of n elements, a multiple of 16.
[[maybe_unused]] inline float squares(const float* x, int64_t n) {
    Lanes acc = broadcast(0.0f);
    for (int64_t i = 0; i < n; i += lanes) {
        const Lanes v = load(x + i);
        acc = fma(v, v, acc);
    }
    return fold(acc);
}

// Stores as float16, clamped to the finite range; NaN stays NaN.
[[maybe_unused]] inline void store_half(uint16_t* to, Lanes v) {
    v = lower(broadcast(half_highest), v);
    store_as_half(to, higher(broadcast(-half_highest), v));
}

}  // namespace
}  // namespace transom::TRANSOM_ISA
