#include "numbers.h"
#include "scalar.h"

namespace transom::scalar {

void embed_packed(const EmbedPacked& a, int64_t begin, int64_t end) {
    const Packed& w = a.table;
    const int64_t groups = w.in / w.group;
    for (int64_t m = begin; m < end; ++m) {
        const int64_t tile = a.tokens[m] / tile_out, lane = a.tokens[m] % tile_out;
        const uint8_t* codes = w.codes + (tile * w.in * tile_out) + lane * 4;
        for (int64_t k = 0; k < w.in; ++k) {
            const int64_t at = (tile * groups + k / w.group) * tile_out + lane;
            const float code = static_cast<float>(codes[(k / 4) * 4 * tile_out + k % 4] - 128);
            a.out[m * w.in + k] = std::fma(w.scales[at], code, w.minima ? w.minima[at] : 0.0f) * a.scale;
        }
    }
}

void embed_float(const EmbedFloat& a, int64_t begin, int64_t end) {
    const int64_t in = a.table.in;
    for (int64_t m = begin; m < end; ++m) {
        const float* values =
            a.table.values + (a.tokens[m] / tile_out) * in * tile_out + a.tokens[m] % tile_out;
        for (int64_t k = 0; k < in; ++k) a.out[m * in + k] = values[k * tile_out] * a.scale;
    }
}

}  // namespace transom::scalar
