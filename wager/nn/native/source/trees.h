// The nodes of drafts that are worth verifying, and the path of them that the target accepts.
//
// The same rule as wager/policy/options.py and wager/tree: nodes in best-first order by their path probability, of
// all rows together, and as many of them as have the highest sum of probabilities less their price.
#pragma once

#include <cmath>
#include <cstdint>
#include <queue>
#include <vector>

constexpr int64_t ROOT = -1;

// How a drafter's log-probabilities become probabilities of acceptance.
enum Trust : int64_t { CALIBRATED = 0, AS_GIVEN = 1, CERTAIN = 2 };

struct Rule {
    int64_t trust;
    double slope;           // calibrated: logit = slope * logit of the draft + offsets[depth - 1]
    const double* offsets;
    double lowest, highest; // bounds of a draft's log-probability before its logit is taken
    const double* prices;   // of n nodes in the pass, from none on
    int64_t num_prices;
    int64_t is_chain;       // only the best candidate of each depth
};

// A draft of one row: candidates by depth and rank, the best first.
struct DraftView {
    const float* logprobs;  // [depths][ranks]
    int64_t num_depths, num_ranks;
    double weight;          // log of what a token of this row is worth
    int64_t most_nodes;
};

struct Node {
    int64_t row, depth, rank, parent;  // the parent counts nodes of the same row
};

static double cost_of(const Rule& rule, float logprob, int64_t depth) {
    const double value = static_cast<double>(logprob);
    if (rule.trust == CERTAIN) return 0.0;
    if (rule.trust == AS_GIVEN) return value < 0.0 ? -value : 0.0;
    if (value == -std::numeric_limits<double>::infinity()) return std::numeric_limits<double>::infinity();
    const double bounded = value < rule.lowest ? rule.lowest : value > rule.highest ? rule.highest : value;
    const double logit = rule.slope * (bounded - std::log(-std::expm1(bounded))) + rule.offsets[depth - 1];
    return logit < 0.0 ? std::log1p(std::exp(logit)) - logit : std::log1p(std::exp(-logit));
}

class TreeBuilder {
  public:
    // The nodes to verify, each behind its parent; `counts` is their number in each row.
    const std::vector<Node>& build(const Rule& rule, const std::vector<DraftView>& drafts) {
        drafts_ = &drafts;
        measure(rule);
        nodes.clear();
        counts.assign(drafts.size(), 0);
        std::priority_queue<Entry, std::vector<Entry>, Later> heap;
        for (size_t r = 0; r < drafts.size(); r++) {
            const DraftView& draft = drafts[r];
            if (draft.num_depths > 0 && draft.most_nodes > 0)
                push(heap, {cost(r, 1, 0) - draft.weight, static_cast<int64_t>(r), 1, 0, 0, ROOT, -draft.weight});
        }
        double sum = 0.0, best = 0.0;
        size_t kept = 0;
        const size_t places = static_cast<size_t>(rule.num_prices > 0 ? rule.num_prices - 1 : 0);
        while (!heap.empty() && nodes.size() < places) {
            const Entry one = heap.top();
            heap.pop();
            const DraftView& draft = drafts[one.row];
            if (counts[one.row] >= draft.most_nodes) continue;
            const int64_t place = counts[one.row]++;
            nodes.push_back({one.row, one.depth, one.rank, one.parent});
            sum += std::exp(-one.cost);
            if (sum - rule.prices[nodes.size()] > best) best = sum - rule.prices[nodes.size()], kept = nodes.size();
            if (!rule.is_chain && one.rank + 1 < draft.num_ranks)
                push(heap, {one.parent_cost + cost(one.row, one.depth, one.rank + 1), one.row, one.depth,
                            one.path + 1, one.rank + 1, one.parent, one.parent_cost});
            if (one.depth < draft.num_depths)
                push(heap, {one.cost + cost(one.row, one.depth + 1, 0), one.row, one.depth + 1,
                            one.path * static_cast<uint64_t>(draft.num_ranks), 0, place, one.cost});
        }
        while (nodes.size() > kept) {
            counts[nodes.back().row]--;
            nodes.pop_back();
        }
        return nodes;
    }

    std::vector<int64_t> counts;

  private:
    struct Entry {
        double cost;
        int64_t row, depth;
        uint64_t path;  // its ranks as digits, which order nodes of equal cost
        int64_t rank, parent;
        double parent_cost;
    };

    struct Later {
        bool operator()(const Entry& a, const Entry& b) const {
            if (a.cost != b.cost) return a.cost > b.cost;
            if (a.row != b.row) return a.row > b.row;
            return a.depth != b.depth ? a.depth > b.depth : a.path > b.path;
        }
    };

    std::vector<Node> nodes;
    std::vector<std::vector<double>> costs;
    const std::vector<DraftView>* drafts_ = nullptr;

    double cost(int64_t row, int64_t depth, int64_t rank) const {
        return costs[row][(depth - 1) * (*drafts_)[row].num_ranks + rank];
    }

    void measure(const Rule& rule) {
        costs.resize(drafts_->size());
        for (size_t r = 0; r < drafts_->size(); r++) {
            const DraftView& draft = (*drafts_)[r];
            costs[r].resize(draft.num_depths * draft.num_ranks);
            for (int64_t depth = 1; depth <= draft.num_depths; depth++)
                for (int64_t rank = 0; rank < draft.num_ranks; rank++) {
                    const int64_t at = (depth - 1) * draft.num_ranks + rank;
                    costs[r][at] = cost_of(rule, draft.logprobs[at], depth);
                }
        }
    }

    template <class Heap>
    static void push(Heap& heap, const Entry& entry) {
        if (entry.cost < std::numeric_limits<double>::infinity()) heap.push(entry);
    }
};
