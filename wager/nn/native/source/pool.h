// Threads of this library's own, and how they wait: they spin for some microseconds, then sleep.
//
// Sleeping is what keeps a pass fast on a busy machine: a core whose thread sleeps takes over the thread that is
// waited for, if another program has suspended that one. A caller never waits for a thread to arrive: it announces
// a job, works on it at once, and waits at the end only for the threads that have joined. If another caller has the
// pool, the job runs on the calling thread alone. A forked child has a new pool, because it has no threads.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

#include "vectors.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define WAGER_FORKS 1
#endif

#if defined(__x86_64__)
#define WAGER_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define WAGER_PAUSE() asm volatile("yield")
#else
#define WAGER_PAUSE()
#endif

// Threads that sleep until a condition holds. Whoever makes it true calls `wake` afterwards, which costs one load
// while nobody sleeps. Both sides use the total order of sequentially consistent operations.
class Sleepers {
  public:
    template <class Ready>
    void wait(int64_t spin_us, const Ready& ready) {
        if (spin(spin_us, ready)) return;
        std::unique_lock<std::mutex> lock(mutex);
        count.fetch_add(1);
        while (!ready()) bell.wait(lock);
        count.fetch_sub(1);
    }

    void wake() {
        if (count.load() == 0) return;
        { std::lock_guard<std::mutex> lock(mutex); }  // nobody is between the look and the sleep
        bell.notify_all();
    }

  private:
    std::mutex mutex;
    std::condition_variable bell;
    std::atomic<int> count{0};

    template <class Ready>
    static bool spin(int64_t microseconds, const Ready& ready) {
        if (ready()) return true;
        const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
        do {
            for (int i = 0; i < 16; i++) {
                if (ready()) return true;
                WAGER_PAUSE();
            }
        } while (std::chrono::steady_clock::now() < until);
        return false;
    }
};

constexpr int MAX_TEAM = 256;
constexpr int64_t PIECE_SPIN_US = 50;   // a piece takes less, unless its thread is suspended
constexpr int64_t CALL_SPIN_US = 100;  // the next call of a step often comes sooner

class ThreadPool {
  public:
    typedef void (*Enter)(void* data, ThreadPool& pool, int rank);

    Sleepers at_phase;

    // Runs `enter` on the caller, as rank 0, and on up to `threads - 1` others. Returns false if another caller
    // has the pool.
    bool run(int threads, Enter enter, void* data) {
        if (taken.exchange(true, std::memory_order_acquire)) return false;
        job_enter = enter;
        job_data = data;
        const int others = start_threads((threads < MAX_TEAM ? threads : MAX_TEAM) - 1);
        const uint64_t number = (state.load() / ONE_JOB + 1) * ONE_JOB;
        state.store(number + OPEN + static_cast<uint64_t>(others) * ONE_WANTED);
        idle.wake();
        enter(data, *this, 0);
        state.fetch_and(~OPEN);
        leaving.wait(PIECE_SPIN_US, [&] { return state.load() % ONE_WANTED == 0; });
        taken.store(false, std::memory_order_release);
        return true;
    }

  private:
    // The state of the current job in one word: threads inside, threads wanted, whether it may still be joined, and
    // its number.
    static constexpr uint64_t ONE_WANTED = 1 << 10, OPEN = 1 << 20, ONE_JOB = 1 << 21;

    std::atomic<uint64_t> state{0};
    std::atomic<bool> taken{false};
    Sleepers idle, leaving;
    Enter job_enter = nullptr;
    void* job_data = nullptr;
    int num_threads = 0;

    // Returns how many threads there are, at most `wanted`: the system may refuse more.
    int start_threads(int wanted) {
        while (num_threads < wanted) {
            try {
                std::thread(&ThreadPool::serve, this, num_threads + 1).detach();
            } catch (const std::system_error&) {
                return num_threads;
            }
            num_threads++;
        }
        return wanted;
    }

    static bool may_join(uint64_t now, uint64_t last, int rank) {
        return (now & OPEN) && now / ONE_JOB != last &&
               now % OPEN / ONE_WANTED >= static_cast<uint64_t>(rank);
    }

    void serve(int rank) {
        for (uint64_t last = 0;;) {
            idle.wait(CALL_SPIN_US, [&] { return may_join(state.load(), last, rank); });
            uint64_t now = state.load();
            while (may_join(now, last, rank) && !state.compare_exchange_weak(now, now + 1)) {
            }
            if (!may_join(now, last, rank)) continue;
            last = now / ONE_JOB;
            job_enter(job_data, *this, rank);
            if ((state.fetch_sub(1) - 1) % ONE_WANTED == 0) leaving.wake();
        }
    }
};

// The pool of this process. It is never deleted, because its threads end with the process.
static std::atomic<ThreadPool*> the_pool{nullptr};

static ThreadPool& pool_of_process() {
    ThreadPool* found = the_pool.load(std::memory_order_acquire);
    if (found) return *found;
    ThreadPool* made = new ThreadPool;
    if (!the_pool.compare_exchange_strong(found, made)) {
        delete made;
        return *found;
    }
#if defined(WAGER_FORKS)
    static const int once = pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); });
    static_cast<void>(once);
#endif
    return *made;
}
