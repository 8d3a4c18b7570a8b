#pragma once
// Arguments of the kernels, already checked, and the table of kernels of one instruction set.
//
// The arithmetic of each kernel is specified by the method of the same name in transom/ops/protocol.py.
// `begin` and `end` bound the rows, or the tiles, of the result that one call computes. Calls with disjoint
// bounds may run on different threads.

#include <cstddef>
#include <cstdint>

namespace transom {

constexpr int64_t tile_out = 16;  // a weight tile holds 16 outputs side by side: one output per lane

// Width of the codes that activations are quantized to. The values are those of `Precision` in Python.
enum class Precision { int8 = 8, int16 = 16 };

// Codes lie in [-code_limit, code_limit]. 32258 = 127 * 254 splits exactly into two planes of int8: code =
// 254 * high + low.
constexpr int code_limit(Precision precision) { return precision == Precision::int8 ? 127 : 32258; }

// One group of 32 quantized activations of Precision::int8, in the layout that matmul reads.
//
// Weights are stored as code + 128, so a dot with the stored weights is too large by 128 * sum of the
// activation codes. `bias` is -128 * that sum: accumulators start from it.
struct ActivationBlock8 {
    int8_t codes[32];
    float scale;
    int32_t bias[3];  // of the first 16 codes, of the second 16, of all 32
    float sum[3];     // sums of the same codes; multiplied with the zero offsets of the weights
    int32_t unused;   // pads to a cache line
};
static_assert(sizeof(ActivationBlock8) == 64);

// The same for Precision::int16. The codes are split into two planes, code = 254 * high + low, so that byte
// instructions can multiply them.
struct ActivationBlock16 {
    int8_t high[32];
    int8_t low[32];
    float scale;
    int32_t bias_high[3];
    int32_t bias_low[3];
    float sum[3];  // of the codes, not of the planes
    int32_t unused[6];
};
static_assert(sizeof(ActivationBlock16) == 128);

inline int64_t activation_block_bytes(Precision precision) {
    return precision == Precision::int8 ? sizeof(ActivationBlock8) : sizeof(ActivationBlock16);
}

// Quantized weights: `PackedMatrix` in Python, which documents the layout.
struct Packed {
    const uint8_t* codes;
    const float* scales;
    const float* zero_offsets;  // null if the format has none
    int64_t out, in;
    int group;  // weights that share a scale: 16 or 32
};

// Float weights: `FloatMatrix` in Python.
struct FloatTiles {
    const float* values;
    int64_t out, in;
};

// Where quantized rows go: ActivationBlock8 or ActivationBlock16, `[rows, dim / 32]`.
struct Quantize {
    Precision precision;
    void* blocks;
};

struct EmbedPacked {
    Packed table;
    const int32_t* tokens;
    float scale;
    float* out;
};

struct EmbedFloat {
    FloatTiles table;
    const int32_t* tokens;
    float scale;
    float* out;
};

// `norm` and `add_norm` write `out`; `norm_prepare` writes `quantize` and ignores `out`.
struct Norm {
    const float* x;
    const float* weight;
    float eps;
    int64_t dim;
    float* out;
    Quantize quantize;
};

struct Prepare {
    const float* x;
    int64_t dim;
    Quantize quantize;
};

// The values are those of `Gate` in Python.
enum class Gate { gelu_tanh = 0, silu = 1 };

struct Gated {
    const float* gate_up;
    int64_t hidden;
    Gate gate;
    float* out;  // null: write `quantize`
    Quantize quantize;
};

struct MatmulPacked {
    const void* activations;  // ActivationBlock8 or ActivationBlock16, `[rows, in / 32]`
    Precision precision;
    Packed matrix;
    float* out;
    int64_t rows;
};

struct MatmulFloat {
    const float* x;
    FloatTiles matrix;
    float* out;
    int64_t rows;
};

// Keys and values of one component: `PagedKV` in Python, which documents the layout.
struct Pages {
    char* data;
    int64_t page_bytes;  // distance from one page to the next
    int64_t page_size;   // tokens
    int64_t layer;
    int64_t kv_heads, head_dim;
    bool half;             // float16; otherwise float32
    const int32_t* table;  // page ids, [rows, per_row]
    int64_t per_row;
    int64_t count;  // page ids are in [1, count); page 0 is the null page
    int64_t layers;

