// Selects the instruction set at run time: the same binary runs on every x86-64 CPU.
#include "isa.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace transom {
namespace {

struct Feature {
    const char* name;
    bool present;
};

#if defined(__x86_64__)
// __builtin_cpu_supports of clang 14 does not know this feature: CPUID leaf 1, ECX, bit 29.
bool supports_f16c() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
    return (c & (1u << 29)) != 0 && __builtin_cpu_supports("avx");  // "avx": the OS saves the registers
}

// __builtin_cpu_supports of gcc 12 does not know this feature: CPUID leaf 7, subleaf 1, EAX, bit 4.
bool supports_avxvnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || a < 1) return false;
    __get_cpuid_count(7, 1, &a, &b, &c, &d);
    return (a & (1u << 4)) != 0 && __builtin_cpu_supports("avx2");
}
#endif

std::vector<Feature> features() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return {
        {"avx2", __builtin_cpu_supports("avx2") != 0},
        {"fma", __builtin_cpu_supports("fma") != 0},
        {"f16c", supports_f16c()},
        {"avxvnni", supports_avxvnni()},
        {"avx512f", __builtin_cpu_supports("avx512f") != 0},
        {"avx512bw", __builtin_cpu_supports("avx512bw") != 0},
        {"avx512vl", __builtin_cpu_supports("avx512vl") != 0},
        {"avx512dq", __builtin_cpu_supports("avx512dq") != 0},
        {"avx512vnni", __builtin_cpu_supports("avx512vnni") != 0},
    };
#else
    return {};
#endif
}

// Kernels and the CPU features that they need: the flags they are compiled with in CMakeLists.txt.
struct KernelSet {
    const Kernels* kernels;
    std::vector<std::string> needs;
};

// Fastest first.
std::vector<KernelSet> kernel_sets() {
    return {
#if defined(__x86_64__)
        {&avx512::table,
         {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"}},
        {&avxvnni::table, {"avx2", "fma", "f16c", "avxvnni"}},
        {&avx2::table, {"avx2", "fma", "f16c"}},
#endif
        {&portable::table, {}},
    };
}

bool runs_here(const KernelSet& set) {
    const auto have = cpu_features();
    return std::all_of(set.needs.begin(), set.needs.end(), [&](const std::string& need) {
        return std::find(have.begin(), have.end(), need) != have.end();
    });
}

std::vector<const Kernels*> runnable() {
    std::vector<const Kernels*> found;
    for (const KernelSet& set : kernel_sets()) {
        if (runs_here(set)) found.push_back(set.kernels);
    }
    return found;
}

std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
}

const Kernels* kernels_named(const std::string& name) {
    for (const Kernels* kernels : runnable()) {
        if (name == kernels->name) return kernels;
    }
    throw std::invalid_argument("no kernels '" + name + "' run on this CPU; available: " + joined(isas()));
}

const Kernels* initial() {
    const char* name = std::getenv("TRANSOM_ISA");
    if (!name || !*name) return runnable().front();
    try {
        return kernels_named(name);
    } catch (const std::invalid_argument& error) {
        throw std::invalid_argument(std::string("TRANSOM_ISA: ") + error.what());
    }
}

std::atomic<const Kernels*>& table_in_use() {
    static std::atomic<const Kernels*> table{initial()};
    return table;
}

}  // namespace

const Kernels& kernels() { return *table_in_use().load(std::memory_order_relaxed); }

void set_isa(const std::string& name) { table_in_use().store(kernels_named(name)); }

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const Kernels* kernels : runnable()) names.emplace_back(kernels->name);
    return names;
}

std::vector<std::string> cpu_features() {
    std::vector<std::string> names;
    for (const auto& feature : features()) {
        if (feature.present) names.emplace_back(feature.name);
    }
    return names;
}

}  // namespace transom
