// Quantized matmul: blocks of a few rows x 1 or 2 tiles of 16 outputs, all sums in registers.
//
// Many rows: as many x tiles as registers hold, bound by arithmetic. Few rows: 1 tile, so that memory sees
// one straight stream; two at once are a third slower.
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

// The first row's value at `from`, or that of a row `bytes` further, in all lanes.
template <typename T>
TRANSOM_INLINE auto each(const T* from, int64_t bytes) {
    return all(load_as<T>(reinterpret_cast<const char*>(from) + bytes));
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

struct Place {
    const uint8_t* codes[packed_tiles];
    const float* scales[packed_tiles];
    const float* minima[packed_tiles];
    float* out[packed_tiles];
    int64_t outputs[packed_tiles];
};

// What to fetch of the next tiles while group g is worked on: `bytes` of codes from codes + g * bytes. The
// blocks of rows that share a place share this work; the first of them also fetches the scales.
struct Ahead {
    const char* codes;
    int64_t bytes, scale_bytes;
    const char *scales, *minima;
};

// Always inlined: gcc 12 drops calls of a function that only prefetches.
TRANSOM_INLINE void fetch(const char* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

TRANSOM_INLINE void fetch(const Ahead& ahead, int64_t g) {
    fetch(ahead.codes + g * ahead.bytes, ahead.bytes);
    fetch(ahead.scales + g * ahead.scale_bytes, ahead.scale_bytes);
    if (ahead.minima) fetch(ahead.minima + g * ahead.scale_bytes, ahead.scale_bytes);
}

template <int Rows, int Tiles>
TRANSOM_INLINE void store(const MatmulPacked& a, int64_t row, const Place& p,
                          const Lanes (&acc)[Rows][Tiles]) {
    for (int t = 0; t < Tiles; ++t) {
        const int64_t outputs = p.outputs[t], width = a.matrix.out;  // read once: stores might change them
        float* out = p.out[t] + row * width;
        for (int r = 0; r < Rows; ++r) store(out + r * width, acc[r][t], outputs);
    }
}

// Rows [row, row + Rows), whose records begin at x, times the tiles at `p`.
template <typename Record, int Group, bool Minima, int Rows, int Tiles>
void block(const MatmulPacked& a, const Record* x, int64_t row, const Place& p, const Ahead& ahead) {
    const int64_t records = a.matrix.in / 32, stride = records * static_cast<int64_t>(sizeof(Record));
    const uint8_t* w[Tiles];
    Lanes acc[Rows][Tiles];
    clear(acc);
    for (int t = 0; t < Tiles; ++t) w[t] = p.codes[t];
    int64_t at = 0;  // of the group's 16 scales
    for (int64_t g = 0; g < records; ++g, ++x) {
        fetch(ahead, g);
#pragma GCC unroll 2
        for (int part = 0; part < 32 / Group; ++part, at += tile_out) {
            Ints d[Rows][Tiles];
            dots<Group>(d, w, *x, part, stride);
            for (int t = 0; t < Tiles; ++t) w[t] += Group * tile_out;
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                const Lanes sx = each(&x->scale, r * stride);
                for (int t = 0; t < Tiles; ++t) {
                    const Lanes scale = sx * load(p.scales[t] + at);
                    acc[r][t] = fma(to_floats(d[r][t]), scale, acc[r][t]);
                    if constexpr (Minima) {
                        const Lanes sum = each(&x->sum[Group == 32 ? 2 : part], r * stride);
                        const Lanes minimum = sx * load(p.minima[t] + at);
                        acc[r][t] = fma(sum, minimum, acc[r][t]);
                    }
                }
            }
        }
    }
    store(a, row, p, acc);
}

template <typename Record>
using Kernel = void (*)(const MatmulPacked&, const Record*, int64_t, const Place&, const Ahead&);

// How rows are cut into blocks.
struct Plan {
    int tiles;
    int64_t blocks;
};

Plan plan(int64_t rows) {
    if (rows <= packed_few_rows) return {1, 1};
    return {packed_tiles, (rows + packed_rows - 1) / packed_rows};
}

// Of `Least` rows and more.
template <typename Record, int Group, bool Minima, int Tiles, int Least, int... More>
constexpr std::array<Kernel<Record>, sizeof...(More)> blocks_of(std::integer_sequence<int, More...>) {
    return {block<Record, Group, Minima, Least + More, Tiles>...};
}

template <typename Record, int Group, bool Minima>
Kernel<Record> with_rows(int64_t rows, int tiles) {
    constexpr int least = packed_rows / 2 + 1;  // of a block of many: they are cut evenly
    constexpr auto narrow =
        blocks_of<Record, Group, Minima, 1, 1>(std::make_integer_sequence<int, packed_few_rows>());
    constexpr auto wide = blocks_of<Record, Group, Minima, packed_tiles, least>(
        std::make_integer_sequence<int, packed_rows - least + 1>());
    return tiles == 1 ? narrow[static_cast<size_t>(rows - 1)] : wide[static_cast<size_t>(rows - least)];
}

template <typename Record>
Kernel<Record> choose(const Packed& w, int64_t rows, int tiles) {
    if (w.group == 32)
        return w.minima ? with_rows<Record, 32, true>(rows, tiles)
                        : with_rows<Record, 32, false>(rows, tiles);
    return w.minima ? with_rows<Record, 16, true>(rows, tiles) : with_rows<Record, 16, false>(rows, tiles);
}

// The tiles from `tile` on; past the end the last one stands in, and computes the same once more.
Place place(const MatmulPacked& a, int64_t tile, int64_t last) {
    Place p;
    const Packed& w = a.matrix;
    const int64_t scales = w.in / w.group * tile_out;
    for (int t = 0; t < packed_tiles; ++t) {
        const int64_t at = std::min(tile + t, last), output = at * tile_out;
        p.codes[t] = w.codes + at * w.in * tile_out;
        p.scales[t] = w.scales + at * scales;
        p.minima[t] = w.minima ? w.minima + at * scales : nullptr;
        p.out[t] = a.out + output;
        p.outputs[t] = w.out - output;
    }
    return p;
}

// Block b's share of fetching the `tiles` after those at p, which may lie past the end: fetching never
// faults.
Ahead ahead_of(const Packed& w, const Place& p, const Plan& plan, int64_t b) {
    const int64_t groups = w.in / 32, tile_bytes = w.in * tile_out;
    const int64_t share = plan.tiles * 32 * tile_out / plan.blocks;
    const int64_t scales = w.in / w.group * tile_out * plan.tiles;
    Ahead ahead{};
    ahead.bytes = share;
    ahead.codes = reinterpret_cast<const char*>(p.codes[0]) + plan.tiles * tile_bytes + b * groups * share;
    if (b != 0) return ahead;
    ahead.scale_bytes = plan.tiles * 32 / w.group * tile_out * 4;
    ahead.scales = reinterpret_cast<const char*>(p.scales[0] + scales);
    ahead.minima = p.minima[0] ? reinterpret_cast<const char*>(p.minima[0] + scales) : nullptr;
    return ahead;
}

// Rows [begin, end); the records of `begin` are the first of `rows`.
template <typename Record>
void run(const MatmulPacked& a, const Record* rows, int64_t begin, int64_t end, int64_t tile_begin,
         int64_t tile_end) {
    const int64_t count = end - begin;
    const Plan cut = plan(count);
    for (int64_t tile = tile_begin; tile < tile_end; tile += cut.tiles) {
        const Place p = place(a, tile, tile_end - 1);
        for (int64_t b = 0; b < cut.blocks; ++b) {
            const int64_t from = count * b / cut.blocks, to = count * (b + 1) / cut.blocks;
            const Kernel<Record> kernel = choose<Record>(a.matrix, to - from, cut.tiles);
            kernel(a, rows + from * (a.matrix.in / 32), begin + from, p, ahead_of(a.matrix, p, cut, b));
        }
    }
}

#if defined(TRANSOM_SMALL_DOTS)
constexpr int64_t rows_worth_a_look = 8;  // at a tile's weights, which takes about as long as half a row

bool is_small(const Packed& w, int64_t tile) {
    const uint8_t* codes = w.codes + tile * w.in * tile_out;
    bool small = true;
    for (int64_t i = 0; small && i < w.in * tile_out; i += 64) small = are_small(codes + i);
    return small;
}

// Tile by tile, as its weights allow.
void run_by_size(const MatmulPacked& a, const Record8* rows, int64_t begin, int64_t end, int64_t tile_begin,
                 int64_t tile_end) {
    const PairRecord* pairs = nullptr;
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        if (is_small(a.matrix, tile)) {
            run(a, rows, begin, end, tile, tile + 1);
            continue;
        }
        if (!pairs) pairs = as_dotted(rows, (end - begin) * (a.matrix.in / 32));
        run(a, pairs, begin, end, tile, tile + 1);
    }
}
#endif

}  // namespace

void matmul_packed(const MatmulPacked& a, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                   int64_t tile_end) {
    const int64_t at = row_begin * (a.matrix.in / 32), count = (row_end - row_begin) * (a.matrix.in / 32);
#if defined(TRANSOM_SMALL_DOTS)
    if (a.limit == 127 && row_end - row_begin >= rows_worth_a_look) {
        const Record8* rows = static_cast<const Record8*>(a.records) + at;
        return run_by_size(a, rows, row_begin, row_end, tile_begin, tile_end);
    }
#endif
    const auto go = [&](const auto* rows) { run(a, rows, row_begin, row_end, tile_begin, tile_end); };
    if (a.limit == 127) return go(as_dotted(static_cast<const Record8*>(a.records) + at, count));
    go(as_dotted(static_cast<const Record16*>(a.records) + at, count));
}

}  // namespace transom::TRANSOM_ISA
