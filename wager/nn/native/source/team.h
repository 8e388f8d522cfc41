// The team of threads that share a pass, and the phases they share.
//
// A phase is a number of independent pieces. Every thread has a share of them that lie side by side, takes those
// one by one, then what is left of the others' shares. The phase is over when all pieces are done, not when all
// threads have come: a thread that the system suspends delays the others by one piece at most, and one that comes
// late, or never, by none.
#pragma once

#include <atomic>
#include <cstdint>

#include "pool.h"

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

// One thread's view of the team.
struct Member {
    int rank, size;
    ThreadPool* pool;  // null: the thread is alone

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
        std::atomic<int64_t>& done = phase.done.value;
        if (taken && done.fetch_add(taken) + taken == total) return pool->at_phase.wake();
        pool->at_phase.wait(PIECE_SPIN_US, [&] { return done.load() >= total; });
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

// Runs `body` as a team of up to `threads` members, or alone. The caller is rank 0.
template <class Body>
static void run_team(int threads, const Body& body) {
    struct Call {
        const Body* body;
        int size;
    } call{&body, threads < MAX_TEAM ? threads : MAX_TEAM};
    const auto enter = [](void* data, ThreadPool& pool, int rank) {
        const Call& one = *static_cast<Call*>(data);
        (*one.body)(Member{rank, one.size, &pool});
    };
    if (threads <= 1 || !pool_of_process().run(threads, enter, &call)) body(Member{0, 1, nullptr});
}
