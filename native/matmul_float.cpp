#include <algorithm>

#include "numbers.h"
#include "scalar.h"

namespace transom::scalar {

void matmul_float(const MatmulFloat& a, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                  int64_t tile_end) {
    const int64_t in = a.matrix.in, out = a.matrix.out;
    for (int64_t m = row_begin; m < row_end; ++m) {
        for (int64_t n = tile_begin * tile_out; n < std::min(out, tile_end * tile_out); ++n) {
            const float* w = a.matrix.values + (n / tile_out) * in * tile_out + n % tile_out;
            float acc = 0.0f;
            for (int64_t k = 0; k < in; ++k) acc = std::fma(a.x[m * in + k], w[k * tile_out], acc);
            a.out[m * out + n] = acc;
        }
    }
}

}  // namespace transom::scalar
