#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace transom {

// The process's threads. `threads` counts the caller, which works too.
int threads();
void set_threads(int count);  // 1 or more; existing workers end or new ones start

// Calls run(context, i) once for every i in [0, count), on any thread, and returns when all are done.
// Who computes what never changes a result: pieces are disjoint. Under the default floating-point
// control word (round to nearest, no flush to zero). A second caller meanwhile works alone.
using Run = void (*)(void* context, int64_t index);
void parallel(int64_t count, Run run, void* context);

template <typename F>
void parallel(int64_t count, F&& body) {
    using Body = std::remove_reference_t<F>;
    parallel(
        count, [](void* c, int64_t i) { (*static_cast<Body*>(c))(i); },
        const_cast<void*>(static_cast<const void*>(&body)));
}

// At least `bytes` of this thread's own memory, 64-byte aligned, valid until its next call with the same
// slot.
enum class Scratch { row, keys, values, sums, scores, order, kept, count_ };
void* scratch_bytes(Scratch slot, size_t bytes) noexcept;

template <typename T>
T* scratch(Scratch slot, int64_t count) {
    return static_cast<T*>(scratch_bytes(slot, sizeof(T) * static_cast<size_t>(count)));
}

}  // namespace transom
