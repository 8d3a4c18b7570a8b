// Runs every kernel of one instruction set (TRANSOM_ISA) on inputs drawn from seeds and prints a digest of
// what each computed, a line for each. All sets, on all CPUs and any number of threads, must print the same
// text: tests/native/test_digests.py compares them, which is how a CPU without Python for it is tested.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "../../native/launch.h"
#include "../../native/sampling.h"

namespace transom {

namespace TRANSOM_ISA {
extern const Kernels table;
}

const Kernels& kernels() { return TRANSOM_ISA::table; }

}  // namespace transom

namespace {

using namespace transom;
using Floats = std::vector<float>;

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

// splitmix64.
struct Draw {
    uint64_t state;

    uint64_t bits() {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    int32_t below(int32_t n) { return static_cast<int32_t>(bits() % static_cast<uint64_t>(n)); }
    float between(float low, float high) {
        return low + (high - low) * (static_cast<float>(bits() >> 40) * 0x1p-24f);
    }
    Floats floats(int64_t n, float low = -4.0f, float high = 4.0f) {
        Floats values(static_cast<size_t>(n));
        for (float& value : values) value = between(low, high);
        return values;
    }
};

// FNV-1a over 32-bit words; every NaN is the same.
struct Digest {
    uint64_t state = 0xcbf29ce484222325u;

    void add(uint32_t word) { state = (state ^ word) * 0x100000001b3u; }
    void add(float x) { add(x != x ? 0x7fc00000u : std::bit_cast<uint32_t>(x)); }
    void add(double x) {
        const auto word = std::bit_cast<uint64_t>(x);
        add(static_cast<uint32_t>(word));
        add(static_cast<uint32_t>(word >> 32));
    }
    void add(const Floats& values) {
        for (float x : values) add(x);
    }
    void add_halves(const std::vector<char>& bytes) {
        for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
            uint16_t half;
            std::memcpy(&half, bytes.data() + i, 2);
            add((half & 0x7fffu) > 0x7c00u ? 0x7e00u : uint32_t{half});
        }
    }
    void add(const std::vector<char>& words) {
        for (size_t i = 0; i + 3 < words.size(); i += 4) {
            float x;
            std::memcpy(&x, words.data() + i, 4);
            add(x);
        }
    }
};

void print(const char* name, const Digest& digest) {
    std::printf("%s %016llx\n", name, static_cast<unsigned long long>(digest.state));
}

// ---------------------------------------------------------------- weights

struct Weights {
    std::vector<uint8_t> codes;
    Floats scales, zero_offsets;
    Packed packed;

    Weights(Draw& draw, int64_t out, int64_t in, int group, bool has_zero_offsets) {
        const int64_t tiles = (out + tile_out - 1) / tile_out;
        codes.resize(static_cast<size_t>(tiles * in * tile_out));
        // Extremes are as likely as all else together.
        for (uint8_t& code : codes) {
            const int32_t kind = draw.below(4);
            code = kind == 0 ? 0 : kind == 1 ? 255 : static_cast<uint8_t>(draw.below(256));
        }
        scales = draw.floats(tiles * (in / group) * tile_out, 0.0f, 0.1f);
        if (has_zero_offsets) zero_offsets = draw.floats(tiles * (in / group) * tile_out, -1.0f, 0.0f);
        packed = {codes.data(), scales.data(), has_zero_offsets ? zero_offsets.data() : nullptr, out,
                  in,           group};
    }
};

struct Matrix {
    Floats values;
    FloatTiles tiles;

