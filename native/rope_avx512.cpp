#if defined(__x86_64__)
#include "avx512.h"
#include "lanes_avx512.h"

namespace transom::avx512 {
namespace {

void store(const float* x, int64_t n, bool half, void* out) {
    for (int64_t i = 0; i < n; i += 16) {
        const __m512 v = _mm512_loadu_ps(x + i);
        if (half) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<uint16_t*>(out) + i), to_half(v));
        } else {
            _mm512_storeu_ps(static_cast<float*>(out) + i, v);
        }
    }
}

// Norms one head (weight may be null) and rotates it by the token's angles. Half a head may be 8 wide.
void head(const RopeStore& a, const float* x, const float* weight, const float* cos_sin, float* out) {
    const int64_t dim = a.pages.head_dim, half = dim / 2;
    const __m512 r = _mm512_set1_ps(weight ? rms_factor(squares(x, dim), dim, a.eps) : 0.0f);
    const auto value = [&](__mmask16 mask, int64_t i) {
        const __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
        return weight ? _mm512_mul_ps(_mm512_mul_ps(v, r), _mm512_maskz_loadu_ps(mask, weight + i)) : v;
    };
    for (int64_t i = 0; i < half; i += 16) {
        const __mmask16 mask = first(half - i);
        const __m512 u = value(mask, i), v = value(mask, i + half);
        const __m512 c = _mm512_maskz_loadu_ps(mask, cos_sin + i),
                     s = _mm512_maskz_loadu_ps(mask, cos_sin + half + i);
        // fma(u, c, -(v * s)) and fma(v, c, u * s)
        _mm512_mask_storeu_ps(out + i, mask, _mm512_fmsub_ps(u, c, _mm512_mul_ps(v, s)));
        _mm512_mask_storeu_ps(out + half + i, mask, _mm512_fmadd_ps(v, c, _mm512_mul_ps(u, s)));
    }
}

void token(const RopeStore& a, int64_t t) {
    const Pages& p = a.pages;
    const int64_t dim = p.head_dim;
    const float* x = a.qkv + t * (a.heads + 2 * p.kv_heads) * dim;
    const float* cos_sin = a.cos_sin + t * dim;
    for (int64_t h = 0; h < a.heads; ++h)
        head(a, x + h * dim, a.q_norm, cos_sin, a.q + (t * a.heads + h) * dim);
    if (a.stored && !a.stored[t]) return;
    char* keys = p.slot(a.rows[t], a.positions[t], 0);
    char* values = p.slot(a.rows[t], a.positions[t], 1);
    x += a.heads * dim;
    alignas(64) float rotated[4096];
    for (int64_t h = 0; h < p.kv_heads; ++h) {
        head(a, x + h * dim, a.k_norm, cos_sin, rotated);
        store(rotated, dim, p.half, keys + h * dim * p.element());
        store(x + (p.kv_heads + h) * dim, dim, p.half, values + h * dim * p.element());
    }
}

}  // namespace

void rope_store(const RopeStore& a, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) token(a, t);
}

}  // namespace transom::avx512

#endif
