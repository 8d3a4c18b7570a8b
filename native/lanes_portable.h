#pragma once
// Lanes of four vectors of 16 bytes: SSE2, NEON, or scalar code where the compiler has neither. The comments
// here specify each function for the other headers, too.

#include <cstdint>

#include "numbers.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace transom::TRANSOM_ISA {
namespace {

typedef float Floats4 __attribute__((vector_size(16)));
typedef int32_t Ints4 __attribute__((vector_size(16)));
typedef uint32_t Bits4 __attribute__((vector_size(16)));
typedef double Doubles2 __attribute__((vector_size(16)));

struct Lanes {
    Floats4 at[4];
};

struct Ints {
    Ints4 at[4];
};

struct Mask {
    Ints4 at[4];  // -1 or 0
};

struct Bytes {
    int8_t at[32];
};

struct Doubles {
    Doubles2 at[8];
};

// Sizes of blocks whose sums stay in registers: query heads x keys, and query heads x width (registers of
// values), of attention; rows x tiles of the matmuls. packed_few_rows: with up to so many rows, a block takes
// one tile. One Lanes takes four registers; SSE2 has 16, NEON 32.
constexpr int attention_heads = 2, attention_keys = 2, attention_width = 2;
constexpr int float_rows = 4, float_tiles = 1;
#if defined(__aarch64__)
constexpr int packed_rows = 4, packed_tiles = 1, packed_few_rows = 4;
#else
constexpr int packed_rows = 2, packed_tiles = 1, packed_few_rows = 2;
#endif

// A result whose quarter i is f(i). Kernels see 16 lanes; this file computes 4 at a time.
template <typename Result, typename F>
TRANSOM_INLINE Result quarters(F f) {
    return {{f(0), f(1), f(2), f(3)}};
}

// Keeps a value in a register, for compilers that would load it again; see lanes_avx512.h.
TRANSOM_INLINE Lanes held(Lanes v) { return v; }

// ---------------------------------------------------------------- masks

TRANSOM_INLINE Ints broadcast(int32_t x) {
    return quarters<Ints>([&](int) { return Ints4{x, x, x, x}; });
}
TRANSOM_INLINE Ints count_from(int32_t x) {
    return quarters<Ints>([&](int i) { return Ints4{0, 1, 2, 3} + (x + 4 * i); });
}

// Lanes 0 to n - 1; no lane if n is negative.
TRANSOM_INLINE Mask first(int64_t n) {
    const int32_t count = n > 16 ? 16 : static_cast<int32_t>(n);
    return quarters<Mask>([&](int i) { return Ints4{0, 1, 2, 3} + 4 * i < count; });
}
TRANSOM_INLINE Mask between(int64_t begin, int64_t end) {
    const Mask before = first(begin), until = first(end);
    return quarters<Mask>([&](int i) { return until.at[i] & ~before.at[i]; });
}
TRANSOM_INLINE Mask both(Mask a, Mask b) {
    return quarters<Mask>([&](int i) { return a.at[i] & b.at[i]; });
}
TRANSOM_INLINE Mask either(Mask a, Mask b) {
    return quarters<Mask>([&](int i) { return a.at[i] | b.at[i]; });
}
// Bit j of the result is lane j of the mask.
TRANSOM_INLINE uint32_t bits(Mask mask) {
    const Ints4 one = {1, 2, 4, 8};
    const Ints4 sum =
        (mask.at[0] & one) | (mask.at[1] & one << 4) | (mask.at[2] & one << 8) | (mask.at[3] & one << 12);
    return static_cast<uint32_t>(sum[0] | sum[1] | sum[2] | sum[3]);
}

// False where either is NaN.
TRANSOM_INLINE Mask below(Lanes a, Lanes b) {
    return quarters<Mask>([&](int i) { return a.at[i] < b.at[i]; });
}
TRANSOM_INLINE Mask at_most(Lanes a, Lanes b) {
    return quarters<Mask>([&](int i) { return a.at[i] <= b.at[i]; });
}
TRANSOM_INLINE Mask not_a_number(Lanes a) {
    return quarters<Mask>([&](int i) { return a.at[i] != a.at[i]; });
}

// ---------------------------------------------------------------- floats

TRANSOM_INLINE Lanes operator+(Lanes a, Lanes b) {
    return quarters<Lanes>([&](int i) { return a.at[i] + b.at[i]; });
}
TRANSOM_INLINE Lanes operator-(Lanes a, Lanes b) {
    return quarters<Lanes>([&](int i) { return a.at[i] - b.at[i]; });
}
TRANSOM_INLINE Lanes operator*(Lanes a, Lanes b) {
    return quarters<Lanes>([&](int i) { return a.at[i] * b.at[i]; });
}
TRANSOM_INLINE Lanes operator/(Lanes a, Lanes b) {
    return quarters<Lanes>([&](int i) { return a.at[i] / b.at[i]; });
}

TRANSOM_INLINE Lanes broadcast(float x) {
    return quarters<Lanes>([&](int) { return Floats4{x, x, x, x}; });
}
TRANSOM_INLINE Lanes load(const float* from) {
    Lanes v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
// The first n elements, at most 16. The other lanes are 0; their memory is not read.
TRANSOM_INLINE Lanes load(const float* from, int64_t n) {
    if (n >= 16) return load(from);
    Lanes v = broadcast(0.0f);
    if (n > 0) std::memcpy(&v, from, sizeof(float) * static_cast<size_t>(n));
    return v;
}
TRANSOM_INLINE void store(float* to, Lanes v) { std::memcpy(to, &v, sizeof v); }
// Stores the first n lanes only.
TRANSOM_INLINE void store(float* to, Lanes v, int64_t n) {
    if (n >= 16) return store(to, v);
    if (n > 0) std::memcpy(to, &v, sizeof(float) * static_cast<size_t>(n));
}

// float16 to float32.
TRANSOM_INLINE Lanes load(const uint16_t* halves) {
    Lanes v;
#if defined(__aarch64__)
    for (int i = 0; i < 4; ++i)
        v.at[i] = Floats4(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + 4 * i))));
