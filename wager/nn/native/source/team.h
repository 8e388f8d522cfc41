// The threads that share a pass: those torch already runs, entered once per pass, and the phases they share.
//
// The library brings no threads of its own. Python hands over the entry of the OpenMP library that torch has
// loaded (every such library knows the GOMP calls); a second pool would spin against the first. Without one a
// pass runs on the calling thread.
//
// A phase is a number of independent pieces. Threads take them one by one, and the phase is over when all are
// done, not when all threads have come: one that the system keeps from running holds nobody up but by the piece
// it has in hand.
#pragma once

#include <atomic>
#include <cstdint>

#include "vectors.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#define WAGER_YIELD() sched_yield()
#else
#define WAGER_YIELD()
#endif

#if defined(__x86_64__)
#define WAGER_PAUSE() __builtin_ia32_pause()
#else
#define WAGER_PAUSE()
#endif

typedef void (*ParallelCall)(void (*)(void*), void*, unsigned, unsigned);
typedef int (*NumberCall)();

static ParallelCall enter_parallel = nullptr;
static NumberCall thread_number = nullptr;
static NumberCall team_size = nullptr;

struct alignas(64) Phase {
    std::atomic<int64_t> next, done;
};

// Waiting spins, since phases last microseconds, and gives way once that takes long: where other programs run,
// the thread that is waited for may stand in line behind this one.
INLINE void wait_for(const std::atomic<int64_t>& done, int64_t total) {
    for (int spins = 0; done.load(std::memory_order_acquire) < total; spins++) {
        WAGER_PAUSE();
        if (spins > 1000) WAGER_YIELD();
    }
}

// One thread's view of the team.
struct Member {
    int rank, size;

    // Take pieces 0..total-1 of a phase while there are any, then wait for those that others have in hand.
    template <class Body>
    void work(Phase& phase, int64_t total, const Body& body) const {
        if (size == 1) {
            for (int64_t piece = 0; piece < total; piece++) body(piece);
            return;
        }
        int64_t taken = 0;
        for (int64_t piece; (piece = phase.next.fetch_add(1, std::memory_order_relaxed)) < total; taken++)
            body(piece);
        if (taken) phase.done.fetch_add(taken, std::memory_order_acq_rel);
        wait_for(phase.done, total);
    }
};

template <class Body>
static void run_team(int threads, const Body& body) {
    if (threads <= 1 || !enter_parallel) {
        body(Member{0, 1});
        return;
    }
    struct Call {
        const Body* body;
        alignas(64) std::atomic<int64_t> left{0};
    } call{&body};
    auto enter = [](void* data) {
        Call& one = *static_cast<Call*>(data);
        const Member me{thread_number(), team_size()};
        (*one.body)(me);
        one.left.fetch_add(1, std::memory_order_acq_rel);
        // The caller's own end of the region spins and never gives way: it is not entered before all have left.
        if (me.rank == 0) wait_for(one.left, me.size);
    };
    enter_parallel(enter, &call, static_cast<unsigned>(threads), 0);
}
