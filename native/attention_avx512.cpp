#if defined(__x86_64__)
// Attention of some queries over the keys of one row, a tile of 64 keys at a time.
//
// A "line" here is one query head's work: (query, head) pairs that share a KV head. Blocks of 4 lines x 4
// keys (scores) and 4 lines x 64 dimensions (values) keep all sums in registers; each line still gets exactly
// the text's operations. Many lines: a tile's float16 is converted once, into scratch. Few: on the fly.
#include <algorithm>
#include <limits>

#include "avx512.h"
#include "lanes_avx512.h"
#include "pool.h"

namespace transom::avx512 {
namespace {

constexpr int64_t converting_lines = 9;  // from so many on, a converted tile is read often enough
constexpr int64_t keys_at_once = 16;     // of a converted tile, small enough for L1
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

struct Line {
    const float* q;
    float* acc;  // merged values, or this tile's in the partial
    float* out;
    float* scores;  // of the tile's 64 keys, then weights
    int64_t position;
    int64_t begin, end;  // unmasked keys of the tile, relative to it; empty: skipped
    float max, sum;
    float keep, take;  // factors of the old values and the new ones
    bool begun;
};

// Of a tile, relative to it.
struct Keys {
    int64_t begin, end;
};

// The tile's keys or values by position; the ones no line reads repeat one that is read.
template <typename E>
struct Slots {
    const E* at[key_tile];
};

inline __m512 load(const float* from) { return _mm512_loadu_ps(from); }
inline __m512 load(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

template <typename E>
void find(const Attention& a, const AttentionPiece& p, int64_t tile, Keys keys, int which, Slots<E>& slots) {
    const int64_t size = a.pages.page_size, step = a.pages.kv_heads * a.pages.head_dim;
    const E* at = nullptr;
    for (int64_t k = keys.begin; k < keys.end; ++k, at += step) {
        const int64_t position = tile * key_tile + k;
        if (!at || position % size == 0) {
            at = reinterpret_cast<const E*>(a.pages.slot(p.row, position, which)) +
                 p.kv_head * a.pages.head_dim;
        }
        slots.at[k] = at;
    }
    std::fill(slots.at, slots.at + keys.begin, slots.at[keys.begin]);
    std::fill(slots.at + keys.end, slots.at + key_tile, slots.at[keys.end - 1]);
}

// Asks for what is needed next, so that memory works while arithmetic does. Always inlined: gcc 12 drops
// calls of functions that only prefetch.
template <typename E>
inline __attribute__((always_inline)) void fetch(const Slots<E>& slots, Keys keys, int64_t dim) {
    for (int64_t k = keys.begin; k < keys.end; ++k) {
        const char* row = reinterpret_cast<const char*>(slots.at[k]);
        for (int64_t i = 0; i < dim * static_cast<int64_t>(sizeof(E)); i += 64)
            _mm_prefetch(row + i, _MM_HINT_T1);
    }
}

// Converted rows lie a cache line further apart than they need to: at a distance of 1 KiB, 64 of them would
// fight for a few sets of L1.
void convert(const Slots<uint16_t>& from, Keys keys, int64_t dim, Scratch slot, Slots<float>& slots) {
    const int64_t stride = dim + 16;
    float* into = scratch<float>(slot, key_tile * stride);
    for (int64_t k = keys.begin; k < keys.end; ++k) {
        for (int64_t i = 0; i < dim; i += 16) _mm512_store_ps(into + k * stride + i, load(from.at[k] + i));
    }
    for (int64_t k = 0; k < key_tile; ++k)
        slots.at[k] = into + std::clamp(k, keys.begin, keys.end - 1) * stride;
}

// ---------------------------------------------------------------- scores

inline __m512 fold_to_8(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
inline __m512 fold_to_4(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
inline __m512 fold_to_2(__m512 a, __m512 b) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
inline __m512 fold_to_1(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

// 16 vectors of 16 lanes, folded side by side: 128-bit part r of the result holds the sums of row r, keys
// 0-3. Inlined, or all 16 would go through memory.
template <int Lines>
inline __attribute__((always_inline)) __m512 fold_all(const __m512 (&acc)[Lines][4]) {
    const __m512 none = _mm512_setzero_ps();
    __m512 quad[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
        const __m512 low = fold_to_8(acc[0][k], Lines > 1 ? acc[Lines > 1 ? 1 : 0][k] : none);
        const __m512 high =
            Lines > 2 ? fold_to_8(acc[Lines > 2 ? 2 : 0][k], Lines > 3 ? acc[Lines > 3 ? 3 : 0][k] : none)
                      : none;
        quad[k] = fold_to_4(low, high);
    }
    return fold_to_1(fold_to_2(quad[0], quad[1]), fold_to_2(quad[2], quad[3]));
}

// Dots of `Lines` lines with keys [k, k + 4).
template <int Lines, typename E>
void dots(const Line* lines, const E* const* keys, int64_t dim, int64_t k) {
    __m512 acc[Lines][4];
    clear(acc);
    const float* q[Lines];
    for (int r = 0; r < Lines; ++r) q[r] = lines[r].q;
    const E *k0 = keys[k], *k1 = keys[k + 1], *k2 = keys[k + 2], *k3 = keys[k + 3];
    for (int64_t i = 0; i < dim; i += 16) {
        const __m512 key[4] = {held(load(k0 + i)), held(load(k1 + i)), held(load(k2 + i)),
                               held(load(k3 + i))};
#pragma GCC unroll 4
        for (int r = 0; r < Lines; ++r) {
            const __m512 x = held(load(q[r] + i));
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) acc[r][j] = _mm512_fmadd_ps(x, key[j], acc[r][j]);
        }
    }
    alignas(64) float sums[16];
    _mm512_store_ps(sums, fold_all<Lines>(acc));
    for (int r = 0; r < Lines; ++r) _mm_storeu_ps(lines[r].scores + k, _mm_load_ps(sums + 4 * r));
}

template <int Lines, typename E>
void dots_between(const Line* lines, const Slots<E>& keys, int64_t dim, int64_t begin, int64_t end) {
    int64_t low = key_tile, high = 0;
    for (int r = 0; r < Lines; ++r) {
        if (lines[r].begin >= lines[r].end) continue;
        low = std::min(low, lines[r].begin);
        high = std::max(high, lines[r].end);
    }
    for (int64_t k = std::max(begin, low / 4 * 4); k < std::min(end, high); k += 4)
        dots<Lines>(lines, keys.at, dim, k);
}

template <typename E>
void score(Line* lines, int64_t count, const Slots<E>& keys, int64_t dim) {
    for (int64_t k = 0; k < key_tile; k += keys_at_once) {
        int64_t i = 0;
        for (; i + 4 <= count; i += 4) dots_between<4>(lines + i, keys, dim, k, k + keys_at_once);
        if (count - i == 3) dots_between<3>(lines + i, keys, dim, k, k + keys_at_once);
        if (count - i == 2) dots_between<2>(lines + i, keys, dim, k, k + keys_at_once);
        if (count - i == 1) dots_between<1>(lines + i, keys, dim, k, k + keys_at_once);
    }
}

// ---------------------------------------------------------------- weights

struct Softmax {
    float max, sum;
};

// Scores to weights, in place, over the line's unmasked keys.
Softmax weigh(const Attention& a, const Line& line) {
    const uint64_t to_end = line.end == key_tile ? ~uint64_t{0} : (uint64_t{1} << line.end) - 1;
    const uint64_t seen = to_end & ~((uint64_t{1} << line.begin) - 1);
    __m512 s[4], top = _mm512_set1_ps(minus_infinity);
    for (int i = 0; i < 4; ++i) {
        const auto mask = static_cast<__mmask16>(seen >> (16 * i));
        s[i] = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, line.scores + 16 * i), _mm512_set1_ps(a.scale));
        if (a.softcap != 0.0f) s[i] = softcapped(s[i], a.softcap);
        top = _mm512_mask_max_ps(top, mask, top, s[i]);
    }
    const float max = _mm512_reduce_max_ps(top);
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < 4; ++i) {
        const auto mask = static_cast<__mmask16>(seen >> (16 * i));
        const __m512 w = exp(_mm512_sub_ps(s[i], _mm512_set1_ps(max)));
        sum = _mm512_mask_add_ps(sum, mask, sum, w);
        _mm512_storeu_ps(line.scores + 16 * i, w);
    }
    return {max, fold(sum)};
}

// The line's maximum and sum with the tile's, and the factors for its values.
void join(Line& line, const Softmax& tile) {
    if (!line.begun) {
        line.max = tile.max;
        line.sum = tile.sum;
        return;
    }
    const float top = tile.max > line.max ? tile.max : line.max;
    const __m512 both =
        exp(_mm512_mask_mov_ps(_mm512_set1_ps(line.max - top), 2, _mm512_set1_ps(tile.max - top)));
    line.keep = _mm512_cvtss_f32(both);
    line.take = _mm_cvtss_f32(_mm_movehdup_ps(_mm512_castps512_ps128(both)));
    line.sum = std::fma(tile.sum, line.take, line.sum * line.keep);
    line.max = top;
}

// ---------------------------------------------------------------- values

// Adds the tile's weighted values of dimensions [i, i + 16 * Width) to lines that see the same keys.
template <int Lines, int Width, typename E>
void add_values(const Line* lines, const E* const* values, int64_t i) {
    __m512 acc[Lines][Width];
    clear(acc);
    const float* weights[Lines];
    for (int r = 0; r < Lines; ++r) weights[r] = lines[r].scores;
    for (int64_t k = lines[0].begin; k < lines[0].end; ++k) {
        __m512 v[Width];
#pragma GCC unroll 4
        for (int w = 0; w < Width; ++w) v[w] = held(load(values[k] + i + 16 * w));
#pragma GCC unroll 4
        for (int r = 0; r < Lines; ++r) {
            const __m512 p = held(_mm512_set1_ps(weights[r][k]));
#pragma GCC unroll 4
            for (int w = 0; w < Width; ++w) acc[r][w] = _mm512_fmadd_ps(p, v[w], acc[r][w]);
        }
    }
    for (int r = 0; r < Lines; ++r) {
        for (int w = 0; w < Width; ++w) {
            float* to = lines[r].acc + i + 16 * w;
            __m512 sum = acc[r][w];
            if (lines[r].begun) {
                const __m512 old = _mm512_mul_ps(_mm512_loadu_ps(to), _mm512_set1_ps(lines[r].keep));
                sum = _mm512_fmadd_ps(sum, _mm512_set1_ps(lines[r].take), old);
            }
            _mm512_storeu_ps(to, sum);
        }
    }
}

template <int Width, typename E>
void add_values(const Line* lines, int64_t count, const E* const* values, int64_t i) {
    if (count == 4) return add_values<4, Width>(lines, values, i);
    if (count == 3) return add_values<3, Width>(lines, values, i);
    if (count == 2) return add_values<2, Width>(lines, values, i);
    add_values<1, Width>(lines, values, i);
}

// How many lines from the first on, up to 4, see the same keys.
int64_t alike(const Line* lines, int64_t count) {
    int64_t n = 1;
    while (n < std::min<int64_t>(count, 4) && lines[n].begin == lines[0].begin &&
           lines[n].end == lines[0].end)
        ++n;
    return n;
}

// 64 dimensions of all lines at a time: that much of the tile's values stays in L1.
template <typename E>
void value(Line* lines, int64_t count, const Slots<E>& values, int64_t dim) {
    for (int64_t i = 0, width = 0; i < dim; i += width) {
        width = i + 64 <= dim ? 64 : 16;
        for (int64_t l = 0, n = 0; l < count; l += n) {
            n = alike(lines + l, count - l);
            if (lines[l].begin >= lines[l].end) continue;
            if (width == 64) add_values<4>(lines + l, n, values.at, i);
            if (width == 16) add_values<1>(lines + l, n, values.at, i);
        }
    }
}

// ---------------------------------------------------------------- a piece

struct Lines {
    Line* at;
    int64_t count;
};

int64_t first_key(const Attention& a, const AttentionPiece& p, int64_t position) {
    return a.window ? std::max(p.clip, position - a.window + 1) : p.clip;
}

Lines make_lines(const Attention& a, const AttentionPiece& p) {
    const int64_t share = a.heads / a.pages.kv_heads, dim = a.pages.head_dim;
    const Lines lines{scratch<Line>(Scratch::row, p.count * share), p.count * share};
    float* scores = scratch<float>(Scratch::scores, lines.count * key_tile);
    float* acc = scratch<float>(Scratch::sums, lines.count * dim);
    for (int64_t i = 0; i < lines.count; ++i) {
        const int64_t at = ((p.token + i / share) * a.heads + p.kv_head * share + i % share) * dim;
        lines.at[i] = {
            a.q + at, acc + i * dim, a.out + at, scores + i * key_tile, p.position + i / share, 0, 0, 0, 0, 0,
            0,        false};
    }
    return lines;
}

// Sets which keys of the tile each line sees; returns the keys that any does.
Keys see(const Attention& a, const AttentionPiece& p, const Lines& lines, int64_t tile) {
    Keys keys{key_tile, 0};
    for (int64_t i = 0; i < lines.count; ++i) {
        Line& line = lines.at[i];
        line.begin = std::max<int64_t>(0, first_key(a, p, line.position) - tile * key_tile);
        line.end = std::min(key_tile, line.position + 1 - tile * key_tile);
        if (line.begin >= line.end) continue;
        keys = {std::min(keys.begin, line.begin), std::max(keys.end, line.end)};
    }
    return keys;
}

float* partial_of(const AttentionPiece& p, int64_t lines, int64_t tile, int64_t line, int64_t dim) {
    return p.partial + ((tile - p.tile_begin) * lines + line) * partial_floats(dim);
}

void weigh_all(const Attention& a, const AttentionPiece& p, const Lines& lines, int64_t tile) {
    for (int64_t i = 0; i < lines.count; ++i) {
        Line& line = lines.at[i];
        if (line.begin >= line.end) continue;
        const Softmax softmax = weigh(a, line);
        if (!p.partial) {
            join(line, softmax);
            continue;
        }
        float* partial = partial_of(p, lines.count, tile, i, a.pages.head_dim);
        partial[0] = softmax.max;
        partial[1] = softmax.sum;
        line.acc = partial + 16;
    }
}

void done(const AttentionPiece& p, const Lines& lines) {
    if (p.partial) return;
    for (int64_t i = 0; i < lines.count; ++i) lines.at[i].begun |= lines.at[i].begin < lines.at[i].end;
}

template <typename E>
void run_tile(const Attention& a, const AttentionPiece& p, const Lines& lines, int64_t tile,
              const Slots<E>& keys, const Slots<E>& values) {
    score(lines.at, lines.count, keys, a.pages.head_dim);
    weigh_all(a, p, lines, tile);
    value(lines.at, lines.count, values, a.pages.head_dim);
    done(p, lines);
}

// The tile after this one, as far as all its keys are needed.
template <typename E>
inline __attribute__((always_inline)) void fetch_next(const Attention& a, const AttentionPiece& p,
                                                      int64_t tile) {
    const int64_t last = p.position + p.count;  // keys end here
    const int64_t end = std::min(key_tile, last - (tile + 1) * key_tile);
    if (end <= 0 || tile + 1 >= p.tile_end) return;
    Slots<E> keys;
    find(a, p, tile + 1, {0, end}, 0, keys);
    fetch(keys, {0, end}, a.pages.head_dim);
}

template <typename E>
void run_tiles(const Attention& a, const AttentionPiece& p, const Lines& lines) {
    const int64_t dim = a.pages.head_dim;
    for (int64_t tile = p.tile_begin; tile < p.tile_end; ++tile) {
        const Keys seen = see(a, p, lines, tile);
        if (seen.begin >= seen.end) continue;
        Slots<E> keys, values;
        find(a, p, tile, seen, 0, keys);
        find(a, p, tile, seen, 1, values);
        fetch(values, seen, dim);
        if constexpr (sizeof(E) == 2) {
            if (lines.count >= converting_lines) {
                Slots<float> wide_keys, wide_values;
                convert(keys, seen, dim, Scratch::keys, wide_keys);
                convert(values, seen, dim, Scratch::values, wide_values);
                run_tile(a, p, lines, tile, wide_keys, wide_values);
                continue;
            }
        }
        score(lines.at, lines.count, keys, dim);
        fetch_next<E>(a, p, tile);
        weigh_all(a, p, lines, tile);
        value(lines.at, lines.count, values, dim);
        done(p, lines);
    }
}

void finish(const Line& line, int64_t dim) {
    const __m512 inverse = _mm512_set1_ps(1.0f / line.sum);
    for (int64_t i = 0; i < dim; i += 16) {
        _mm512_storeu_ps(line.out + i, _mm512_mul_ps(_mm512_loadu_ps(line.acc + i), inverse));
    }
}

void merge_tile(Line& line, const float* partial, int64_t dim) {
    join(line, {partial[0], partial[1]});
    for (int64_t i = 0; i < dim; i += 16) {
        __m512 sum = _mm512_loadu_ps(partial + 16 + i);
        if (line.begun) {
            const __m512 old = _mm512_mul_ps(_mm512_loadu_ps(line.acc + i), _mm512_set1_ps(line.keep));
            sum = _mm512_fmadd_ps(sum, _mm512_set1_ps(line.take), old);
        }
        _mm512_storeu_ps(line.acc + i, sum);
    }
    line.begun = true;
}

}  // namespace

void attention(const Attention& a, const AttentionPiece& p) {
    const Lines lines = make_lines(a, p);
    if (a.pages.half) {
        run_tiles<uint16_t>(a, p, lines);
    } else {
        run_tiles<float>(a, p, lines);
    }
    if (p.partial) return;
    for (int64_t i = 0; i < lines.count; ++i) finish(lines.at[i], a.pages.head_dim);
}

void attention_merge(const Attention& a, const AttentionPiece& p) {
    const Lines lines = make_lines(a, p);
    const int64_t dim = a.pages.head_dim;
    for (int64_t i = 0; i < lines.count; ++i) {
        Line& line = lines.at[i];
        const int64_t from = first_key(a, p, line.position) / key_tile, to = line.position / key_tile;
        for (int64_t tile = from; tile <= to; ++tile)
            merge_tile(line, partial_of(p, lines.count, tile, i, dim), dim);
        finish(line, dim);
    }
}

}  // namespace transom::avx512

#endif