#else
    float values[lanes];
    for (int j = 0; j < lanes; ++j) values[j] = half_to_float(halves[j]);
    v = load(values);
#endif
    return v;
}
// Stores as float16, rounded to nearest even. Values must be within float16's finite range, or NaN.
TRANSOM_INLINE void store_as_half(uint16_t* to, Lanes v) {
#if defined(__aarch64__)
    for (int i = 0; i < 4; ++i)
        vst1_u16(to + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(float32x4_t(v.at[i]))));
#else
    float values[lanes];
    store(values, v);
    for (int j = 0; j < lanes; ++j) to[j] = float_to_half(values[j]);
#endif
}

#if defined(__SSE2__) && !defined(__FMA__)
#define TRANSOM_FMA_OF_DOUBLES 1
typedef int64_t Longs2 __attribute__((vector_size(16)));

// p + c rounded to odd: if the float64 sum is not exact, its last bit is set to 1. Rounding it to float32
// then has the effect of one rounding (Boldo and Melquiond, 2008). p, a product of two float32, is exact in
// float64, and `rest` is the exact error of the sum (Knuth's TwoSum).
TRANSOM_INLINE Doubles2 sum_to_odd(Doubles2 p, Doubles2 c) {
    const Doubles2 sum = p + c, part = sum - p, rest = (p - (sum - part)) + (c - part);
    const Longs2 bits = Longs2(sum),
                 inexact = (rest < 0.0) | (rest > 0.0);  // if the sum is infinite, rest is NaN
    const Longs2 even = -(~bits & 1);
    const Longs2 outward = 1 - 2 * Longs2(_mm_srli_epi64(__m128i(Longs2(rest) ^ bits), 63));
    return Doubles2(bits + (outward & inexact & even));
}
TRANSOM_INLINE __m128 fma_of_two(__m128 a, __m128 b, __m128 c) {
    const Doubles2 p = Doubles2(_mm_cvtps_pd(a)) * Doubles2(_mm_cvtps_pd(b));
    return _mm_cvtpd_ps(__m128d(sum_to_odd(p, Doubles2(_mm_cvtps_pd(c)))));
}
#endif

