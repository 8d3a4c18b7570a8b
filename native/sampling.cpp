// Samples a token from one row of logits without sorting the vocabulary.
//
// The specification orders all tokens by logit and adds up their weights in that order. Nearly all of the
// weight lies in a few tokens, so tokens are collected and sorted in bands of decreasing logits, and most
// rows need one or two bands. The result is the specification's to the bit; a decision so close that the
// order of additions could change it is repeated over the whole vocabulary.
#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "isa.h"
#include "numbers.h"
#include "pool.h"

namespace transom {
namespace {

// sum_exp adds weights in another order than the specification adds them for cuts. Over 2^18 terms of
// float64, the two totals differ by far less than this, relatively. A cut closer than this to its threshold
// is decided by the specification's own total.
constexpr double order_slack = 1e-9;

// log64 of the specification: the natural logarithm of z >= 1, the same bits on every machine.
double log64(double z) {
    int exponent;
    double m = std::frexp(z, &exponent);
    if (m < 0.7071067811865476) {
        m = 2 * m;
        exponent -= 1;
    }
    const double s = (m - 1) / (m + 1), t = s * s;
    double p = 1.0 / 23;
    for (int k = 21; k >= 1; k -= 2) p = p * t + 1.0 / k;
    return exponent * 0.6931471805599453 + 2 * (s * p);
}

float logprob(float logit, float max, double sum_of_exp) {
    const float shifted = logit - max;
    return static_cast<float>(static_cast<double>(shifted) - log64(sum_of_exp));
}

// Bits that sort, ascending, like the float sorts descending; -0 and +0 are equal.
uint32_t descending_bits(float x) {
    x += 0.0f;
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return ~(bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

// Sorts by (logit descending, id ascending) items whose ids ascend. Large inputs take a stable radix sort,
// which keeps the order of ids; its four passes leave the result in `items` again.
void sort_candidates(Candidate* items, Candidate* spare, int64_t n) {
    if (n < 1024) {
        std::sort(items, items + n, [](const Candidate& a, const Candidate& b) {
            return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
        });
        return;
    }
    for (int shift = 0; shift < 32; shift += 8) {
        int64_t start[257] = {};
        for (int64_t i = 0; i < n; ++i) ++start[((descending_bits(items[i].logit) >> shift) & 255) + 1];
        for (int digit = 0; digit < 256; ++digit) start[digit + 1] += start[digit];
        for (int64_t i = 0; i < n; ++i)
            spare[start[(descending_bits(items[i].logit) >> shift) & 255]++] = items[i];
        std::swap(items, spare);
    }
}

// The tokens of a row in the order of the specification, collected band by band: band i ends edges[i] *
// temperature below the highest logit. Tokens below the last edge have weight 0; the last band takes them all
// the same.
class OrderedTokens {
public:
    OrderedTokens(const float* x, int64_t n, float max, float temperature)
        : x_(x), n_(n), max_(max), temperature_(temperature), above_(std::numeric_limits<float>::infinity()) {
        items_ = scratch<Candidate>(Scratch::order, 2 * n);
    }

    struct Token {
        int32_t id;
        float weight;
    };

    // The next token; nothing if no token is left, or if all that are left weigh less than exp(-limit).
    std::optional<Token> next(double limit = std::numeric_limits<double>::infinity()) {
        while (at_ == count_) {
            if (band_ == bands || reach() > limit) return std::nullopt;
            collect_band();
        }
        const Candidate& item = items_[at_++];
        return Token{item.id, exp_scalar((item.logit - max_) / temperature_)};
    }

private:
    // Narrow at first: with a peaked distribution, the first band holds a few tokens of 262,144.
    static constexpr int bands = 8;
    static constexpr float edges[bands] = {2, 4, 6, 8, 11, 16, 30, 89};

    // Every token not collected yet weighs less than exp(-reach). The margin covers the roundings of the edge
    // and of exp.
    double reach() const {
        if (band_ == 0) return -1.0;
        return edges[band_ - 1] - 0.01 - 5e-7 * std::fabs(static_cast<double>(max_)) / temperature_;
    }

    void collect_band() {
        const bool last = band_ == bands - 1;
        float low = max_ - edges[band_] * temperature_;
        if (last || !(low > -std::numeric_limits<float>::max()))
            low = -std::numeric_limits<float>::infinity();
        count_ = kernels().collect(x_, n_, low, above_, items_);
        sort_candidates(items_, items_ + n_, count_);
        above_ = low;
        at_ = 0;
        ++band_;
    }

    const float* x_;
    int64_t n_;
    float max_, temperature_, above_;
    Candidate* items_;
    int64_t at_ = 0, count_ = 0;
    int band_ = 0;
};

// The tokens kept so far, in order, each with the sum of weights up to it.
struct KeptTokens {
    struct Entry {
        double cumulated;
        int32_t id;
    };

    explicit KeptTokens(int64_t n) : entries(scratch<Entry>(Scratch::kept, n)) {}

    double total() const { return count == 0 ? 0.0 : entries[count - 1].cumulated; }
    void add(const OrderedTokens::Token& token) {
        const double before = total();
        entries[count++] = {before + static_cast<double>(token.weight), token.id};
    }
    // Index of the first entry whose cumulated weight passes the test, or of the last entry.
    template <typename Holds>
    int64_t first(Holds holds) const {
        const Entry* found = std::partition_point(entries, entries + count,
                                                  [&](const Entry& e) { return !holds(e.cumulated); });
        return std::min<int64_t>(found - entries, count - 1);
    }

    Entry* entries;
    int64_t count = 0;
};

int32_t draw(const KeptTokens& kept, double u) {
    const double target = u * kept.total();
    return kept.entries[kept.first([&](double c) { return c > target; })].id;
}

void cut_top_p(KeptTokens& kept, double top_p) {
    const double target = top_p * kept.total();
    kept.count = kept.first([&](double c) { return c >= target; }) + 1;
}

// Keeps the tokens that top_k and min_p leave. Both bound how far the order must be followed; top_p then cuts
// a list whose total is known exactly.
void keep_bounded(OrderedTokens& tokens, KeptTokens& kept, const Sampling& sampling) {
    const double min_p = sampling.min_p;
    const double limit = sampling.min_p > 0 ? -std::log(min_p) : std::numeric_limits<double>::infinity();
    for (int64_t seen = 0; sampling.top_k == 0 || seen < sampling.top_k; ++seen) {
        const auto token = tokens.next(limit);
        if (!token) return;
        if (static_cast<double>(token->weight) >= min_p) kept.add(*token);
    }
}

// Keeps tokens until their weight passes `share` of `whole`, the weight of the vocabulary, for certain. False
// if the roundings of `whole` could decide where that is; `kept` is then useless.
bool keep_share(OrderedTokens& tokens, KeptTokens& kept, double share, double whole) {
    const double low = share * whole * (1 - order_slack), high = share * whole * (1 + order_slack);
    while (const auto token = tokens.next()) {
        kept.add(*token);
        if (kept.total() > high) return true;
        if (kept.total() >= low) return false;
    }
    return false;
}

// Neither top_k nor min_p: every token takes part, and top_p or the draw alone says where to stop.
int32_t draw_unbounded(const float* x, int64_t n, float max, const Sampling& sampling, double u) {
    const double whole = kernels().sum_exp(x, n, max, sampling.temperature);
    const double top_p = sampling.top_p;
    KeptTokens kept(n);
    OrderedTokens tokens(x, n, max, sampling.temperature);
    if (top_p < 1) {
        // The kept tokens are exactly the specification's prefix, so their total is exact, too.
        if (keep_share(tokens, kept, top_p, whole)) return draw(kept, u);
    } else if (keep_share(tokens, kept, u, whole)) {
        return kept.entries[kept.count - 1].id;
    }
    KeptTokens all(n);
    OrderedTokens again(x, n, max, sampling.temperature);
    while (const auto token = again.next()) all.add(*token);
    cut_top_p(all, top_p);
    return draw(all, u);
}

int32_t draw_row(const float* x, int64_t n, float max, const Sampling& sampling) {
    const double u = uniform(sampling.seed, sampling.position);
    if (sampling.top_k == 0 && sampling.min_p == 0) return draw_unbounded(x, n, max, sampling, u);
    KeptTokens kept(n);
    OrderedTokens tokens(x, n, max, sampling.temperature);
    keep_bounded(tokens, kept, sampling);
    cut_top_p(kept, sampling.top_p);
    return draw(kept, u);
}

}  // namespace

// Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
double uniform(uint64_t seed, int32_t position) {
    uint32_t a = static_cast<uint32_t>(position), b = 0, c = 0, d = 0;
    uint32_t low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t first = uint64_t{0xD2511F53} * a, second = uint64_t{0xCD9E8D57} * c;
        a = static_cast<uint32_t>(second >> 32) ^ b ^ low;
        b = static_cast<uint32_t>(second);
        c = static_cast<uint32_t>(first >> 32) ^ d ^ high;
        d = static_cast<uint32_t>(first);
        low += 0x9E3779B9;
        high += 0xBB67AE85;
    }
    return a / 4294967296.0;
}

SampledToken sample_row(const float* logits, int64_t n, const Sampling& sampling) {
    float max;
    int32_t token;
    kernels().highest(logits, n, &max, &token);
    // NaN or +inf somewhere, or no finite logit: the row has no distribution.
    if (!std::isfinite(max)) return {0, std::numeric_limits<float>::quiet_NaN()};
    const double whole = kernels().sum_exp(logits, n, max, 1.0f);
    if (sampling.temperature != 0) token = draw_row(logits, n, max, sampling);
    return {token, logprob(logits[token], max, whole)};
}

float logprobs_row(const float* logits, int64_t n, int32_t token, int64_t top, int32_t* top_tokens,
                   float* top_logprobs) {
    float max;
    int32_t first;
    kernels().highest(logits, n, &max, &first);
    if (!std::isfinite(max)) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        std::fill_n(top_tokens, top, 0);
        std::fill_n(top_logprobs, top, nan);
        return nan;
    }
    const double whole = kernels().sum_exp(logits, n, max, 1.0f);
    OrderedTokens tokens(logits, n, max, 1.0f);
    for (int64_t i = 0; i < top; ++i) {
        top_tokens[i] = tokens.next()->id;
        top_logprobs[i] = logprob(logits[top_tokens[i]], max, whole);
    }
    return logprob(logits[token], max, whole);
}

}  // namespace transom
