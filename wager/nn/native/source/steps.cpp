// Several decoding steps of a few rows in one call: draft, choose nodes, verify, accept, commit, and again.
//
// The steps are those of wager/engine/step.py, for rows about which the host has nothing to say: no grammar, no
// penalties, no budget that closes the text. Every step works with the same kernels as a step of its own, so the
// text is the same. A step whose scores are broken, or for which there is no room, does not happen: whoever called
// takes it in the ordinary way. Python owns all memory (steps.py).

#include "steps.h"

#include <chrono>

extern "C" {
int64_t wager_pass(const Net*, const Pass*, void*, int64_t, int32_t);
int64_t wager_ingest(const Net*, const Ingest*, void*, int64_t, int32_t);
int64_t wager_project(const Matrix*, const float*, int64_t, float*, int64_t, void*, int64_t, int32_t);
int64_t wager_draft_top(const Draws*, int32_t);
}

namespace {

double now_ms() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

int64_t slot_of(const Text& text, const Pool& pool, int64_t place) {
    return text.pages[place / pool.page_size] * pool.page_size + place % pool.page_size;
}

void embed(const Embedding& from, int64_t hidden, int64_t token, float* to) {
    if (from.floats) {
        std::memcpy(to, from.floats + token * hidden, hidden * sizeof(float));
        return;
    }
    const int64_t groups = hidden / from.group;
    for (int64_t i = 0; i < hidden; i++) {
        const int64_t at = token * groups + i / from.group;
        to[i] = static_cast<float>(from.codes[token * hidden + i]) * from.scales[at];
        if (from.offsets) to[i] += from.offsets[at];
    }
}

// Whether the last `length` tokens stood anywhere before in the text.
bool has_match(const Text& text, int64_t length) {
    const int64_t count = text.num_tokens, *tokens = text.tokens;
    if (!length || count <= length) return false;
    const int64_t* tail = tokens + count - length;
    for (int64_t end = count - 2; end >= length - 1; end--) {
        if (tokens[end] != tail[length - 1]) continue;
        int64_t same = 1;
        while (same < length && tokens[end - same] == tail[length - 1 - same]) same++;
        if (same == length) return true;
    }
    return false;
}

// Keeps its memory from call to call.
Chooser& chooser_of_thread() {
    static thread_local Chooser chooser;
    return chooser;
}

// Memory of one call: what lives from step to step, and a rest for the passes.
struct Room {
    float *embeddings, *hidden, *features, *logits;
    void* rest;
    int64_t rest_bytes;
};

class Stepper {
  public:
    Stepper(Steps& steps, int32_t threads)
        : steps(steps), target(*steps.target), threads(threads), chooser(chooser_of_thread()) {
        for (int64_t r = 0; r < steps.num_texts; r++) most_nodes += steps.texts[r].drafts ? steps.texts[r].most_nodes : 0;
        if (!steps.drafter || most_nodes > steps.rule->num_prices - 1)
            most_nodes = steps.drafter ? steps.rule->num_prices - 1 : 0;
    }

    // Hands out memory, or counts how much is needed.
    int64_t lay_out(char* memory, int64_t bytes) {
        Scratch scratch{memory};
        const int64_t tokens = steps.num_texts + most_nodes, hidden = target.net->hidden;
        const int64_t block = steps.drafter ? steps.num_texts * steps.drafter->length : 0;
        const int64_t most = tokens > block ? tokens : block;
        room.embeddings = scratch.take<float>(most * hidden);
        room.hidden = scratch.take<float>(most * hidden);
        room.features = scratch.take<float>(tokens * target.num_taps * hidden);
        const int64_t outputs = steps.drafter ? steps.drafter->num_outputs : 0;
        room.logits = scratch.take<float>(tokens * target.vocab > block * outputs ? tokens * target.vocab : block * outputs);
        room.rest = memory ? memory + scratch.used : nullptr;
        room.rest_bytes = bytes - scratch.used;
        return scratch.used;
    }

