// Quantized matmul: activation codes times packed weights.
//
// Blocking. launch.cpp gives each call a range of rows whose activations stay in L2, and a range of output
// tiles. Here, a block is a few rows x 1 or 2 tiles of 16 outputs; it walks once over all groups of `in`.
// Registers: the float sums of the whole block (rows x tiles), and the integer dots of the group at hand.
// lanes_*.h sets the sizes so that both fit.
//
// Many rows: blocks of packed_rows x packed_tiles, bound by the multiply-add instructions. Few rows (a decode
// step): one tile at a time, bound by memory; two tiles at once are two streams, and a third slower. Each
// block prefetches a share of the next tiles' weights, because hardware prefetchers stop at the end of a
// tile.
#include <algorithm>
#include <array>
#include <utility>

#include "../lanes.h"
#include "../pool.h"
#include "table.h"

namespace transom::TRANSOM_ISA {
namespace {

template <typename T>
T load_as(const void* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// The value `bytes` after `from`, in all lanes: a field of another row's activation block.
template <typename T>
TRANSOM_INLINE auto broadcast_at(const T* from, int64_t bytes) {
    return broadcast(load_as<T>(reinterpret_cast<const char*>(from) + bytes));
}

}  // namespace
}  // namespace transom::TRANSOM_ISA

#if defined(TRANSOM_BYTE_DOTS)
#include "dots_of_bytes.h"
#else
#include "dots_of_pairs.h"
#endif

namespace transom::TRANSOM_ISA {
namespace {

// The tiles that a block multiplies with, and where its results go.
struct TilePointers {
    const uint8_t* codes[packed_tiles];
    const float* scales[packed_tiles];
    const float* zero_offsets[packed_tiles];
    float* out[packed_tiles];
    int64_t outputs[packed_tiles];  // that are left from the tile's first on; the last tile may be padded
};

// The part of the next tiles that a block prefetches: while it works on group g, `bytes` of codes from codes
// + g * bytes. The blocks of rows that share tiles share the codes; the first also prefetches the scales.
struct Prefetch {
    const char* codes;
    int64_t bytes, scale_bytes;
    const char *scales, *zero_offsets;
};

// Always inlined: gcc 12 drops calls of a function that only prefetches.
TRANSOM_INLINE void prefetch(const char* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

TRANSOM_INLINE void prefetch(const Prefetch& next, int64_t g) {
    prefetch(next.codes + g * next.bytes, next.bytes);
    prefetch(next.scales + g * next.scale_bytes, next.scale_bytes);
    if (next.zero_offsets) prefetch(next.zero_offsets + g * next.scale_bytes, next.scale_bytes);
}

template <int Rows, int Tiles>
TRANSOM_INLINE void store_block(const MatmulPacked& a, int64_t row, const TilePointers& p,
                                const Lanes (&acc)[Rows][Tiles]) {
    for (int t = 0; t < Tiles; ++t) {
        const int64_t outputs = p.outputs[t], width = a.matrix.out;  // read once: stores might change them
        float* out = p.out[t] + row * width;
        for (int r = 0; r < Rows; ++r) store(out + r * width, acc[r][t], outputs);
    }
}

// Rows [row, row + Rows) times the tiles at `p`. `x` is the first activation block of the first row.
template <typename ActivationBlock, int Group, bool ZeroOffsets, int Rows, int Tiles>
void multiply_block(const MatmulPacked& a, const ActivationBlock* x, int64_t row, const TilePointers& p,
                    const Prefetch& next) {
    const int64_t blocks = a.matrix.in / 32;
    const int64_t stride = blocks * static_cast<int64_t>(sizeof(ActivationBlock));  // bytes from row to row
    const uint8_t* w[Tiles];
    Lanes acc[Rows][Tiles];
    clear(acc);
    for (int t = 0; t < Tiles; ++t) w[t] = p.codes[t];
    int64_t at = 0;  // of the group's 16 scales
    for (int64_t g = 0; g < blocks; ++g, ++x) {
        prefetch(next, g);
#pragma GCC unroll 2
        for (int part = 0; part < 32 / Group; ++part, at += tile_out) {
            Ints d[Rows][Tiles];
            dots<Group>(d, w, *x, part, stride);
            for (int t = 0; t < Tiles; ++t) w[t] += Group * tile_out;
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                const Lanes sx = broadcast_at(&x->scale, r * stride);
                for (int t = 0; t < Tiles; ++t) {
                    const Lanes scale = sx * load(p.scales[t] + at);
                    acc[r][t] = fma(to_floats(d[r][t]), scale, acc[r][t]);
                    if constexpr (ZeroOffsets) {
                        const Lanes sum = broadcast_at(&x->sum[Group == 32 ? 2 : part], r * stride);
                        const Lanes offset = sx * load(p.zero_offsets[t] + at);
                        acc[r][t] = fma(sum, offset, acc[r][t]);
                    }
                }
            }
        }
    }
    store_block(a, row, p, acc);
}

template <typename ActivationBlock>
using Kernel = void (*)(const MatmulPacked&, const ActivationBlock*, int64_t, const TilePointers&,
                        const Prefetch&);

// How a range of rows is split into blocks.
struct BlockPlan {
    int tiles;
    int64_t blocks;
};

BlockPlan plan_blocks(int64_t rows) {
    if (rows <= packed_few_rows) return {1, 1};
    return {packed_tiles, (rows + packed_rows - 1) / packed_rows};
}

// Kernels for blocks of Least, Least + 1, ... rows.
template <typename ActivationBlock, int Group, bool ZeroOffsets, int Tiles, int Least, int... More>
constexpr std::array<Kernel<ActivationBlock>, sizeof...(More)> kernels_from(
    std::integer_sequence<int, More...>) {
    return {multiply_block<ActivationBlock, Group, ZeroOffsets, Least + More, Tiles>...};
}

template <typename ActivationBlock, int Group, bool ZeroOffsets>
Kernel<ActivationBlock> kernel_of_rows(int64_t rows, int tiles) {
    // plan_blocks splits evenly, so a block of many rows is never smaller than half the largest.
    constexpr int least = packed_rows / 2 + 1;
    constexpr auto narrow = kernels_from<ActivationBlock, Group, ZeroOffsets, 1, 1>(
        std::make_integer_sequence<int, packed_few_rows>());
    constexpr auto wide = kernels_from<ActivationBlock, Group, ZeroOffsets, packed_tiles, least>(
        std::make_integer_sequence<int, packed_rows - least + 1>());
    return tiles == 1 ? narrow[static_cast<size_t>(rows - 1)] : wide[static_cast<size_t>(rows - least)];
}

template <typename ActivationBlock>
Kernel<ActivationBlock> kernel_for(const Packed& w, int64_t rows, int tiles) {
    if (w.group == 32)
        return w.zero_offsets ? kernel_of_rows<ActivationBlock, 32, true>(rows, tiles)
                              : kernel_of_rows<ActivationBlock, 32, false>(rows, tiles);
    return w.zero_offsets ? kernel_of_rows<ActivationBlock, 16, true>(rows, tiles)
                          : kernel_of_rows<ActivationBlock, 16, false>(rows, tiles);
}

// The tiles from `tile` on. Past `last`, the last tile stands in: the block computes and stores it twice,
// which is cheaper than a kernel of fewer tiles.
TilePointers tile_pointers(const MatmulPacked& a, int64_t tile, int64_t last) {
    TilePointers p;
    const Packed& w = a.matrix;
    const int64_t scales = w.in / w.group * tile_out;
    for (int t = 0; t < packed_tiles; ++t) {
        const int64_t at = std::min(tile + t, last), output = at * tile_out;
        p.codes[t] = w.codes + at * w.in * tile_out;
        p.scales[t] = w.scales + at * scales;
        p.zero_offsets[t] = w.zero_offsets ? w.zero_offsets + at * scales : nullptr;
        p.out[t] = a.out + output;
        p.outputs[t] = w.out - output;
    }
    return p;
}

// Block b's share of prefetching the tiles after `p`. They may lie past the end of the matrix: a prefetch
// never faults.
Prefetch prefetch_after(const Packed& w, const TilePointers& p, const BlockPlan& plan, int64_t b) {
    const int64_t groups = w.in / 32, tile_bytes = w.in * tile_out;
    const int64_t share = plan.tiles * 32 * tile_out / plan.blocks;
    const int64_t scales = w.in / w.group * tile_out * plan.tiles;
    Prefetch next{};
    next.bytes = share;
    next.codes = reinterpret_cast<const char*>(p.codes[0]) + plan.tiles * tile_bytes + b * groups * share;
    if (b != 0) return next;
    next.scale_bytes = plan.tiles * 32 / w.group * tile_out * 4;
    next.scales = reinterpret_cast<const char*>(p.scales[0] + scales);
    next.zero_offsets =
        p.zero_offsets[0] ? reinterpret_cast<const char*>(p.zero_offsets[0] + scales) : nullptr;
    return next;
}

// Rows [begin, end) times tiles [tile_begin, tile_end). `x` is the first activation block of row `begin`.
template <typename ActivationBlock>
void multiply(const MatmulPacked& a, const ActivationBlock* x, int64_t begin, int64_t end, int64_t tile_begin,
              int64_t tile_end) {
    const int64_t count = end - begin;
    const BlockPlan plan = plan_blocks(count);
    for (int64_t tile = tile_begin; tile < tile_end; tile += plan.tiles) {
        const TilePointers p = tile_pointers(a, tile, tile_end - 1);
        for (int64_t b = 0; b < plan.blocks; ++b) {
            const int64_t from = count * b / plan.blocks, to = count * (b + 1) / plan.blocks;
            const Kernel<ActivationBlock> kernel =
                kernel_for<ActivationBlock>(a.matrix, to - from, plan.tiles);
            kernel(a, x + from * (a.matrix.in / 32), begin + from, p, prefetch_after(a.matrix, p, plan, b));
        }
    }
}

#if defined(TRANSOM_SMALL_DOTS)
// Looking at all weights of a tile takes about as long as multiplying half a row with it. It pays from so
// many rows on.
constexpr int64_t rows_worth_a_look = 8;

bool has_small_codes(const Packed& w, int64_t tile) {
    const uint8_t* codes = w.codes + tile * w.in * tile_out;
    bool small = true;
    for (int64_t i = 0; small && i < w.in * tile_out; i += 64) small = are_small(codes + i);
    return small;
}

// Multiplies bytes in the tiles whose codes are small, and pairs of int16 in the others.
void multiply_by_code_size(const MatmulPacked& a, const ActivationBlock8* x, int64_t begin, int64_t end,
                           int64_t tile_begin, int64_t tile_end) {
    const PairBlock* pairs = nullptr;
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        if (has_small_codes(a.matrix, tile)) {
            multiply(a, x, begin, end, tile, tile + 1);
            continue;
        }
        if (!pairs) pairs = for_dots(x, (end - begin) * (a.matrix.in / 32));
        multiply(a, pairs, begin, end, tile, tile + 1);
    }
}
#endif

}  // namespace

void matmul_packed(const MatmulPacked& a, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                   int64_t tile_end) {
    const int64_t at = row_begin * (a.matrix.in / 32), count = (row_end - row_begin) * (a.matrix.in / 32);
#if defined(TRANSOM_SMALL_DOTS)
    if (a.precision == Precision::int8 && row_end - row_begin >= rows_worth_a_look) {
        const ActivationBlock8* x = static_cast<const ActivationBlock8*>(a.activations) + at;
        return multiply_by_code_size(a, x, row_begin, row_end, tile_begin, tile_end);
    }
#endif
    const auto multiply_tiles = [&](const auto* x) {
        multiply(a, x, row_begin, row_end, tile_begin, tile_end);
    };
    if (a.precision == Precision::int8)
        return multiply_tiles(for_dots(static_cast<const ActivationBlock8*>(a.activations) + at, count));
    multiply_tiles(for_dots(static_cast<const ActivationBlock16*>(a.activations) + at, count));
}

}  // namespace transom::TRANSOM_ISA
