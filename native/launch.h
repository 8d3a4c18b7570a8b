#pragma once
// Splits the work of a kernel into pieces for the threads. The split never changes a bit of a result.

#include <algorithm>
#include <vector>

#include "isa.h"
#include "pool.h"

namespace transom {

// Element operations that a piece should have at least: below, waking another thread costs more than it
// saves.
constexpr int64_t smallest_piece = 16384;

// Runs a kernel over [0, rows), in at most 4 pieces per thread, so that a thread that was interrupted does
// not keep the other threads waiting for long. `row_work` is the element operations of one row.
template <typename Args>
void over_rows(void (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t rows,
               int64_t row_work) {
    const int64_t most = std::min<int64_t>(rows, 4 * threads());
    const int64_t pieces = std::max<int64_t>(1, std::min(most, rows * row_work / smallest_piece));
    parallel(pieces, [&](int64_t i) { kernel(args, rows * i / pieces, rows * (i + 1) / pieces); });
}

void launch(const MatmulPacked&);
void launch(const MatmulFloat&);

// Queries [token, token + count) of the batch, which are positions [start, start + count) of `row`. Keys
// before `clip` are masked.
struct Span {
    int64_t row, start, token, count, clip;
};

void launch(const Attention&, const std::vector<Span>&);

}  // namespace transom
