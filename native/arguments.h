#pragma once
// The dataclasses of transom.ops.protocol, as transom.ops.native passes them, to arguments of kernels. Every
// shape and every index is checked here, so that kernels need no checks. All throw ValueError with the
// argument's name.

#include <optional>
#include <vector>

#include "buffers.h"
#include "launch.h"

namespace transom {

class PackedArgument {
public:
    PackedArgument(nb::handle codes, nb::handle scales, nb::handle zero_offsets, int group, int64_t out,
                   int64_t in);
    const Packed& get() const { return packed_; }

private:
    Array<uint8_t> codes_;
    Array<float> scales_;
    std::optional<Array<float>> zero_offsets_;
    Packed packed_;
};

class FloatArgument {
public:
    FloatArgument(nb::handle values, int64_t out, int64_t in);
    const FloatTiles& get() const { return tiles_; }

private:
    Array<float> values_;
    FloatTiles tiles_;
};

Precision checked_precision(int bits);

// Token ids must be in [0, count).
void check_tokens(const Array<int32_t>& tokens, int64_t count);

// Activation blocks of quantized rows, as int16 `[tokens, in / 32, block bytes / 2]`.
class ActivationsArgument {
public:
    ActivationsArgument(nb::handle blocks, const char* name, int precision, bool writable);
    int64_t tokens() const { return words_.dim(0); }
    void expect(int64_t tokens, int64_t in) const;
    Quantize quantize() const { return {precision_, words_.data()}; }

private:
    Array<int16_t> words_;
    Precision precision_;
};

class PagesArgument {
public:
    PagesArgument(nb::handle pages, nb::handle table, int64_t page_size, int64_t layer, bool writable);
    const Pages& get() const { return pages_; }
    int64_t rows() const { return table_.dim(0); }
    // Positions [begin, end) must lie within the row, and each of their pages must be in the pool.
    void check(int64_t row, int64_t begin, int64_t end) const;

private:
    Buffer data_;
    Array<int32_t> table_;
    Pages pages_;
};

// The spans that have tokens. `clips` may be None: no span is clipped. Checks the pages that attention reads:
// from the first key within the window and not clipped, to the span's last token.
std::vector<Span> checked_spans(const PagesArgument&, nb::handle rows, nb::handle starts, nb::handle offsets,
                                nb::handle clips, int64_t tokens, int64_t window);

}  // namespace transom
