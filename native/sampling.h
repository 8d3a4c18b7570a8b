#pragma once
// Sampling a token from a row of logits, and log-probabilities. Specified by Ops.sample and Ops.logprobs in
// transom/ops/protocol.py.

#include "kernels.h"

namespace transom {

// The sampling parameters of one row.
struct Sampling {
    float temperature;  // 0: greedy
    int32_t top_k;      // 0: off
    float top_p, min_p;
    uint64_t seed;
    int32_t position;  // of the token that is sampled: the counter of the generator
};

struct SampledToken {
    int32_t token;
    float logprob;
};

SampledToken sample_row(const float* logits, int64_t n, const Sampling& sampling);

// The log-probability of `token`. Writes the `top` most probable tokens and their log-probabilities.
float logprobs_row(const float* logits, int64_t n, int32_t token, int64_t top, int32_t* top_tokens,
                   float* top_logprobs);

// The number in [0, 1) that samples the token at a position: the first word of Philox4x32-10, divided by
// 2^32.
double uniform(uint64_t seed, int32_t position);

}  // namespace transom
