#pragma once
// Scalar arithmetic, exactly as transom/ops/protocol.py specifies it; lanes.h has the same over 16 lanes.
//
// Internal linkage on purpose: the header is compiled once for each instruction set, and the linker must not
// replace a function by the one that was compiled for another set.

#include <cmath>
#include <cstdint>
#include <cstring>

#define TRANSOM_INLINE inline __attribute__((always_inline))

namespace transom {
namespace {

constexpr int lanes = 16;  // of every folded sum, whatever the registers: part of the specification

constexpr float log2e = 1.44269504088896341f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
constexpr float exp_terms[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
constexpr float exp_highest = 88.0f, exp_lowest = -87.0f;
constexpr float gelu_scale = 0.7978845608f, gelu_cube = 0.044715f;
constexpr float smallest_amax = 1e-30f;
constexpr float half_highest = 65504.0f;

// The sum of 16 lanes: j += j + 8, then + 4, + 2, + 1. Overwrites them.
template <typename T>
[[maybe_unused]] inline T fold(T* lane) {
    for (int width = lanes / 2; width >= 1; width /= 2) {
        for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    }
    return lane[0];
}

[[maybe_unused]] inline float folded_dot(const float* a, const float* b, int64_t n) {
    float lane[lanes] = {};
    for (int64_t i = 0; i < n; ++i) lane[i % lanes] = std::fma(a[i], b[i], lane[i % lanes]);
    return fold(lane);
}

// 2^n for an integer n in [-126, 127].
[[maybe_unused]] inline float power_of_two(float n) {
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

[[maybe_unused]] inline float exp_scalar(float x) {
    if (std::isnan(x)) return x;
    if (x < exp_lowest) return 0.0f;
    if (x > exp_highest) x = exp_highest;
    const float n = std::nearbyint(x * log2e);
    float r = std::fma(n, -ln2_high, x);
    r = std::fma(n, -ln2_low, r);
    float p = exp_terms[0];
    for (int i = 1; i < 6; ++i) p = std::fma(p, r, exp_terms[i]);
    p = std::fma(p, r * r, r);
    p = p + 1.0f;
    return p * power_of_two(n);
}

[[maybe_unused]] inline float tanh_scalar(float x) { return 1.0f - 2.0f / (exp_scalar(2.0f * x) + 1.0f); }

[[maybe_unused]] inline float softcapped(float score, float cap) { return cap * tanh_scalar(score / cap); }

// The factor of an RMS norm, of the sum of squares.
[[maybe_unused]] inline float rms_factor(float squares, int64_t dim, float eps) {
    return 1.0f / std::sqrt(squares / static_cast<float>(dim) + eps);
}

// Exact.
[[maybe_unused]] inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = (h >> 10) & 31u,
                   fraction = h & 1023u;
    if (exponent == 0) {
        const float value = static_cast<float>(fraction) * 0x1p-24f;
        return sign ? -value : value;
    }
    const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | (fraction << 13);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Rounded to nearest even, clamped to the finite range; NaN stays NaN.
[[maybe_unused]] inline uint16_t float_to_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    if (std::isnan(x)) return static_cast<uint16_t>(sign | 0x7e00u | ((bits >> 13) & 0x3ffu));
    const float a = std::fmin(std::fabs(x), half_highest);
    // Below the smallest normal float16, the result counts steps of 2^-24. Above, 13 bits of fraction are
    // rounded away.
    if (a < 0x1p-14f) return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(a * 0x1p24f)));
    std::memcpy(&bits, &a, sizeof bits);
    bits += 0xfffu + ((bits >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((bits >> 13) - (112u << 10)));
}

}  // namespace
}  // namespace transom
