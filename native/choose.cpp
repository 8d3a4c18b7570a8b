#include <limits>

#include "numbers.h"
#include "scalar.h"

namespace transom::scalar {

void highest(const float* x, int64_t n, float* value, int32_t* id) {
    *value = -std::numeric_limits<float>::infinity();
    *id = 0;
    bool lost = false;
    for (int64_t i = 0; i < n; ++i) {
        lost = lost || std::isnan(x[i]);
        if (x[i] > *value) {
            *value = x[i];
            *id = static_cast<int32_t>(i);
        }
    }
    if (lost) *value = std::numeric_limits<float>::quiet_NaN();
}

double sum_exp(const float* x, int64_t n, float max, float temperature) {
    double lane[lanes] = {};
    for (int64_t i = 0; i < n; ++i) {
        const float d = x[i] - max;
        lane[i % lanes] += static_cast<double>(exp_scalar(temperature == 1.0f ? d : d / temperature));
    }
    return fold(lane);
}

int64_t collect(const float* x, int64_t n, float low, float high, Weighed* out) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
        if (x[i] >= low && x[i] < high) out[count++] = {x[i], static_cast<int32_t>(i)};
    }
    return count;
}

}  // namespace transom::scalar
