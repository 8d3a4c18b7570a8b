// Persistent worker threads that share the pieces of one job at a time.
//
// A step of a model is hundreds of jobs of some microseconds each, so starting a job must not cost a system
// call when the workers are awake: they spin for a moment before they sleep. A job has no allocation and no
// queue: pieces are claimed by a compare-and-swap on one word.
#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace transom {
namespace {

// A thread without work spins this long before it sleeps: longer than Python takes between two kernels of a
// step, and short enough that an idle server does not use CPU time.
constexpr auto spin_time = std::chrono::microseconds(40);
constexpr int spins_per_look = 64;  // reading the clock costs more than a spin

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Sets the default floating-point control word, because another library may have changed it in this thread,
// and restores the old one at the end.
class ControlWord {
public:
#if defined(__x86_64__)
    ControlWord() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
    ~ControlWord() { _mm_setcsr(before_); }

private:
    unsigned before_;
#elif defined(__aarch64__)
    ControlWord() {
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
    }
    ~ControlWord() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

private:
    uint64_t before_;
#endif
};

template <typename Done>
bool spin_until(Done done) {
    const auto end = std::chrono::steady_clock::now() + spin_time;
    do {
        for (int i = 0; i < spins_per_look; ++i) {
            if (done()) return true;
            relax();
        }
    } while (std::chrono::steady_clock::now() < end);
    return false;
}

// The cursor packs the generation of the job (24 bits), its number of pieces (20) and the next unclaimed
// piece (20). One compare-and-swap then claims a piece and proves that it belongs to the job whose function
// was read: a late worker cannot claim a piece of the next job with the function of the last.
constexpr int index_bits = 20;
constexpr uint64_t index_mask = (1u << index_bits) - 1;
constexpr int64_t most_pieces = index_mask;

class Pool {
public:
    explicit Pool(int workers) {
        for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { work(); });
    }

    ~Pool() {
        stop_.store(true);
        ring();
        for (auto& worker : workers_) worker.join();
    }

    int workers() const { return static_cast<int>(workers_.size()); }

    void run(int64_t count, Run run, void* context) {
        run_.store(run, std::memory_order_relaxed);
        context_.store(context, std::memory_order_relaxed);
        done_.store(0, std::memory_order_relaxed);
        generation_ = (generation_ + 1) & 0xffffff;
        cursor_.store((generation_ << (2 * index_bits)) | (static_cast<uint64_t>(count) << index_bits));
        ring();
        help();
        const auto finished = [&] { return done_.load(std::memory_order_acquire) == count; };
        if (spin_until(finished)) return;  // workers usually finish at about the same time
        for (int32_t seen; (seen = done_.load(std::memory_order_acquire)) != count;) done_.wait(seen);
    }

private:
    void ring() {
        bell_.fetch_add(1);
        bell_.notify_all();
    }

    // Claims and runs pieces of the present job until all are claimed.
    void help() {
        uint64_t at = cursor_.load();
        for (;;) {
            const uint64_t index = at & index_mask, count = (at >> index_bits) & index_mask;
            if (index >= count) return;
            const Run run = run_.load(std::memory_order_relaxed);
            void* context = context_.load(std::memory_order_relaxed);
            if (!cursor_.compare_exchange_weak(at, at + 1)) continue;
            run(context, static_cast<int64_t>(index));
            if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<int32_t>(count))
                done_.notify_all();
            at = cursor_.load();
        }
    }

    void work() {
        ControlWord word;
        uint32_t rings = bell_.load();
        help();
        while (!stop_.load()) {
            const auto rung = [&] { return bell_.load(std::memory_order_acquire) != rings; };
            if (!spin_until(rung)) bell_.wait(rings);
            rings = bell_.load();
            help();
        }
    }

    std::vector<std::thread> workers_;
    // Each in its own cache line: all threads write the cursor, workers read the bell, the caller reads
    // done_.
    alignas(64) std::atomic<uint64_t> cursor_{0};
    alignas(64) std::atomic<uint32_t> bell_{0};
    alignas(64) std::atomic<int32_t> done_{0};
    std::atomic<Run> run_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<bool> stop_{false};
    uint64_t generation_ = 0;
};

int usable_cores() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1u, std::thread::hardware_concurrency());
}

struct State {
    std::mutex mutex;
    Pool* pool = nullptr;  // made by the first job; not destroyed at exit, when its threads may be asleep
    std::atomic<int> threads{usable_cores()};
};

State*& state_slot() {
    static State* state = new State;
    return state;
}

State& state() {
    // A forked child has no worker threads, and the mutex may be locked: it gets a new state.
    static const int registered = pthread_atfork(nullptr, nullptr, [] { state_slot() = new State; });
    (void)registered;
    return *state_slot();
}

void run_alone(int64_t count, Run run, void* context) {
    for (int64_t i = 0; i < count; ++i) run(context, i);
}

}  // namespace

int threads() { return state().threads; }

void set_threads(int count) {
    std::lock_guard lock(state().mutex);
    delete state().pool;
    state().pool = nullptr;
    state().threads = count;
}

void parallel(int64_t count, Run run, void* context) {
    ControlWord word;
    State& s = state();
    if (count <= 1 || s.threads.load() == 1 || count > most_pieces) return run_alone(count, run, context);
    std::unique_lock lock(s.mutex, std::try_to_lock);
    if (!lock) return run_alone(count, run, context);  // another job is running; waiting would be slower
    if (!s.pool) s.pool = new Pool(s.threads.load() - 1);
    s.pool->run(count, run, context);
}

namespace {

struct ScratchBlock {
    void* data = nullptr;
    size_t size = 0;
    ~ScratchBlock() { std::free(data); }
};

}  // namespace

void* scratch_bytes(Scratch slot, size_t bytes) noexcept {
    thread_local ScratchBlock blocks[static_cast<int>(Scratch::count_)];
    ScratchBlock& block = blocks[static_cast<int>(slot)];
    if (bytes > block.size) {
        std::free(block.data);
        // A quarter more than needed: sizes grow token by token, and each growth would allocate.
        block.size = (bytes + bytes / 4 + 4095) & ~size_t{4095};
        block.data = std::aligned_alloc(4096, block.size);
        if (!block.data) {
            block.size = 0;
            std::abort();  // a job cannot fail halfway: other threads are working on it
        }
    }
    return block.data;
}

}  // namespace transom
