#include "scalar.h"

namespace transom {

const Kernels scalar_kernels = {
    "scalar",
    scalar::embed_packed,
    scalar::embed_float,
    scalar::norm,
    scalar::norm_prepare,
    scalar::add_norm,
    scalar::prepare,
    scalar::gated,
    scalar::matmul_packed,
    scalar::matmul_float,
    scalar::rope_store,
    scalar::attention,
    scalar::attention_merge,
    scalar::highest,
    scalar::sum_exp,
    scalar::collect,
};

}  // namespace transom