    int64_t run() {
        steps.ending = DONE;
        for (steps.num_steps = 0; steps.num_steps < steps.most_steps; steps.num_steps++) {
            if (*steps.stop) return end(STOPPED);
            const double start = now_ms();
            if (int64_t bad = draft()) return bad;
            const double drafted = now_ms();
            if (!has_room()) return end(FULL);
            if (int64_t bad = verify()) return bad;
            if (!accept()) return end(BROKEN);
            commit();
            StepTimes& times = steps.times[steps.num_steps];
            times = {drafted - start, now_ms() - drafted};
            if (int64_t ending = reached()) {
                steps.num_steps++;
                return end(ending);
            }
        }
        return 0;
    }

  private:
    Steps& steps;
    const TargetModel& target;
    const int32_t threads;
    int64_t most_nodes = 0;
    Room room{};
    TreeBuilder builder;
    Chooser& chooser;
    std::vector<Node> nodes;                    // of this step, row after row
    std::vector<int64_t> first_node;            // of each row, and the end
    std::vector<std::vector<int64_t>> paths;    // accepted nodes of each row
    std::vector<int64_t> bonus;
    std::vector<int64_t> tokens, positions, slots;
    std::vector<::Row> rows;
    std::vector<std::vector<uint8_t>> masks;

    int64_t end(int64_t ending) {
        steps.ending = ending;
        return 0;
    }

    // Calls a function of passes.cpp with the rest of the memory, or with more if that does not suffice.
    template <class Call>
    int64_t with_memory(const Call& call) {
        const int64_t code = call(room.rest, room.rest_bytes);
        if (code <= 0) return code;
        static thread_local std::vector<char> more;
        more.resize(code + code / 4 + 64);
        char* aligned = more.data() + (64 - reinterpret_cast<uintptr_t>(more.data()) % 64) % 64;
        return call(aligned, code);
    }

    RowStep& row_step(int64_t r) { return steps.rows[steps.num_steps * steps.num_texts + r]; }

    // Most depths of a draft of which the text has room for the guesses and the token behind them.
    int64_t depth_for(const Text& text) const {
        if (!steps.drafter || !text.drafts) return 0;
        const int64_t left = text.limit - text.num_tokens - 1;
        return left < steps.drafter->num_depths ? (left > 0 ? left : 0) : steps.drafter->num_depths;
    }

    // -- draft and arrange

    int64_t draft() {
        nodes.clear();
        first_node.assign(steps.num_texts + 1, 0);
        drafting.clear();
        for (int64_t r = 0; r < steps.num_texts; r++) {
            row_step(r) = {0, 0, 0};
            if (depth_for(steps.texts[r]) > 0) drafting.push_back(r);
        }
        if (drafting.empty()) return 0;
        if (int64_t bad = read_in()) return bad;
        if (int64_t bad = guess()) return bad;
        choose_nodes();
        return 0;
    }

    std::vector<int64_t> drafting;

    // Turns the waiting features of the rows that draft into context of the drafter.
    int64_t read_in() {
        const BlockModel& drafter = *steps.drafter;
        for (int64_t r : drafting) {
            Text& text = steps.texts[r];
            if (!text.num_waiting) continue;
            positions.clear(), slots.clear();
            for (int64_t i = text.num_tokens - 1 - text.num_waiting; i < text.num_tokens - 1; i++) {
                positions.push_back(i);
                slots.push_back(slot_of(text, drafter.pool, i));
            }
            const Ingest in{text.num_waiting, drafter.fc->num_inputs, text.features, positions.data(), slots.data(),
                            drafter.turns, drafter.num_turns, drafter.pool, drafter.fc, drafter.norm};
            const int64_t bad = with_memory(
                [&](void* at, int64_t bytes) { return wager_ingest(drafter.net, &in, at, bytes, threads); });
            if (bad) return bad;
            text.num_waiting = 0;
        }
        return 0;
    }

