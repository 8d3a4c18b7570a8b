#include <algorithm>
#include <limits>

#include "numbers.h"
#include "pool.h"
#include "scalar.h"

namespace transom::scalar {
namespace {

// A tile's, or merged tiles', maximum, sum and weighted values. The values follow in memory.
struct State {
    float max, sum;
    bool empty;
};

float element(const char* slot, bool half, int64_t i) {
    if (!half) return reinterpret_cast<const float*>(slot)[i];
    return half_to_float(reinterpret_cast<const uint16_t*>(slot)[i]);
}

const char* head_slot(const Attention& a, const AttentionPiece& p, int64_t position, int which) {
    return a.pages.slot(p.row, position, which) + p.kv_head * a.pages.head_dim * a.pages.element();
}

float score(const Attention& a, const AttentionPiece& p, const float* q, int64_t key) {
    const char* k = head_slot(a, p, key, 0);
    float lane[lanes] = {};
    for (int64_t i = 0; i < a.pages.head_dim; ++i) {
        lane[i % lanes] = std::fma(q[i], element(k, a.pages.half, i), lane[i % lanes]);
    }
    const float s = fold(lane) * a.scale;
    return a.softcap == 0.0f ? s : softcapped(s, a.softcap);
}

// Keys [begin, end) of one tile, from scratch, into acc.
State tile(const Attention& a, const AttentionPiece& p, const float* q, int64_t begin, int64_t end,
           float* acc) {
    float weights[key_tile];
    State state{-std::numeric_limits<float>::infinity(), 0.0f, false};
    for (int64_t k = begin; k < end; ++k) {
        const float s = weights[k % key_tile] = score(a, p, q, k);
        state.max = s > state.max ? s : state.max;
    }
    float lane[lanes] = {};
    for (int64_t k = begin; k < end; ++k) {
        float& w = weights[k % key_tile];
        w = exp_scalar(w - state.max);
        lane[k % lanes] += w;
    }
    state.sum = fold(lane);
    std::fill(acc, acc + a.pages.head_dim, 0.0f);
    for (int64_t k = begin; k < end; ++k) {
        const char* v = head_slot(a, p, k, 1);
        for (int64_t i = 0; i < a.pages.head_dim; ++i) {
            acc[i] = std::fma(weights[k % key_tile], element(v, a.pages.half, i), acc[i]);
        }
    }
    return state;
}

void merge(State& into, float* into_acc, const State& tile, const float* acc, int64_t dim) {
    if (into.empty) {
        into = tile;
        std::copy(acc, acc + dim, into_acc);
        return;
    }
    const float top = tile.max > into.max ? tile.max : into.max;
    const float s = exp_scalar(into.max - top), t = exp_scalar(tile.max - top);
    into.sum = std::fma(tile.sum, t, into.sum * s);
    for (int64_t i = 0; i < dim; ++i) into_acc[i] = std::fma(acc[i], t, into_acc[i] * s);
    into.max = top;
}

void finish(const State& state, const float* acc, int64_t dim, float* out) {
    const float inverse = 1.0f / state.sum;
    for (int64_t i = 0; i < dim; ++i) out[i] = acc[i] * inverse;
}

struct Keys {
    int64_t begin, end;
};

Keys visible(const Attention& a, const AttentionPiece& p, int64_t position) {
    return {a.window ? std::max(p.clip, position - a.window + 1) : p.clip, position + 1};
}

template <typename Visit>
void each_row(const Attention& a, const AttentionPiece& p, Visit visit) {
    const int64_t group = a.heads / a.pages.kv_heads;
    for (int64_t i = 0; i < p.count; ++i) {
        for (int64_t h = 0; h < group; ++h) {
            const int64_t at = ((p.token + i) * a.heads + p.kv_head * group + h) * a.pages.head_dim;
            visit(i * group + h, at, visible(a, p, p.position + i));
        }
    }
}

// Of the tiles that hold something for the row.
float* partial_at(const Attention& a, const AttentionPiece& p, int64_t tile, int64_t row) {
    const int64_t rows = p.count * (a.heads / a.pages.kv_heads);
    return p.partial + ((tile - p.tile_begin) * rows + row) * partial_floats(a.pages.head_dim);
}

}  // namespace

void attention(const Attention& a, const AttentionPiece& p) {
    const int64_t dim = a.pages.head_dim;
    float* acc = scratch<float>(Scratch::values, 2 * dim);
    each_row(a, p, [&](int64_t row, int64_t at, Keys keys) {
        State merged{0, 0, true};
        for (int64_t t = p.tile_begin; t < p.tile_end; ++t) {
            const int64_t begin = std::max(keys.begin, t * key_tile),
                          end = std::min(keys.end, (t + 1) * key_tile);
            if (begin >= end) continue;
            float* into = p.partial ? partial_at(a, p, t, row) + 16 : acc + dim;
            const State state = tile(a, p, a.q + at, begin, end, into);
            if (!p.partial) {
                merge(merged, acc, state, into, dim);
                continue;
            }
            into[-16] = state.max;
            into[-15] = state.sum;
        }
        if (!p.partial) finish(merged, acc, dim, a.out + at);
    });
}

void attention_merge(const Attention& a, const AttentionPiece& p) {
    const int64_t dim = a.pages.head_dim;
    float* acc = scratch<float>(Scratch::values, dim);
    each_row(a, p, [&](int64_t row, int64_t at, Keys keys) {
        State merged{0, 0, true};
        for (int64_t t = keys.begin / key_tile; t <= (keys.end - 1) / key_tile; ++t) {
            const float* partial = partial_at(a, p, t, row);
            merge(merged, acc, State{partial[0], partial[1], false}, partial + 16, dim);
        }
        finish(merged, acc, dim, a.out + at);
    });
}

}  // namespace transom::scalar
