#pragma once

#include "kernels.h"

namespace transom {

// How to choose one token: Ops.choose.
struct Choice {
    float temperature;
    int32_t top_k;
    float top_p, min_p;
    uint64_t seed;
    int32_t position;
};

struct Chosen {
    int32_t token;
    float logprob;
};

Chosen choose_row(const float* logits, int64_t n, const Choice& how);

// Log-probability of `token`, and the `top` most probable tokens with theirs: Ops.score.
float score_row(const float* logits, int64_t n, int32_t token, int64_t top, int32_t* top_tokens,
                float* top_logprobs);

// The number in [0, 1) that chooses the token at a position: first word of Philox4x32-10 over 2^32.
double uniform(uint64_t seed, int32_t position);

}  // namespace transom