TRANSOM_INLINE Floats4 fma(Floats4 a, Floats4 b, Floats4 c) {
#if defined(__aarch64__)
    return Floats4(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
#elif defined(TRANSOM_FMA_OF_DOUBLES)
    // The library's fma would be a call for each lane, and on a CPU without the instruction it is slow.
    const auto upper = [](Floats4 v) { return _mm_movehl_ps(__m128(v), __m128(v)); };
    return Floats4(
        _mm_movelh_ps(fma_of_two(__m128(a), __m128(b), __m128(c)), fma_of_two(upper(a), upper(b), upper(c))));
#else
    return Floats4{std::fma(a[0], b[0], c[0]), std::fma(a[1], b[1], c[1]), std::fma(a[2], b[2], c[2]),
                   std::fma(a[3], b[3], c[3])};
#endif
}
// a * b + c, and a * b - c, with one rounding.
TRANSOM_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
    return quarters<Lanes>([&](int i) { return fma(a.at[i], b.at[i], c.at[i]); });
}
TRANSOM_INLINE Lanes fms(Lanes a, Lanes b, Lanes c) {
    return quarters<Lanes>([&](int i) { return fma(a.at[i], b.at[i], -c.at[i]); });
}
TRANSOM_INLINE Lanes pick(Mask mask, Lanes yes, Lanes no) {
    return quarters<Lanes>([&](int i) { return mask.at[i] ? yes.at[i] : no.at[i]; });
}
// b if either is NaN: as the instructions of x86 do.
TRANSOM_INLINE Lanes lower(Lanes a, Lanes b) { return pick(below(a, b), a, b); }
TRANSOM_INLINE Lanes higher(Lanes a, Lanes b) { return pick(below(b, a), a, b); }
TRANSOM_INLINE Lanes absolute(Lanes v) {
    return quarters<Lanes>([&](int i) { return Floats4(Ints4(v.at[i]) & 0x7fffffff); });
}
// The nearest integer, ties to even. |v| must be below 2^22; NaN stays NaN.
TRANSOM_INLINE Lanes rounded(Lanes v) {
    const Lanes shift = broadcast(0x1.8p23f);
    return (v + shift) - shift;
}
// 2^n for an integer n in [-126, 127]; undefined for other values, which callers discard.
TRANSOM_INLINE Lanes power_of_two(Lanes n) {
    const Lanes shift = broadcast(0x1.8p23f);
    const Lanes shifted = n + shift;  // its low bits are n
    return quarters<Lanes>([&](int i) { return Floats4((Bits4(shifted.at[i]) + 127u) << 23); });
}

TRANSOM_INLINE float lane_0(Lanes v) { return v.at[0][0]; }
// The highest lane; undefined if a lane is NaN.
TRANSOM_INLINE float highest_of(Lanes v) {
    float lane[lanes];
    store(lane, v);
    for (int j = 1; j < lanes; ++j) lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
    return lane[0];
}

