#if defined(__x86_64__)
// Quantized matmul: blocks of a few rows x 1 or 2 tiles of 16 outputs, all sums in registers.
//
// Many rows: 4 to 6 x 2 tiles, bound by arithmetic. Few rows: up to 8 x 1 tile, so that memory sees one
// straight stream; two at once are a third slower.
//
// vpdpbusd wants unsigned weights: they are stored as code + 128, and every accumulator starts from the
// record's bias, -128 * sum of codes. Nothing can saturate. With two planes, 254 * high + low, the
// accumulator of the high plane is multiplied and goes on to the low one.
#include <algorithm>

#include "avx512.h"
#include "lanes_avx512.h"

namespace transom::avx512 {
namespace {

#define TRANSOM_INLINE inline __attribute__((always_inline))

constexpr int most_tiles = 2;

struct Place {
    const uint8_t* codes[most_tiles];
    const float* scales[most_tiles];
    const float* minima[most_tiles];
    float* out[most_tiles];
    __mmask16 mask[most_tiles];
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
    for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(from + i, _MM_HINT_T1);
}

TRANSOM_INLINE void fetch(const Ahead& ahead, int64_t g) {
    fetch(ahead.codes + g * ahead.bytes, ahead.bytes);
    fetch(ahead.scales + g * ahead.scale_bytes, ahead.scale_bytes);
    if (ahead.minima) fetch(ahead.minima + g * ahead.scale_bytes, ahead.scale_bytes);
}

template <typename T>
T load(const void* from) {
    T value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

// acc[r][t] += dot of weights (group of 32 or 16 at w) with 4-byte runs of the rows' codes.
template <int Rows, int Tiles, int Group>
TRANSOM_INLINE void add_dots(__m512i (&acc)[Rows][Tiles], const uint8_t* const* w, const int8_t* codes,
                             int64_t stride) {
#pragma GCC unroll 8
    for (int k = 0; k < Group; k += 4) {
        __m512i weights[Tiles];
        for (int t = 0; t < Tiles; ++t) weights[t] = _mm512_loadu_si512(w[t] + k * tile_out);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const __m512i x = _mm512_set1_epi32(load<int32_t>(codes + r * stride + k));
            for (int t = 0; t < Tiles; ++t) acc[r][t] = _mm512_dpbusd_epi32(acc[r][t], weights[t], x);
        }
    }
}

// The first row's value at `from`, and those of the rows below it, in all lanes.
TRANSOM_INLINE __m512i each(const int32_t* from, int64_t bytes) {
    return _mm512_set1_epi32(load<int32_t>(reinterpret_cast<const char*>(from) + bytes));
}

TRANSOM_INLINE __m512 each(const float* from, int64_t bytes) {
    return _mm512_set1_ps(load<float>(reinterpret_cast<const char*>(from) + bytes));
}

template <int Rows, int Tiles>
TRANSOM_INLINE void start(__m512i (&acc)[Rows][Tiles], const int32_t* bias, int64_t stride) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        const __m512i b = each(bias, r * stride);
        for (int t = 0; t < Tiles; ++t) acc[r][t] = b;
    }
}

template <int Group, int Rows, int Tiles>
TRANSOM_INLINE void dots(__m512i (&acc)[Rows][Tiles], const uint8_t* const* w, const Record8& x, int part,
                         int64_t stride) {
    start(acc, &x.bias[Group == 32 ? 2 : part], stride);
    add_dots<Rows, Tiles, Group>(acc, w, x.codes + part * Group, stride);
}

template <int Group, int Rows, int Tiles>
TRANSOM_INLINE void dots(__m512i (&acc)[Rows][Tiles], const uint8_t* const* w, const Record16& x, int part,
                         int64_t stride) {
    const int which = Group == 32 ? 2 : part;
    start(acc, &x.bias_high[which], stride);
    add_dots<Rows, Tiles, Group>(acc, w, x.high + part * Group, stride);
    const __m512i step = _mm512_set1_epi32(254);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
        const __m512i b = each(&x.bias_low[which], r * stride);
        for (int t = 0; t < Tiles; ++t) acc[r][t] = _mm512_add_epi32(_mm512_mullo_epi32(acc[r][t], step), b);
    }
    add_dots<Rows, Tiles, Group>(acc, w, x.low + part * Group, stride);
}

template <int Rows, int Tiles>
TRANSOM_INLINE void store(const MatmulPacked& a, int64_t row, const Place& p,
                          const __m512 (&acc)[Rows][Tiles]) {
    for (int r = 0; r < Rows; ++r) {
        for (int t = 0; t < Tiles; ++t) {
            _mm512_mask_storeu_ps(p.out[t] + (row + r) * a.matrix.out, p.mask[t], acc[r][t]);
        }
    }
}

