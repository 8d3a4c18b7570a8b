#pragma once
// The kernels of one instruction set, which table.cpp gathers in a table. Each is specified in kernels.h and,
// in detail, in transom/ops/protocol.py.

#include "../kernels.h"

namespace transom::TRANSOM_ISA {

void embed_packed(const EmbedPacked&, int64_t begin, int64_t end);
void embed_float(const EmbedFloat&, int64_t begin, int64_t end);
void norm(const Norm&, int64_t begin, int64_t end);
void norm_prepare(const Norm&, int64_t begin, int64_t end);
void add_norm(const Norm&, int64_t begin, int64_t end);
void prepare(const Prepare&, int64_t begin, int64_t end);
// Quantizes one row: the end of prepare, norm_prepare and gated.
void quantize_row(const float* x, int64_t dim, const Quantize&, int64_t row);
void gated(const Gated&, int64_t begin, int64_t end);
void matmul_packed(const MatmulPacked&, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                   int64_t tile_end);
void matmul_float(const MatmulFloat&, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                  int64_t tile_end);
void rope_store(const RopeStore&, int64_t begin, int64_t end);
void attention(const Attention&, const AttentionPiece&);
void attention_merge(const Attention&, const AttentionPiece&);
void highest(const float* x, int64_t n, float* value, int32_t* id);
double sum_exp(const float* x, int64_t n, float max, float temperature);
int64_t collect(const float* x, int64_t n, float low, float high, Candidate* out);

}  // namespace transom::TRANSOM_ISA
