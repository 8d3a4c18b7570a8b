#include <limits>

#include "../lanes.h"
#include "table.h"

namespace transom::TRANSOM_ISA {
namespace {

// 32 codes.
struct Codes {
    Ints a, b;
};

bool all_finite(const float* x, int64_t dim) {
    const Lanes most = all(std::numeric_limits<float>::max());
    uint32_t finite = 0xffff;
    for (int64_t i = 0; i < dim; i += lanes) finite &= bits(at_most(absolute(load(x + i)), most));
    return finite == 0xffff;
}

// Codes of a group of a finite row, and its scale.
TRANSOM_INLINE Codes quantize(const float* x, int limit, float* scale) {
    const Lanes a = load(x), b = load(x + lanes);
    const float amax = highest_of(higher(absolute(a), absolute(b)));
    if (amax < smallest_amax) {
        *scale = 0.0f;
        return {all(0), all(0)};
    }
    const float most = static_cast<float>(limit);
    const Lanes inverse = all(most / amax);
    *scale = amax / most;
    return {clamped(to_ints(a * inverse), all(limit)), clamped(to_ints(b * inverse), all(limit))};
}

// Sums of a plane's first and second 16 codes.
struct Sums {
    int32_t half[2];
    int32_t all() const { return half[0] + half[1]; }
};

void store_biases(const Sums& sums, int32_t* bias) {
    bias[0] = -128 * sums.half[0];
    bias[1] = -128 * sums.half[1];
    bias[2] = -128 * sums.all();
}

void store_sums(const Sums& sums, float* sum) {
    sum[0] = static_cast<float>(sums.half[0]);
    sum[1] = static_cast<float>(sums.half[1]);
    sum[2] = static_cast<float>(sums.all());
}

TRANSOM_INLINE void write(const Codes& codes, float scale, Record8& record) {
    const Bytes plane = narrow(codes.a, codes.b);
    Sums sums, same;
    sum_halves(plane, plane, sums.half, same.half);
    store(record.codes, plane);
    record.scale = scale;
    store_biases(sums, record.bias);
    store_sums(sums, record.sum);
    record.unused = 0;
}

// code = 254 * high + low with low in [-127, 126]. (n * 66053) >> 24 is n / 254 for 0 <= n <= 64643.
TRANSOM_INLINE Ints high_plane(Ints code) {
    const Ints n = add(code, all(127 + 127 * 254));
    return subtract(top_byte(multiply(n, all(66053))), all(127));
}

TRANSOM_INLINE Ints low_plane(Ints code, Ints high) { return subtract(code, multiply(high, all(254))); }

TRANSOM_INLINE void write(const Codes& codes, float scale, Record16& record) {
    const Ints a = high_plane(codes.a), b = high_plane(codes.b);
    const Bytes high = narrow(a, b), low = narrow(low_plane(codes.a, a), low_plane(codes.b, b));
    Sums h, l;
    sum_halves(high, low, h.half, l.half);
    record = Record16{};
    store(record.high, high);
    store(record.low, low);
    record.scale = scale;
    store_biases(h, record.bias_high);
    store_biases(l, record.bias_low);
    store_sums({{254 * h.half[0] + l.half[0], 254 * h.half[1] + l.half[1]}}, record.sum);
}

template <typename Record>
void quantize_groups(const float* x, int64_t dim, int limit, Record* records) {
    const bool finite = all_finite(x, dim);
    for (int64_t g = 0; g < dim / 32; ++g) {
        Codes codes{all(0), all(0)};
        float scale = std::numeric_limits<float>::quiet_NaN();
        if (finite) codes = quantize(x + 32 * g, limit, &scale);
        write(codes, scale, records[g]);
    }
}

}  // namespace

void quantize_row(const float* x, int64_t dim, const Quantize& q, int64_t row) {
    const int64_t at = row * (dim / 32);
    if (q.limit == 127) return quantize_groups(x, dim, q.limit, static_cast<Record8*>(q.records) + at);
    quantize_groups(x, dim, q.limit, static_cast<Record16*>(q.records) + at);
}

void prepare(const Prepare& a, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) quantize_row(a.x + m * a.dim, a.dim, a.quantize, m);
}

}  // namespace transom::TRANSOM_ISA
