#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace transom {

// The kernels in use: the fastest this CPU runs, or those that TRANSOM_ISA names.
const Kernels& kernels();

// Forces a table by name; std::invalid_argument, which names those there are, if it is none of them.
void set_isa(const std::string& name);

// The names of the kernels that run here, the fastest first; "portable" always does.
std::vector<std::string> isas();

// What this CPU has of what the kernels ask for.
std::vector<std::string> cpu_features();

}  // namespace transom
