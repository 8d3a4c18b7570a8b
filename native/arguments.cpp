#include "arguments.h"

namespace transom {
namespace {

std::string number(int64_t n) { return std::to_string(n); }

int64_t tiles(int64_t out) { return (out + tile_out - 1) / tile_out; }

void check_sizes(int64_t out, int64_t in) {
    if (out < 1 || in < 1)
        complain("matrix", "has " + number(out) + " outputs and " + number(in) + " inputs");
}

Pages checked_pages(const Buffer& data, const Array<int32_t>& table, int64_t page_size, int64_t layer) {
    if (!data.dense(1)) complain("pages", "axes after the first must be C-contiguous");
    const bool half = data.format() == 'e' && data.item() == 2;
    if (!half && !(data.format() == 'f' && data.item() == 4)) complain("pages", "must be float16 or float32");
    data.expect(2, 2);
    data.expect(3, page_size);
    if (page_size < 1) complain("page_size", "is " + number(page_size));
    if (layer < 0 || layer >= data.dim(1))
        complain("layer", number(layer) + " is not one of " + number(data.dim(1)));
    if (data.dim(5) % 16 != 0 || data.dim(5) > 4096)
        complain("pages", "head_dim " + number(data.dim(5)) + " is not a multiple of 16 up to 4096");
    Pages p{static_cast<char*>(data.data()),
            data.stride(0),
            page_size,
            layer,
            data.dim(4),
            data.dim(5),
            half,
            table.at(),
            table.dim(1),
            data.dim(0),
            data.dim(1)};
    if (p.count > 1 && p.page_bytes < p.layers * 2 * p.page_size * p.slot_bytes())
        complain("pages", "pages overlap");
    return p;
}

}  // namespace

PackedArgument::PackedArgument(nb::handle codes, nb::handle scales, nb::handle zero_offsets, int group,
                               int64_t out, int64_t in)
    : codes_(codes, "codes", 4), scales_(scales, "scales", 3) {
    check_sizes(out, in);
    if (group != 16 && group != 32) complain("group", "must be 16 or 32, is " + number(group));
    if (in % 32 != 0) complain("in_features", "must be a multiple of 32, is " + number(in));
    const int64_t shape[] = {tiles(out), in / 4, 16, 4};
    for (int axis = 0; axis < 4; ++axis) codes_.expect(axis, shape[axis]);
    const auto check_groups = [&](const Array<float>& a) {
        a.expect(0, tiles(out));
        a.expect(1, in / group);
        a.expect(2, 16);
    };
    check_groups(scales_);
    if (!zero_offsets.is_none()) check_groups(zero_offsets_.emplace(zero_offsets, "zero_offsets", 3));
    packed_ = {codes_.at(), scales_.at(), zero_offsets_ ? zero_offsets_->at() : nullptr, out, in, group};
}

FloatArgument::FloatArgument(nb::handle values, int64_t out, int64_t in) : values_(values, "values", 3) {
    check_sizes(out, in);
    values_.expect(0, tiles(out));
    values_.expect(1, in);
    values_.expect(2, 16);
    tiles_ = {values_.at(), out, in};
}

Precision checked_precision(int bits) {
    if (bits != 8 && bits != 16) complain("precision", "must be 8 or 16, is " + number(bits));
    return static_cast<Precision>(bits);
}

void check_tokens(const Array<int32_t>& tokens, int64_t count) {
    for (int64_t i = 0; i < tokens.dim(0); ++i) {
        const int64_t id = tokens.at()[i];
        if (id < 0 || id >= count) complain("tokens", number(id) + " is not in [0, " + number(count) + ")");
    }
}

ActivationsArgument::ActivationsArgument(nb::handle blocks, const char* name, int precision, bool writable)
    : words_(blocks, name, 3, writable), precision_(checked_precision(precision)) {
    words_.expect(2, activation_block_bytes(precision_) / 2);
}

void ActivationsArgument::expect(int64_t tokens, int64_t in) const {
    if (in % 32 != 0) complain(words_.name(), "rows must be a multiple of 32 wide, are " + number(in));
    words_.expect(0, tokens);
    words_.expect(1, in / 32);
}

PagesArgument::PagesArgument(nb::handle pages, nb::handle table, int64_t page_size, int64_t layer,
                             bool writable)
    : data_(pages, "pages", 6, writable),
      table_(table, "kv.rows", 2),
      pages_(checked_pages(data_, table_, page_size, layer)) {}

void PagesArgument::check(int64_t row, int64_t begin, int64_t end) const {
    const Pages& p = pages_;
    if (row < 0 || row >= rows()) complain("rows", number(row) + " is not in [0, " + number(rows()) + ")");
    if (begin < 0 || end > p.per_row * p.page_size) {
        complain("positions", number(begin) + " to " + number(end) + " are not within a row of " +
                                  number(p.per_row * p.page_size));
    }
    const int32_t* ids = p.table + row * p.per_row;
    for (int64_t i = begin / p.page_size; i * p.page_size < end; ++i) {
        if (ids[i] >= 1 && ids[i] < p.count) continue;
        complain("kv.rows", "row " + number(row) + ", page " + number(i) + ": " + number(ids[i]) +
                                " is not in [1, " + number(p.count) + ")");
    }
}

std::vector<Span> checked_spans(const PagesArgument& pages, nb::handle rows, nb::handle starts,
                                nb::handle offsets, nb::handle clips, int64_t tokens, int64_t window) {
    const Array<int32_t> r(rows, "rows", 1), s(starts, "starts", 1), o(offsets, "offsets", 1);
    const int64_t n = r.dim(0);
    s.expect(0, n);
    o.expect(0, n + 1);
    std::optional<Array<int32_t>> c;
    if (!clips.is_none()) c.emplace(clips, "clips", 1).expect(0, n);
    if (o.at()[0] != 0 || o.at()[n] != tokens)
        complain("offsets", "must start at 0 and end at " + number(tokens));
    std::vector<Span> spans;
    spans.reserve(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
        const int64_t token = o.at()[i], count = o.at()[i + 1] - token, start = s.at()[i];
        const int64_t clip = c ? c->at()[i] : 0;
        if (count < 0 || token > tokens) complain("offsets", "must not decrease");
        if (count == 0) continue;
        if (clip < 0 || clip > std::max<int64_t>(0, start))
            complain("clips", number(clip) + " is not in [0, " + number(start) + "]");
        // A negative start is an error whatever the window: let check() name it.
        const int64_t lowest = window ? std::max(clip, start - window + 1) : clip;
        pages.check(r.at()[i], start < 0 ? start : lowest, start + count);
        spans.push_back({r.at()[i], start, token, count, clip});
    }
    return spans;
}

}  // namespace transom
