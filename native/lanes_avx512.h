#pragma once
// Lanes of one AVX-512 register. lanes_portable.h documents each function.

#include <immintrin.h>

#include <cstdint>

#include "numbers.h"

#define TRANSOM_BYTE_DOTS 1  // dot_bytes is one instruction

namespace transom::TRANSOM_ISA {
namespace {

using Lanes = __m512;
using Ints = __m512i;
using Bytes = __m256i;
using Mask = __mmask16;

struct Doubles {
    __m512d low, high;
};

// Sizes of blocks whose sums stay in the 32 registers of 512 bits: query heads x keys, and query heads x
// width (registers of values), of attention; rows x tiles of the matmuls. packed_few_rows: with up to so many
// rows, a block takes one tile.
constexpr int attention_heads = 4, attention_keys = 4, attention_width = 4;
constexpr int float_rows = 5, float_tiles = 4;
constexpr int packed_rows = 6, packed_tiles = 2, packed_few_rows = 8;

// Keeps a value in its register: gcc 12 would load it again for every use, and the loads would be the
// bottleneck.
TRANSOM_INLINE Lanes held(Lanes v) {
    asm("" : "+v"(v));
    return v;
}

// ---------------------------------------------------------------- masks

TRANSOM_INLINE Mask first(int64_t n) {
    return n >= 16 ? Mask(0xffff) : static_cast<Mask>((1u << (n < 0 ? 0 : n)) - 1);
}
TRANSOM_INLINE Mask between(int64_t begin, int64_t end) { return first(end) & ~first(begin); }
TRANSOM_INLINE Mask both(Mask a, Mask b) { return a & b; }
TRANSOM_INLINE Mask either(Mask a, Mask b) { return a | b; }
TRANSOM_INLINE uint32_t bits(Mask mask) { return mask; }

TRANSOM_INLINE Mask below(Lanes a, Lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
TRANSOM_INLINE Mask at_most(Lanes a, Lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
TRANSOM_INLINE Mask not_a_number(Lanes a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }

// ---------------------------------------------------------------- floats

TRANSOM_INLINE Lanes broadcast(float x) { return _mm512_set1_ps(x); }
TRANSOM_INLINE Lanes load(const float* from) { return _mm512_loadu_ps(from); }
TRANSOM_INLINE Lanes load(const float* from, int64_t n) { return _mm512_maskz_loadu_ps(first(n), from); }
TRANSOM_INLINE Lanes load(const uint16_t* halves) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
}
TRANSOM_INLINE void store(float* to, Lanes v) { _mm512_storeu_ps(to, v); }
TRANSOM_INLINE void store(float* to, Lanes v, int64_t n) { _mm512_mask_storeu_ps(to, first(n), v); }
TRANSOM_INLINE void store_as_half(uint16_t* to, Lanes v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

TRANSOM_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
TRANSOM_INLINE Lanes fms(Lanes a, Lanes b, Lanes c) { return _mm512_fmsub_ps(a, b, c); }
TRANSOM_INLINE Lanes lower(Lanes a, Lanes b) { return _mm512_min_ps(a, b); }
TRANSOM_INLINE Lanes higher(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
TRANSOM_INLINE Lanes absolute(Lanes v) { return _mm512_abs_ps(v); }
TRANSOM_INLINE Lanes pick(Mask mask, Lanes yes, Lanes no) { return _mm512_mask_mov_ps(no, mask, yes); }
TRANSOM_INLINE Lanes rounded(Lanes v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
TRANSOM_INLINE Lanes power_of_two(Lanes n) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}

TRANSOM_INLINE float lane_0(Lanes v) { return _mm512_cvtss_f32(v); }
TRANSOM_INLINE float highest_of(Lanes v) { return _mm512_reduce_max_ps(v); }

TRANSOM_INLINE float fold(Lanes v) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

TRANSOM_INLINE Lanes fold_to_8(Lanes a, Lanes b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
TRANSOM_INLINE Lanes fold_to_4(Lanes a, Lanes b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
TRANSOM_INLINE Lanes fold_to_2(Lanes a, Lanes b) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
TRANSOM_INLINE Lanes fold_to_1(Lanes a, Lanes b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

// Folds up to 4 x 4 vectors at once: 128-bit part r of the result holds the sums of row r. Always inlined,
// because otherwise all 16 vectors would go through memory.
template <int Rows>
TRANSOM_INLINE void fold(const Lanes (&v)[Rows][4], float (&sums)[Rows][4]) {
    const Lanes none = broadcast(0.0f);
    Lanes quad[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
        const Lanes low = fold_to_8(v[0][k], Rows > 1 ? v[Rows > 1 ? 1 : 0][k] : none);
        const Lanes high =
            Rows > 2 ? fold_to_8(v[Rows > 2 ? 2 : 0][k], Rows > 3 ? v[Rows > 3 ? 3 : 0][k] : none) : none;
        quad[k] = fold_to_4(low, high);
    }
    alignas(64) float folded[16];
    _mm512_store_ps(folded, fold_to_1(fold_to_2(quad[0], quad[1]), fold_to_2(quad[2], quad[3])));
    for (int r = 0; r < Rows; ++r) _mm_storeu_ps(sums[r], _mm_load_ps(folded + 4 * r));
}

// ---------------------------------------------------------------- float64

TRANSOM_INLINE Doubles no_doubles() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
TRANSOM_INLINE Doubles add(Doubles a, Lanes v) {
    return {_mm512_add_pd(a.low, _mm512_cvtps_pd(_mm512_castps512_ps256(v))),
            _mm512_add_pd(a.high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)))};
}
TRANSOM_INLINE void store(double* to, Doubles v) {
    _mm512_storeu_pd(to, v.low);
    _mm512_storeu_pd(to + 8, v.high);
}

// ---------------------------------------------------------------- integers

TRANSOM_INLINE Ints broadcast(int32_t x) { return _mm512_set1_epi32(x); }
TRANSOM_INLINE Ints count_from(int32_t x) {
    return _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                            _mm512_set1_epi32(x));
}
TRANSOM_INLINE Ints widen(const uint8_t* sixteen) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)));
}
TRANSOM_INLINE Ints to_ints(Lanes v) { return _mm512_cvtps_epi32(v); }
TRANSOM_INLINE Lanes to_floats(Ints v) { return _mm512_cvtepi32_ps(v); }
TRANSOM_INLINE void store(int32_t* to, Ints v) { _mm512_storeu_si512(to, v); }
TRANSOM_INLINE Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
TRANSOM_INLINE Ints subtract(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
TRANSOM_INLINE Ints multiply(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
TRANSOM_INLINE Ints top_byte(Ints v) { return _mm512_srli_epi32(v, 24); }
TRANSOM_INLINE Ints clamped(Ints v, Ints limit) {
    return _mm512_max_epi32(_mm512_min_epi32(v, limit), _mm512_sub_epi32(_mm512_setzero_si512(), limit));
}
TRANSOM_INLINE Ints pick(Mask mask, Ints yes, Ints no) { return _mm512_mask_mov_epi32(no, mask, yes); }

// ---------------------------------------------------------------- bytes

TRANSOM_INLINE Bytes narrow(Ints a, Ints b) {
    return _mm256_set_m128i(_mm512_cvtepi32_epi8(b), _mm512_cvtepi32_epi8(a));
}
TRANSOM_INLINE void store(int8_t* to, Bytes v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v); }
TRANSOM_INLINE void sum_halves(Bytes x, Bytes y, int32_t (&of_x)[2], int32_t (&of_y)[2]) {
    const __m256i one = _mm256_set1_epi8(1), zero = _mm256_setzero_si256();
    const __m256i pairs =
        _mm256_hadd_epi32(_mm256_dpbusd_epi32(zero, one, x), _mm256_dpbusd_epi32(zero, one, y));
    const __m256i sums = _mm256_hadd_epi32(pairs, pairs);
    of_x[0] = _mm256_extract_epi32(sums, 0);
    of_x[1] = _mm256_extract_epi32(sums, 4);
    of_y[0] = _mm256_extract_epi32(sums, 1);
    of_y[1] = _mm256_extract_epi32(sums, 5);
}

// Lane j: sum + the dot of its four unsigned bytes of weights with its four signed bytes of x.
TRANSOM_INLINE Ints load_weights(const uint8_t* from) { return _mm512_loadu_si512(from); }
TRANSOM_INLINE Ints dot_bytes(Ints sum, Ints weights, Ints x) { return _mm512_dpbusd_epi32(sum, weights, x); }

}  // namespace
}  // namespace transom::TRANSOM_ISA
