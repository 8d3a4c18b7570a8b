// Choice of the instruction set, once, at run time.
#include "isa.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace transom {
namespace {

struct Feature {
    const char* name;
    bool present;
};

std::vector<Feature> features() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return {
        {"avx512f", __builtin_cpu_supports("avx512f") != 0},
        {"avx512bw", __builtin_cpu_supports("avx512bw") != 0},
        {"avx512vl", __builtin_cpu_supports("avx512vl") != 0},
        {"avx512dq", __builtin_cpu_supports("avx512dq") != 0},
        {"avx512vnni", __builtin_cpu_supports("avx512vnni") != 0},
        {"avx512vbmi", __builtin_cpu_supports("avx512vbmi") != 0},
        {"fma", __builtin_cpu_supports("fma") != 0},
        {"f16c", __builtin_cpu_supports("f16c") != 0},
    };
#else
    return {};
#endif
}

bool runs_avx512() {
    const auto all = features();
    for (const auto& feature : all) {
        if (!feature.present) return false;
    }
    return !all.empty();
}

const Kernels* find(const std::string& name) {
    if (name == "scalar") return &scalar_kernels;
#if defined(__x86_64__)
    if (name == "avx512" && runs_avx512()) return &avx512_kernels;
#endif
    throw std::invalid_argument("instruction set '" + name + "' is unknown, or this CPU does not run it");
}

const Kernels* initial() {
    if (const char* name = std::getenv("TRANSOM_ISA"); name && *name) return find(name);
    return find(runs_avx512() ? "avx512" : "scalar");
}

std::atomic<const Kernels*>& chosen() {
    static std::atomic<const Kernels*> table{initial()};
    return table;
}

}  // namespace

const Kernels& kernels() { return *chosen().load(std::memory_order_relaxed); }

void set_isa(const std::string& name) { chosen().store(find(name)); }

std::vector<std::string> cpu_features() {
    std::vector<std::string> names;
    for (const auto& feature : features()) {
        if (feature.present) names.emplace_back(feature.name);
    }
    return names;
}

}  // namespace transom
