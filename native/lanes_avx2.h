#pragma once
// Lanes of two AVX2 registers, with FMA and F16C. lanes_portable.h documents each function.

#include <immintrin.h>

#include <cstdint>

#include "numbers.h"

#if defined(__AVXVNNI__)
#define TRANSOM_BYTE_DOTS 1  // dot_bytes is one instruction for each register
#endif

namespace transom::TRANSOM_ISA {
namespace {

struct Lanes {
    __m256 low, high;
};

struct Ints {
    __m256i low, high;
};

struct Mask {
    __m256i low, high;  // all bits of a lane, or none
};

struct Doubles {
    __m256d quarter[4];
};

using Bytes = __m256i;

// Sizes of blocks whose sums stay in the 16 registers of 256 bits: query heads x keys, and query heads x
// width (registers of values), of attention; rows x tiles of the matmuls. packed_few_rows: with up to so many
// rows, a block takes one tile.
constexpr int attention_heads = 2, attention_keys = 2, attention_width = 2;
constexpr int float_rows = 6, float_tiles = 1;
constexpr int packed_rows = 4, packed_tiles = 1, packed_few_rows = 4;

TRANSOM_INLINE Lanes held(Lanes v) {
    asm("" : "+x"(v.low), "+x"(v.high));
    return v;
}

// ---------------------------------------------------------------- masks

TRANSOM_INLINE Mask mask_of(Lanes v) { return {_mm256_castps_si256(v.low), _mm256_castps_si256(v.high)}; }
TRANSOM_INLINE __m256 low_of(Mask mask) { return _mm256_castsi256_ps(mask.low); }
TRANSOM_INLINE __m256 high_of(Mask mask) { return _mm256_castsi256_ps(mask.high); }

TRANSOM_INLINE Mask first(int64_t n) {
    const __m256i count = _mm256_set1_epi32(n > 16 ? 16 : static_cast<int32_t>(n));
    return {_mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
            _mm256_cmpgt_epi32(count, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15))};
}
TRANSOM_INLINE Mask between(int64_t begin, int64_t end) {
    const Mask before = first(begin), until = first(end);
    return {_mm256_andnot_si256(before.low, until.low), _mm256_andnot_si256(before.high, until.high)};
}
TRANSOM_INLINE Mask both(Mask a, Mask b) {
    return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
TRANSOM_INLINE Mask either(Mask a, Mask b) {
    return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
TRANSOM_INLINE uint32_t bits(Mask mask) {
    return static_cast<uint32_t>(_mm256_movemask_ps(low_of(mask))) |
           static_cast<uint32_t>(_mm256_movemask_ps(high_of(mask))) << 8;
}

TRANSOM_INLINE Mask below(Lanes a, Lanes b) {
    return mask_of({_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)});
}
TRANSOM_INLINE Mask at_most(Lanes a, Lanes b) {
    return mask_of({_mm256_cmp_ps(a.low, b.low, _CMP_LE_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LE_OQ)});
}
TRANSOM_INLINE Mask not_a_number(Lanes a) {
    return mask_of({_mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q), _mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q)});
}

// ---------------------------------------------------------------- floats

TRANSOM_INLINE Lanes operator+(Lanes a, Lanes b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
TRANSOM_INLINE Lanes operator-(Lanes a, Lanes b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
TRANSOM_INLINE Lanes operator*(Lanes a, Lanes b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
TRANSOM_INLINE Lanes operator/(Lanes a, Lanes b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}

TRANSOM_INLINE Lanes broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TRANSOM_INLINE Lanes load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
TRANSOM_INLINE Lanes load(const float* from, int64_t n) {
    if (n >= 16) return load(from);
    const Mask mask = first(n);
    return {_mm256_maskload_ps(from, mask.low), _mm256_maskload_ps(from + 8, mask.high)};
}
TRANSOM_INLINE __m128i eight_halves(const uint16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
TRANSOM_INLINE Lanes load(const uint16_t* halves) {
    return {_mm256_cvtph_ps(eight_halves(halves)), _mm256_cvtph_ps(eight_halves(halves + 8))};
}
TRANSOM_INLINE void store(float* to, Lanes v) {
    _mm256_storeu_ps(to, v.low);
    _mm256_storeu_ps(to + 8, v.high);
}
TRANSOM_INLINE void store(float* to, Lanes v, int64_t n) {
    if (n >= 16) return store(to, v);
    const Mask mask = first(n);
    _mm256_maskstore_ps(to, mask.low, v.low);
    _mm256_maskstore_ps(to + 8, mask.high, v.high);
}
TRANSOM_INLINE void store_as_half(uint16_t* to, Lanes v) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(v.low, nearest));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm256_cvtps_ph(v.high, nearest));
}

TRANSOM_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
TRANSOM_INLINE Lanes fms(Lanes a, Lanes b, Lanes c) {
    return {_mm256_fmsub_ps(a.low, b.low, c.low), _mm256_fmsub_ps(a.high, b.high, c.high)};
}
TRANSOM_INLINE Lanes lower(Lanes a, Lanes b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
TRANSOM_INLINE Lanes higher(Lanes a, Lanes b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
TRANSOM_INLINE Lanes absolute(Lanes v) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, v.low), _mm256_andnot_ps(sign, v.high)};
}
TRANSOM_INLINE Lanes pick(Mask mask, Lanes yes, Lanes no) {
    return {_mm256_blendv_ps(no.low, yes.low, low_of(mask)),
            _mm256_blendv_ps(no.high, yes.high, high_of(mask))};
}
TRANSOM_INLINE Lanes rounded(Lanes v) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(v.low, nearest), _mm256_round_ps(v.high, nearest)};
}
TRANSOM_INLINE __m256 power_of_two(__m256 n) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
TRANSOM_INLINE Lanes power_of_two(Lanes n) { return {power_of_two(n.low), power_of_two(n.high)}; }

