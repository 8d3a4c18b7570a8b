// act(gate) * up, the middle of an MLP; with or without quantizing the result.
//
// One row at a time, 16 values in a register; the row stays in L1 until it is quantized. Bound by the
// arithmetic of exp and the division.
#include "../lanes.h"
#include "../pool.h"
#include "table.h"

namespace transom::TRANSOM_ISA {
namespace {

struct GeluTanh {
    static Lanes of(Lanes x) {
        const Lanes cubic = (broadcast(gelu_cube) * x) * x;
        const Lanes u = broadcast(gelu_scale) * fma(cubic, x, x);
        return x / (broadcast(1.0f) + exp(broadcast(-2.0f) * u));
    }
};

// -0.0 - x is -x, and keeps the sign of a zero.
struct Silu {
    static Lanes of(Lanes x) { return x / (broadcast(1.0f) + exp(broadcast(-0.0f) - x)); }
};

template <typename Act>
void gated_rows(const Gated& a, int64_t begin, int64_t end) {
    float* row = scratch<float>(Scratch::row, a.hidden);
    for (int64_t m = begin; m < end; ++m) {
        const float* gate = a.gate_up + m * 2 * a.hidden;
        float* out = a.out ? a.out + m * a.hidden : row;
        for (int64_t i = 0; i < a.hidden; i += lanes) {
            const int64_t left = a.hidden - i;
            store(out + i, Act::of(load(gate + i, left)) * load(gate + a.hidden + i, left), left);
        }
        if (!a.out) quantize_row(out, a.hidden, a.quantize, m);
    }
}

}  // namespace

void gated(const Gated& a, int64_t begin, int64_t end) {
    if (a.gate == Gate::silu) return gated_rows<Silu>(a, begin, end);
    gated_rows<GeluTanh>(a, begin, end);
}

}  // namespace transom::TRANSOM_ISA