    int64_t element() const { return half ? 2 : 4; }
    int64_t slot_bytes() const { return kv_heads * head_dim * element(); }
    // The key (which = 0) or value (which = 1) of all KV heads at a position of a row.
    char* slot(int64_t row, int64_t position, int which) const {
        const int64_t page = table[row * per_row + position / page_size];
        return data + page * page_bytes +
               ((layer * 2 + which) * page_size + position % page_size) * slot_bytes();
    }
};

struct RopeStore {
    const float* qkv;
    int64_t heads;
    const float* q_norm;  // null: queries are not normed
    const float* k_norm;  // null: keys are not normed
    float eps;
    const float* cos_sin;
    Pages pages;
    const int32_t* positions;
    const int32_t* rows;
    const uint8_t* stored;  // per token, 0: its key and value are not written; null: all are written
    float* q;
};

struct Attention {
    const float* q;
    int64_t heads;
    int64_t window;  // 0: full attention
    float scale;
    float softcap;  // 0: off
    Pages pages;
    float* out;
};

// Keys come in tiles at absolute multiples of this position. Part of the specification: changing it changes
// bits.
constexpr int64_t key_tile = 64;

// The unit of work of one thread: queries [token, token + count) of one row, at positions from `position` on,
// the query heads that share one KV head, and the key tiles [tile_begin, tile_end).
//
// partial null: the tiles are all that the queries read, and the result goes to `out`. Otherwise the (m, l,
// a) of every tile goes to `partial`, and attention_merge merges the tiles in ascending order later.
struct AttentionPiece {
    int64_t row, token, position, count, kv_head;
    int64_t clip;  // keys before this position are masked
    int64_t tile_begin, tile_end;
    float* partial;
};

// Floats of one tile and query head in `partial`: m, l, padding to a cache line, then a[head_dim].
inline int64_t partial_floats(int64_t head_dim) { return head_dim + 16; }

// A token and its logit.
struct Candidate {
    float logit;
    int32_t id;
};

struct Kernels {
    const char* name;
    void (*embed_packed)(const EmbedPacked&, int64_t begin, int64_t end);
    void (*embed_float)(const EmbedFloat&, int64_t begin, int64_t end);
    void (*norm)(const Norm&, int64_t begin, int64_t end);
    void (*norm_prepare)(const Norm&, int64_t begin, int64_t end);
    void (*add_norm)(const Norm&, int64_t begin, int64_t end);
    void (*prepare)(const Prepare&, int64_t begin, int64_t end);
    void (*gated)(const Gated&, int64_t begin, int64_t end);
    void (*matmul_packed)(const MatmulPacked&, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                          int64_t tile_end);
    void (*matmul_float)(const MatmulFloat&, int64_t row_begin, int64_t row_end, int64_t tile_begin,
                         int64_t tile_end);
    void (*rope_store)(const RopeStore&, int64_t begin, int64_t end);
    void (*attention)(const Attention&, const AttentionPiece&);
    void (*attention_merge)(const Attention&, const AttentionPiece&);

    // Over a row of n logits. `highest`: the highest logit (NaN if any logit is NaN) and the lowest id that
    // has it. `sum_exp`: the sum of exp((x - max) / temperature), in 16 float64 lanes that fold. `collect`:
    // writes the tokens with logits in [low, high), ids ascending, and returns their number.
    void (*highest)(const float* x, int64_t n, float* value, int32_t* id);
    double (*sum_exp)(const float* x, int64_t n, float max, float temperature);
    int64_t (*collect)(const float* x, int64_t n, float low, float high, Candidate* out);
};

// One table per instruction set: kernels/table.cpp, compiled once for each.
namespace portable {
extern const Kernels table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels table;
}
namespace avxvnni {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

}  // namespace transom
