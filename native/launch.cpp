#include "launch.h"

#include <memory>

namespace transom {
namespace {

constexpr int64_t rows_bytes_at_once = 384 * 1024;  // of activations: they stay in L2 while weights stream by
constexpr int64_t smallest_weights = 32 * 1024;     // bytes of weights worth a piece
constexpr int64_t pieces_per_thread = 8;  // so that a thread that was held up is not waited for long

template <typename Args>
using Block = void (*)(const Args&, int64_t, int64_t, int64_t, int64_t);

// A grid of row blocks x ranges of tile pairs.
template <typename Args>
void grid(Block<Args> kernel, const Args& a, int64_t row_bytes, int64_t tile_bytes) {
    const int64_t pairs = (a.matrix.out + 2 * tile_out - 1) / (2 * tile_out);
    const int64_t tiles = (a.matrix.out + tile_out - 1) / tile_out;
    const int64_t block = std::max<int64_t>(48, rows_bytes_at_once / row_bytes / 6 * 6);
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

constexpr int64_t block_rows = 64;       // (query, head) rows that share one conversion of a key tile
constexpr int64_t smallest_segment = 2;  // tiles

int64_t first_tile(const Attention& a, const Span& s, int64_t position) {
    return (a.window ? std::max(s.clip, position - a.window + 1) : s.clip) / key_tile;
}

// Blocks of queries of every span and KV head, the ones with most keys first.
std::vector<AttentionPiece> query_blocks(const Attention& a, const std::vector<Span>& spans) {
    const int64_t share = a.heads / a.pages.kv_heads, step = std::max<int64_t>(1, block_rows / share);
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

// Few pieces for many threads: each is cut into runs of tiles that leave their partial results behind.
struct Cut {
    std::vector<AttentionPiece> whole, segments;
    std::unique_ptr<float[]> partials;
};

Cut cut(const Attention& a, std::vector<AttentionPiece> pieces) {
    const int64_t share = a.heads / a.pages.kv_heads, each = partial_floats(a.pages.head_dim);
    int64_t tiles = 0, floats = 0;
    for (const auto& p : pieces) {
        tiles += p.tile_end - p.tile_begin;
        floats += (p.tile_end - p.tile_begin) * p.count * share * each;
    }
    Cut result;
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

bool worth_cutting(const std::vector<AttentionPiece>& pieces) {
    if (threads() == 1 || pieces.size() >= static_cast<size_t>(4 * threads())) return false;
    return std::any_of(pieces.begin(), pieces.end(), [](const auto& p) {
        return p.count <= 4 && p.tile_end - p.tile_begin > smallest_segment;
    });
}

}  // namespace

void launch(const MatmulPacked& a) {
    const int64_t row_bytes = a.matrix.in / 32 * record_bytes(a.limit);
    grid<MatmulPacked>(kernels().matmul_packed, a, row_bytes, a.matrix.in * tile_out);
}

void launch(const MatmulFloat& a) {
    grid<MatmulFloat>(kernels().matmul_float, a, a.matrix.in * 4, a.matrix.in * tile_out * 4);
}

void launch(const Attention& a, const std::vector<Span>& spans) {
    auto pieces = query_blocks(a, spans);
    const Kernels& k = kernels();
    if (!worth_cutting(pieces)) {
        parallel(static_cast<int64_t>(pieces.size()), [&](int64_t i) { k.attention(a, pieces[i]); });
        return;
    }
    const Cut c = cut(a, std::move(pieces));
    parallel(static_cast<int64_t>(c.segments.size()), [&](int64_t i) { k.attention(a, c.segments[i]); });
    parallel(static_cast<int64_t>(c.whole.size()), [&](int64_t i) { k.attention_merge(a, c.whole[i]); });
}

}  // namespace transom
