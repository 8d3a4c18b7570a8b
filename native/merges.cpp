// The list of merges of a SentencePiece BPE vocabulary. The file has pieces and scores only; the tokenizer
// library needs merges.
//
// Each piece is formed by exactly one merge: the last step of byte pair encoding of the piece alone. In a
// longer text, a merge across the piece's edges would prevent it from forming; without such a merge, its
// characters merge in the same order as in the piece alone. So of all splits of a piece into two pieces, one
// is kept.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "module.h"

namespace nb = nanobind;

namespace {

constexpr int32_t no_piece = -1;  // in the table: a free slot

// Hash table from a piece's bytes to its number: open addressing, at most half full.
class Index {
public:
    explicit Index(const std::vector<std::string_view>& pieces) : pieces_(pieces) {
        size_t slots = 16;
        while (slots < 2 * pieces.size()) slots *= 2;
        slots_.assign(slots, no_piece);
        for (size_t i = 0; i < pieces.size(); ++i) {
            if (!pieces[i].empty()) slots_[slot(pieces[i])] = static_cast<int32_t>(i);
        }
    }

    int32_t find(std::string_view piece) const { return slots_[slot(piece)]; }

private:
    size_t slot(std::string_view piece) const {
        uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
        for (unsigned char byte : piece) hash = (hash ^ byte) * 0x100000001B3u;
        size_t at = (hash ^ (hash >> 32)) & (slots_.size() - 1);
        while (slots_[at] != no_piece && pieces_[slots_[at]] != piece) at = (at + 1) & (slots_.size() - 1);
        return at;
    }

    const std::vector<std::string_view>& pieces_;
    std::vector<int32_t> slots_;
};

// Fills `edges` with the byte positions where characters begin, and the end of the piece.
void find_edges(std::string_view piece, std::vector<size_t>& edges) {
    edges.clear();
    for (size_t i = 0; i < piece.size(); ++i) {
        if ((static_cast<unsigned char>(piece[i]) & 0xC0) != 0x80) edges.push_back(i);
    }
    edges.push_back(piece.size());
}

struct Merge {
    int32_t piece, left, right;
};

class Merger {
public:
    Merger(const std::vector<std::string_view>& pieces, const float* scores)
        : pieces_(pieces), scores_(scores), index_(pieces) {}

    std::vector<Merge> find_all() {
        std::vector<Merge> merges;
        for (size_t i = 0; i < pieces_.size(); ++i) {
            find_edges(pieces_[i], edges_);
            const size_t at = edges_.size() > 2 ? split(pieces_[i]) : 0;
            if (at == 0) continue;
            const int32_t left = index_.find(pieces_[i].substr(0, at));
            const int32_t right = index_.find(pieces_[i].substr(at));
            // A character without a piece of its own falls back to bytes, which never merge.
            if (left != no_piece && right != no_piece)
                merges.push_back({static_cast<int32_t>(i), left, right});
        }
        return merges;
    }

private:
    // The byte position where the last merge joins the piece, or 0 if no merges form it.
    size_t split(std::string_view piece) {
        size_t found = 0;
        int ways = 0;
        for (size_t e = 1; e + 1 < edges_.size(); ++e) {
            if (index_.find(piece.substr(0, edges_[e])) == no_piece) continue;
            if (index_.find(piece.substr(edges_[e])) == no_piece) continue;
            found = edges_[e];
            ++ways;
        }
        return ways > 1 ? simulate(piece) : found;
    }

    // Byte pair encoding: merges the neighbours of highest score, the leftmost of equals, until two symbols
    // are left.
    size_t simulate(std::string_view piece) {
        joined_.clear();
        for (size_t e = 0; e + 2 < edges_.size(); ++e) joined_.push_back(join(piece, e));
        while (edges_.size() > 3) {
            size_t best = edges_.size();
            for (size_t e = 0; e < joined_.size(); ++e) {
                if (joined_[e] == no_piece) continue;
                if (best == edges_.size() || scores_[joined_[e]] > scores_[joined_[best]]) best = e;
            }
            if (best == edges_.size()) return 0;
            edges_.erase(edges_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
            joined_.erase(joined_.begin() + static_cast<std::ptrdiff_t>(best));
            if (best > 0) joined_[best - 1] = join(piece, best - 1);
            if (best < joined_.size()) joined_[best] = join(piece, best);
        }
        return edges_[1];
    }

    // The piece that the symbols beginning at edges e and e + 1 form together, or no_piece.
    int32_t join(std::string_view piece, size_t e) const {
        return index_.find(piece.substr(edges_[e], edges_[e + 2] - edges_[e]));
    }

    const std::vector<std::string_view>& pieces_;
    const float* scores_;
    Index index_;
    std::vector<size_t> edges_;    // of the present piece
    std::vector<int32_t> joined_;  // the piece that each pair of neighbours forms
};

using Scores = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// int32 [merges, 3]: piece, left, right. Empty strings are ignored: they stand for tokens that never merge.
nb::object bpe_merges(nb::list pieces, Scores scores) {
    std::vector<std::string_view> views;
    views.reserve(nb::len(pieces));
    for (nb::handle piece : pieces) views.push_back(nb::cast<std::string_view>(piece));
    if (views.size() != scores.shape(0)) throw nb::value_error("one score per piece");
    auto* merges = new std::vector<Merge>(Merger(views, scores.data()).find_all());
    nb::capsule owner(merges, [](void* p) noexcept { delete static_cast<std::vector<Merge>*>(p); });
    auto* data = reinterpret_cast<int32_t*>(merges->data());
    return nb::cast(nb::ndarray<nb::numpy, int32_t, nb::ndim<2>>(data, {merges->size(), 3}, owner));
}

}  // namespace

namespace transom {

void register_merges(nb::module_& m) {
    m.def("bpe_merges", &bpe_merges, nb::arg("pieces"), nb::arg("scores"));
}

}  // namespace transom
