// Attention of a few queries over the keys of one row, a tile of 64 keys at a time.
//
// A QueryHead is the work of one query and one head. An AttentionPiece holds the query heads that share one
// KV head, so that every key and value that is loaded serves all of them.
//
// Blocking. Per tile: scores of query heads x keys, then softmax weights, then values of query heads x
// dimensions. Registers: all sums of a block (attention_heads x attention_keys scores, or attention_heads x
// attention_width registers of values); lanes_*.h sets the sizes. Whatever the block, each query head gets
// exactly the operations of the specification, in its order.
//
// Few query heads (a decode step): float16 is converted as it is loaded; bound by memory, hence the
// prefetches. Many (a prompt): a tile is converted once, into scratch memory; bound by fma.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "../lanes.h"
#include "../pool.h"
#include "table.h"

namespace transom::TRANSOM_ISA {
namespace {

constexpr int64_t converting_heads = 9;  // from so many query heads on, converting a tile once pays
constexpr int64_t keys_at_once = 16;     // of a converted tile: small enough for L1
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

struct QueryHead {
    const float* q;
    float* acc;  // values: merged so far; if the piece has partials, of the present tile alone
    float* out;
    float* scores;  // of the tile's 64 keys; overwritten by their softmax weights
    int64_t position;
    int64_t begin, end;            // visible keys, relative to the tile's first; empty: the tile is skipped
    float max, sum;                // of the softmax, merged so far
    float old_factor, new_factor;  // that merging the tile multiplies the merged and the tile's values with
    bool started;                  // a tile has been merged; the first one is taken as it is
};

// A range of keys, relative to the tile's first.
struct KeyRange {
    int64_t begin, end;
};

// Pointers to the tile's keys, or values. Pointers outside of the range that is read repeat one inside, so
// that blocks of keys may load past its ends.
template <typename E>
struct Slots {
    const E* at[key_tile];
};

// Looks up the pages of a tile's keys (which = 0) or values (which = 1).
template <typename E>
void locate_slots(const Attention& a, const AttentionPiece& p, int64_t tile, KeyRange keys, int which,
                  Slots<E>& slots) {
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

// Starts loading slots that are needed next, so that memory works while arithmetic does. Always inlined: gcc
// 12 drops calls of functions that only prefetch.
template <typename E>
TRANSOM_INLINE void prefetch_slots(const Slots<E>& slots, KeyRange keys, int64_t dim) {
    for (int64_t k = keys.begin; k < keys.end; ++k) {
        const char* row = reinterpret_cast<const char*>(slots.at[k]);
        for (int64_t i = 0; i < dim * static_cast<int64_t>(sizeof(E)); i += 64)
            __builtin_prefetch(row + i, 0, 2);
    }
}

// Converts a tile to float32, in scratch memory. Converted rows lie a cache line further apart than they need
// to: at a distance of 1 KiB, 64 rows would compete for a few sets of L1.
void convert_slots(const Slots<uint16_t>& from, KeyRange keys, int64_t dim, Scratch slot,
                   Slots<float>& slots) {
    const int64_t stride = dim + 16;
    float* into = scratch<float>(slot, key_tile * stride);
    for (int64_t k = keys.begin; k < keys.end; ++k) {
        for (int64_t i = 0; i < dim; i += lanes) store(into + k * stride + i, load(from.at[k] + i));
    }
    for (int64_t k = 0; k < key_tile; ++k)
        slots.at[k] = into + std::clamp(k, keys.begin, keys.end - 1) * stride;
}

// ---------------------------------------------------------------- scores

// Dots of `Heads` query heads with the attention_keys keys from k on.
template <int Heads, typename E>
void score_block(const QueryHead* heads, const E* const* keys, int64_t dim, int64_t k) {
    Lanes acc[Heads][attention_keys];
    clear(acc);
    const float* q[Heads];
    for (int r = 0; r < Heads; ++r) q[r] = heads[r].q;
    const E* at[attention_keys];
    for (int j = 0; j < attention_keys; ++j) at[j] = keys[k + j];
    for (int64_t i = 0; i < dim; i += lanes) {
        Lanes key[attention_keys];
#pragma GCC unroll 4
        for (int j = 0; j < attention_keys; ++j) key[j] = held(load(at[j] + i));
#pragma GCC unroll 4
        for (int r = 0; r < Heads; ++r) {
            const Lanes x = held(load(q[r] + i));
#pragma GCC unroll 4
            for (int j = 0; j < attention_keys; ++j) acc[r][j] = fma(x, key[j], acc[r][j]);
        }
    }
    float sums[Heads][attention_keys];
    fold(acc, sums);
    for (int r = 0; r < Heads; ++r) std::memcpy(heads[r].scores + k, sums[r], sizeof sums[r]);
}

// Scores of the keys in [begin, end) that at least one of the query heads sees.
template <int Heads, typename E>
void score_keys(const QueryHead* heads, const Slots<E>& keys, int64_t dim, int64_t begin, int64_t end) {
    int64_t low = key_tile, high = 0;
    for (int r = 0; r < Heads; ++r) {
        if (heads[r].begin >= heads[r].end) continue;
        low = std::min(low, heads[r].begin);
        high = std::max(high, heads[r].end);
    }
    for (int64_t k = std::max(begin, low / attention_keys * attention_keys); k < std::min(end, high);
         k += attention_keys)
        score_block<Heads>(heads, keys.at, dim, k);
}

// Calls f(n) with n, in [1, attention_heads], as a compile-time constant.
template <int Most = attention_heads, typename F>
TRANSOM_INLINE void with_head_count(int64_t n, F f) {
    if constexpr (Most > 1) {
        if (n < Most) return with_head_count<Most - 1>(n, f);
    }
    f(std::integral_constant<int, Most>());
}

// Scores of a whole tile. Keys are the outer loop: 16 keys stay in L1 while all query heads pass.
template <typename E>
void score_tile(QueryHead* heads, int64_t count, const Slots<E>& keys, int64_t dim) {
    for (int64_t k = 0; k < key_tile; k += keys_at_once) {
        for (int64_t i = 0; i < count; i += attention_heads) {
            with_head_count(std::min<int64_t>(count - i, attention_heads),
                            [&](auto n) { score_keys<n>(heads + i, keys, dim, k, k + keys_at_once); });
        }
    }
}

// ---------------------------------------------------------------- weights

struct Softmax {
    float max, sum;
};

// Replaces the scores of the visible keys by their softmax weights, exp(score - max). The tile's 64 scores
// stay in registers.
Softmax softmax_of_tile(const Attention& a, const QueryHead& head) {
    Lanes s[key_tile / lanes], top = broadcast(minus_infinity);
    Mask visible[key_tile / lanes];
    for (int i = 0; i < key_tile / lanes; ++i) {
        visible[i] = between(head.begin - lanes * i, head.end - lanes * i);
        s[i] = pick(visible[i], load(head.scores + lanes * i), broadcast(0.0f)) * broadcast(a.scale);
        if (a.softcap != 0.0f) s[i] = softcapped(s[i], a.softcap);
        top = pick(visible[i], higher(top, s[i]), top);
    }
    const float max = highest_of(top);
    Lanes sum = broadcast(0.0f);
    for (int i = 0; i < key_tile / lanes; ++i) {
        const Lanes w = exp(s[i] - broadcast(max));
        sum = pick(visible[i], sum + w, sum);
        store(head.scores + lanes * i, w);
    }
    return {max, fold(sum)};
}

// Merges a tile's maximum and sum into the query head's, and sets the factors for merging its values.
void merge_softmax(QueryHead& head, const Softmax& tile) {
    if (!head.started) {
        head.max = tile.max;
        head.sum = tile.sum;
        return;
    }
    const float top = tile.max > head.max ? tile.max : head.max;
    head.old_factor = lane_0(exp(broadcast(head.max - top)));
    head.new_factor = lane_0(exp(broadcast(tile.max - top)));
    head.sum = std::fma(tile.sum, head.new_factor, head.sum * head.old_factor);
    head.max = top;
}

// ---------------------------------------------------------------- values

// Adds the tile's weighted values of 16 * Width dimensions from i on, for query heads that see the same keys.
// Masked keys are not touched: their slots may hold NaN, and 0 * NaN is NaN.
template <int Heads, int Width, typename E>
void add_value_block(const QueryHead* heads, const E* const* values, int64_t i) {
    Lanes acc[Heads][Width];
    clear(acc);
    const float* weights[Heads];
    for (int r = 0; r < Heads; ++r) weights[r] = heads[r].scores;
    for (int64_t k = heads[0].begin; k < heads[0].end; ++k) {
        Lanes v[Width];
#pragma GCC unroll 4
        for (int w = 0; w < Width; ++w) v[w] = held(load(values[k] + i + lanes * w));
#pragma GCC unroll 4
        for (int r = 0; r < Heads; ++r) {
            const Lanes p = held(broadcast(weights[r][k]));
#pragma GCC unroll 4
            for (int w = 0; w < Width; ++w) acc[r][w] = fma(p, v[w], acc[r][w]);
        }
    }
    for (int r = 0; r < Heads; ++r) {
        for (int w = 0; w < Width; ++w) {
            float* to = heads[r].acc + i + lanes * w;
            Lanes sum = acc[r][w];
            if (heads[r].started)
                sum = fma(sum, broadcast(heads[r].new_factor), load(to) * broadcast(heads[r].old_factor));
            store(to, sum);
        }
    }
}

// The number of query heads, from the first on and at most a block, that see the same keys as the first.
int64_t count_with_same_keys(const QueryHead* heads, int64_t count) {
    int64_t n = 1;
    while (n < std::min<int64_t>(count, attention_heads) && heads[n].begin == heads[0].begin &&
           heads[n].end == heads[0].end)
        ++n;
    return n;
}

// Values of a whole tile. Dimensions are the outer loop: the tile's values of a few dimensions stay in L1
// while all query heads pass.
template <typename E>
void add_tile_values(QueryHead* heads, int64_t count, const Slots<E>& values, int64_t dim) {
    constexpr int64_t most = lanes * attention_width;
    for (int64_t i = 0, width = 0; i < dim; i += width) {
        width = i + most <= dim ? most : lanes;
        for (int64_t l = 0, n = 0; l < count; l += n) {
            n = count_with_same_keys(heads + l, count - l);
            if (heads[l].begin >= heads[l].end) continue;
            with_head_count(n, [&](auto same) {
                if (width == most) return add_value_block<same, attention_width>(heads + l, values.at, i);
                add_value_block<same, 1>(heads + l, values.at, i);
            });
        }
    }
}

// ---------------------------------------------------------------- a piece

struct QueryHeads {
    QueryHead* at;
    int64_t count;
};

int64_t first_visible_key(const Attention& a, const AttentionPiece& p, int64_t position) {
    return a.window ? std::max(p.clip, position - a.window + 1) : p.clip;
}

// The query heads of a piece, in scratch memory: valid until the thread's next piece.
QueryHeads make_query_heads(const Attention& a, const AttentionPiece& p) {
    const int64_t share = a.heads / a.pages.kv_heads, dim = a.pages.head_dim;
    const QueryHeads heads{scratch<QueryHead>(Scratch::row, p.count * share), p.count * share};
    float* scores = scratch<float>(Scratch::scores, heads.count * key_tile);
    float* acc = scratch<float>(Scratch::sums, heads.count * dim);
    for (int64_t i = 0; i < heads.count; ++i) {
        const int64_t at = ((p.token + i / share) * a.heads + p.kv_head * share + i % share) * dim;
        QueryHead& head = heads.at[i];
        head = QueryHead{};
        head.q = a.q + at;
        head.acc = acc + i * dim;
        head.out = a.out + at;
        head.scores = scores + i * key_tile;
        head.position = p.position + i / share;
    }
    return heads;
}

// Sets the keys of the tile that each query head sees, and returns the smallest range that covers them all.
KeyRange set_visible_keys(const Attention& a, const AttentionPiece& p, const QueryHeads& heads,
                          int64_t tile) {
    KeyRange keys{key_tile, 0};
    for (int64_t i = 0; i < heads.count; ++i) {
        QueryHead& head = heads.at[i];
        head.begin = std::max<int64_t>(0, first_visible_key(a, p, head.position) - tile * key_tile);
        head.end = std::min(key_tile, head.position + 1 - tile * key_tile);
        if (head.begin >= head.end) continue;
        keys = {std::min(keys.begin, head.begin), std::max(keys.end, head.end)};
    }
    return keys;
}

float* partial_of(const AttentionPiece& p, int64_t heads, int64_t tile, int64_t head, int64_t dim) {
    return p.partial + ((tile - p.tile_begin) * heads + head) * partial_floats(dim);
}

// Softmax weights of a tile for all query heads. With partials, maximum and sum go there, and so will the
// values; otherwise they are merged at once.
void weigh_tile(const Attention& a, const AttentionPiece& p, const QueryHeads& heads, int64_t tile) {
    for (int64_t i = 0; i < heads.count; ++i) {
        QueryHead& head = heads.at[i];
        if (head.begin >= head.end) continue;
        const Softmax softmax = softmax_of_tile(a, head);
        if (!p.partial) {
            merge_softmax(head, softmax);
            continue;
        }
        float* partial = partial_of(p, heads.count, tile, i, a.pages.head_dim);
        partial[0] = softmax.max;
        partial[1] = softmax.sum;
        head.acc = partial + 16;
    }
}

// After a tile's values were added. With partials nothing is merged yet, so every tile remains a first one.
void mark_started(const AttentionPiece& p, const QueryHeads& heads) {
    if (p.partial) return;
    for (int64_t i = 0; i < heads.count; ++i) heads.at[i].started |= heads.at[i].begin < heads.at[i].end;
}

template <typename E>
void attend_tile(const Attention& a, const AttentionPiece& p, const QueryHeads& heads, int64_t tile,
                 const Slots<E>& keys, const Slots<E>& values) {
    score_tile(heads.at, heads.count, keys, a.pages.head_dim);
    weigh_tile(a, p, heads, tile);
    add_tile_values(heads.at, heads.count, values, a.pages.head_dim);
    mark_started(p, heads);
}

// Prefetches the keys of the next tile, except those after the piece's last query.
template <typename E>
TRANSOM_INLINE void prefetch_next_keys(const Attention& a, const AttentionPiece& p, int64_t tile) {
    const int64_t last = p.position + p.count;  // keys end here
    const int64_t end = std::min(key_tile, last - (tile + 1) * key_tile);
    if (end <= 0 || tile + 1 >= p.tile_end) return;
    Slots<E> keys;
    locate_slots(a, p, tile + 1, {0, end}, 0, keys);
    prefetch_slots(keys, {0, end}, a.pages.head_dim);
}

template <typename E>
void attend_tiles(const Attention& a, const AttentionPiece& p, const QueryHeads& heads) {
    const int64_t dim = a.pages.head_dim;
    for (int64_t tile = p.tile_begin; tile < p.tile_end; ++tile) {
        const KeyRange visible = set_visible_keys(a, p, heads, tile);
        if (visible.begin >= visible.end) continue;
        Slots<E> keys, values;
        locate_slots(a, p, tile, visible, 0, keys);
        locate_slots(a, p, tile, visible, 1, values);
        prefetch_slots(values, visible, dim);
        if constexpr (sizeof(E) == 2) {
            if (heads.count >= converting_heads) {
                Slots<float> wide_keys, wide_values;
                convert_slots(keys, visible, dim, Scratch::keys, wide_keys);
                convert_slots(values, visible, dim, Scratch::values, wide_values);
                attend_tile(a, p, heads, tile, wide_keys, wide_values);
                continue;
            }
        }
        score_tile(heads.at, heads.count, keys, dim);
        prefetch_next_keys<E>(a, p, tile);  // after the present keys were read, before the values are
        weigh_tile(a, p, heads, tile);
        add_tile_values(heads.at, heads.count, values, dim);
        mark_started(p, heads);
    }
}

void store_output(const QueryHead& head, int64_t dim) {
    const Lanes inverse = broadcast(1.0f / head.sum);
    for (int64_t i = 0; i < dim; i += lanes) store(head.out + i, load(head.acc + i) * inverse);
}

void merge_partial(QueryHead& head, const float* partial, int64_t dim) {
    merge_softmax(head, {partial[0], partial[1]});
    for (int64_t i = 0; i < dim; i += lanes) {
        Lanes sum = load(partial + 16 + i);
        if (head.started)
            sum = fma(sum, broadcast(head.new_factor), load(head.acc + i) * broadcast(head.old_factor));
        store(head.acc + i, sum);
    }
    head.started = true;
}

}  // namespace

void attention(const Attention& a, const AttentionPiece& p) {
    const QueryHeads heads = make_query_heads(a, p);
    if (a.pages.half) {
        attend_tiles<uint16_t>(a, p, heads);
    } else {
        attend_tiles<float>(a, p, heads);
    }
    if (p.partial) return;
    for (int64_t i = 0; i < heads.count; ++i) store_output(heads.at[i], a.pages.head_dim);
}

void attention_merge(const Attention& a, const AttentionPiece& p) {
    const QueryHeads heads = make_query_heads(a, p);
    const int64_t dim = a.pages.head_dim;
    for (int64_t i = 0; i < heads.count; ++i) {
        QueryHead& head = heads.at[i];
        // Exactly the tiles that were not skipped: the partials of skipped tiles were never written.
        const int64_t from = first_visible_key(a, p, head.position) / key_tile, to = head.position / key_tile;
        for (int64_t tile = from; tile <= to; ++tile)
            merge_partial(head, partial_of(p, heads.count, tile, i, dim), dim);
        store_output(head, dim);
    }
}

}  // namespace transom::TRANSOM_ISA