TRANSOM_INLINE float lane_0(Lanes v) { return _mm256_cvtss_f32(v.low); }
TRANSOM_INLINE float highest_of(Lanes v) {
    const __m256 eight = _mm256_max_ps(v.low, v.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

TRANSOM_INLINE float fold(Lanes v) {
    const __m256 eight = _mm256_add_ps(v.low, v.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Folds a to four lanes, in the lower half, and b, in the upper half.
TRANSOM_INLINE __m256 fold_to_4(Lanes a, Lanes b) {
    const __m256 x = _mm256_add_ps(a.low, a.high), y = _mm256_add_ps(b.low, b.high);
    return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
}

template <int Rows>
TRANSOM_INLINE void fold(const Lanes (&v)[Rows][2], float (&sums)[Rows][2]) {
    const __m256d x = _mm256_castps_pd(fold_to_4(v[0][0], v[0][1]));
    const __m256d y = Rows > 1 ? _mm256_castps_pd(fold_to_4(v[Rows - 1][0], v[Rows - 1][1])) : x;
    const __m256 two =
        _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    const __m256 one = _mm256_add_ps(two, _mm256_movehdup_ps(two));
    alignas(32) float folded[8];
    _mm256_store_ps(folded, one);
    for (int r = 0; r < Rows; ++r) {
        sums[r][0] = folded[2 * r];
        sums[r][1] = folded[2 * r + 4];
    }
}

// ---------------------------------------------------------------- float64

TRANSOM_INLINE Doubles no_doubles() {
    const __m256d none = _mm256_setzero_pd();
    return {{none, none, none, none}};
}
TRANSOM_INLINE Doubles add(Doubles a, Lanes v) {
    const __m128 quarters[4] = {_mm256_castps256_ps128(v.low), _mm256_extractf128_ps(v.low, 1),
                                _mm256_castps256_ps128(v.high), _mm256_extractf128_ps(v.high, 1)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) a.quarter[i] = _mm256_add_pd(a.quarter[i], _mm256_cvtps_pd(quarters[i]));
    return a;
}
TRANSOM_INLINE void store(double* to, Doubles v) {
    for (int i = 0; i < 4; ++i) _mm256_storeu_pd(to + 4 * i, v.quarter[i]);
}

// ---------------------------------------------------------------- integers

TRANSOM_INLINE Ints broadcast(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
TRANSOM_INLINE Ints add(Ints a, Ints b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
TRANSOM_INLINE Ints subtract(Ints a, Ints b) {
    return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}
TRANSOM_INLINE Ints multiply(Ints a, Ints b) {
    return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
}
TRANSOM_INLINE Ints count_from(int32_t x) {
    return add({_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)},
               broadcast(x));
}
TRANSOM_INLINE Ints widen(const uint8_t* sixteen) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(sixteen))),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(sixteen + 8)))};
}
TRANSOM_INLINE Ints to_ints(Lanes v) { return {_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high)}; }
TRANSOM_INLINE Lanes to_floats(Ints v) { return {_mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high)}; }
TRANSOM_INLINE void store(int32_t* to, Ints v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), v.high);
}
TRANSOM_INLINE Ints top_byte(Ints v) { return {_mm256_srli_epi32(v.low, 24), _mm256_srli_epi32(v.high, 24)}; }
TRANSOM_INLINE Ints clamped(Ints v, Ints limit) {
    const Ints lowest = subtract(broadcast(0), limit);
    return {_mm256_max_epi32(_mm256_min_epi32(v.low, limit.low), lowest.low),
            _mm256_max_epi32(_mm256_min_epi32(v.high, limit.high), lowest.high)};
}
TRANSOM_INLINE Ints pick(Mask mask, Ints yes, Ints no) {
    return {_mm256_blendv_epi8(no.low, yes.low, mask.low), _mm256_blendv_epi8(no.high, yes.high, mask.high)};
}

