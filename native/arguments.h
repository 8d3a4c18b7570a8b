#pragma once
// Python's dataclasses of transom.ops.protocol as kernel arguments, every index checked before any use.

#include <optional>
#include <vector>

#include "buffers.h"
#include "launch.h"

namespace transom {

class PackedArgument {
public:
    PackedArgument(nb::handle codes, nb::handle scales, nb::handle minima, int group, int64_t out,
                   int64_t in);
    const Packed& get() const { return packed_; }

private:
    Array<uint8_t> codes_;
    Array<float> scales_;
    std::optional<Array<float>> minima_;
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

int checked_limit(int limit);
void check_tokens(const Array<int32_t>& tokens, int64_t count);

// Records of quantized rows, int16 `[tokens, in / 32, record bytes / 2]`.
class RecordsArgument {
public:
    RecordsArgument(nb::handle records, const char* name, int limit, bool writable);
    int64_t tokens() const { return words_.dim(0); }
    void expect(int64_t tokens, int64_t in) const;
    Quantize quantize() const { return {limit_, words_.data()}; }

private:
    Array<int16_t> words_;
    int limit_;
};

class PagesArgument {
public:
    PagesArgument(nb::handle pages, nb::handle table, int64_t page_size, int64_t layer, bool writable);
    const Pages& get() const { return pages_; }
    int64_t rows() const { return table_.dim(0); }
    // Every page of positions [begin, end) of a row is one.
    void check(int64_t row, int64_t begin, int64_t end) const;

private:
    Buffer data_;
    Array<int32_t> table_;
    Pages pages_;
};

// `clips` may be None: 0 for every span.
std::vector<Span> checked_spans(const PagesArgument&, nb::handle rows, nb::handle starts, nb::handle offsets,
                                nb::handle clips, int64_t tokens, int64_t window);

}  // namespace transom
