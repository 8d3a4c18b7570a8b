#if defined(__x86_64__)
#include <limits>

#include "avx512.h"
#include "lanes_avx512.h"

namespace transom::avx512 {
namespace {

// 32 codes as two vectors of int32.
struct Codes {
    __m512i a, b;
};

bool all_finite(const float* x, int64_t dim) {
    constexpr int nan_or_infinite = 0x01 | 0x08 | 0x10 | 0x80;
    __mmask16 lost = 0;
    for (int64_t i = 0; i < dim; i += 16) lost |= _mm512_fpclass_ps_mask(_mm512_loadu_ps(x + i), nan_or_infinite);
    return lost == 0;
}

__m512i codes_of(__m512 x, __m512 inverse, __m512i limit) {
    const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
    return _mm512_max_epi32(_mm512_min_epi32(code, limit), _mm512_sub_epi32(_mm512_setzero_si512(), limit));
}

// Codes of a group of a finite row, and its scale.
Codes quantize(const float* x, int limit, float* scale) {
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    const float amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    if (amax < smallest_amax) {
        *scale = 0.0f;
        return {_mm512_setzero_si512(), _mm512_setzero_si512()};
    }
    *scale = amax / static_cast<float>(limit);
    const __m512 inverse = _mm512_set1_ps(static_cast<float>(limit) / amax);
    const __m512i bound = _mm512_set1_epi32(limit);
    return {codes_of(a, inverse, bound), codes_of(b, inverse, bound)};
}

void store8(int8_t* to, const Codes& codes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(codes.a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16), _mm512_cvtepi32_epi8(codes.b));
}

void biases(const Codes& codes, int32_t* bias) {
    bias[0] = -128 * _mm512_reduce_add_epi32(codes.a);
    bias[1] = -128 * _mm512_reduce_add_epi32(codes.b);
    bias[2] = bias[0] + bias[1];
}

void write(const Codes& codes, float scale, Record8& record) {
    store8(record.codes, codes);
    record.scale = scale;
    biases(codes, record.bias);
    for (int i = 0; i < 3; ++i) record.sum[i] = static_cast<float>(record.bias[i] / -128);
    record.unused = 0;
}

// code = 254 * high + low with low in [-127, 126]: an exact quotient by a 32-bit reciprocal is not needed,
// as |code| < 2^15 and a float32 division by 254 is off by less than 2^-15.
Codes high_plane(const Codes& codes) {
    const __m512 step = _mm512_set1_ps(254.0f), half = _mm512_set1_ps(127.0f);
    const auto part = [&](__m512i code) {
        const __m512 shifted = _mm512_add_ps(_mm512_cvtepi32_ps(code), half);
        return _mm512_cvt_roundps_epi32(_mm512_div_ps(shifted, step), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    };
    return {part(codes.a), part(codes.b)};
}

Codes low_plane(const Codes& codes, const Codes& high) {
    const __m512i step = _mm512_set1_epi32(254);
    return {_mm512_sub_epi32(codes.a, _mm512_mullo_epi32(high.a, step)),
            _mm512_sub_epi32(codes.b, _mm512_mullo_epi32(high.b, step))};
}

void write(const Codes& codes, float scale, Record16& record) {
    const Codes high = high_plane(codes), low = low_plane(codes, high);
    store8(record.high, high);
    store8(record.low, low);
    record.scale = scale;
    biases(high, record.bias_high);
    biases(low, record.bias_low);
    for (int i = 0; i < 3; ++i) {
        record.sum[i] = static_cast<float>(254 * (record.bias_high[i] / -128) + record.bias_low[i] / -128);
    }
    for (int i = 0; i < 6; ++i) record.unused[i] = 0;
}

template <typename Record>
void quantize_groups(const float* x, int64_t dim, int limit, Record* records) {
    const bool finite = all_finite(x, dim);
    for (int64_t g = 0; g < dim / 32; ++g) {
        Codes codes{_mm512_setzero_si512(), _mm512_setzero_si512()};
        float scale = std::numeric_limits<float>::quiet_NaN();
        if (finite) codes = quantize(x + 32 * g, limit, &scale);
        write(codes, scale, records[g]);
    }
}

}  // namespace

void quantize_row(const float* x, int64_t dim, const Quantize& q, int64_t row) {
    const int64_t first = row * (dim / 32);
    if (q.limit == 127) return quantize_groups(x, dim, q.limit, static_cast<Record8*>(q.records) + first);
    quantize_groups(x, dim, q.limit, static_cast<Record16*>(q.records) + first);
}

void prepare(const Prepare& a, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) quantize_row(a.x + m * a.dim, a.dim, a.quantize, m);
}

}  // namespace transom::avx512

#endif
