// Passes over one row of logits, for sampling (native/sampling.cpp). A row may be as wide as 262,144 logits,
// 1 MiB.
//
// Blocked by registers of 16 logits; nothing but running results stays in registers. `highest` and `collect`
// are bound by memory. `sum_exp` is bound by the arithmetic of exp.
#include <limits>

#include "../lanes.h"
#include "table.h"

namespace transom::TRANSOM_ISA {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// Per lane, the highest logit so far and the index where it came first.
struct HighestSoFar {
    Lanes value = broadcast(minus_infinity);
    Ints at = broadcast(0);
    Mask nan = first(0);

    TRANSOM_INLINE void add(Lanes v, int64_t i) {
        nan = either(nan, not_a_number(v));
        const Mask higher = below(value, v);
        value = pick(higher, v, value);
        at = pick(higher, count_from(static_cast<int32_t>(i)), at);
    }
};

// Folds the lanes into the highest value and the lowest id that has it.
void merge_lanes(const HighestSoFar& best, float* value, int32_t* id) {
    float values[lanes];
    int32_t at[lanes];
    store(values, best.value);
    store(at, best.at);
    for (int j = 0; j < lanes; ++j) {
        if (values[j] > *value || (values[j] == *value && at[j] < *id)) *id = at[j];
        if (values[j] > *value) *value = values[j];
    }
}

}  // namespace

void highest(const float* x, int64_t n, float* value, int32_t* id) {
    constexpr int64_t chains = 4;  // independent chains hide the latency of compare and blend
    HighestSoFar best[chains];
    int64_t i = 0;
    for (; i + lanes * chains <= n; i += lanes * chains) {
#pragma GCC unroll 4
        for (int64_t c = 0; c < chains; ++c) best[c].add(load(x + i + lanes * c), i + lanes * c);
    }
    for (; i < n; i += lanes)
        best[0].add(pick(first(n - i), load(x + i, n - i), broadcast(minus_infinity)), i);
    *value = minus_infinity;
    *id = 0;
    uint32_t nan = 0;
    for (const HighestSoFar& b : best) {
        merge_lanes(b, value, id);
        nan |= bits(b.nan);
    }
    if (nan) *value = std::numeric_limits<float>::quiet_NaN();
}

double sum_exp(const float* x, int64_t n, float max, float temperature) {
    Doubles sums = no_doubles();
    const Lanes top = broadcast(max), t = broadcast(temperature);
    for (int64_t i = 0; i < n; i += lanes) {
        Lanes d = load(x + i, n - i) - top;
        if (temperature != 1.0f) d = d / t;  // a division by 1 is exact: left out for speed only
        sums = add(sums, pick(first(n - i), exp(d), broadcast(0.0f)));
    }
    double lane[lanes];
    store(lane, sums);
    return transom::fold(lane);
}

int64_t collect(const float* x, int64_t n, float low, float high, Candidate* out) {
    const Lanes from = broadcast(low), to = broadcast(high);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += lanes) {
        const Lanes v = load(x + i, n - i);
        const Mask in = both(first(n - i), both(at_most(from, v), below(v, to)));
        for (uint32_t left = bits(in); left; left &= left - 1) {  // most registers hold none: no loop at all
            const int64_t at = i + __builtin_ctz(left);
            out[count++] = {x[at], static_cast<int32_t>(at)};
        }
    }
    return count;
}

}  // namespace transom::TRANSOM_ISA
