// The extension module transom._native.
#include <nanobind/nanobind.h>

#include "module.h"

NB_MODULE(_native, m) {
    m.doc() = "Kernels and weight packing. See transom.ops.native and transom.weights.packing.";
    transom::register_packing(m);
    transom::register_kernels(m);
}
