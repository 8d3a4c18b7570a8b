// Float matmul: every output adds over k in ascending order by fma, outputs side by side in lanes.
//
// Blocking: float_rows x float_tiles sums in registers (lanes_*.h), one walk over k. Few rows: bound by
// memory; more rows: by fma. Only matrices that a model file keeps as floats come here: norms aside, files of
// quantized models have few.
#include <algorithm>
#include <array>
#include <utility>

#include "../lanes.h"
#include "table.h"

namespace transom::TRANSOM_ISA {
namespace {

// Rows [row, row + Rows) times float_tiles tiles. Past `last`, the last tile stands in and is computed twice.
template <int Rows>
void multiply_block(const MatmulFloat& a, int64_t row, int64_t tile, int64_t last) {
    const int64_t in = a.matrix.in, out = a.matrix.out;
    const float* w[float_tiles];
    for (int t = 0; t < float_tiles; ++t) w[t] = a.matrix.values + std::min(tile + t, last) * in * tile_out;
    const float* x = a.x + row * in;
    Lanes acc[Rows][float_tiles];
    clear(acc);
    for (int64_t k = 0; k < in; ++k) {
        Lanes weights[float_tiles];
#pragma GCC unroll 4
        for (int t = 0; t < float_tiles; ++t) weights[t] = load(w[t] + k * tile_out);
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) {
            const Lanes v = broadcast(x[r * in + k]);
#pragma GCC unroll 4
            for (int t = 0; t < float_tiles; ++t) acc[r][t] = fma(v, weights[t], acc[r][t]);
        }
    }
    for (int t = 0; t < float_tiles; ++t) {
        const int64_t from = std::min(tile + t, last) * tile_out;
        float* to = a.out + row * out + from;
        for (int r = 0; r < Rows; ++r) store(to + r * out, acc[r][t], out - from);
    }
}

using Kernel = void (*)(const MatmulFloat&, int64_t, int64_t, int64_t);

// Kernels for blocks of 1, 2, ... rows.
template <int... Fewer>
constexpr std::array<Kernel, sizeof...(Fewer)> kernels_from(std::integer_sequence<int, Fewer...>) {
    return {multiply_block<Fewer + 1>...};
}
constexpr auto kernels = kernels_from(std::make_integer_sequence<int, float_rows>());

}  // namespace

void matmul_float(const MatmulFloat& a, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                  int64_t tile_end) {
    const int64_t rows = row_end - row_begin, blocks = (rows + float_rows - 1) / float_rows;
    for (int64_t tile = tile_begin; tile < tile_end; tile += float_tiles) {
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t from = row_begin + rows * b / blocks, to = row_begin + rows * (b + 1) / blocks;
            kernels[static_cast<size_t>(to - from - 1)](a, from, tile, tile_end - 1);
        }
    }
}

}  // namespace transom::TRANSOM_ISA
