#if defined(__x86_64__)
#include <limits>

#include "avx512.h"
#include "lanes_avx512.h"

namespace transom::avx512 {
namespace {

__m512i ids_from(int64_t i) {
    return _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                            _mm512_set1_epi32(static_cast<int32_t>(i)));
}

// Per lane the highest so far and the first 16 elements it was seen in. Several, to hide latencies.
struct Best {
    __m512 value = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    __m512i at = _mm512_setzero_si512();
    __mmask16 lost = 0;

    void see(__m512 v, __mmask16 mask, int64_t i) {
        lost |= _mm512_mask_cmp_ps_mask(mask, v, v, _CMP_UNORD_Q);
        const __mmask16 higher = _mm512_mask_cmp_ps_mask(mask, v, value, _CMP_GT_OQ);
        value = _mm512_mask_mov_ps(value, higher, v);
        at = _mm512_mask_mov_epi32(at, higher, ids_from(i));
    }
};

}  // namespace

void highest(const float* x, int64_t n, float* value, int32_t* id) {
    constexpr int64_t chains = 4;
    Best best[chains];
    int64_t i = 0;
    for (; i + 16 * chains <= n; i += 16 * chains) {
        for (int64_t c = 0; c < chains; ++c) best[c].see(_mm512_loadu_ps(x + i + 16 * c), 0xffff, i + 16 * c);
    }
    for (; i < n; i += 16) best[0].see(_mm512_maskz_loadu_ps(first(n - i), x + i), first(n - i), i);
    *value = -std::numeric_limits<float>::infinity();
    *id = 0;
    __mmask16 lost = 0;
    for (const Best& b : best) {
        *value = std::fmax(*value, _mm512_reduce_max_ps(b.value));
        lost |= b.lost;
    }
    uint32_t lowest = UINT32_MAX;
    for (const Best& b : best) {
        const __mmask16 top = _mm512_cmp_ps_mask(b.value, _mm512_set1_ps(*value), _CMP_EQ_OQ);
        const uint32_t here = _mm512_mask_reduce_min_epu32(top, b.at);
        if (top && here < lowest) lowest = here;
    }
    *id = lowest == UINT32_MAX ? 0 : static_cast<int32_t>(lowest);
    if (lost) *value = std::numeric_limits<float>::quiet_NaN();
}

double sum_exp(const float* x, int64_t n, float max, float temperature) {
    __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();  // lanes 0-7 and 8-15
    const __m512 top = _mm512_set1_ps(max), t = _mm512_set1_ps(temperature);
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 mask = first(n - i);
        __m512 d = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), top);
        if (temperature != 1.0f) d = _mm512_div_ps(d, t);
        const __m512 e = _mm512_maskz_mov_ps(mask, exp(d));
        low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(e)));
        high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(e, 1)));
    }
    alignas(64) double lane[16];
    _mm512_store_pd(lane, low);
    _mm512_store_pd(lane + 8, high);
    return transom::fold(lane);
}

int64_t collect(const float* x, int64_t n, float low, float high, Weighed* out) {
    const __m512 from = _mm512_set1_ps(low), to = _mm512_set1_ps(high);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += 16) {
        const __m512 v = _mm512_maskz_loadu_ps(first(n - i), x + i);
        __mmask16 in = _mm512_mask_cmp_ps_mask(first(n - i), v, from, _CMP_GE_OQ);
        in = _mm512_mask_cmp_ps_mask(in, v, to, _CMP_LT_OQ);
        for (uint32_t bits = in; bits; bits &= bits - 1) {
            const int64_t at = i + __builtin_ctz(bits);
            out[count++] = {x[at], static_cast<int32_t>(at)};
        }
    }
    return count;
}

}  // namespace transom::avx512

#endif