    // The drafts of all rows that draft: one pass over their blocks, and the best candidates of each depth.
    int64_t guess() {
        const BlockModel& drafter = *steps.drafter;
        const int64_t hidden = drafter.net->hidden, length = drafter.length, count = drafting.size() * length;
        positions.clear(), rows.clear();
        float* to = room.embeddings;
        for (size_t i = 0; i < drafting.size(); i++) {
            const Text& text = steps.texts[drafting[i]];
            const int64_t root = text.num_tokens - 1, start = i * length;
            for (int64_t j = 0; j < length; j++, to += hidden) {
                embed(target.embedding, hidden, j ? drafter.mask_token : text.tokens[root], to);
                positions.push_back(root + j);
            }
            rows.push_back({start, start + length, root, text.pages, text.num_pages, nullptr});
        }
        const Pass pass{count, static_cast<int64_t>(rows.size()), nullptr, room.embeddings, positions.data(), nullptr,
                        drafter.turns, drafter.num_turns, rows.data(), drafter.pool, drafter.sight, nullptr, 0, nullptr,
                        room.hidden};
        int64_t bad = with_memory(
            [&](void* at, int64_t bytes) { return wager_pass(drafter.net, &pass, at, bytes, threads); });
        if (bad) return bad;
        const int64_t depths = drafter.num_depths, num_rows = drafting.size() * depths;
        for (size_t i = 0; i < drafting.size(); i++)  // the guesses lie behind the root of each block
            std::memmove(room.hidden + i * depths * hidden, room.hidden + (i * length + 1) * hidden,
                         depths * hidden * sizeof(float));
        bad = with_memory([&](void* at, int64_t bytes) {
            return wager_project(drafter.head, room.hidden, num_rows, room.logits, drafter.num_outputs, at, bytes,
                                 threads);
        });
        return bad ? bad : rank();
    }

    int64_t rank() {
        const BlockModel& drafter = *steps.drafter;
        const int64_t size = drafter.num_depths * drafter.num_ranks;
        for (size_t i = 0; i < drafting.size(); i++) {
            const Text& text = steps.texts[drafting[i]];
            const int64_t at = (steps.num_steps * steps.num_texts + drafting[i]) * size;
            const Draws draws{room.logits + i * drafter.num_depths * drafter.num_outputs, drafter.num_depths,
                              drafter.num_outputs, drafter.num_ranks, drafter.head_ids, text.sampling.temperature,
                              text.sampling.seed, text.num_tokens, steps.draft_logprobs + at, steps.draft_tokens + at};
            if (int64_t bad = wager_draft_top(&draws, threads)) return bad;
        }
        return 0;
    }

    void choose_nodes() {
        const BlockModel& drafter = *steps.drafter;
        const int64_t size = drafter.num_depths * drafter.num_ranks;
        std::vector<DraftView> drafts(steps.num_texts, DraftView{nullptr, 0, drafter.num_ranks, 0.0, 0});
        for (int64_t r : drafting) {
            const Text& text = steps.texts[r];
            row_step(r).num_depths = drafter.num_depths;
            drafts[r] = {steps.draft_logprobs + (steps.num_steps * steps.num_texts + r) * size, depth_for(text),
                         drafter.num_ranks, text.weight, text.most_nodes};
        }
        const std::vector<Node>& found = builder.build(*steps.rule, drafts);
        for (int64_t r = 0; r < steps.num_texts; r++) {
            for (const Node& node : found)
                if (node.row == r) nodes.push_back(node);
            first_node[r + 1] = static_cast<int64_t>(nodes.size());
            row_step(r).num_nodes = first_node[r + 1] - first_node[r];
        }
    }

    int64_t token_of(const Node& node) const {
        const BlockModel& drafter = *steps.drafter;
        const int64_t at = (steps.num_steps * steps.num_texts + node.row) * drafter.num_depths + node.depth - 1;
        return steps.draft_tokens[at * drafter.num_ranks + node.rank];
    }

    // -- verify

