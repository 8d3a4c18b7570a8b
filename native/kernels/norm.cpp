// RMS norm of rows: plain, followed by quantizing, or added to another row.
//
// One row at a time, read twice: sum of squares, then scaling; it stays in L1. Bound by latency: the sum of
// squares is one chain of fma per lane, because the specification fixes the order of its additions.
#include "../lanes.h"
#include "../pool.h"
#include "table.h"

namespace transom::TRANSOM_ISA {
namespace {

template <typename Store>
void norm_row(const float* x, const Norm& a, Store store) {
    const Lanes r = broadcast(rms_factor(squares(x, a.dim), a.dim, a.eps));
    for (int64_t i = 0; i < a.dim; i += lanes) store(i, (load(x + i) * r) * load(a.weight + i));
}

}  // namespace

void norm(const Norm& a, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
        float* out = a.out + m * a.dim;
        norm_row(a.x + m * a.dim, a, [&](int64_t i, Lanes v) { store(out + i, v); });
    }
}

void norm_prepare(const Norm& a, int64_t begin, int64_t end) {
    float* row = scratch<float>(Scratch::row, a.dim);
    for (int64_t m = begin; m < end; ++m) {
        norm_row(a.x + m * a.dim, a, [&](int64_t i, Lanes v) { store(row + i, v); });
        quantize_row(row, a.dim, a.quantize, m);
    }
}

void add_norm(const Norm& a, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
        float* out = a.out + m * a.dim;
        norm_row(a.x + m * a.dim, a, [&](int64_t i, Lanes v) { store(out + i, load(out + i) + v); });
    }
}

}  // namespace transom::TRANSOM_ISA
