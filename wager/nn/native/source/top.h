// The best few of a row of scores, with their log-probabilities: one walk for the best, one
// for the mass. Ties go to the lower index. A row in which a score is NaN gives NaN.
#pragma once

#include "vectors.h"

constexpr int MAX_RANKS = 64;

// Log of the sum of e^(score - top) in LANES columns, then over the lanes. NaN where a score is none.
static float log_mass(const float* scores, int64_t count, float top) {
    const Vec shift = splat(top);
    Vec mass[2] = {};
    int64_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES)
        for (int v = 0; v < 2; v++) mass[v] += exponential(load(scores + i + v * LANES) - shift);
    float rest[LANES], total = sum_lanes(mass[0] + mass[1]);
    for (; i < count; i += LANES) {
        for (int lane = 0; lane < LANES; lane++)
            rest[lane] = i + lane < count ? scores[i + lane] : -std::numeric_limits<float>::infinity();
        total += sum_lanes(exponential(load(rest) - shift));
    }
    return std::log(total);
}

// A short list, the best first.
struct Best {
    float scores[MAX_RANKS];
    int64_t places[MAX_RANKS];
    int64_t held = 0, ranks;

    float least() const { return held < ranks ? -std::numeric_limits<float>::infinity() : scores[ranks - 1]; }

    void offer(float score, int64_t place) {
        if (held == ranks && !(score > scores[ranks - 1])) return;
        int64_t at = held < ranks ? held++ : ranks - 1;
        for (; at > 0 && score > scores[at - 1]; at--) {
            scores[at] = scores[at - 1];
            places[at] = places[at - 1];
        }
        scores[at] = score;
        places[at] = place;
    }
};

static void take_best(const float* scores, int64_t count, int64_t ranks, float* logprobs, int64_t* places) {
    constexpr int STRIDE = 4 * LANES;  // looked at together: most of them hold nothing that counts
    Best best;
    best.ranks = ranks;
    int64_t i = 0;
    for (; i < count && best.held < ranks; i++) best.offer(scores[i], i);
    for (; i + STRIDE <= count; i += STRIDE) {
        Vec most = larger(load(scores + i), load(scores + i + LANES));
        most = larger(larger(load(scores + i + 2 * LANES), load(scores + i + 3 * LANES)), most);
        if (any_larger(most, splat(best.least())))
            for (int64_t j = i; j < i + STRIDE; j++) best.offer(scores[j], j);
    }
    for (; i < count; i++) best.offer(scores[i], i);
    const float top = best.scores[0], mass = log_mass(scores, count, top);
    for (int64_t r = 0; r < ranks; r++) {
        logprobs[r] = best.scores[r] - top - mass;
        places[r] = best.places[r];
    }
}
