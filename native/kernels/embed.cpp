// Embedding: the weights of one output per token, dequantized and scaled.
//
// One row at a time, 16 weights in a register. Bound by memory: a tile interleaves 16 outputs, so of each
// cache line of codes 4 bytes are used. A step embeds few tokens, and the layout is the one that matmul
// needs, because the embedding is often the output head, too.
#include "../lanes.h"
#include "table.h"

namespace transom::TRANSOM_ISA {
namespace {

// The weights of output `id`. Its codes lie in runs of 4 bytes, 64 bytes apart: 4 runs make 16 values.
void embed_row(const Packed& w, int64_t id, float scale, float* out) {
    const int64_t tile = id / tile_out, lane = id % tile_out, groups = w.in / w.group;
    const uint8_t* codes = w.codes + tile * w.in * tile_out + lane * 4;
    for (int64_t k = 0; k < w.in; k += lanes) {
        uint8_t runs[lanes];
        for (int i = 0; i < 4; ++i) std::memcpy(runs + 4 * i, codes + (k / 4 + i) * 4 * tile_out, 4);
        const int64_t at = (tile * groups + k / w.group) * tile_out + lane;
        const Lanes code = to_floats(subtract(widen(runs), broadcast(128)));
        const Lanes value =
            fma(broadcast(w.scales[at]), code, broadcast(w.zero_offsets ? w.zero_offsets[at] : 0.0f));
        store(out + k, value * broadcast(scale));
    }
}

}  // namespace

void embed_packed(const EmbedPacked& a, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) embed_row(a.table, a.tokens[m], a.scale, a.out + m * a.table.in);
}

void embed_float(const EmbedFloat& a, int64_t begin, int64_t end) {
    const int64_t in = a.table.in;
    for (int64_t m = begin; m < end; ++m) {
        const float* values =
            a.table.values + (a.tokens[m] / tile_out) * in * tile_out + a.tokens[m] % tile_out;
        for (int64_t k = 0; k < in; ++k) a.out[m * in + k] = values[k * tile_out] * a.scale;
    }
}

}  // namespace transom::TRANSOM_ISA
