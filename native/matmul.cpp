#include <algorithm>

#include "numbers.h"
#include "scalar.h"

namespace transom::scalar {
namespace {

// Sum over one group of weights (stored as code + 128) times codes; the record's bias takes 128 back.
int32_t dot(const uint8_t* w, const int8_t* codes, int64_t n, int32_t bias) {
    for (int64_t k = 0; k < n; ++k)
        bias += static_cast<int32_t>(w[(k / 4) * 4 * tile_out + k % 4]) * codes[k];
    return bias;
}

int32_t group_dot(const uint8_t* w, const Record8& r, int64_t from, int64_t n, int which) {
    return dot(w, r.codes + from, n, r.bias[which]);
}

int32_t group_dot(const uint8_t* w, const Record16& r, int64_t from, int64_t n, int which) {
    return 254 * dot(w, r.high + from, n, r.bias_high[which]) + dot(w, r.low + from, n, r.bias_low[which]);
}

template <typename Record>
float output(const Record* records, const Packed& w, int64_t tile, int64_t lane) {
    const int64_t groups = w.in / w.group, parts = 32 / w.group;
    const uint8_t* codes = w.codes + tile * w.in * tile_out + lane * 4;
    float acc = 0.0f;
    for (int64_t g = 0; g < groups; ++g) {
        const Record& record = records[g / parts];
        const int which = parts == 1 ? 2 : static_cast<int>(g % parts);
        const int64_t at = (tile * groups + g) * tile_out + lane;
        const int32_t d =
            group_dot(codes + g * w.group * tile_out, record, (g % parts) * w.group, w.group, which);
        acc = std::fma(static_cast<float>(d), record.scale * w.scales[at], acc);
        if (w.minima) acc = std::fma(record.sum[which], record.scale * w.minima[at], acc);
    }
    return acc;
}

}  // namespace

void matmul_packed(const MatmulPacked& a, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                   int64_t tile_end) {
    const Packed& w = a.matrix;
    for (int64_t m = row_begin; m < row_end; ++m) {
        const int64_t first = m * (w.in / 32);
        for (int64_t n = tile_begin * tile_out; n < std::min(w.out, tile_end * tile_out); ++n) {
            a.out[m * w.out + n] =
                a.limit == 127
                    ? output(static_cast<const Record8*>(a.records) + first, w, n / tile_out, n % tile_out)
                    : output(static_cast<const Record16*>(a.records) + first, w, n / tile_out, n % tile_out);
        }
    }
}

}  // namespace transom::scalar