// Rows [row, row + Rows) x the tiles at `p`.
template <typename Record, int Group, bool Minima, int Rows, int Tiles>
void block(const MatmulPacked& a, int64_t row, const Place& p, const Ahead& ahead) {
    const int64_t records = a.matrix.in / 32, stride = records * static_cast<int64_t>(sizeof(Record));
    const Record* x = static_cast<const Record*>(a.records) + row * records;
    const uint8_t* w[Tiles];
    __m512 acc[Rows][Tiles];
    clear(acc);
    for (int t = 0; t < Tiles; ++t) w[t] = p.codes[t];
    int64_t at = 0;  // of the group's 16 scales
    for (int64_t g = 0; g < records; ++g, ++x) {
        fetch(ahead, g);
#pragma GCC unroll 2
        for (int part = 0; part < 32 / Group; ++part, at += tile_out) {
            __m512i d[Rows][Tiles];
            dots<Group>(d, w, *x, part, stride);
            for (int t = 0; t < Tiles; ++t) w[t] += Group * tile_out;
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r) {
                const __m512 sx = each(&x->scale, r * stride);
                for (int t = 0; t < Tiles; ++t) {
                    const __m512 scale = _mm512_mul_ps(sx, _mm512_loadu_ps(p.scales[t] + at));
                    acc[r][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[r][t]), scale, acc[r][t]);
                    if constexpr (Minima) {
                        const __m512 sum = each(&x->sum[Group == 32 ? 2 : part], r * stride);
                        const __m512 minimum = _mm512_mul_ps(sx, _mm512_loadu_ps(p.minima[t] + at));
                        acc[r][t] = _mm512_fmadd_ps(sum, minimum, acc[r][t]);
                    }
                }
            }
        }
    }
    store(a, row, p, acc);
}

using Kernel = void (*)(const MatmulPacked&, int64_t, const Place&, const Ahead&);

// How rows are cut into blocks.
struct Plan {
    int tiles;
    int64_t blocks;
};

constexpr int64_t few_rows = 8;

Plan plan(int64_t rows) {
    if (rows <= few_rows) return {1, 1};
    return {2, (rows + 5) / 6};  // of 9 rows or more: every block has 4, 5 or 6
}

template <typename Record, int Group, bool Minima>
Kernel with_rows(int64_t rows, int tiles) {
    constexpr Kernel wide[] = {
        block<Record, Group, Minima, 4, 2>,
        block<Record, Group, Minima, 5, 2>,
        block<Record, Group, Minima, 6, 2>,
    };
    constexpr Kernel narrow[] = {
        block<Record, Group, Minima, 1, 1>, block<Record, Group, Minima, 2, 1>,
        block<Record, Group, Minima, 3, 1>, block<Record, Group, Minima, 4, 1>,
        block<Record, Group, Minima, 5, 1>, block<Record, Group, Minima, 6, 1>,
        block<Record, Group, Minima, 7, 1>, block<Record, Group, Minima, 8, 1>,
    };
    return tiles == 2 ? wide[rows - 4] : narrow[rows - 1];
}

template <typename Record>
Kernel choose(const Packed& w, int64_t rows, int tiles) {
    if (w.group == 32)
        return w.minima ? with_rows<Record, 32, true>(rows, tiles)
                        : with_rows<Record, 32, false>(rows, tiles);
    return w.minima ? with_rows<Record, 16, true>(rows, tiles) : with_rows<Record, 16, false>(rows, tiles);
}

Kernel choose(const MatmulPacked& a, int64_t rows, int tiles) {
    return a.limit == 127 ? choose<Record8>(a.matrix, rows, tiles) : choose<Record16>(a.matrix, rows, tiles);
}

// The tiles from `tile` on; past the end the last one stands in, and computes the same once more.
Place place(const MatmulPacked& a, int64_t tile, int64_t last) {
    Place p;
    const Packed& w = a.matrix;
    const int64_t scales = w.in / w.group * tile_out;
    for (int t = 0; t < most_tiles; ++t) {
        const int64_t at = std::min(tile + t, last), output = at * tile_out;
        p.codes[t] = w.codes + at * w.in * tile_out;
        p.scales[t] = w.scales + at * scales;
        p.minima[t] = w.minima ? w.minima + at * scales : nullptr;
        p.out[t] = a.out + output;
        p.mask[t] = first(w.out - output);
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

}  // namespace

void matmul_packed(const MatmulPacked& a, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                   int64_t tile_end) {
    const int64_t rows = row_end - row_begin;
    const Plan cut = plan(rows);
    for (int64_t tile = tile_begin; tile < tile_end; tile += cut.tiles) {
        const Place p = place(a, tile, tile_end - 1);
        for (int64_t b = 0; b < cut.blocks; ++b) {
            const int64_t from = row_begin + rows * b / cut.blocks,
                          to = row_begin + rows * (b + 1) / cut.blocks;
            choose(a, to - from, cut.tiles)(a, from, p, ahead_of(a.matrix, p, cut, b));
        }
    }
}

}  // namespace transom::avx512

#endif
