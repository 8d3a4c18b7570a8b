#pragma once
// The threads that kernels share, and scratch memory of each thread.

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace transom {

// Threads that jobs run on, including the calling one.
int threads();
void set_threads(int count);  // at least 1; ends the present workers, new ones start with the next job

// Calls run(context, i) once for every i in [0, count), on any thread, and returns when all calls have
// returned. The pieces must be independent of each other: their order and their threads are not defined. All
// run under the default floating-point control word (round to nearest, subnormals kept). If another job is
// running, the caller does all the work itself.
using Run = void (*)(void* context, int64_t index);
void parallel(int64_t count, Run run, void* context);

template <typename F>
void parallel(int64_t count, F&& body) {
    using Body = std::remove_reference_t<F>;
    parallel(
        count, [](void* c, int64_t i) { (*static_cast<Body*>(c))(i); },
        const_cast<void*>(static_cast<const void*>(&body)));
}

// At least `bytes` of memory of this thread, page-aligned, valid until its next call with the same slot. It
// is kept for the life of the thread, so that kernels do not allocate.
enum class Scratch { row, keys, values, sums, scores, order, kept, count_ };
void* scratch_bytes(Scratch slot, size_t bytes) noexcept;

template <typename T>
T* scratch(Scratch slot, int64_t count) {
    return static_cast<T*>(scratch_bytes(slot, sizeof(T) * static_cast<size_t>(count)));
}

}  // namespace transom
