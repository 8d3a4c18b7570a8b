#if defined(__x86_64__)
#include "avx512.h"
#include "lanes_avx512.h"
#include "pool.h"

namespace transom::avx512 {
namespace {

__m512 gelu_tanh(__m512 x) {
    const __m512 cubic = _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(gelu_cube), x), x);
    const __m512 u = _mm512_mul_ps(_mm512_set1_ps(gelu_scale), _mm512_fmadd_ps(cubic, x, x));
    const __m512 e = exp(_mm512_mul_ps(_mm512_set1_ps(-2.0f), u));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

__m512 silu(__m512 x) {
    const __m512 e = exp(_mm512_sub_ps(_mm512_set1_ps(-0.0f), x));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

template <__m512 (*act)(__m512)>
void gated_rows(const Gated& a, int64_t begin, int64_t end) {
    float* row = scratch<float>(Scratch::row, a.hidden);
    for (int64_t m = begin; m < end; ++m) {
        const float* gate = a.gate_up + m * 2 * a.hidden;
        float* out = a.out ? a.out + m * a.hidden : row;
        for (int64_t i = 0; i < a.hidden; i += 16) {
            const __mmask16 mask = first(a.hidden - i);
            const __m512 g = _mm512_maskz_loadu_ps(mask, gate + i);
            const __m512 up = _mm512_maskz_loadu_ps(mask, gate + a.hidden + i);
            _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(act(g), up));
        }
        if (!a.out) quantize_row(out, a.hidden, a.quantize, m);
    }
}

}  // namespace

void gated(const Gated& a, int64_t begin, int64_t end) {
    if (a.gate == Gate::silu) return gated_rows<silu>(a, begin, end);
    gated_rows<gelu_tanh>(a, begin, end);
}

}  // namespace transom::avx512

#endif
