// The functions that transom.ops.native calls: each checks its arguments, then runs a kernel without the GIL.
// The caller allocates and owns all outputs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "arguments.h"
#include "module.h"
#include "sampling.h"

namespace transom {
namespace {

using nb::handle;
using ReleaseGil = nb::gil_scoped_release;

void embed_packed(handle codes, handle scales, handle zero_offsets, int group, int64_t out, int64_t in,
                  handle tokens, float scale, handle result) {
    const PackedArgument table(codes, scales, zero_offsets, group, out, in);
    const Array<int32_t> ids(tokens, "tokens", 1);
    const Array<float> to(result, "result", 2, true);
    check_tokens(ids, out);
    to.expect(0, ids.dim(0));
    to.expect(1, in);
    ReleaseGil release;
    over_rows(kernels().embed_packed, EmbedPacked{table.get(), ids.at(), scale, to.at()}, ids.dim(0), 2 * in);
}

void embed_float(handle values, int64_t out, int64_t in, handle tokens, float scale, handle result) {
    const FloatArgument table(values, out, in);
    const Array<int32_t> ids(tokens, "tokens", 1);
    const Array<float> to(result, "result", 2, true);
    check_tokens(ids, out);
    to.expect(0, ids.dim(0));
    to.expect(1, in);
    ReleaseGil release;
    over_rows(kernels().embed_float, EmbedFloat{table.get(), ids.at(), scale, to.at()}, ids.dim(0), 2 * in);
}

// The arguments that all norms share: x `[tokens, dim]` and its weight `[dim]`.
struct NormArguments {
    Array<float> x, weight;
    NormArguments(handle rows, handle weights) : x(rows, "x", 2), weight(weights, "weight", 1) {
        if (dim() % 16 != 0 || dim() == 0)
            complain("x", "rows must be a multiple of 16 wide, are " + std::to_string(dim()));
        weight.expect(0, dim());
    }
    int64_t rows() const { return x.dim(0); }
    int64_t dim() const { return x.dim(1); }
    Norm args(float eps, float* out, Quantize quantize) const {
        return {x.at(), weight.at(), eps, dim(), out, quantize};
    }
};

void norm(handle x, handle weight, float eps, handle result) {
    const NormArguments n(x, weight);
    const Array<float> to(result, "result", 2, true);
    to.expect(0, n.rows());
    to.expect(1, n.dim());
    ReleaseGil release;
    over_rows(kernels().norm, n.args(eps, to.at(), {}), n.rows(), n.dim());
}

void add_norm(handle x, handle y, handle weight, float eps) {
    const NormArguments n(y, weight);
    const Array<float> to(x, "x", 2, true);
    to.expect(0, n.rows());
    to.expect(1, n.dim());
    ReleaseGil release;
    over_rows(kernels().add_norm, n.args(eps, to.at(), {}), n.rows(), n.dim());
}

void norm_prepare(handle x, handle weight, float eps, int precision, handle activations) {
    const NormArguments n(x, weight);
    const ActivationsArgument to(activations, "activations", precision, true);
    to.expect(n.rows(), n.dim());
    ReleaseGil release;
    over_rows(kernels().norm_prepare, n.args(eps, nullptr, to.quantize()), n.rows(), 2 * n.dim());
}

void prepare(handle x, int precision, handle activations) {
    const Array<float> rows(x, "x", 2);
    const ActivationsArgument to(activations, "activations", precision, true);
    to.expect(rows.dim(0), rows.dim(1));
    ReleaseGil release;
    over_rows(kernels().prepare, Prepare{rows.at(), rows.dim(1), to.quantize()}, rows.dim(0), rows.dim(1));
}

int64_t hidden_of(const Array<float>& gate_up) {
    if (gate_up.dim(1) % 2 != 0) complain("gate_up", "must have an even width");
    return gate_up.dim(1) / 2;
}

Gate checked_gate(int gate) {
    if (gate != 0 && gate != 1) complain("gate", "must be 0 or 1, is " + std::to_string(gate));
    return static_cast<Gate>(gate);
}

void gated(handle gate_up, int gate, handle result) {
    const Gate applied = checked_gate(gate);
    const Array<float> rows(gate_up, "gate_up", 2), to(result, "result", 2, true);
    to.expect(0, rows.dim(0));
    to.expect(1, hidden_of(rows));
    ReleaseGil release;
    over_rows(kernels().gated, Gated{rows.at(), rows.dim(1) / 2, applied, to.at(), {}}, rows.dim(0),
              2 * rows.dim(1));
}

void gated_prepare(handle gate_up, int gate, int precision, handle activations) {
    const Gate applied = checked_gate(gate);
    const Array<float> rows(gate_up, "gate_up", 2);
    const ActivationsArgument to(activations, "activations", precision, true);
    to.expect(rows.dim(0), hidden_of(rows));
    ReleaseGil release;
    over_rows(kernels().gated, Gated{rows.at(), rows.dim(1) / 2, applied, nullptr, to.quantize()},
              rows.dim(0), 2 * rows.dim(1));
}

void matmul_packed(handle activations, int precision, handle codes, handle scales, handle zero_offsets,
                   int group, int64_t out, int64_t in, handle result) {
    const PackedArgument matrix(codes, scales, zero_offsets, group, out, in);
    const ActivationsArgument rows(activations, "x", precision, false);
    const Array<float> to(result, "result", 2, true);
    rows.expect(rows.tokens(), in);
    to.expect(0, rows.tokens());
    to.expect(1, out);
    ReleaseGil release;
    const Quantize x = rows.quantize();
    launch(MatmulPacked{x.blocks, x.precision, matrix.get(), to.at(), rows.tokens()});
}

void matmul_float(handle x, handle values, int64_t out, int64_t in, handle result) {
    const FloatArgument matrix(values, out, in);
    const Array<float> rows(x, "x", 2), to(result, "result", 2, true);
    rows.expect(1, in);
    to.expect(0, rows.dim(0));
    to.expect(1, out);
    ReleaseGil release;
    launch(MatmulFloat{rows.at(), matrix.get(), to.at(), rows.dim(0)});
}

// The norm weight of query or key heads, `[head_dim]`, or None.
class HeadWeight {
public:
    HeadWeight(handle weight, const char* name, int64_t dim) {
        if (weight.is_none()) return;
        array_.emplace(weight, name, 1).expect(0, dim);
    }
    const float* at() const { return array_ ? array_->at() : nullptr; }

private:
    std::optional<Array<float>> array_;
};

void check_heads(const Pages& p, int64_t heads, int64_t kv_heads, int64_t head_dim) {
    if (p.kv_heads != kv_heads || p.head_dim != head_dim)
        complain("shape", "has other KV heads or another head_dim than the pages");
    if (kv_heads < 1 || heads < 1 || heads % kv_heads != 0)
        complain("shape", "heads must be a multiple of kv_heads");
}

void rope_store(handle qkv, int64_t heads, int64_t kv_heads, int64_t head_dim, handle q_norm, handle k_norm,
                float eps, handle cos_sin, handle pages, handle table, int64_t page_size, int64_t layer,
                handle positions, handle token_rows, handle stored, handle result) {
    const PagesArgument kv(pages, table, page_size, layer, true);
    check_heads(kv.get(), heads, kv_heads, head_dim);
    const Array<float> x(qkv, "qkv", 2), angles(cos_sin, "cos_sin", 3), to(result, "result", 3, true);
    const Array<int32_t> at(positions, "positions", 1), rows(token_rows, "token_rows", 1);
    const HeadWeight q_weight(q_norm, "q_norm", head_dim), k_weight(k_norm, "k_norm", head_dim);
    const int64_t tokens = x.dim(0), shape[] = {tokens, heads, head_dim}, turns[] = {tokens, 2, head_dim / 2};
    x.expect(1, (heads + 2 * kv_heads) * head_dim);
    for (int axis = 0; axis < 3; ++axis) {
        to.expect(axis, shape[axis]);
        angles.expect(axis, turns[axis]);
    }
    at.expect(0, tokens);
    rows.expect(0, tokens);
    std::optional<Array<uint8_t>> which;
    if (!stored.is_none()) which.emplace(stored, "stored", 1).expect(0, tokens);
    const uint8_t* mask = which ? which->at() : nullptr;
    for (int64_t t = 0; t < tokens; ++t) {
        if (!mask || mask[t]) kv.check(rows.at()[t], at.at()[t], at.at()[t] + int64_t{1});
    }
    const RopeStore args{x.at(),   heads,   q_weight.at(), k_weight.at(), eps,    angles.at(),
                         kv.get(), at.at(), rows.at(),     mask,          to.at()};
    ReleaseGil release;
    over_rows(kernels().rope_store, args, tokens, 4 * x.dim(1));
}

void attention(handle q, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window, float scale,
               float softcap, handle pages, handle table, int64_t page_size, int64_t layer, handle rows,
               handle starts, handle offsets, handle clips, handle result) {
    const PagesArgument kv(pages, table, page_size, layer, false);
    check_heads(kv.get(), heads, kv_heads, head_dim);
    if (window < 0) complain("window", "is " + std::to_string(window));
    const Array<float> queries(q, "q", 3), to(result, "result", 2, true);
    queries.expect(1, heads);
    queries.expect(2, head_dim);
    to.expect(0, queries.dim(0));
    to.expect(1, heads * head_dim);
    const auto spans = checked_spans(kv, rows, starts, offsets, clips, queries.dim(0), window);
    ReleaseGil release;
    launch(Attention{queries.at(), heads, window, scale, softcap, kv.get(), to.at()}, spans);
}

// Sampling parameters of all rows: `SamplingRows` in Python.
struct SamplingArguments {
    Array<float> temperature, top_p, min_p;
    Array<int32_t> top_k, position;
    Array<uint64_t> seed;

