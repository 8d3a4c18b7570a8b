// Persistent threads that share the pieces of one job at a time.
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

// A worker that has just worked waits this long before it sleeps: longer than Python needs between two
// kernels of a step, far shorter than anyone notices when idle.
constexpr auto spin_time = std::chrono::microseconds(40);
constexpr int spins_per_look = 64;

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// The default control word, whatever a library left in this thread; what was there is put back.
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

// cursor packs generation (24 bits), count (20) and the next unclaimed index (20), so that one
// compare-and-swap proves that a claim belongs to the job it was read from.
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
        if (spin_until(finished)) return;
        for (int32_t seen; (seen = done_.load(std::memory_order_acquire)) != count;) done_.wait(seen);
    }

private:
    void ring() {
        bell_.fetch_add(1);
        bell_.notify_all();
    }

    // Claims and runs pieces of the present job until none is left.
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
        uint32_t heard = bell_.load();
        help();
        while (!stop_.load()) {
            const auto rung = [&] { return bell_.load(std::memory_order_acquire) != heard; };
            if (!spin_until(rung)) bell_.wait(heard);
            heard = bell_.load();
            help();
        }
    }

    std::vector<std::thread> workers_;
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
    Pool* pool = nullptr;  // started by the first job; never destroyed at exit: its threads may be asleep
    std::atomic<int> threads{usable_cores()};
};

State*& state_slot() {
    static State* state = new State;
    return state;
}

State& state() {
    // A forked child has no workers and perhaps a locked mutex: it starts anew.
    static const int registered = pthread_atfork(nullptr, nullptr, [] { state_slot() = new State; });
    (void)registered;
    return *state_slot();
}

void alone(int64_t count, Run run, void* context) {
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
    if (count <= 1 || s.threads.load() == 1 || count > most_pieces) return alone(count, run, context);
    std::unique_lock lock(s.mutex, std::try_to_lock);
    if (!lock) return alone(count, run, context);
    if (!s.pool) s.pool = new Pool(s.threads.load() - 1);
    s.pool->run(count, run, context);
}

namespace {

struct Block {
    void* data = nullptr;
    size_t size = 0;
    ~Block() { std::free(data); }
};

}  // namespace

void* scratch_bytes(Scratch slot, size_t bytes) noexcept {
    thread_local Block blocks[static_cast<int>(Scratch::count_)];
    Block& block = blocks[static_cast<int>(slot)];
    if (bytes > block.size) {
        std::free(block.data);
        block.size = (bytes + bytes / 4 + 4095) & ~size_t{4095};
        block.data = std::aligned_alloc(4096, block.size);
        if (!block.data) {
            block.size = 0;
            std::abort();  // a piece of a job cannot fail: others are at work on it
        }
    }
    return block.data;
}

}  // namespace transom
