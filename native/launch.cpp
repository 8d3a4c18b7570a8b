// How matmul and attention are split into pieces. Row-wise kernels: over_rows in launch.h.
#include "launch.h"

#include <memory>

namespace transom {
namespace {

constexpr int64_t row_bytes_at_once = 384 * 1024;  // of activations: they stay in L2 while weights stream by
constexpr int64_t smallest_weights = 32 * 1024;  // bytes of weights, times rows, that make a piece worthwhile
constexpr int64_t pieces_per_thread = 8;         // many, so that an interrupted thread is not waited for long

template <typename Args>
using MatmulKernel = void (*)(const Args&, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                              int64_t tile_end);

// Pieces are row blocks x ranges of tile pairs. A row block is a multiple of 6, the rows of the largest block
// of matmul.cpp. Tiles come in pairs, because its blocks may take two at a time.
template <typename Args>
void launch_matmul(MatmulKernel<Args> kernel, const Args& a, int64_t row_bytes, int64_t tile_bytes) {
    const int64_t pairs = (a.matrix.out + 2 * tile_out - 1) / (2 * tile_out);
    const int64_t tiles = (a.matrix.out + tile_out - 1) / tile_out;
    const int64_t block = std::max<int64_t>(48, row_bytes_at_once / row_bytes / 6 * 6);
    const int64_t blocks = (a.rows + block - 1) / block;
    const int64_t work = pairs * 2 * tile_bytes * std::min(a.rows, block);
    const int64_t most = std::min(pairs, pieces_per_thread * threads());
    const int64_t ranges = std::max<int64_t>(1, std::min(most, work / smallest_weights));
    parallel(blocks * ranges, [&](int64_t i) {
        const int64_t b = i / ranges, r = i % ranges;
        kernel(a, b * block, std::min(a.rows, (b + 1) * block), pairs * r / ranges * 2,
               std::min(tiles, pairs * (r + 1) / ranges * 2));
    });
}

constexpr int64_t heads_at_once = 64;    // query heads that share one conversion of a key tile
constexpr int64_t smallest_segment = 2;  // tiles

int64_t first_tile(const Attention& a, const Span& s, int64_t position) {
    return (a.window ? std::max(s.clip, position - a.window + 1) : s.clip) / key_tile;
}

// Pieces for every span and KV head. Within a span, the queries with most keys come first: if they came last,
// one thread would still work on them when the other threads are done.
std::vector<AttentionPiece> make_pieces(const Attention& a, const std::vector<Span>& spans) {
    const int64_t share = a.heads / a.pages.kv_heads, step = std::max<int64_t>(1, heads_at_once / share);
    std::vector<AttentionPiece> pieces;
    for (const Span& s : spans) {
        for (int64_t from = (s.count - 1) / step * step; from >= 0; from -= step) {
            const int64_t count = std::min(step, s.count - from), position = s.start + from;
            const int64_t last = (position + count - 1) / key_tile + 1;
            for (int64_t h = 0; h < a.pages.kv_heads; ++h) {
                pieces.push_back({s.row, s.token + from, position, count, h, s.clip,
                                  first_tile(a, s, position), last, nullptr});
            }
        }
    }
    return pieces;
}

// Pieces split into segments, runs of tiles that write partial results. `whole` are the pieces that merge
// them.
struct SplitPieces {
    std::vector<AttentionPiece> whole, segments;
    std::unique_ptr<float[]> partials;
};

SplitPieces split_pieces(const Attention& a, std::vector<AttentionPiece> pieces) {
    const int64_t share = a.heads / a.pages.kv_heads, each = partial_floats(a.pages.head_dim);
    int64_t tiles = 0, floats = 0;
    for (const auto& p : pieces) {
        tiles += p.tile_end - p.tile_begin;
        floats += (p.tile_end - p.tile_begin) * p.count * share * each;
    }
    SplitPieces result;
    result.partials.reset(new float[static_cast<size_t>(floats)]);
    const int64_t run = std::max(smallest_segment, tiles / (4 * threads()));
    float* at = result.partials.get();
    for (auto& p : pieces) {
        p.partial = at;
        for (int64_t t = p.tile_begin; t < p.tile_end; t += run) {
            AttentionPiece segment = p;
            segment.tile_begin = t;
            segment.tile_end = std::min(p.tile_end, t + run);
            segment.partial = at + (t - p.tile_begin) * p.count * share * each;
            result.segments.push_back(segment);
        }
        at += (p.tile_end - p.tile_begin) * p.count * share * each;
    }
    result.whole = std::move(pieces);
    return result;
}

// Fewer pieces than threads can use, as when one request decodes over a long context. Only for few queries:
// the partials of many would take more memory traffic than the threads save.
bool worth_splitting(const std::vector<AttentionPiece>& pieces) {
    if (threads() == 1 || pieces.size() >= static_cast<size_t>(4 * threads())) return false;
    return std::any_of(pieces.begin(), pieces.end(), [](const auto& p) {
        return p.count <= 4 && p.tile_end - p.tile_begin > smallest_segment;
    });
}

}  // namespace

void launch(const MatmulPacked& a) {
    const int64_t row_bytes = a.matrix.in / 32 * activation_block_bytes(a.precision);
    launch_matmul<MatmulPacked>(kernels().matmul_packed, a, row_bytes, a.matrix.in * tile_out);
}

void launch(const MatmulFloat& a) {
    launch_matmul<MatmulFloat>(kernels().matmul_float, a, a.matrix.in * 4, a.matrix.in * tile_out * 4);
}

void launch(const Attention& a, const std::vector<Span>& spans) {
    auto pieces = make_pieces(a, spans);
    const Kernels& k = kernels();
    if (!worth_splitting(pieces)) {
        parallel(static_cast<int64_t>(pieces.size()), [&](int64_t i) { k.attention(a, pieces[i]); });
        return;
    }
    const SplitPieces split = split_pieces(a, std::move(pieces));
    parallel(static_cast<int64_t>(split.segments.size()),
             [&](int64_t i) { k.attention(a, split.segments[i]); });
    parallel(static_cast<int64_t>(split.whole.size()),
             [&](int64_t i) { k.attention_merge(a, split.whole[i]); });
}

}  // namespace transom
