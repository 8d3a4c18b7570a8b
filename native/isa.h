#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace transom {

// The kernels in use: the widest this CPU runs, or what TRANSOM_ISA (scalar, avx512) asks for.
const Kernels& kernels();

// Forces a table by name; std::invalid_argument if unknown or not runnable here.
void set_isa(const std::string& name);

// What this CPU has of what the kernels ask for.
std::vector<std::string> cpu_features();

}  // namespace transom
