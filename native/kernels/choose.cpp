#include <limits>

#include "../lanes.h"
#include "table.h"

namespace transom::TRANSOM_ISA {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// Per lane the highest so far and where it was first seen. Several, to hide latencies.
struct Best {
    Lanes value = all(minus_infinity);
    Ints at = all(0);
    Mask lost = first(0);

    TRANSOM_INLINE void see(Lanes v, int64_t i) {
        lost = either(lost, not_a_number(v));
        const Mask higher = below(value, v);
        value = pick(higher, v, value);
        at = pick(higher, count_from(static_cast<int32_t>(i)), at);
    }
};

// The highest of `value` and its lowest id, so far.
void gather(const Best& best, float* value, int32_t* id) {
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
    constexpr int64_t chains = 4;
    Best best[chains];
    int64_t i = 0;
    for (; i + lanes * chains <= n; i += lanes * chains) {
#pragma GCC unroll 4
        for (int64_t c = 0; c < chains; ++c) best[c].see(load(x + i + lanes * c), i + lanes * c);
    }
    for (; i < n; i += lanes) best[0].see(pick(first(n - i), load(x + i, n - i), all(minus_infinity)), i);
    *value = minus_infinity;
    *id = 0;
    uint32_t lost = 0;
    for (const Best& b : best) {
        gather(b, value, id);
        lost |= bits(b.lost);
    }
    if (lost) *value = std::numeric_limits<float>::quiet_NaN();
}

double sum_exp(const float* x, int64_t n, float max, float temperature) {
    Doubles sums = no_doubles();
    const Lanes top = all(max), t = all(temperature);
    for (int64_t i = 0; i < n; i += lanes) {
        Lanes d = load(x + i, n - i) - top;
        if (temperature != 1.0f) d = d / t;
        sums = add(sums, pick(first(n - i), exp(d), all(0.0f)));
    }
    double lane[lanes];
    store(lane, sums);
    return transom::fold(lane);
}

int64_t collect(const float* x, int64_t n, float low, float high, Weighed* out) {
    const Lanes from = all(low), to = all(high);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += lanes) {
        const Lanes v = load(x + i, n - i);
        const Mask in = both(first(n - i), both(at_most(from, v), below(v, to)));
        for (uint32_t left = bits(in); left; left &= left - 1) {
            const int64_t at = i + __builtin_ctz(left);
            out[count++] = {x[at], static_cast<int32_t>(at)};
        }
    }
    return count;
}

}  // namespace transom::TRANSOM_ISA
