// The extension module: every file of kernels registers its own functions here.
#include <nanobind/nanobind.h>

#include "module.h"

NB_MODULE(_native, m) {
    m.doc() = "Transom's leaf arithmetic. See transom.ops.native and transom.weights.packing.";
    transom::register_packing(m);
    transom::register_kernels(m);
}
