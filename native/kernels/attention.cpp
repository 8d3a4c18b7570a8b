// Attention of some queries over the keys of one row, a tile of 64 keys at a time.
//
// A "line" here is one query head's work: (query, head) pairs that share a KV head. Blocks of lines x keys
// (scores) and lines x dimensions (values) keep all sums in registers; each line still gets exactly the
// text's operations. Many lines: a tile's float16 is converted once, into scratch. Few: on the fly.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "../lanes.h"
#include "../pool.h"
#include "table.h"

namespace transom::TRANSOM_ISA {
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
TRANSOM_INLINE void fetch(const Slots<E>& slots, Keys keys, int64_t dim) {
    for (int64_t k = keys.begin; k < keys.end; ++k) {
        const char* row = reinterpret_cast<const char*>(slots.at[k]);
        for (int64_t i = 0; i < dim * static_cast<int64_t>(sizeof(E)); i += 64)
            __builtin_prefetch(row + i, 0, 2);
    }
}

// Converted rows lie a cache line further apart than they need to: at a distance of 1 KiB, 64 of them would
// fight for a few sets of L1.
void convert(const Slots<uint16_t>& from, Keys keys, int64_t dim, Scratch slot, Slots<float>& slots) {
    const int64_t stride = dim + 16;
    float* into = scratch<float>(slot, key_tile * stride);
    for (int64_t k = keys.begin; k < keys.end; ++k) {
        for (int64_t i = 0; i < dim; i += lanes) store(into + k * stride + i, load(from.at[k] + i));
    }
    for (int64_t k = 0; k < key_tile; ++k)
        slots.at[k] = into + std::clamp(k, keys.begin, keys.end - 1) * stride;
}

// ---------------------------------------------------------------- scores

// Dots of `Lines` lines with keys from k on.
template <int Lines, typename E>
void dots(const Line* lines, const E* const* keys, int64_t dim, int64_t k) {
    Lanes acc[Lines][attention_keys];
    clear(acc);
    const float* q[Lines];
    for (int r = 0; r < Lines; ++r) q[r] = lines[r].q;
    const E* at[attention_keys];
    for (int j = 0; j < attention_keys; ++j) at[j] = keys[k + j];
    for (int64_t i = 0; i < dim; i += lanes) {
        Lanes key[attention_keys];
#pragma GCC unroll 4
        for (int j = 0; j < attention_keys; ++j) key[j] = held(load(at[j] + i));
#pragma GCC unroll 4
        for (int r = 0; r < Lines; ++r) {
            const Lanes x = held(load(q[r] + i));
#pragma GCC unroll 4
            for (int j = 0; j < attention_keys; ++j) acc[r][j] = fma(x, key[j], acc[r][j]);
        }
    }
    float sums[Lines][attention_keys];
    fold(acc, sums);
    for (int r = 0; r < Lines; ++r) std::memcpy(lines[r].scores + k, sums[r], sizeof sums[r]);
}

template <int Lines, typename E>
void dots_between(const Line* lines, const Slots<E>& keys, int64_t dim, int64_t begin, int64_t end) {
    int64_t low = key_tile, high = 0;
    for (int r = 0; r < Lines; ++r) {
        if (lines[r].begin >= lines[r].end) continue;
        low = std::min(low, lines[r].begin);
        high = std::max(high, lines[r].end);
    }
    for (int64_t k = std::max(begin, low / attention_keys * attention_keys); k < std::min(end, high);
         k += attention_keys)
        dots<Lines>(lines, keys.at, dim, k);
}

// f(n) with n, of 1 to attention_lines, as a constant.
template <int Most = attention_lines, typename F>
TRANSOM_INLINE void with_lines(int64_t n, F f) {
    if constexpr (Most > 1) {
        if (n < Most) return with_lines<Most - 1>(n, f);
    }
    f(std::integral_constant<int, Most>());
}

template <typename E>
void score(Line* lines, int64_t count, const Slots<E>& keys, int64_t dim) {
    for (int64_t k = 0; k < key_tile; k += keys_at_once) {
        for (int64_t i = 0; i < count; i += attention_lines) {
            with_lines(std::min<int64_t>(count - i, attention_lines),
                       [&](auto n) { dots_between<n>(lines + i, keys, dim, k, k + keys_at_once); });
        }
    }
}

// ---------------------------------------------------------------- weights

struct Softmax {
    float max, sum;
};

// Scores to weights, in place, over the line's unmasked keys.
Softmax weigh(const Attention& a, const Line& line) {
    Lanes s[key_tile / lanes], top = all(minus_infinity);
    Mask seen[key_tile / lanes];
    for (int i = 0; i < key_tile / lanes; ++i) {
        seen[i] = between(line.begin - lanes * i, line.end - lanes * i);
        s[i] = pick(seen[i], load(line.scores + lanes * i), all(0.0f)) * all(a.scale);
        if (a.softcap != 0.0f) s[i] = softcapped(s[i], a.softcap);
        top = pick(seen[i], higher(top, s[i]), top);
    }
    const float max = highest_of(top);
    Lanes sum = all(0.0f);
    for (int i = 0; i < key_tile / lanes; ++i) {
        const Lanes w = exp(s[i] - all(max));
        sum = pick(seen[i], sum + w, sum);
        store(line.scores + lanes * i, w);
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
    line.keep = lane_0(exp(all(line.max - top)));
    line.take = lane_0(exp(all(tile.max - top)));
    line.sum = std::fma(tile.sum, line.take, line.sum * line.keep);
    line.max = top;
}

// ---------------------------------------------------------------- values

// Adds the tile's weighted values of 16 * Width dimensions from i on to lines that see the same keys.
template <int Lines, int Width, typename E>
void add_values(const Line* lines, const E* const* values, int64_t i) {
    Lanes acc[Lines][Width];
    clear(acc);
    const float* weights[Lines];
    for (int r = 0; r < Lines; ++r) weights[r] = lines[r].scores;
    for (int64_t k = lines[0].begin; k < lines[0].end; ++k) {
        Lanes v[Width];
#pragma GCC unroll 4
        for (int w = 0; w < Width; ++w) v[w] = held(load(values[k] + i + lanes * w));
#pragma GCC unroll 4
        for (int r = 0; r < Lines; ++r) {
            const Lanes p = held(all(weights[r][k]));
#pragma GCC unroll 4
            for (int w = 0; w < Width; ++w) acc[r][w] = fma(p, v[w], acc[r][w]);
        }
    }
    for (int r = 0; r < Lines; ++r) {
        for (int w = 0; w < Width; ++w) {
            float* to = lines[r].acc + i + lanes * w;
            Lanes sum = acc[r][w];
            if (lines[r].begun) sum = fma(sum, all(lines[r].take), load(to) * all(lines[r].keep));
            store(to, sum);
        }
    }
}

// How many lines from the first on, of those that one block takes, see the same keys.
int64_t alike(const Line* lines, int64_t count) {
    int64_t n = 1;
    while (n < std::min<int64_t>(count, attention_lines) && lines[n].begin == lines[0].begin &&
           lines[n].end == lines[0].end)
        ++n;
    return n;
}

// A few dimensions of all lines at a time: that much of the tile's values stays in L1.
template <typename E>
void value(Line* lines, int64_t count, const Slots<E>& values, int64_t dim) {
    constexpr int64_t most = lanes * attention_width;
    for (int64_t i = 0, width = 0; i < dim; i += width) {
        width = i + most <= dim ? most : lanes;
        for (int64_t l = 0, n = 0; l < count; l += n) {
            n = alike(lines + l, count - l);
            if (lines[l].begin >= lines[l].end) continue;
            with_lines(n, [&](auto same) {
                if (width == most) return add_values<same, attention_width>(lines + l, values.at, i);
                add_values<same, 1>(lines + l, values.at, i);
            });
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
TRANSOM_INLINE void fetch_next(const Attention& a, const AttentionPiece& p, int64_t tile) {
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
    const Lanes inverse = all(1.0f / line.sum);
    for (int64_t i = 0; i < dim; i += lanes) store(line.out + i, load(line.acc + i) * inverse);
}

void merge_tile(Line& line, const float* partial, int64_t dim) {
    join(line, {partial[0], partial[1]});
    for (int64_t i = 0; i < dim; i += lanes) {
        Lanes sum = load(partial + 16 + i);
        if (line.begun) sum = fma(sum, all(line.take), load(line.acc + i) * all(line.keep));
        store(line.acc + i, sum);
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

}  // namespace transom::TRANSOM_ISA
