#pragma once

#include <nanobind/nanobind.h>

namespace transom {

void register_packing(nanobind::module_& m);  // packing.cpp: GGUF blocks to packed matrices
void register_kernels(nanobind::module_& m);  // bindings.cpp: the functions of transom.ops.native

}  // namespace transom