    Matrix(Draw& draw, int64_t out, int64_t in) {
        values = draw.floats((out + tile_out - 1) / tile_out * in * tile_out);
        tiles = {values.data(), out, in};
    }
};

std::vector<char> activation_blocks(Precision precision, int64_t rows, int64_t dim) {
    return std::vector<char>(static_cast<size_t>(rows * (dim / 32) * activation_block_bytes(precision)));
}

// ---------------------------------------------------------------- kernels

// Zeros, tiny and huge rows, ties, an infinity, a NaN.
Floats odd_rows(Draw& draw, int64_t dim) {
    Floats x = draw.floats(9 * dim);
    const auto row = [&](int64_t r) { return x.data() + r * dim; };
    for (int i = 0; i < 32; ++i) row(1)[i] = 0.0f;
    for (int64_t i = 0; i < dim; ++i) {
        row(2)[i] *= 1e-30f;
        row(3)[i] *= 1e37f;
        row(7)[i] = 1e-40f;
        row(8)[i] = i % 2 ? row(8)[i] : -0.0f;
    }
    for (int i = 0; i < 8; ++i) row(4)[i] = static_cast<float>(i) + 0.5f;
    row(4)[8] = 127.0f;
    row(5)[dim / 2] = infinity;
    row(6)[0] = not_a_number;
    return x;
}

void quantized_rows() {
    for (Precision precision : {Precision::int8, Precision::int16}) {
        Draw draw{1};
        Digest digest;
        const int64_t dim = 96, rows = 9;
        const Floats x = odd_rows(draw, dim), weight = draw.floats(dim);
        auto out = activation_blocks(precision, rows, dim);
        kernels().prepare({x.data(), dim, {precision, out.data()}}, 0, rows);
        digest.add(out);
        kernels().norm_prepare({x.data(), weight.data(), 1e-6f, dim, nullptr, {precision, out.data()}}, 0,
                               rows);
        digest.add(out);
        auto half = activation_blocks(precision, rows, 32);
        const Floats gate_up = draw.floats(rows * 64, -9.0f, 9.0f);
        kernels().gated({gate_up.data(), 32, Gate::gelu_tanh, nullptr, {precision, half.data()}}, 0, rows);
        digest.add(half);
        print(precision == Precision::int8 ? "prepare-8" : "prepare-16", digest);
    }
}

void float_rows() {
    Draw draw{2};
    Digest norms, gates, embeddings;
    for (int64_t dim : {16, 80, 640}) {
        const Floats x = draw.floats(3 * dim), weight = draw.floats(dim);
        Floats out = draw.floats(3 * dim);
        kernels().add_norm({x.data(), weight.data(), 1e-6f, dim, out.data(), {}}, 0, 3);
        norms.add(out);
        kernels().norm({x.data(), weight.data(), 1e-6f, dim, out.data(), {}}, 0, 3);
        norms.add(out);
    }
    print("norm", norms);
    for (float most : {1.0f, 9.0f, 95.0f, 1e20f}) {
        for (Gate gate : {Gate::gelu_tanh, Gate::silu}) {
            Floats gate_up = draw.floats(2 * 1003, -most, most), out(1003);
            const float edges[] = {0.0f,   -0.0f,    1e-42f,    88.0f,       -87.0f,
                                   -88.0f, infinity, -infinity, not_a_number};
            std::copy(std::begin(edges), std::end(edges), gate_up.begin());
            kernels().gated({gate_up.data(), 1003, gate, out.data(), {}}, 0, 1);
            gates.add(out);
        }
    }
    print("gated", gates);
    const std::vector<int32_t> tokens = {0, 5, 76, 31, 16};
    for (int group : {16, 32}) {
        for (bool zero_offsets : {false, true}) {
            const Weights table(draw, 77, 96, group, zero_offsets);
            Floats out(5 * 96);
            kernels().embed_packed({table.packed, tokens.data(), 25.3f, out.data()}, 0, 5);
            embeddings.add(out);
        }
    }
    const Matrix table(draw, 77, 37);
    Floats out(5 * 37);
    kernels().embed_float({table.tiles, tokens.data(), 25.3f, out.data()}, 0, 5);
    embeddings.add(out);
    print("embed", embeddings);
}

void products() {
    Draw draw{3};
    for (Precision precision : {Precision::int8, Precision::int16}) {
        Digest digest;
        for (int group : {16, 32}) {
            for (bool zero_offsets : {false, true}) {
                const int64_t in = 96, out = 77;
                const Weights weights(draw, out, in, group, zero_offsets);
                for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 17, 31, 70}) {
                    const Floats x = draw.floats(rows * in);
                    auto prepared = activation_blocks(precision, rows, in);
                    kernels().prepare({x.data(), in, {precision, prepared.data()}}, 0, rows);
                    Floats y(static_cast<size_t>(rows * out));
                    launch(MatmulPacked{prepared.data(), precision, weights.packed, y.data(), rows});
                    digest.add(y);
                }
            }
        }
        print(precision == Precision::int8 ? "matmul-8" : "matmul-16", digest);
    }
    Digest digest;
    for (int64_t out : {1, 77, 130}) {
        const Matrix matrix(draw, out, 33);
        for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 11}) {
            const Floats x = draw.floats(rows * 33);
            Floats y(static_cast<size_t>(rows * out));
            launch(MatmulFloat{x.data(), matrix.tiles, y.data(), rows});
            digest.add(y);
        }
    }
    print("matmul-float", digest);
}

// Pages of one layer for rows of up to `most` tokens, stored by rope_store.
struct Store {
    std::vector<char> data;
    std::vector<int32_t> table;
    Pages pages;

