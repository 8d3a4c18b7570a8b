// Norms and rotates the queries and keys of a step, and stores keys and values in their pages.
//
// One token at a time, one head at a time, 16 values in a register. Bound by memory: a token's qkv is read
// once, its queries and its slots are written once.
#include "../lanes.h"
#include "table.h"

namespace transom::TRANSOM_ISA {
namespace {

// Writes n values to a page, converted to its type.
void store_slot(const float* x, int64_t n, bool half, void* out) {
    for (int64_t i = 0; i < n; i += lanes) {
        if (half) {
            store_half(static_cast<uint16_t*>(out) + i, load(x + i));
        } else {
            store(static_cast<float*>(out) + i, load(x + i));
        }
    }
}

// Norms one head, unless weight is null, and rotates it by the token's angles. Half a head may be only 8
// wide: loads and stores are bounded by what is left.
void rotate_head(const RopeStore& a, const float* x, const float* weight, const float* cos_sin, float* out) {
    const int64_t dim = a.pages.head_dim, half = dim / 2;
    const Lanes r = broadcast(weight ? rms_factor(squares(x, dim), dim, a.eps) : 0.0f);
    const auto value = [&](int64_t i, int64_t n) {
        const Lanes v = load(x + i, n);
        return weight ? (v * r) * load(weight + i, n) : v;
    };
    for (int64_t i = 0; i < half; i += lanes) {
        const int64_t left = half - i;
        const Lanes u = value(i, left), v = value(i + half, left);
        const Lanes c = load(cos_sin + i, left), s = load(cos_sin + half + i, left);
        // fma(u, c, -(v * s)) and fma(v, c, u * s)
        store(out + i, fms(u, c, v * s), left);
        store(out + half + i, fma(v, c, u * s), left);
    }
}

void store_token(const RopeStore& a, int64_t t) {
    const Pages& p = a.pages;
    const int64_t dim = p.head_dim;
    const float* x = a.qkv + t * (a.heads + 2 * p.kv_heads) * dim;
    const float* cos_sin = a.cos_sin + t * dim;
    for (int64_t h = 0; h < a.heads; ++h)
        rotate_head(a, x + h * dim, a.q_norm, cos_sin, a.q + (t * a.heads + h) * dim);
    if (a.stored && !a.stored[t]) return;
    char* keys = p.slot(a.rows[t], a.positions[t], 0);
    char* values = p.slot(a.rows[t], a.positions[t], 1);
    x += a.heads * dim;
    alignas(64) float rotated[4096];  // the widest head that arguments.cpp admits
    for (int64_t h = 0; h < p.kv_heads; ++h) {
        rotate_head(a, x + h * dim, a.k_norm, cos_sin, rotated);
        store_slot(rotated, dim, p.half, keys + h * dim * p.element());
        store_slot(x + (p.kv_heads + h) * dim, dim, p.half, values + h * dim * p.element());
    }
}

}  // namespace

void rope_store(const RopeStore& a, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) store_token(a, t);
}

}  // namespace transom::TRANSOM_ISA
