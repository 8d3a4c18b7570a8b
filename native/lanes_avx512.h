#pragma once
// Arithmetic of numbers.h on 16 lanes. Included by *_avx512.cpp alone; internal linkage, as there.

#include <immintrin.h>

#include <cstdint>

#include "numbers.h"

namespace transom::avx512 {
namespace {

// A value that stays in its register. gcc 12 would rather load it again for every use, and loads are dear.
[[maybe_unused]] inline __m512 held(__m512 v) {
    asm("" : "+v"(v));
    return v;
}

// Unrolled at every level: gcc 12 else clears sums in memory first.
template <int Rows, int Columns>
inline __attribute__((always_inline)) void clear(__m512 (&sums)[Rows][Columns]) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < Columns; ++c) sums[r][c] = _mm512_setzero_ps();
    }
}

[[maybe_unused]] inline __mmask16 first(int64_t n) {
    return n >= 16 ? __mmask16(0xffff) : static_cast<__mmask16>((1u << (n < 0 ? 0 : n)) - 1);
}

// Lanes fold: j += j + 8, + 4, + 2, + 1.
[[maybe_unused]] inline float fold(__m512 v) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

[[maybe_unused]] inline __m512 exp(__m512 x) {
    const __mmask16 low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(exp_lowest), _CMP_LT_OQ);
    x = _mm512_min_ps(_mm512_set1_ps(exp_highest), x);  // a NaN in the second operand stays
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(log2e)),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-ln2_high), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-ln2_low), r);
    __m512 p = _mm512_set1_ps(exp_terms[0]);
    for (int i = 1; i < 6; ++i) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(exp_terms[i]));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    p = _mm512_add_ps(p, _mm512_set1_ps(1.0f));
    const __m512i bits =
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
    return _mm512_maskz_mul_ps(_mm512_knot(low), p, _mm512_castsi512_ps(bits));
}

[[maybe_unused]] inline __m512 softcapped(__m512 score, float cap) {
    const __m512 c = _mm512_set1_ps(cap), one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f);
    const __m512 e = exp(_mm512_mul_ps(two, _mm512_div_ps(score, c)));
    return _mm512_mul_ps(c, _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(e, one))));
}

// Sum of squares of n (a multiple of 16) elements, folded.
[[maybe_unused]] inline float squares(const float* x, int64_t n) {
    __m512 acc = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i += 16) {
        const __m512 v = _mm512_loadu_ps(x + i);
        acc = _mm512_fmadd_ps(v, v, acc);
    }
    return fold(acc);
}

// float32 to float16, clamped to the finite range; a NaN in the last operand stays.
[[maybe_unused]] inline __m256i to_half(__m512 v) {
    v = _mm512_min_ps(_mm512_set1_ps(half_highest), v);
    v = _mm512_max_ps(_mm512_set1_ps(-half_highest), v);
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

}  // namespace
}  // namespace transom::avx512
