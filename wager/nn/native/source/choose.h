// The target's own choice: argmax of scores / temperature + noise over what top-k, top-p and min-p leave.
//
// Used for every row on a CPU, whichever way its step runs, so that a text does not depend on it. The best score
// always stays. A row in which a score is NaN, or the best is infinite, is broken.
#pragma once

#include <algorithm>
#include <vector>

#include "noise.h"

struct Sampling {
    uint64_t seed;
    double temperature;  // 0: the best score
    double top_p, min_p;
    int64_t top_k;       // 0: all
};

struct Choice {
    int64_t token;
    float score;  // the highest score of the row, before anything is done to it; not finite: the row is broken
};

// The best score, the lowest index among equals; NaN where any score is.
static Choice highest(const float* scores, int64_t count) {
    Vec best = splat(-std::numeric_limits<float>::infinity()), strange = {};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const Vec values = load(scores + i);
        best = larger(values, best);
        strange = values == values ? strange : values;
    }
    float top = max_lanes(best);
    bool broken = any_nan(strange);
    for (; i < count; i++) {
        broken = broken || scores[i] != scores[i];
        top = scores[i] > top ? scores[i] : top;
    }
    if (broken) return {0, std::numeric_limits<float>::quiet_NaN()};
    for (i = 0; i + LANES <= count; i += LANES)
        if (any_larger(load(scores + i), splat(std::nextafter(top, -std::numeric_limits<float>::infinity())))) break;
    for (; i < count; i++)
        if (scores[i] == top) return {i, top};
    return {0, top};
}

struct Candidate {
    float score;
    int64_t token;
};

// Tokens whose scaled scores are at least `least`, in their order.
static void candidates_from(const float* scaled, int64_t count, float least, std::vector<Candidate>& found) {
    found.clear();
    int64_t i = 0;
    const Vec below = splat(std::nextafter(least, -std::numeric_limits<float>::infinity()));
    for (; i + LANES <= count; i += LANES)
        if (any_larger(load(scaled + i), below))
            for (int64_t j = i; j < i + LANES; j++)
                if (scaled[j] >= least) found.push_back({scaled[j], j});
    for (; i < count; i++)
        if (scaled[i] >= least) found.push_back({scaled[i], i});
}

// Steps by which the bound of the candidates falls until there are enough of them, in natural logarithms.
constexpr float CANDIDATE_STEP = 10.0f;

class Chooser {
  public:
    // The choice from one row of scores for the token at `position`.
    Choice choose(const float* scores, int64_t count, const Sampling& how, int64_t position) {
        const Choice best = highest(scores, count);
        if (how.temperature == 0.0 || !std::isfinite(best.score)) return best;
        const float temperature = static_cast<float>(how.temperature);
        const PositionKey key(how.seed, position);
        if (how.top_k <= 0 && how.top_p >= 1.0 && how.min_p <= 0.0)
            return {best_noised(scores, count, temperature, key), best.score};
        scaled.resize(count);
        for (int64_t i = 0; i < count; i++) scaled[i] = scores[i] / temperature;
        filter(count, scaled[best.token], how);
        Best chosen;
        for (const Candidate& one : found) chosen.offer(one.score + exact_noise(key, one.token), one.token);
        return {chosen.token, best.score};
    }

  private:
    struct Best {
        float score = -std::numeric_limits<float>::infinity();
        int64_t token = 0;

        void offer(float other, int64_t its_token) {
            if (other > score) score = other, token = its_token;
        }
    };

    std::vector<float> scaled;
    std::vector<Candidate> found;

    // Looks exactly only at tokens that may still be better than the best one so far.
    static int64_t best_noised(const float* scores, int64_t count, float temperature, const PositionKey& key) {
        Best best;
        auto look = [&](int64_t i) { best.offer(scores[i] / temperature + exact_noise(key, i), i); };
        const Vec inverse = splat(1.0f / temperature);
        UVec steps = first_steps();
        int64_t i = 0;
        for (; i + LANES <= count; i += LANES, steps += LANES * TOKEN_STEP) {
            const Vec value = load(scores + i) * inverse, bound = value + noise_bound(key, steps);
            // A sum of large numbers is rounded more, so the margin grows with them.
            const float margin = 1e-6f * std::fabs(best.score);
            if (!any_larger(bound, splat(best.score - margin))) continue;
            for (int lane = 0; lane < LANES; lane++)
                if (bound[lane] > best.score - margin) look(i + lane);
        }
        for (; i < count; i++) look(i);
        return best.token;
    }

    // The tokens that the filters leave, in any order that does not depend on the machine.
    void filter(int64_t count, float top, const Sampling& how) {
        const int64_t wanted = how.top_k > 0 && how.top_k < count ? how.top_k : 0;
        const bool cuts_mass = how.top_p < 1.0;
        const bool min_p_alone = !wanted && !cuts_mass;
        // A little below the bound of min-p, which is applied exactly in the end.
        float least = top + (min_p_alone ? static_cast<float>(std::log(how.min_p)) - 1e-3f : -CANDIDATE_STEP);
        const double total = cuts_mass && !wanted ? mass_of(scaled.data(), count, top) : 0.0;
        for (;; least -= CANDIDATE_STEP) {
            candidates_from(scaled.data(), count, least, found);
            const bool is_all = static_cast<int64_t>(found.size()) == count || least < top - 100.0f;
            if (min_p_alone) break;
            if (wanted) {
                if (static_cast<int64_t>(found.size()) < wanted && !is_all) continue;
                keep_best(wanted);
                if (cuts_mass) keep_mass(how.top_p, top, mass_of_found(top));
                break;
            }
            if (keep_mass(how.top_p, top, total) || is_all) break;
        }
        if (how.min_p > 0.0) {
            const float bound = static_cast<float>(how.min_p);
            found.erase(std::remove_if(found.begin(), found.end(),
                                       [&](const Candidate& one) { return std::exp(one.score - top) < bound; }),
                        found.end());
        }
        std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
    }

    static double mass_of(const float* scores, int64_t count, float top) {
        double total = 0.0;
        int64_t i = 0;
        const Vec shift = splat(top);
        for (; i + LANES <= count; i += LANES)
            total += static_cast<double>(sum_lanes(exponential(load(scores + i) - shift)));
        for (; i < count; i++) total += std::exp(scores[i] - top);
        return total;
    }

    double mass_of_found(float top) const {
        double total = 0.0;
        for (const Candidate& one : found) total += std::exp(static_cast<double>(one.score - top));
        return total;
    }

    // The `wanted` best candidates, and all that equal the last of them.
    void keep_best(int64_t wanted) {
        if (static_cast<int64_t>(found.size()) <= wanted) return;
        std::nth_element(found.begin(), found.begin() + (wanted - 1), found.end(),
                         [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
        const float least = found[wanted - 1].score;
        found.erase(std::remove_if(found.begin(), found.end(),
                                   [&](const Candidate& one) { return one.score < least; }),
                    found.end());
    }

    // The fewest of the best candidates that hold a share `top_p` of the mass; false where all of them hold less.
    bool keep_mass(double top_p, float top, double total) {
        std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
            return a.score > b.score || (a.score == b.score && a.token < b.token);
        });
        double before = 0.0;
        for (size_t i = 0; i < found.size(); i++) {
            if (i && before >= top_p * total) {
                found.resize(i);
                return true;
            }
            before += std::exp(static_cast<double>(found[i].score - top));
        }
        return before >= top_p * total;
    }
};
