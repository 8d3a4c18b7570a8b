// The table of one instruction set. The order of its entries is that of struct Kernels.
#include "table.h"

#define TRANSOM_TEXT_OF(x) #x
#define TRANSOM_TEXT(x) TRANSOM_TEXT_OF(x)

namespace transom::TRANSOM_ISA {

const Kernels table = {
    TRANSOM_TEXT(TRANSOM_ISA),
    embed_packed,
    embed_float,
    norm,
    norm_prepare,
    add_norm,
    prepare,
    gated,
    matmul_packed,
    matmul_float,
    rope_store,
    attention,
    attention_merge,
    highest,
    sum_exp,
    collect,
};

}  // namespace transom::TRANSOM_ISA
