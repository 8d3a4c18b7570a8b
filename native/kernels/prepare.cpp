// Quantizes rows of float32 to activation codes, in groups of 32, in the layout that matmul reads.
//
// Blocked by groups: the 32 values of a group stay in registers from the maximum to the codes. A row is read
// twice, the first time to learn whether it is finite; it is short enough for L1. Bound by the latency of the
// reduction to a maximum and of the division that follows it.
#include <limits>

#include "../lanes.h"
#include "table.h"

namespace transom::TRANSOM_ISA {
namespace {

// The codes of one group.
struct Codes {
    Ints first, second;
};

bool all_finite(const float* x, int64_t dim) {
    const Lanes most = broadcast(std::numeric_limits<float>::max());
    uint32_t finite = 0xffff;
    for (int64_t i = 0; i < dim; i += lanes) finite &= bits(at_most(absolute(load(x + i)), most));
    return finite == 0xffff;
}

// Codes and scale of one group of a finite row.
TRANSOM_INLINE Codes quantize_group(const float* x, int limit, float* scale) {
    const Lanes first = load(x), second = load(x + lanes);
    const float amax = highest_of(higher(absolute(first), absolute(second)));
    if (amax < smallest_amax) {
        *scale = 0.0f;
        return {broadcast(0), broadcast(0)};
    }
    const float most = static_cast<float>(limit);
    const Lanes inverse = broadcast(most / amax);
    *scale = amax / most;
    return {clamped(to_ints(first * inverse), broadcast(limit)),
            clamped(to_ints(second * inverse), broadcast(limit))};
}

// Sums of the first and of the second 16 codes of a plane.
struct CodeSums {
    int32_t half[2];
    int32_t total() const { return half[0] + half[1]; }
};

void store_biases(const CodeSums& sums, int32_t* bias) {
    bias[0] = -128 * sums.half[0];
    bias[1] = -128 * sums.half[1];
    bias[2] = -128 * sums.total();
}

void store_sums(const CodeSums& sums, float* sum) {
    sum[0] = static_cast<float>(sums.half[0]);
    sum[1] = static_cast<float>(sums.half[1]);
    sum[2] = static_cast<float>(sums.total());
}

TRANSOM_INLINE void store_block(const Codes& codes, float scale, ActivationBlock8& block) {
    const Bytes plane = narrow(codes.first, codes.second);
    CodeSums sums, same;  // sum_halves adds two planes at a time; here there is one
    sum_halves(plane, plane, sums.half, same.half);
    store(block.codes, plane);
    block.scale = scale;
    store_biases(sums, block.bias);
    store_sums(sums, block.sum);
    block.unused = 0;
}

// The high plane of code = 254 * high + low, with low in [-127, 126]. Integer vectors cannot divide; (n *
// 66053) >> 24 equals n / 254 for 0 <= n <= 64643, which covers all codes shifted to be positive.
TRANSOM_INLINE Ints high_plane(Ints code) {
    const Ints n = add(code, broadcast(127 + 127 * 254));
    return subtract(top_byte(multiply(n, broadcast(66053))), broadcast(127));
}

TRANSOM_INLINE Ints low_plane(Ints code, Ints high) { return subtract(code, multiply(high, broadcast(254))); }

TRANSOM_INLINE void store_block(const Codes& codes, float scale, ActivationBlock16& block) {
    const Ints a = high_plane(codes.first), b = high_plane(codes.second);
    const Bytes high = narrow(a, b), low = narrow(low_plane(codes.first, a), low_plane(codes.second, b));
    CodeSums h, l;
    sum_halves(high, low, h.half, l.half);
    block = ActivationBlock16{};
    store(block.high, high);
    store(block.low, low);
    block.scale = scale;
    store_biases(h, block.bias_high);
    store_biases(l, block.bias_low);
    store_sums({{254 * h.half[0] + l.half[0], 254 * h.half[1] + l.half[1]}}, block.sum);
}

// A row with an infinity or a NaN gets codes 0 and scale NaN in all groups: its results are NaN, and the
// other rows of the batch are not affected.
template <typename ActivationBlock>
void quantize_groups(const float* x, int64_t dim, int limit, ActivationBlock* blocks) {
    const bool finite = all_finite(x, dim);
    for (int64_t g = 0; g < dim / 32; ++g) {
        Codes codes{broadcast(0), broadcast(0)};
        float scale = std::numeric_limits<float>::quiet_NaN();
        if (finite) codes = quantize_group(x + 32 * g, limit, &scale);
        store_block(codes, scale, blocks[g]);
    }
}

}  // namespace

void quantize_row(const float* x, int64_t dim, const Quantize& q, int64_t row) {
    const int64_t at = row * (dim / 32);
    const int limit = code_limit(q.precision);
    if (q.precision == Precision::int8)
        return quantize_groups(x, dim, limit, static_cast<ActivationBlock8*>(q.blocks) + at);
    quantize_groups(x, dim, limit, static_cast<ActivationBlock16*>(q.blocks) + at);
}

void prepare(const Prepare& a, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) quantize_row(a.x + m * a.dim, a.dim, a.quantize, m);
}

}  // namespace transom::TRANSOM_ISA
