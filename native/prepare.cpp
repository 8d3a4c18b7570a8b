#include <algorithm>
#include <limits>

#include "numbers.h"
#include "scalar.h"

namespace transom::scalar {
namespace {

struct Group {
    int32_t codes[32] = {};
    float scale = 0.0f;
};

Group quantize(const float* x, int limit) {
    Group group;
    float amax = 0.0f;
    for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[i]));
    if (amax < smallest_amax) return group;
    const float inverse = static_cast<float>(limit) / amax;
    for (int i = 0; i < 32; ++i) {
        group.codes[i] = std::clamp(static_cast<int32_t>(std::nearbyint(x[i] * inverse)), -limit, limit);
    }
    group.scale = amax / static_cast<float>(limit);
    return group;
}

void sums(const int32_t* codes, int32_t* sum) {
    sum[0] = sum[1] = 0;
    for (int i = 0; i < 32; ++i) sum[i / 16] += codes[i];
    sum[2] = sum[0] + sum[1];
}

void write(const Group& group, Record8& record) {
    int32_t sum[3];
    sums(group.codes, sum);
    for (int i = 0; i < 32; ++i) record.codes[i] = static_cast<int8_t>(group.codes[i]);
    for (int i = 0; i < 3; ++i) {
        record.bias[i] = -128 * sum[i];
        record.sum[i] = static_cast<float>(sum[i]);
    }
    record.scale = group.scale;
}

void write(const Group& group, Record16& record) {
    int32_t high[32], low[32], sum[3], sum_high[3], sum_low[3];
    for (int i = 0; i < 32; ++i) {
        // floor division of a non-negative number: low lands in [-127, 126]
        high[i] = (group.codes[i] + 127 + 128 * 254) / 254 - 128;
        low[i] = group.codes[i] - 254 * high[i];
        record.high[i] = static_cast<int8_t>(high[i]);
        record.low[i] = static_cast<int8_t>(low[i]);
    }
    sums(group.codes, sum);
    sums(high, sum_high);
    sums(low, sum_low);
    for (int i = 0; i < 3; ++i) {
        record.bias_high[i] = -128 * sum_high[i];
        record.bias_low[i] = -128 * sum_low[i];
        record.sum[i] = static_cast<float>(sum[i]);
    }
    record.scale = group.scale;
}

template <typename Record>
void quantize_groups(const float* x, int64_t dim, int limit, Record* records) {
    bool finite = true;
    for (int64_t i = 0; i < dim; ++i) finite = finite && std::isfinite(x[i]);
    Group lost;
    lost.scale = std::numeric_limits<float>::quiet_NaN();
    for (int64_t g = 0; g < dim / 32; ++g) {
        records[g] = Record{};
        write(finite ? quantize(x + 32 * g, limit) : lost, records[g]);
    }
}

}  // namespace

void quantize_row(const float* x, int64_t dim, const Quantize& q, int64_t row) {
    const int64_t first = row * (dim / 32);
    if (q.limit == 127) return quantize_groups(x, dim, q.limit, static_cast<Record8*>(q.records) + first);
    quantize_groups(x, dim, q.limit, static_cast<Record16*>(q.records) + first);
}

void prepare(const Prepare& a, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) quantize_row(a.x + m * a.dim, a.dim, a.quantize, m);
}

}  // namespace transom::scalar
