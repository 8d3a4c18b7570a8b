#pragma once
// Divides the work of a kernel over the threads. How it is divided never shows in a result.

#include <algorithm>
#include <vector>

#include "isa.h"
#include "pool.h"

namespace transom {

// Below this many element operations a piece is not worth another thread.
constexpr int64_t smallest_piece = 16384;

template <typename Args>
void over_rows(void (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t rows,
               int64_t row_work) {
    const int64_t most = std::min<int64_t>(rows, 4 * threads());
    const int64_t pieces = std::max<int64_t>(1, std::min(most, rows * row_work / smallest_piece));
    parallel(pieces, [&](int64_t i) { kernel(args, rows * i / pieces, rows * (i + 1) / pieces); });
}

void launch(const MatmulPacked&);
void launch(const MatmulFloat&);

struct Span {
    int64_t row, start, token, count, clip;
};

void launch(const Attention&, const std::vector<Span>&);

}  // namespace transom
