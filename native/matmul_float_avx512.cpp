#if defined(__x86_64__)
// Float matmul: every output adds over k ascending, outputs side by side in lanes.
#include <algorithm>

#include "avx512.h"
#include "lanes_avx512.h"

namespace transom::avx512 {
namespace {

constexpr int tiles_at_once = 4;
constexpr int most_rows = 5;

template <int Rows>
void block(const MatmulFloat& a, int64_t row, int64_t tile, int64_t last) {
    const int64_t in = a.matrix.in, out = a.matrix.out;
    const float* w[tiles_at_once];
    for (int t = 0; t < tiles_at_once; ++t) w[t] = a.matrix.values + std::min(tile + t, last) * in * tile_out;
    const float* x = a.x + row * in;
    __m512 acc[Rows][tiles_at_once];
    clear(acc);
    for (int64_t k = 0; k < in; ++k) {
        __m512 weights[tiles_at_once];
#pragma GCC unroll 4
        for (int t = 0; t < tiles_at_once; ++t) weights[t] = _mm512_loadu_ps(w[t] + k * tile_out);
#pragma GCC unroll 5
        for (int r = 0; r < Rows; ++r) {
            const __m512 v = _mm512_set1_ps(x[r * in + k]);
#pragma GCC unroll 4
            for (int t = 0; t < tiles_at_once; ++t) acc[r][t] = _mm512_fmadd_ps(v, weights[t], acc[r][t]);
        }
    }
    for (int r = 0; r < Rows; ++r) {
        for (int t = 0; t < tiles_at_once; ++t) {
            const int64_t from = std::min(tile + t, last) * tile_out;
            _mm512_mask_storeu_ps(a.out + (row + r) * out + from, first(out - from), acc[r][t]);
        }
    }
}

using Kernel = void (*)(const MatmulFloat&, int64_t, int64_t, int64_t);
constexpr Kernel kernels[most_rows] = {block<1>, block<2>, block<3>, block<4>, block<5>};

}  // namespace

void matmul_float(const MatmulFloat& a, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                  int64_t tile_end) {
    const int64_t rows = row_end - row_begin, blocks = (rows + most_rows - 1) / most_rows;
    for (int64_t tile = tile_begin; tile < tile_end; tile += tiles_at_once) {
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t from = row_begin + rows * b / blocks, to = row_begin + rows * (b + 1) / blocks;
            kernels[to - from - 1](a, from, tile, tile_end - 1);
        }
    }
}

}  // namespace transom::avx512

#endif
