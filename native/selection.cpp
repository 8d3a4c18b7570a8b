// Choosing a token from one row of logits, looking at the vocabulary in order no further than needed.
#include "selection.h"

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

// A total added in another order than the text's differs by far less than this, relatively: 2^18 terms
// of float64. A cut that is closer than this to its threshold is decided by the text's own total.
constexpr double order_slack = 1e-9;

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

float logprob(float logit, float max, double whole) {
    const float shifted = logit - max;
    return static_cast<float>(static_cast<double>(shifted) - log64(whole));
}

// Bits that order like the float, descending; -0 and +0 are one.
uint32_t descending(float x) {
    x += 0.0f;
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return ~(bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

// By (logit descending, id ascending), given by id ascending. Many: a stable radix sort.
void sort(Weighed* items, Weighed* spare, int64_t n) {
    if (n < 1024) {
        std::sort(items, items + n, [](const Weighed& a, const Weighed& b) {
            return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
        });
        return;
    }
    for (int shift = 0; shift < 32; shift += 8) {
        int64_t start[257] = {};
        for (int64_t i = 0; i < n; ++i) ++start[((descending(items[i].logit) >> shift) & 255) + 1];
        for (int digit = 0; digit < 256; ++digit) start[digit + 1] += start[digit];
        for (int64_t i = 0; i < n; ++i)
            spare[start[(descending(items[i].logit) >> shift) & 255]++] = items[i];
        std::swap(items, spare);
    }
}

// Tokens in order, fetched by bands of falling logits: band i is what lies within edges[i] temperatures
// of the highest. After the last band only weights of 0 are left.
class Walk {
public:
    Walk(const float* x, int64_t n, float max, float temperature)
        : x_(x), n_(n), max_(max), temperature_(temperature), above_(std::numeric_limits<float>::infinity()) {
        items_ = scratch<Weighed>(Scratch::order, 2 * n);
    }

    struct Token {
        int32_t id;
        float weight;
    };

    // Nothing when no token is left, or all that are left weigh less than exp(-limit).
    std::optional<Token> next(double limit = std::numeric_limits<double>::infinity()) {
        while (at_ == count_) {
            if (band_ == bands || reach() > limit) return std::nullopt;
            fetch();
        }
        const Weighed& item = items_[at_++];
        return Token{item.id, exp_scalar((item.logit - max_) / temperature_)};
    }

private:
    static constexpr int bands = 8;
    static constexpr float edges[bands] = {2, 4, 6, 8, 11, 16, 30, 89};

    // Every token not fetched weighs less than exp(-reach), roundings of the edges and of exp allowed for.
    double reach() const {
        if (band_ == 0) return -1.0;
        return edges[band_ - 1] - 0.01 - 5e-7 * std::fabs(static_cast<double>(max_)) / temperature_;
    }

    void fetch() {
        const bool last = band_ == bands - 1;
        float low = max_ - edges[band_] * temperature_;
        if (last || !(low > -std::numeric_limits<float>::max()))
            low = -std::numeric_limits<float>::infinity();
        count_ = kernels().collect(x_, n_, low, above_, items_);
        sort(items_, items_ + n_, count_);
        above_ = low;
        at_ = 0;
        ++band_;
    }

    const float* x_;
    int64_t n_;
    float max_, temperature_, above_;
    Weighed* items_;
    int64_t at_ = 0, count_ = 0;
    int band_ = 0;
};

// The tokens kept so far, with their cumulated weights.
struct Kept {
    struct Entry {
        double cumulated;
        int32_t id;
    };

    explicit Kept(int64_t n) : entries(scratch<Entry>(Scratch::kept, n)) {}

    double total() const { return count == 0 ? 0.0 : entries[count - 1].cumulated; }
    void add(const Walk::Token& token) {
        const double before = total();
        entries[count++] = {before + static_cast<double>(token.weight), token.id};
    }
    // Index of the first entry whose cumulated weight reaches (passes) the threshold, or the last.
    template <typename Holds>
    int64_t first(Holds holds) const {
        const Entry* found = std::partition_point(entries, entries + count,
                                                  [&](const Entry& e) { return !holds(e.cumulated); });
        return std::min<int64_t>(found - entries, count - 1);
    }

    Entry* entries;
    int64_t count = 0;
};

int32_t draw(const Kept& kept, double u) {
    const double target = u * kept.total();
    return kept.entries[kept.first([&](double c) { return c > target; })].id;
}

void cut_top_p(Kept& kept, double top_p) {
    const double target = top_p * kept.total();
    kept.count = kept.first([&](double c) { return c >= target; }) + 1;
}

// top_k or min_p bound what is looked at; top_p then cuts a known list.
void keep_bounded(Walk& walk, Kept& kept, const Choice& how) {
    const double min_p = how.min_p;
    const double limit = how.min_p > 0 ? -std::log(min_p) : std::numeric_limits<double>::infinity();
    for (int64_t seen = 0; how.top_k == 0 || seen < how.top_k; ++seen) {
        const auto token = walk.next(limit);
        if (!token) return;
        if (static_cast<double>(token->weight) >= min_p) kept.add(*token);
    }
}

// Only top_p, or nothing: walks until the threshold, share of the whole vocabulary's weight, is passed for
// certain. False if roundings could decide; then kept is of no use.
bool keep_share(Walk& walk, Kept& kept, double share, double whole) {
    const double low = share * whole * (1 - order_slack), high = share * whole * (1 + order_slack);
    while (const auto token = walk.next()) {
        kept.add(*token);
        if (kept.total() > high) return true;
        if (kept.total() >= low) return false;
    }
    return false;
}

int32_t draw_unbounded(const float* x, int64_t n, float max, const Choice& how, double u) {
    const double whole = kernels().sum_exp(x, n, max, how.temperature);
    const double top_p = how.top_p;
    Kept kept(n);
    Walk walk(x, n, max, how.temperature);
    if (top_p < 1) {
        // what is kept is then the text's prefix, and its total exact
        if (keep_share(walk, kept, top_p, whole)) return draw(kept, u);
    } else if (keep_share(walk, kept, u, whole)) {
        return kept.entries[kept.count - 1].id;
    }
    Kept all(n);
    Walk again(x, n, max, how.temperature);
    while (const auto token = again.next()) all.add(*token);
    cut_top_p(all, top_p);
    return draw(all, u);
}

int32_t draw_row(const float* x, int64_t n, float max, const Choice& how) {
    const double u = uniform(how.seed, how.position);
    if (how.top_k == 0 && how.min_p == 0) return draw_unbounded(x, n, max, how, u);
    Kept kept(n);
    Walk walk(x, n, max, how.temperature);
    keep_bounded(walk, kept, how);
    cut_top_p(kept, how.top_p);
    return draw(kept, u);
}

}  // namespace

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

Chosen choose_row(const float* logits, int64_t n, const Choice& how) {
    float max;
    int32_t token;
    kernels().highest(logits, n, &max, &token);
    if (!std::isfinite(max)) return {0, std::numeric_limits<float>::quiet_NaN()};
    const double whole = kernels().sum_exp(logits, n, max, 1.0f);
    if (how.temperature != 0) token = draw_row(logits, n, max, how);
    return {token, logprob(logits[token], max, whole)};
}

float score_row(const float* logits, int64_t n, int32_t token, int64_t top, int32_t* top_tokens,
                float* top_logprobs) {
    float max;
    int32_t first;
    kernels().highest(logits, n, &max, &first);
    if (!std::isfinite(max)) {
        const float lost = std::numeric_limits<float>::quiet_NaN();
        std::fill_n(top_tokens, top, 0);
        std::fill_n(top_logprobs, top, lost);
        return lost;
    }
    const double whole = kernels().sum_exp(logits, n, max, 1.0f);
    Walk walk(logits, n, max, 1.0f);
    for (int64_t i = 0; i < top; ++i) {
        top_tokens[i] = walk.next()->id;
        top_logprobs[i] = logprob(logits[top_tokens[i]], max, whole);
    }
    return logprob(logits[token], max, whole);
}

}  // namespace transom