    bool has_room() const {
        for (int64_t r = 0; r < steps.num_texts; r++) {
            const Text& text = steps.texts[r];
            const int64_t needed = text.num_tokens + first_node[r + 1] - first_node[r];
            if (needed > text.num_pages * target.pool.page_size || text.num_tokens >= text.limit) return false;
            if (text.features && text.num_waiting + 1 + first_node[r + 1] - first_node[r] > text.most_waiting)
                return false;
        }
        return true;
    }

    int64_t verify() {
        const int64_t hidden = target.net->hidden;
        pack();
        const int64_t count = static_cast<int64_t>(tokens.size());
        const bool narrow = !target.embedding.floats;
        for (int64_t m = 0; narrow && m < count; m++)
            embed(target.embedding, hidden, tokens[m], room.embeddings + m * hidden);
        const Pass pass{count, steps.num_texts, tokens.data(), narrow ? room.embeddings : nullptr, positions.data(),
                        slots.data(), target.turns, target.num_turns, rows.data(), target.pool, CAUSAL, target.taps,
                        target.num_taps, room.features, room.hidden};
        const int64_t bad = with_memory(
            [&](void* at, int64_t bytes) { return wager_pass(target.net, &pass, at, bytes, threads); });
        if (bad) return bad;
        return with_memory([&](void* at, int64_t bytes) {
            return wager_project(target.head, room.hidden, count, room.logits, target.vocab, at, bytes, threads);
        });
    }

    // Tokens, positions, slots and sight of the pass: each row its root, then its nodes.
    void pack() {
        tokens.clear(), positions.clear(), slots.clear(), rows.clear(), masks.clear();
        masks.resize(steps.num_texts);
        for (int64_t r = 0; r < steps.num_texts; r++) {
            const Text& text = steps.texts[r];
            const int64_t root = text.num_tokens - 1, start = static_cast<int64_t>(tokens.size());
            tokens.push_back(text.tokens[root]);
            positions.push_back(root);
            for (int64_t i = first_node[r]; i < first_node[r + 1]; i++) {
                tokens.push_back(token_of(nodes[i]));
                positions.push_back(root + nodes[i].depth);
            }
            const int64_t stop = static_cast<int64_t>(tokens.size());
            for (int64_t i = 0; i < stop - start; i++) slots.push_back(slot_of(text, target.pool, root + i));
            rows.push_back({start, stop, root, text.pages, text.num_pages, sight_of(r)});
        }
    }

    // Who sees whom in a row: itself and its ancestors; null for a chain.
    const uint8_t* sight_of(int64_t r) {
        const int64_t first = first_node[r], count = first_node[r + 1] - first;
        bool is_chain = true;
        for (int64_t i = 0; i < count; i++) is_chain = is_chain && nodes[first + i].parent == i - 1;
        if (is_chain) return nullptr;
        const int64_t width = count + 1;
        std::vector<uint8_t>& mask = masks[r];
        mask.assign(width * width, 0);
        mask[0] = 1;
        for (int64_t i = 0; i < count; i++) {
            uint8_t* line = mask.data() + (i + 1) * width;
            std::memcpy(line, mask.data() + (nodes[first + i].parent + 1) * width, width);
            line[i + 1] = 1;
        }
        return mask.data();
    }

    // -- accept and commit

    // The accepted path of every row and the token behind it; false where scores are broken.
    bool accept() {
        paths.assign(steps.num_texts, {});
        bonus.assign(steps.num_texts, 0);
        for (int64_t r = 0; r < steps.num_texts; r++) {
            const Text& text = steps.texts[r];
            const int64_t first = first_node[r];
            auto chosen = [&](int64_t node, int64_t depth, bool& broken) {
                const float* scores = room.logits + (rows[r].start + node + 1) * target.vocab;
                const Choice choice = chooser.choose(scores, target.vocab, text.sampling, text.num_tokens + depth);
                broken = broken || !std::isfinite(choice.score);
                return choice.token;
            };
            bool broken = false;
            int64_t here = ROOT, wanted = chosen(ROOT, 0, broken);
            for (int64_t i = 0; i < first_node[r + 1] - first && !broken; i++) {
                const Node& node = nodes[first + i];
                if (node.parent != here || token_of(node) != wanted) continue;
                paths[r].push_back(i);
                here = i;
                wanted = chosen(i, node.depth, broken);
            }
            if (broken) return false;
            bonus[r] = wanted;
        }
        return true;
    }

