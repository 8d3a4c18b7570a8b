#pragma once
// Arguments of the kernels, already checked, and one table of them per instruction set.
// Arithmetic: transom/ops/protocol.py. Kernels compute rows (or tiles) [begin, end) of a result.

#include <cstddef>
#include <cstdint>

namespace transom {

constexpr int64_t tile_out = 16;  // weights come in tiles of 16 outputs

// One activation group of 32 as matmul reads it: codes, scale and the sums of codes, per 16 and per 32.
// Biases are -128 * sum: what weights stored as code + 128 add to a dot, taken back in advance.
struct Record8 {
    int8_t codes[32];
    float scale;
    int32_t bias[3];  // first 16, second 16, all 32
    float sum[3];
    int32_t unused;
};
static_assert(sizeof(Record8) == 64);

// Two planes, code = 254 * high + low.
struct Record16 {
    int8_t high[32];
    int8_t low[32];
    float scale;
    int32_t bias_high[3];
    int32_t bias_low[3];
    float sum[3];
    int32_t unused[6];
};
static_assert(sizeof(Record16) == 128);

struct Packed {
    const uint8_t* codes;
    const float* scales;
    const float* minima;  // or null
    int64_t out, in;
    int group;
};

struct FloatTiles {
    const float* values;
    int64_t out, in;
};

struct Quantize {
    int limit;  // 127 or 32258
    void* records;
};

inline int64_t record_bytes(int limit) { return limit == 127 ? sizeof(Record8) : sizeof(Record16); }

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

// out: plain norm; records: norm and quantize (out null); add: out += norm.
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

enum class Gate { gelu_tanh = 0, silu = 1 };

struct Gated {
    const float* gate_up;
    int64_t hidden;
    Gate gate;
    float* out;  // null: records
    Quantize quantize;
};

struct MatmulPacked {
    const void* records;
    int limit;
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

struct Pages {
    char* data;
    int64_t page_bytes;  // stride of axis 0
    int64_t page_size;
    int64_t layer;
    int64_t kv_heads, head_dim;
    bool half;             // float16, else float32
    const int32_t* table;  // [rows, per_row]
    int64_t per_row;
    int64_t count;  // ids in [1, count)
    int64_t layers;

    int64_t element() const { return half ? 2 : 4; }
    int64_t slot_bytes() const { return kv_heads * head_dim * element(); }
    // Of the key (which = 0) or value (1) of all KV heads at a position of a row.
    char* slot(int64_t row, int64_t position, int which) const {
        const int64_t page = table[row * per_row + position / page_size];
        return data + page * page_bytes +
               ((layer * 2 + which) * page_size + position % page_size) * slot_bytes();
    }
};

struct RopeStore {
    const float* qkv;
    int64_t heads;
    const float* q_norm;  // or null
    const float* k_norm;  // or null
    float eps;
    const float* cos_sin;
    Pages pages;
    const int32_t* positions;
    const int32_t* rows;
    const uint8_t* stored;  // 0: the token's key and value exist; null: all are stored
    float* q;
};

struct Attention {
    const float* q;
    int64_t heads;
    int64_t window;  // 0: full
    float scale;
    float softcap;  // 0: off
    Pages pages;
    float* out;
};

constexpr int64_t key_tile = 64;

// Queries [first, first + count) of one row (positions follow), the heads of one KV head, and key tiles
// [tile_begin, tile_end). partial null: all the row's tiles, the result goes to out. Otherwise every
// tile's (m, l, a) goes to partial, to be merged later. Keys before clip are masked.
struct AttentionPiece {
    int64_t row, token, position, count, kv_head, clip;
    int64_t tile_begin, tile_end;
    float* partial;
};

// Partials of one piece: per tile of the whole piece, per row (query, head): m, l, then a[head_dim].
inline int64_t partial_floats(int64_t head_dim) { return head_dim + 16; }

struct Weighed {
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
    // Of `n` logits: the highest (NaN if any is NaN) and its lowest id; sums of exp((x - max) / temperature),
    // in 16 float64 lanes that fold; the ones in [low, high), ids ascending, and how many.
    void (*highest)(const float* x, int64_t n, float* value, int32_t* id);
    double (*sum_exp)(const float* x, int64_t n, float max, float temperature);
    int64_t (*collect)(const float* x, int64_t n, float low, float high, Weighed* out);
};

// kernels/table.cpp, compiled once for each.
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
