#include "numbers.h"
#include "scalar.h"

namespace transom::scalar {
namespace {

// Norms one head (weight may be null) and rotates it by the token's angles.
void head(const RopeStore& a, const float* x, const float* weight, const float* cos_sin, float* out) {
    const int64_t dim = a.pages.head_dim, half = dim / 2;
    const float r = weight ? rms_factor(folded_dot(x, x, dim), dim, a.eps) : 0.0f;
    const auto value = [&](int64_t i) { return weight ? (x[i] * r) * weight[i] : x[i]; };
    for (int64_t i = 0; i < half; ++i) {
        const float u = value(i), v = value(i + half), c = cos_sin[i], s = cos_sin[half + i];
        out[i] = std::fma(u, c, -(v * s));
        out[i + half] = std::fma(v, c, u * s);
    }
}

void store(const float* x, int64_t n, bool half, void* out) {
    if (!half) {
        std::memcpy(out, x, sizeof(float) * static_cast<size_t>(n));
        return;
    }
    for (int64_t i = 0; i < n; ++i) static_cast<uint16_t*>(out)[i] = float_to_half(x[i]);
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
    float rotated[4096];
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

}  // namespace transom::scalar