    void commit() {
        for (int64_t r = 0; r < steps.num_texts; r++) {
            Text& text = steps.texts[r];
            const int64_t root = text.num_tokens - 1;
            keep_features(r, text);
            for (size_t i = 0; i < paths[r].size(); i++)
                if (paths[r][i] != static_cast<int64_t>(i)) move(text, root + 1 + paths[r][i], root + 1 + i);
            for (int64_t i : paths[r]) text.tokens[text.num_tokens++] = token_of(nodes[first_node[r] + i]);
            text.tokens[text.num_tokens++] = bonus[r];
            row_step(r).num_accepted = static_cast<int64_t>(paths[r].size());
        }
    }

    void keep_features(int64_t r, Text& text) {
        if (!text.features) return;
        const int64_t size = target.num_taps * target.net->hidden;
        const float* own = room.features + rows[r].start * size;
        auto keep = [&](int64_t place) {
            std::memcpy(text.features + text.num_waiting++ * size, own + place * size, size * sizeof(float));
        };
        keep(0);
        for (int64_t i : paths[r]) keep(i + 1);
    }

    // Keys and values of all layers, from one place of a text to another.
    void move(const Text& text, int64_t from, int64_t to) {
        const Net& net = *target.net;
        const int64_t source = slot_of(text, target.pool, from), sink = slot_of(text, target.pool, to);
        for (int64_t i = 0; i < net.num_layers * 2 * net.num_kv_heads; i++) {
            float* plane = target.pool.store + i * target.pool.num_slots * net.head_dim;
            std::memcpy(plane + sink * net.head_dim, plane + source * net.head_dim, net.head_dim * sizeof(float));
        }
    }

    // Why the steps end behind this one, or 0.
    int64_t reached() const {
        for (int64_t r = 0; r < steps.num_texts; r++) {
            const Text& text = steps.texts[r];
            const int64_t emitted = static_cast<int64_t>(paths[r].size()) + 1;
            for (int64_t i = text.num_tokens - emitted; i < text.num_tokens; i++)
                for (int64_t j = 0; j < text.num_end_tokens; j++)
                    if (text.tokens[i] == text.end_tokens[j]) return TOKEN;
            if (text.num_tokens >= text.limit) return FULL;
            if (has_match(text, text.match_length)) return MATCHED;
        }
        return 0;
    }
};

}  // namespace

extern "C" {

int64_t wager_step_size(int64_t record) {
    const int64_t sizes[] = {sizeof(TargetModel), sizeof(BlockModel), sizeof(Text), sizeof(Rule), sizeof(Steps)};
    return sizes[record];
}

// 0: done, and `num_steps` and `ending` say how far. Above 0: so many bytes of memory are needed. Below 0: refused.
int64_t wager_steps(Steps* steps, void* memory, int64_t bytes, int32_t threads) {
    Stepper counting(*steps, threads);
    const int64_t needed = counting.lay_out(nullptr, 0) + (int64_t{1} << 20);
    if (needed > bytes) return needed;
    Stepper stepper(*steps, threads);
    stepper.lay_out(static_cast<char*>(memory), bytes);
    return stepper.run();
}

// The target's choices from rows of scores [rows][vocab], each for its own position.
int64_t wager_choose(const float* scores, int64_t rows, int64_t vocab, const Sampling* sampling,
                     const int64_t* positions, int64_t* tokens, float* highest_scores) {
    Chooser& chooser = chooser_of_thread();
    for (int64_t r = 0; r < rows; r++) {
        const Choice found = chooser.choose(scores + r * vocab, vocab, *sampling, positions[r]);
        tokens[r] = found.token;
        highest_scores[r] = found.score;
    }
    return 0;
}

}  // extern "C"
