// The threads that share a pass: those torch already runs, entered once per pass, and the phases they share.
//
// The library brings no threads of its own. Python hands over the entry of the OpenMP library that torch has
// loaded (every such library knows the GOMP calls); a second pool would spin against the first. Without one a
// pass runs on the calling thread.
//
// A phase is a number of independent pieces. Every thread has a share of them that lie side by side, takes those
// one by one, then what is left of the others' shares. The phase is over when all pieces are done, not when all
// threads have come: one that the system keeps from running holds nobody up but by the piece it has in hand.
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

constexpr int MAX_SHARES = 8;  // more threads than that share shares

// One counter to a line of memory: a thread that works through its own share disturbs nobody.
struct alignas(64) Counter {
    std::atomic<int64_t> value;
};

struct Phase {
    Counter done, next[MAX_SHARES];
};

struct Share {
    int64_t from, to;
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

    int num_shares() const { return size < MAX_SHARES ? size : MAX_SHARES; }

    // The pieces that are this thread's to begin with; those of the thread `turn` places further on.
    Share share(int64_t total, int turn = 0) const {
        const int64_t shares = num_shares(), which = (rank + turn) % shares;
        return {total * which / shares, total * (which + 1) / shares};
    }

    // Take pieces 0..total-1 of a phase while there are any, then wait for those that others have in hand.
    template <class Body>
    void work(Phase& phase, int64_t total, const Body& body) const {
        if (size == 1) {
            for (int64_t piece = 0; piece < total; piece++) body(piece);
            return;
        }
        int64_t taken = 0;
        for (int turn = 0; turn < num_shares(); turn++) {
            const Share pieces = share(total, turn);
            std::atomic<int64_t>& next = phase.next[(rank + turn) % num_shares()].value;
            // Looked at before it is counted up: a look takes the line from nobody.
            while (pieces.from + next.load(std::memory_order_relaxed) < pieces.to) {
                const int64_t piece = pieces.from + next.fetch_add(1, std::memory_order_relaxed);
                if (piece >= pieces.to) break;
                body(piece);
                taken++;
            }
        }
        if (taken) phase.done.value.fetch_add(taken, std::memory_order_acq_rel);
        wait_for(phase.done.value, total);
    }
};

// Phases as they are before anybody has come. Counters that no thread looks at are left alone.
INLINE void reset(Phase* phases, int64_t count, int threads) {
    for (int64_t i = 0; i < count; i++) {
        phases[i].done.value.store(0, std::memory_order_relaxed);
        for (int s = 0; s < threads && s < MAX_SHARES; s++)
            phases[i].next[s].value.store(0, std::memory_order_relaxed);
    }
}

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
