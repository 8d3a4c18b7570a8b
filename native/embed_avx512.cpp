#if defined(__x86_64__)
#include "avx512.h"
#include "lanes_avx512.h"

namespace transom::avx512 {
namespace {

// One output's weights. Its 4-byte runs of codes are 64 bytes apart: 4 runs make 16 values.
void row(const Packed& w, int64_t id, float scale, float* out) {
    const int64_t tile = id / tile_out, lane = id % tile_out, groups = w.in / w.group;
    const uint8_t* codes = w.codes + tile * w.in * tile_out + lane * 4;
    const __m512 factor = _mm512_set1_ps(scale);
    for (int64_t k = 0; k < w.in; k += 16) {
        alignas(16) int32_t runs[4];
        for (int i = 0; i < 4; ++i) __builtin_memcpy(&runs[i], codes + (k / 4 + i) * 4 * tile_out, 4);
        const __m512i wide = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(runs)));
        const __m512 code = _mm512_cvtepi32_ps(_mm512_sub_epi32(wide, _mm512_set1_epi32(128)));
        const int64_t at = (tile * groups + k / w.group) * tile_out + lane;
        const __m512 minimum = _mm512_set1_ps(w.minima ? w.minima[at] : 0.0f);
        const __m512 value = _mm512_fmadd_ps(_mm512_set1_ps(w.scales[at]), code, minimum);
        _mm512_storeu_ps(out + k, _mm512_mul_ps(value, factor));
    }
}

}  // namespace

void embed_packed(const EmbedPacked& a, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) row(a.table, a.tokens[m], a.scale, a.out + m * a.table.in);
}

void embed_float(const EmbedFloat& a, int64_t begin, int64_t end) {
    const int64_t in = a.table.in;
    const __m512i apart = _mm512_mullo_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(tile_out));
    for (int64_t m = begin; m < end; ++m) {
        const float* values =
            a.table.values + (a.tokens[m] / tile_out) * in * tile_out + a.tokens[m] % tile_out;
        for (int64_t k = 0; k < in; k += 16) {
            const __mmask16 mask = first(in - k);
            const __m512 v =
                _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, apart, values + k * tile_out, 4);
            _mm512_mask_storeu_ps(a.out + m * in + k, mask, _mm512_mul_ps(v, _mm512_set1_ps(a.scale)));
        }
    }
}

}  // namespace transom::avx512

#endif
