#pragma once
// The instruction sets that kernels are compiled for, and the one in use.

#include <string>
#include <vector>

#include "kernels.h"

namespace transom {

// The kernels in use: the fastest that this CPU runs, unless TRANSOM_ISA names another set.
const Kernels& kernels();

// Selects kernels by name. Throws std::invalid_argument, which lists the names that are possible.
void set_isa(const std::string& name);

// The names of the kernels that this CPU runs, fastest first. "portable" is always the last.
std::vector<std::string> isas();

// The features that kernels may need and this CPU has.
std::vector<std::string> cpu_features();

}  // namespace transom
