#include "numbers.h"
#include "pool.h"
#include "scalar.h"

namespace transom::scalar {
namespace {

void norm_row(const float* x, const Norm& a, float* out) {
    const float r = rms_factor(folded_dot(x, x, a.dim), a.dim, a.eps);
    for (int64_t i = 0; i < a.dim; ++i) out[i] = (x[i] * r) * a.weight[i];
}

}  // namespace

void norm(const Norm& a, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) norm_row(a.x + m * a.dim, a, a.out + m * a.dim);
}

void norm_prepare(const Norm& a, int64_t begin, int64_t end) {
    float* row = scratch<float>(Scratch::row, a.dim);
    for (int64_t m = begin; m < end; ++m) {
        norm_row(a.x + m * a.dim, a, row);
        quantize_row(row, a.dim, a.quantize, m);
    }
}

void add_norm(const Norm& a, int64_t begin, int64_t end) {
    float* row = scratch<float>(Scratch::row, a.dim);
    for (int64_t m = begin; m < end; ++m) {
        norm_row(a.x + m * a.dim, a, row);
        for (int64_t i = 0; i < a.dim; ++i) a.out[m * a.dim + i] += row[i];
    }
}

}  // namespace transom::scalar
