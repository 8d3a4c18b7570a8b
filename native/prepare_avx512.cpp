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
    for (int64_t i = 0; i < dim; i += 16)
        lost |= _mm512_fpclass_ps_mask(_mm512_loadu_ps(x + i), nan_or_infinite);
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
    const float most = static_cast<float>(limit);
    const __m128 ratios =
        _mm_div_ps(_mm_setr_ps(amax, most, 1.0f, 1.0f), _mm_setr_ps(most, amax, 1.0f, 1.0f));
    *scale = _mm_cvtss_f32(ratios);
    const __m512 inverse = _mm512_broadcastss_ps(_mm_movehdup_ps(ratios));
    const __m512i bound = _mm512_set1_epi32(limit);
    return {codes_of(a, inverse, bound), codes_of(b, inverse, bound)};
}

// 32 codes as int8, in order.
__m256i narrow(const Codes& codes) {
    return _mm256_set_m128i(_mm512_cvtepi32_epi8(codes.b), _mm512_cvtepi32_epi8(codes.a));
}

// Sums of a plane's first and second 16 codes.
struct Sums {
    int32_t first, second;
    int32_t all() const { return first + second; }
};

// Of two planes at once.
void sum_halves(__m256i x, __m256i y, Sums& of_x, Sums& of_y) {
    const __m256i one = _mm256_set1_epi8(1), zero = _mm256_setzero_si256();
    const __m256i pairs =
        _mm256_hadd_epi32(_mm256_dpbusd_epi32(zero, one, x), _mm256_dpbusd_epi32(zero, one, y));
    const __m256i sums = _mm256_hadd_epi32(pairs, pairs);
    of_x = {_mm256_extract_epi32(sums, 0), _mm256_extract_epi32(sums, 4)};
    of_y = {_mm256_extract_epi32(sums, 1), _mm256_extract_epi32(sums, 5)};
}

void store_biases(const Sums& sums, int32_t* bias) {
    bias[0] = -128 * sums.first;
    bias[1] = -128 * sums.second;
    bias[2] = -128 * sums.all();
}

void store_sums(const Sums& sums, float* sum) {
    sum[0] = static_cast<float>(sums.first);
    sum[1] = static_cast<float>(sums.second);
    sum[2] = static_cast<float>(sums.all());
}

void write(const Codes& codes, float scale, Record8& record) {
    const __m256i plane = narrow(codes);
    Sums sums, same;
    sum_halves(plane, plane, sums, same);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(record.codes), plane);
    record.scale = scale;
    store_biases(sums, record.bias);
    store_sums(sums, record.sum);
    record.unused = 0;
}

// code = 254 * high + low with low in [-127, 126]. (n * 66053) >> 24 is n / 254 for 0 <= n <= 64643.
Codes high_plane(const Codes& codes) {
    const auto part = [](__m512i code) {
        const __m512i n = _mm512_add_epi32(code, _mm512_set1_epi32(127 + 127 * 254));
        const __m512i quotient = _mm512_srli_epi32(_mm512_mullo_epi32(n, _mm512_set1_epi32(66053)), 24);
        return _mm512_sub_epi32(quotient, _mm512_set1_epi32(127));
    };
    return {part(codes.a), part(codes.b)};
}

Codes low_plane(const Codes& codes, const Codes& high) {
    const __m512i step = _mm512_set1_epi32(254);
    return {_mm512_sub_epi32(codes.a, _mm512_mullo_epi32(high.a, step)),
            _mm512_sub_epi32(codes.b, _mm512_mullo_epi32(high.b, step))};
}

void write(const Codes& codes, float scale, Record16& record) {
    const Codes upper = high_plane(codes);
    const __m256i high = narrow(upper), low = narrow(low_plane(codes, upper));
    Sums h, l;
    sum_halves(high, low, h, l);
    record = Record16{};
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(record.high), high);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(record.low), low);
    record.scale = scale;
    store_biases(h, record.bias_high);
    store_biases(l, record.bias_low);
    store_sums({254 * h.first + l.first, 254 * h.second + l.second}, record.sum);
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
