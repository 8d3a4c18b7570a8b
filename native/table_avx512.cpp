#if defined(__x86_64__)
#include "avx512.h"

namespace transom {

const Kernels avx512_kernels = {
    "avx512",
    avx512::embed_packed,
    avx512::embed_float,
    avx512::norm,
    avx512::norm_prepare,
    avx512::add_norm,
    avx512::prepare,
    avx512::gated,
    avx512::matmul_packed,
    avx512::matmul_float,
    avx512::rope_store,
    avx512::attention,
    avx512::attention_merge,
    avx512::highest,
    avx512::sum_exp,
    avx512::collect,
};

}  // namespace transom
#endif