    Store(Draw& draw, int64_t rows, int64_t most, int64_t kv_heads, int64_t head_dim, bool half) {
        const int64_t size = 7, per_row = (most + size - 1) / size, count = rows * per_row + 1;
        const int64_t page_bytes = 2 * size * kv_heads * head_dim * (half ? 2 : 4);
        data.resize(static_cast<size_t>(count * page_bytes));
        for (int32_t i = 1; i < count; ++i) table.push_back(i);
        for (size_t i = table.size() - 1; i > 0; --i)
            std::swap(table[i], table[static_cast<size_t>(draw.below(static_cast<int32_t>(i)))]);
        pages = {data.data(), page_bytes, size, 0, kv_heads, head_dim, half, table.data(), per_row, count, 1};
    }
};

struct Heads {
    int64_t heads, kv_heads, head_dim;
};

void attention_of(const Heads& h, bool half, Digest& rotated, Digest& stored, Digest& attended) {
    Draw draw{static_cast<uint64_t>(h.head_dim)};
    const int64_t most = 300, rows = 2, width = (h.heads + 2 * h.kv_heads) * h.head_dim, n = rows * most;
    Store store(draw, rows, most, h.kv_heads, h.head_dim, half);
    Floats qkv = draw.floats(n * width), q(static_cast<size_t>(n * h.heads * h.head_dim));
    qkv[static_cast<size_t>(width - 1)] = 70000.0f;  // beyond float16
    qkv[static_cast<size_t>(width - 2)] = 1e-7f;     // below its normal numbers
    const Floats angles = draw.floats(n * h.head_dim, -1.0f, 1.0f), norm = draw.floats(h.head_dim);
    std::vector<int32_t> positions, token_rows;
    for (int32_t i = 0; i < n; ++i) {
        positions.push_back(i % static_cast<int32_t>(most));
        token_rows.push_back(i / static_cast<int32_t>(most));
    }
    for (const float* weight : {static_cast<const float*>(nullptr), norm.data()}) {
        const RopeStore rope{
            qkv.data(),       h.heads,           weight,  weight,  1e-6f, angles.data(), store.pages,
            positions.data(), token_rows.data(), nullptr, q.data()};
        kernels().rope_store(rope, 0, n);
        rotated.add(q);
        half ? stored.add_halves(store.data) : stored.add(store.data);
    }
    // Of rows 0 and 1: all tokens of a prompt; one token, and three, after many.
    const std::vector<std::vector<Span>> steps = {
        {{0, 0, 0, 150, 0}, {1, 130, 150, 1, 0}}, {{0, 299, 0, 1, 0}}, {{1, 290, 0, 3, 200}}};
    for (const auto& spans : steps) {
        for (int64_t window : {0, 1, 70}) {
            for (float softcap : {0.0f, 5.0f}) {
                Floats out(q.size());
                launch(Attention{q.data(), h.heads, window, 0.1f, softcap, store.pages, out.data()}, spans);
                attended.add(out);
            }
        }
    }
}

void attentions() {
    for (bool half : {true, false}) {
        Digest rotated, stored, attended;
        for (const Heads& h : {Heads{4, 2, 16}, Heads{3, 3, 48}, Heads{5, 1, 80}, Heads{4, 1, 256}})
            attention_of(h, half, rotated, stored, attended);
        print(half ? "rope-half" : "rope-float", rotated);
        print(half ? "store-half" : "store-float", stored);
        print(half ? "attention-half" : "attention-float", attended);
    }
}

void samples() {
    Draw draw{5};
    Digest digest;
    for (int64_t n : {1, 15, 1000, 4099, 70001}) {
        for (float most : {0.1f, 4.0f, 30.0f}) {
            Floats logits = draw.floats(n, -most, most);
            for (size_t i = 0; i < logits.size(); i += 7) logits[i] = std::nearbyint(logits[i]);  // ties
            for (const Sampling& sampling :
                 {Sampling{0.0f, 0, 1.0f, 0.0f, 7, 3}, Sampling{1.0f, 0, 1.0f, 0.0f, 8, 4},
                  Sampling{0.7f, 40, 0.9f, 0.01f, 9, 5}, Sampling{3.0f, 0, 0.95f, 0.0f, ~uint64_t{0}, 6}}) {
                const SampledToken sampled = sample_row(logits.data(), n, sampling);
                digest.add(static_cast<uint32_t>(sampled.token));
                digest.add(sampled.logprob);
            }
            digest.add(kernels().sum_exp(logits.data(), n, most, 0.6f));
            logits[static_cast<size_t>(n / 2)] = not_a_number;
            digest.add(sample_row(logits.data(), n, {1.0f, 0, 1.0f, 0.0f, 1, 1}).logprob);
        }
    }
    print("sample", digest);
}

}  // namespace

int main(int count, char** arguments) {
    set_threads(count > 1 ? std::atoi(arguments[1]) : 1);
    quantized_rows();
    float_rows();
    products();
    attentions();
    samples();
}