// The sum of the lanes in the order of the specification: j += j + 8, then + 4, + 2, + 1.
TRANSOM_INLINE float fold(Lanes v) {
    const Floats4 four = (v.at[0] + v.at[2]) + (v.at[1] + v.at[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// Folds every vector of a block.
template <int Rows, int Columns>
TRANSOM_INLINE void fold(const Lanes (&v)[Rows][Columns], float (&sums)[Rows][Columns]) {
    for (int r = 0; r < Rows; ++r) {
        for (int c = 0; c < Columns; ++c) sums[r][c] = fold(v[r][c]);
    }
}

// ---------------------------------------------------------------- float64

TRANSOM_INLINE Doubles no_doubles() { return {}; }
TRANSOM_INLINE Doubles add(Doubles a, Lanes v) {
    for (int i = 0; i < 8; ++i) {
        const Floats4 four = v.at[i / 2];
        a.at[i] += Doubles2{static_cast<double>(four[i % 2 * 2]), static_cast<double>(four[i % 2 * 2 + 1])};
    }
    return a;
}
TRANSOM_INLINE void store(double* to, Doubles v) { std::memcpy(to, &v, sizeof v); }

// ---------------------------------------------------------------- integers

TRANSOM_INLINE Ints add(Ints a, Ints b) {
    return quarters<Ints>([&](int i) { return a.at[i] + b.at[i]; });
}
TRANSOM_INLINE Ints subtract(Ints a, Ints b) {
    return quarters<Ints>([&](int i) { return a.at[i] - b.at[i]; });
}
// The low 32 bits of the products.
TRANSOM_INLINE Ints multiply(Ints a, Ints b) {
    return quarters<Ints>([&](int i) { return Ints4(Bits4(a.at[i]) * Bits4(b.at[i])); });
}
// The highest 8 bits of each lane, as an unsigned number.
TRANSOM_INLINE Ints top_byte(Ints v) {
    return quarters<Ints>([&](int i) { return Ints4(Bits4(v.at[i]) >> 24); });
}
TRANSOM_INLINE Ints pick(Mask mask, Ints yes, Ints no) {
    return quarters<Ints>([&](int i) { return mask.at[i] ? yes.at[i] : no.at[i]; });
}
// Clamps to [-limit, limit].
TRANSOM_INLINE Ints clamped(Ints v, Ints limit) {
    return quarters<Ints>([&](int i) {
        const Ints4 low = v.at[i] < limit.at[i] ? v.at[i] : limit.at[i];
        return low > -limit.at[i] ? low : -limit.at[i];
    });
}
TRANSOM_INLINE Ints widen(const uint8_t* sixteen) {
    return quarters<Ints>([&](int i) {
        const uint8_t* four = sixteen + 4 * i;
        return Ints4{four[0], four[1], four[2], four[3]};
    });
}
// Rounds to nearest even. |v| must be below 2^22.
TRANSOM_INLINE Ints to_ints(Lanes v) {
    const Lanes whole = rounded(v);
    return quarters<Ints>([&](int i) { return __builtin_convertvector(whole.at[i], Ints4); });
}
TRANSOM_INLINE Lanes to_floats(Ints v) {
    return quarters<Lanes>([&](int i) { return __builtin_convertvector(v.at[i], Floats4); });
}
TRANSOM_INLINE void store(int32_t* to, Ints v) { std::memcpy(to, &v, sizeof v); }

// ---------------------------------------------------------------- bytes

// The lanes of a, then of b, as bytes. All must fit int8.
TRANSOM_INLINE Bytes narrow(Ints a, Ints b) {
    Bytes bytes;
    for (int j = 0; j < lanes; ++j) {
        bytes.at[j] = static_cast<int8_t>(a.at[j / 4][j % 4]);
        bytes.at[j + lanes] = static_cast<int8_t>(b.at[j / 4][j % 4]);
    }
    return bytes;
}
TRANSOM_INLINE void store(int8_t* to, Bytes v) { std::memcpy(to, &v, sizeof v); }
// The sums of the first and of the second 16 bytes of x, and of y.
TRANSOM_INLINE void sum_halves(Bytes x, Bytes y, int32_t (&of_x)[2], int32_t (&of_y)[2]) {
    for (int half = 0; half < 2; ++half) {
        of_x[half] = of_y[half] = 0;
        for (int j = 0; j < lanes; ++j) {
            of_x[half] += x.at[half * lanes + j];
            of_y[half] += y.at[half * lanes + j];
        }
    }
}

// Loads four unsigned bytes for each lane.
TRANSOM_INLINE Ints load_weights(const uint8_t* from) {
    Ints v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// The four bytes of each lane as pairs of 16 bits: bytes 0 and 2 (`even`), bytes 1 and 3 (`odd`).
struct Pairs {
    Ints even, odd;
};
TRANSOM_INLINE Pairs split(Ints weights) {
    return {quarters<Ints>([&](int i) { return weights.at[i] & 0x00ff00ff; }),
            quarters<Ints>([&](int i) { return Ints4(Bits4(weights.at[i]) >> 8) & 0x00ff00ff; })};
}

// Lane j: sum + the dot of its two int16 of a with its two of b. Sums are held in registers: otherwise gcc 12
// computes all products of a group, in memory, before it adds them.
TRANSOM_INLINE Ints4 dot_pairs(Ints4 sum, Ints4 a, Ints4 b) {
#if defined(__SSE2__)
    sum += Ints4(_mm_madd_epi16(__m128i(a), __m128i(b)));
    asm("" : "+x"(sum));
#else
    sum += (a << 16 >> 16) * (b << 16 >> 16);
    sum += (a >> 16) * (b >> 16);
#if defined(__aarch64__)
    asm("" : "+w"(sum));
#endif
#endif
    return sum;
}
TRANSOM_INLINE Ints dot_pairs(Ints sum, Ints a, Ints b) {
    return quarters<Ints>([&](int i) { return dot_pairs(sum.at[i], a.at[i], b.at[i]); });
}

}  // namespace
}  // namespace transom::TRANSOM_ISA
