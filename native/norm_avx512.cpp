#if defined(__x86_64__)
#include "avx512.h"
#include "lanes_avx512.h"
#include "pool.h"

namespace transom::avx512 {
namespace {

template <typename Store>
void norm_row(const float* x, const Norm& a, Store store) {
    const __m512 r = _mm512_set1_ps(rms_factor(squares(x, a.dim), a.dim, a.eps));
    for (int64_t i = 0; i < a.dim; i += 16) {
        store(i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), r), _mm512_loadu_ps(a.weight + i)));
    }
}

}  // namespace

void norm(const Norm& a, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
        float* out = a.out + m * a.dim;
        norm_row(a.x + m * a.dim, a, [&](int64_t i, __m512 v) { _mm512_storeu_ps(out + i, v); });
    }
}

void norm_prepare(const Norm& a, int64_t begin, int64_t end) {
    float* row = scratch<float>(Scratch::row, a.dim);
    for (int64_t m = begin; m < end; ++m) {
        norm_row(a.x + m * a.dim, a, [&](int64_t i, __m512 v) { _mm512_store_ps(row + i, v); });
        quantize_row(row, a.dim, a.quantize, m);
    }
}

void add_norm(const Norm& a, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
        float* out = a.out + m * a.dim;
        norm_row(a.x + m * a.dim, a, [&](int64_t i, __m512 v) {
            _mm512_storeu_ps(out + i, _mm512_add_ps(_mm512_loadu_ps(out + i), v));
        });
    }
}

}  // namespace transom::avx512

#endif