// ---------------------------------------------------------------- bytes

TRANSOM_INLINE Bytes narrow(Ints a, Ints b) {
    const __m256i apart =
        _mm256_packs_epi16(_mm256_packs_epi32(a.low, a.high), _mm256_packs_epi32(b.low, b.high));
    return _mm256_permutevar8x32_epi32(apart, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
TRANSOM_INLINE void store(int8_t* to, Bytes v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v); }
TRANSOM_INLINE __m256i sum_fours(Bytes v) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), v), _mm256_set1_epi16(1));
}
TRANSOM_INLINE void sum_halves(Bytes x, Bytes y, int32_t (&of_x)[2], int32_t (&of_y)[2]) {
    const __m256i pairs = _mm256_hadd_epi32(sum_fours(x), sum_fours(y));
    const __m256i sums = _mm256_hadd_epi32(pairs, pairs);
    of_x[0] = _mm256_extract_epi32(sums, 0);
    of_x[1] = _mm256_extract_epi32(sums, 4);
    of_y[0] = _mm256_extract_epi32(sums, 1);
    of_y[1] = _mm256_extract_epi32(sums, 5);
}

TRANSOM_INLINE Ints load_weights(const uint8_t* from) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32))};
}

#if defined(TRANSOM_BYTE_DOTS)
TRANSOM_INLINE Ints dot_bytes(Ints sum, Ints weights, Ints x) {
    return {_mm256_dpbusd_avx_epi32(sum.low, weights.low, x.low),
            _mm256_dpbusd_avx_epi32(sum.high, weights.high, x.high)};
}
#else
struct Pairs {
    Ints even, odd;
};
TRANSOM_INLINE Pairs split(Ints weights) {
    const __m256i bytes_0_2 = _mm256_set1_epi16(0xff);
    return {{_mm256_and_si256(weights.low, bytes_0_2), _mm256_and_si256(weights.high, bytes_0_2)},
            {_mm256_srli_epi16(weights.low, 8), _mm256_srli_epi16(weights.high, 8)}};
}
// Sums are held in registers: otherwise gcc 12 computes all products of a group, in memory, before it adds
// them.
TRANSOM_INLINE Ints dot_pairs(Ints sum, Ints a, Ints b) {
    sum.low = _mm256_add_epi32(sum.low, _mm256_madd_epi16(a.low, b.low));
    sum.high = _mm256_add_epi32(sum.high, _mm256_madd_epi16(a.high, b.high));
    asm("" : "+x"(sum.low), "+x"(sum.high));
    return sum;
}

#define TRANSOM_SMALL_DOTS 1
// Loads weights whose codes are in [-32, 32], as code + 32.
TRANSOM_INLINE Ints load_small_weights(const uint8_t* from) {
    const __m256i shift = _mm256_set1_epi8(128 - 32);
    const Ints weights = load_weights(from);
    return {_mm256_sub_epi8(weights.low, shift), _mm256_sub_epi8(weights.high, shift)};
}
TRANSOM_INLINE __m256i dot_small(__m256i sum, __m256i weights_0, __m256i x_0, __m256i weights_1,
                                 __m256i x_1) {
    const __m256i pairs =
        _mm256_add_epi16(_mm256_maddubs_epi16(weights_0, x_0), _mm256_maddubs_epi16(weights_1, x_1));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    asm("" : "+x"(sum));
    return sum;
}
// Lane j: sum + two dots of four bytes. `maddubs` and the addition make sums of four products of at most 64 *
// 127, which fit int16.
TRANSOM_INLINE Ints dot_small(Ints sum, Ints weights_0, Ints x_0, Ints weights_1, Ints x_1) {
    return {dot_small(sum.low, weights_0.low, x_0.low, weights_1.low, x_1.low),
            dot_small(sum.high, weights_0.high, x_0.high, weights_1.high, x_1.high)};
}
// Whether the codes of all 64 weights are in [-32, 32].
TRANSOM_INLINE bool are_small(const uint8_t* from) {
    const Ints weights = load_small_weights(from);
    const __m256i most = _mm256_max_epu8(weights.low, weights.high), limit = _mm256_set1_epi8(64);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(most, limit), limit)) == -1;
}
#endif

}  // namespace
}  // namespace transom::TRANSOM_ISA