    void check(int64_t rows) const {
        const Buffer* all[] = {&temperature, &top_p, &min_p, &top_k, &position, &seed};
        for (const Buffer* each : all) each->expect(0, rows);
        for (int64_t i = 0; i < rows; ++i) {
            if (!(temperature.at()[i] >= 0)) complain("temperature", "must be 0 or more");
            if (top_k.at()[i] < 0) complain("top_k", "must be 0 or more");
            if (!(top_p.at()[i] >= 0 && top_p.at()[i] <= 1)) complain("top_p", "must be in [0, 1]");
            if (!(min_p.at()[i] >= 0 && min_p.at()[i] <= 1)) complain("min_p", "must be in [0, 1]");
        }
    }
    Sampling row(int64_t i) const {
        return {temperature.at()[i], top_k.at()[i], top_p.at()[i],
                min_p.at()[i],       seed.at()[i],  position.at()[i]};
    }
};

void sample(handle logits, handle temperature, handle top_k, handle top_p, handle min_p, handle seed,
            handle position, handle tokens, handle logprobs) {
    const Array<float> x(logits, "logits", 2), to_logprobs(logprobs, "logprobs", 1, true);
    const Array<int32_t> to_tokens(tokens, "tokens", 1, true);
    const SamplingArguments sampling{
        {temperature, "temperature", 1}, {top_p, "top_p", 1}, {min_p, "min_p", 1}, {top_k, "top_k", 1},
        {position, "position", 1},       {seed, "seed", 1}};
    const int64_t rows = x.dim(0), vocabulary = x.dim(1);
    sampling.check(rows);
    to_tokens.expect(0, rows);
    to_logprobs.expect(0, rows);
    if (vocabulary < 1 || vocabulary > INT32_MAX) complain("logits", "rows must not be empty");
    ReleaseGil release;
    parallel(rows, [&](int64_t i) {
        const SampledToken sampled = sample_row(x.at() + i * vocabulary, vocabulary, sampling.row(i));
        to_tokens.at()[i] = sampled.token;
        to_logprobs.at()[i] = sampled.logprob;
    });
}

void logprobs(handle logits, handle tokens, handle result, handle top_tokens, handle top_logprobs) {
    const Array<float> x(logits, "logits", 2), to_logprobs(result, "logprobs", 1, true),
        to_top_logprobs(top_logprobs, "top_logprobs", 2, true);
    const Array<int32_t> ids(tokens, "tokens", 1), to_top(top_tokens, "top_tokens", 2, true);
    const int64_t rows = x.dim(0), vocabulary = x.dim(1), top = to_top.dim(1);
    if (vocabulary < 1 || vocabulary > INT32_MAX) complain("logits", "rows must not be empty");
    if (top > vocabulary) complain("top_tokens", "has more columns than the vocabulary has tokens");
    ids.expect(0, rows);
    to_logprobs.expect(0, rows);
    to_top.expect(0, rows);
    to_top_logprobs.expect(0, rows);
    to_top_logprobs.expect(1, top);
    for (int64_t i = 0; i < rows; ++i) {
        if (ids.at()[i] < 0 || ids.at()[i] >= vocabulary)
            complain("tokens",
                     std::to_string(ids.at()[i]) + " is not in [0, " + std::to_string(vocabulary) + ")");
    }
    ReleaseGil release;
    parallel(rows, [&](int64_t i) {
        to_logprobs.at()[i] = logprobs_row(x.at() + i * vocabulary, vocabulary, ids.at()[i], top,
                                           to_top.at() + i * top, to_top_logprobs.at() + i * top);
    });
}

// All layers of a page lie together: the keys and values of a layer are 2 runs of page_size slots.
void copy_pages(handle pages, handle table, int64_t page_size, int64_t source, int64_t target,
                int64_t tokens) {
    const PagesArgument kv(pages, table, page_size, 0, true);
    const Pages& p = kv.get();
    if (source < 1 || source >= p.count) complain("source", std::to_string(source) + " is not a page");
    if (target < 1 || target >= p.count) complain("target", std::to_string(target) + " is not a page");
    if (tokens < 0 || tokens > page_size) complain("tokens", std::to_string(tokens) + " do not fit a page");
    if (source == target) return;
    ReleaseGil release;
    const size_t bytes = static_cast<size_t>(tokens * p.slot_bytes());
    for (int64_t i = 0; i < 2 * p.layers; ++i) {
        const int64_t at = i * page_size * p.slot_bytes();
        std::memcpy(p.data + target * p.page_bytes + at, p.data + source * p.page_bytes + at, bytes);
    }
}

void checked_set_threads(int count) {
    if (count < 1 || count > 1024) complain("count", "must be in [1, 1024], is " + std::to_string(count));
    ReleaseGil release;
    set_threads(count);
}

void checked_set_isa(const std::string& name) {
    try {
        set_isa(name);
    } catch (const std::invalid_argument& error) {
        throw nb::value_error(error.what());
    }
}

}  // namespace

void register_kernels(nb::module_& m) {
    kernels();                           // so that an unusable TRANSOM_ISA fails the import, not a request
    const auto none = nb::arg().none();  // nanobind rejects None for all other arguments
    m.def("embed_packed", embed_packed, nb::arg(), nb::arg(), none, nb::arg(), nb::arg(), nb::arg(),
          nb::arg(), nb::arg(), nb::arg());
    m.def("embed_float", embed_float);
    m.def("norm", norm);
    m.def("norm_prepare", norm_prepare);
    m.def("add_norm", add_norm);
    m.def("prepare", prepare);
    m.def("gated", gated);
    m.def("gated_prepare", gated_prepare);
    m.def("matmul_packed", matmul_packed, nb::arg(), nb::arg(), nb::arg(), nb::arg(), none, nb::arg(),
          nb::arg(), nb::arg(), nb::arg());
    m.def("matmul_float", matmul_float);
    m.def("rope_store", rope_store, nb::arg(), nb::arg(), nb::arg(), nb::arg(), none, none, nb::arg(),
          nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), none, nb::arg());
    m.def("attention", attention, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
          nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), none, nb::arg());
    m.def("sample", sample);
    m.def("logprobs", logprobs);
    m.def("copy_pages", copy_pages);
    m.def("uniform", uniform,
          "The number in [0, 1) that samples the token at a position: of (seed, position).");
    m.def("threads", threads, "Threads that kernels use, including the calling one.");
    m.def("set_threads", checked_set_threads, "Sets the number of threads that kernels use, at least 1.");
    m.def("isa", [] { return kernels().name; }, "The instruction set of the kernels in use.");
    m.def("isas", isas, "The instruction sets whose kernels run on this CPU, fastest first.");
    m.def("set_isa", checked_set_isa,
          "Selects the kernels of an instruction set; ValueError if this CPU cannot run them.");
    m.def("cpu_features", cpu_features, "The CPU features that kernels can use and this CPU has.");
}

}  // namespace transom
