#include "numbers.h"
#include "pool.h"
#include "scalar.h"

namespace transom::scalar {
namespace {

float gelu_tanh(float x) {
    const float u = gelu_scale * std::fma(gelu_cube * x * x, x, x);
    return x / (1.0f + exp_scalar(-2.0f * u));
}

float silu(float x) { return x / (1.0f + exp_scalar(-x)); }

template <float (*act)(float)>
void gated_rows(const Gated& a, int64_t begin, int64_t end) {
    float* row = scratch<float>(Scratch::row, a.hidden);
    for (int64_t m = begin; m < end; ++m) {
        const float* gate = a.gate_up + m * 2 * a.hidden;
        float* out = a.out ? a.out + m * a.hidden : row;
        for (int64_t i = 0; i < a.hidden; ++i) out[i] = act(gate[i]) * gate[a.hidden + i];
        if (!a.out) quantize_row(out, a.hidden, a.quantize, m);
    }
}

}  // namespace

void gated(const Gated& a, int64_t begin, int64_t end) {
    if (a.gate == Gate::silu) return gated_rows<silu>(a, begin, end);
    gated_rows<gelu_tanh>(a, begin, end);
}

}  // namespace transom::scalar
