// Whole passes of a network: every layer in one call, phase after phase, all threads in step.
//
//   norm, qkv, rotary, write K/V | attention | output, residual | norm, gate and up | down, residual
//
// A bar is the end of a phase (team.h). Each output of a product and each query's attention is the work of
// exactly one thread, so the number of threads changes no bit. Nothing is allocated here: Python owns all memory
// and asks first how much a pass needs. Entry points are at the end; library.py calls them.

#include "inputs.h"
#include "noise.h"
#include "sinks.h"
#include "top.h"

namespace {

constexpr int64_t PHASES = 9;  // of a layer

void rotate(float* x, const float* turn, int64_t size, float scale) {
    const float *cosines = turn, *sines = turn + size;
    const int64_t half = size / 2;
    for (int64_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = (a * cosines[i] + b * sines[i]) * scale;
        x[i + half] = (b * cosines[i + half] + a * sines[i + half]) * scale;
    }
}

// What a head needs after its product: norm and rotation; keys and values go where attention reads them.
void finish_head(const Net& net, const Pass& pass, const Plan& plan, int64_t layer, int64_t head) {
    const int64_t size = net.head_dim, rotated = net.num_heads + net.num_kv_heads;
    const float* norm = net.layers[layer].qk_norm;
    const float scale = head < net.num_heads ? 1.0f / std::sqrt(static_cast<float>(size)) : 1.0f;
    const int64_t which = head >= rotated, kv_head = (head - net.num_heads) % net.num_kv_heads;
    for (int64_t m = 0; m < pass.num_tokens; m++) {
        float* x = plan.fused + (m * plan.num_units + head) * plan.unit;
        if (head < rotated) {
            if (norm) rms_norm(x, norm + head * size, static_cast<float>(net.eps), size, x);
            rotate(x, pass.turns + pass.positions[m] * 2 * size, size, scale);
        }
        if (head < net.num_heads) continue;
        float* to = pass.slots
            ? pool_at(net, pass.pool, layer, which, kv_head) + pass.slots[m] * size
            : (which ? plan.own_values : plan.own_keys) + (kv_head * pass.num_tokens + m) * size;
        std::memcpy(to, x, size * sizeof(float));
    }
}

void run_layer(const Net& net, const Pass& pass, const Plan& plan, int64_t index, const Member& me) {
    const Layer& layer = net.layers[index];
    const Workspace& space = plan.space;
    Phase* phase = plan.phases + index * PHASES;
    const float eps = static_cast<float>(net.eps);
    const int64_t tokens = pass.num_tokens, hidden = net.hidden;
    const int64_t fused_stride = plan.num_units * plan.unit;
    const Pieces heads(layer.qkv, plan.unit / PANEL, plan.units), out(layer.out, me), gates(layer.gate_up, me),
        down(layer.down, me);
    const char* next_layer =
        index + 1 < net.num_layers ? Pieces(net.layers[index + 1].qkv, heads.step, plan.units).begin(me) : nullptr;
    const StoreSink to_fused(plan.fused, fused_stride, fused_stride, layer.qkv.bias);
    const Inputs state(space, layer.qkv, plan.x, hidden, tokens, phase[0], me, layer.input_norm, eps);
    expect_keys(net, pass, plan, index, me);
    me.work(phase[1], plan.num_units, [&](int64_t piece) {
        const int64_t head = plan.units[piece];
        multiply(layer.qkv, state.get(), tokens, head * heads.step, (head + 1) * heads.step,
                 heads.after(piece, me, out.begin(me)), to_fused);
        finish_head(net, pass, plan, index, head);
    });
    me.work(phase[2], plan.num_items, [&](int64_t i) {
        attend(net, pass, plan, index, plan.items[i], me.rank);
    });
    const Inputs attended(space, layer.out, plan.attended, layer.out.num_inputs, tokens, phase[3], me);
    const AddSink add_to_x(plan.x, hidden, hidden, layer.out.bias);
    multiply_all(out, attended, tokens, add_to_x, phase[4], me, gates.begin(me));
    const Inputs after(space, layer.gate_up, plan.x, hidden, tokens, phase[5], me, layer.post_norm, eps);
    const GateSink to_middle(plan.middle, plan.middle_stride, layer.gate_up.bias);
    multiply_all(gates, after, tokens, to_middle, phase[6], me, down.begin(me));
    const Inputs middle(space, layer.down, plan.middle, plan.middle_stride, tokens, phase[7], me);
    const FeatureSink to_x(net, pass, plan, index, layer.down.bias);
    multiply_all(down, middle, tokens, to_x, phase[8], me, next_layer);
}

void run_all(const Net& net, const Pass& pass, const Plan& plan, const Member& me) {
    for (int64_t layer = 0; layer < net.num_layers; layer++) run_layer(net, pass, plan, layer, me);
    me.work(plan.phases[net.num_layers * PHASES], pass.num_tokens, [&](int64_t m) {
        rms_norm(plan.x + m * net.hidden, net.norm, static_cast<float>(net.eps), net.hidden,
                 pass.out + m * net.hidden);
    });
}

Plan plan_pass(const Net& net, const Pass& pass, int threads, Scratch& scratch) {
    Plan plan{};
    const int64_t tokens = pass.num_tokens;
    plan.unit = rounded_up(net.head_dim, PANEL);
    plan.num_units = net.num_heads + 2 * net.num_kv_heads;
    plan.middle_stride = rounded_up(net.middle, LANES);
    const int64_t width = net.num_heads * net.head_dim;
    const int64_t widest = width > net.middle ? width : net.middle;
    plan.space = take_workspace(scratch, tokens, widest > net.hidden ? widest : net.hidden, threads);
    plan.x = scratch.take<float>(tokens * net.hidden);
    plan.fused = scratch.take<float>(tokens * plan.num_units * plan.unit);
    plan.attended = scratch.take<float>(tokens * net.num_heads * net.head_dim);
    plan.middle = scratch.take<float>(tokens * plan.middle_stride);
    const int64_t own = pass.slots ? 0 : net.num_kv_heads * tokens * net.head_dim;
    plan.own_keys = scratch.take<float>(own);
    plan.own_values = scratch.take<float>(own);
    plan.units = scratch.take<int64_t>(plan.num_units);
    plan.key_slots = scratch.take<int32_t*>(pass.num_rows);
    int64_t longest = 0;
    for (int64_t r = 0; r < pass.num_rows; r++) {
        const Row& row = pass.rows[r];
        const int64_t length = row.context_len + row.stop - row.start;
        int32_t* slots = scratch.take<int32_t>(length);
        if (scratch.at) plan.key_slots[r] = slots;
        longest = length > longest ? length : longest;
    }
    plan.score_stride = rounded_up(longest, KEY_BLOCK);
    plan.columns = scratch.take<float>(threads * net.head_dim * KEY_BLOCK);
    plan.scores = scratch.take<float>(threads * TILE_QUERIES * plan.score_stride);
    plan.items = scratch.take<Item>(tokens * net.num_heads);
    plan.phases = scratch.take<Phase>(net.num_layers * PHASES + 1);
    return plan;
}

// A key head and its queries behind one another: the thread that computes them is likely to attend with them.
void order_units(const Net& net, int64_t* units) {
    const int64_t group = net.num_heads / net.num_kv_heads;
    for (int64_t kv_head = 0; kv_head < net.num_kv_heads; kv_head++) {
        for (int64_t i = 0; i < group; i++) *units++ = kv_head * group + i;
        *units++ = net.num_heads + kv_head;
        *units++ = net.num_heads + net.num_kv_heads + kv_head;
    }
}

// What attention is divided into. The tokens that come last see most, and their items are taken first.
void list_items(const Net& net, const Pass& pass, int threads, Plan& plan) {
    int64_t together = net.num_heads / net.num_kv_heads;
    while (together > TILE_QUERIES) together = together % 2 ? 1 : together / 2;
    int64_t height = TILE_QUERIES / together;
    while (height > 1 && rounded_up(pass.num_tokens, height) / height * net.num_kv_heads < threads) height /= 2;
    for (int64_t r = pass.num_rows - 1; r >= 0; r--) {
        const int64_t tokens = pass.rows[r].stop - pass.rows[r].start;
        for (int64_t from = (tokens - 1) / height * height; from >= 0; from -= height)
            for (int64_t head = 0; head < net.num_heads; head += together) {
                const int64_t to = from + height < tokens ? from + height : tokens;
                plan.items[plan.num_items++] = {static_cast<int32_t>(r), static_cast<int32_t>(from),
                                                static_cast<int32_t>(to), static_cast<int32_t>(head),
                                                static_cast<int32_t>(together)};
            }
    }
}

void fill_plan(const Net& net, const Pass& pass, int threads, Plan& plan) {
    const int64_t size = pass.pool.page_size;
    reset(plan.phases, net.num_layers * PHASES + 1, threads);
    order_units(net, plan.units);
    for (int64_t m = 0; m < pass.num_tokens; m++) {
        const float* from = pass.embeddings ? pass.embeddings + m * net.hidden
                                            : net.embedding + pass.token_ids[m] * net.hidden;
        std::memcpy(plan.x + m * net.hidden, from, net.hidden * sizeof(float));
    }
    for (int64_t r = 0; r < pass.num_rows; r++) {
        const Row& row = pass.rows[r];
        int32_t* slots = plan.key_slots[r];
        for (int64_t j = 0; j < row.context_len; j++)
            slots[j] = static_cast<int32_t>(row.pages[j / size] * size + j % size);
        for (int64_t m = row.start; m < row.stop; m++)
            *(slots + row.context_len + m - row.start) = static_cast<int32_t>(pass.slots ? pass.slots[m] : ~m);
    }
    list_items(net, pass, threads, plan);
}

int64_t check_slots(const int64_t* slots, int64_t count, const Pool& pool) {
    for (int64_t m = 0; m < count; m++)
        if (slots[m] < 0 || slots[m] >= pool.num_slots) return BAD_SLOT;
    return 0;
}

int64_t check_positions(const int64_t* positions, int64_t count, int64_t num_turns) {
    for (int64_t m = 0; m < count; m++)
        if (positions[m] < 0 || positions[m] >= num_turns) return BAD_POSITION;
    return 0;
}

// A number out of range would be read as memory: refuse it here, where it costs nothing.
int64_t check_pass(const Net& net, const Pass& pass) {
    if (!pass.embeddings)
        for (int64_t m = 0; m < pass.num_tokens; m++)
            if (pass.token_ids[m] < 0 || pass.token_ids[m] >= net.vocab) return BAD_TOKEN;
    if (int64_t bad = check_positions(pass.positions, pass.num_tokens, pass.num_turns)) return bad;
    if (pass.slots)
        if (int64_t bad = check_slots(pass.slots, pass.num_tokens, pass.pool)) return bad;
    const int64_t num_pages = pass.pool.num_slots / pass.pool.page_size;
    for (int64_t r = 0; r < pass.num_rows; r++) {
        const Row& row = pass.rows[r];
        const int64_t used = rounded_up(row.context_len, pass.pool.page_size) / pass.pool.page_size;
        if (used > row.num_pages) return BAD_SLOT;
        for (int64_t i = 0; i < used; i++)
            if (row.pages[i] < 0 || row.pages[i] >= num_pages) return BAD_SLOT;
    }
    return 0;
}

constexpr int64_t INGEST_PHASES = 4;

struct IngestPlan {
    Workspace space;
    float *raw, *heads;
    int64_t stride, unit;
    Phase* phases;
};

IngestPlan plan_ingest(const Net& net, const Ingest& in, int threads, Scratch& scratch) {
    IngestPlan plan{};
    plan.stride = rounded_up(net.hidden, PANEL);
    plan.unit = rounded_up(net.head_dim, PANEL);
    const int64_t width = in.num_features > net.hidden ? in.num_features : net.hidden;
    plan.space = take_workspace(scratch, in.num_tokens, width, threads);
    plan.raw = scratch.take<float>(in.num_tokens * plan.stride);
    plan.heads = scratch.take<float>(threads * in.num_tokens * plan.unit);
    plan.phases = scratch.take<Phase>(INGEST_PHASES);
    return plan;
}

// One head of one layer: the layer's own k or v panels, applied to the state of all tokens.
void ingest_head(const Net& net, const Ingest& in, const IngestPlan& plan, int64_t piece, const Rows& state,
                 float* heads) {
    const int64_t per_layer = 2 * net.num_kv_heads, size = net.head_dim, per_head = plan.unit / PANEL;
    const int64_t index = piece / per_layer, which = piece % per_layer / net.num_kv_heads;
    const int64_t head = net.num_heads + piece % per_layer, from = head * per_head;
    const Layer& layer = net.layers[index];
    // The sink counts columns from the matrix's first panel.
    const StoreSink sink(heads - from * PANEL, plan.unit, (from + per_head) * PANEL, layer.qkv.bias);
    multiply(layer.qkv, state, in.num_tokens, from, from + per_head, nullptr, sink);
    float* to = pool_at(net, in.pool, index, which, piece % net.num_kv_heads);
    for (int64_t m = 0; m < in.num_tokens; m++) {
        float* x = heads + m * plan.unit;
        if (!which) {
            if (layer.qk_norm)
                rms_norm(x, layer.qk_norm + head * size, static_cast<float>(net.eps), size, x);
            rotate(x, in.turns + in.positions[m] * 2 * size, size, 1.0f);
        }
        std::memcpy(to + in.slots[m] * size, x, size * sizeof(float));
    }
}

// Context features to keys and values of every layer. All layers read the same state: it is rounded for the
// first one's weights, and the others' are of the same kind.
void run_ingest(const Net& net, const Ingest& in, const IngestPlan& plan, const Member& me) {
    const int64_t tokens = in.num_tokens;
    const Inputs features(plan.space, *in.fc, in.features, in.num_features, tokens, plan.phases[0], me);
    const StoreSink to_raw(plan.raw, plan.stride, plan.stride, in.fc->bias);
    multiply_all(Pieces(*in.fc, me), features, tokens, to_raw, plan.phases[1], me);
    const Inputs state(plan.space, net.layers[0].qkv, plan.raw, plan.stride, tokens, plan.phases[2], me, in.norm,
                       static_cast<float>(net.eps));
    float* heads = plan.heads + me.rank * tokens * plan.unit;
    me.work(plan.phases[3], net.num_layers * 2 * net.num_kv_heads, [&](int64_t piece) {
        ingest_head(net, in, plan, piece, state.get(), heads);
    });
}

// Scales the scores of one depth and adds the noise of its position.
void add_noise(const Draws& d, int64_t depth, float* scores) {
    const PositionKey key(d.seed, d.position + depth);
    const Vec temperature = splat(static_cast<float>(d.temperature));
    UVec steps = first_steps();
    int64_t i = 0;
    for (; i + LANES <= d.num_outputs; i += LANES, steps += LANES * TOKEN_STEP) {
        if (d.tokens)
            for (int lane = 0; lane < LANES; lane++)
                steps[lane] = static_cast<uint32_t>(d.tokens[i + lane]) * TOKEN_STEP;
        store(scores + i, load(scores + i) / temperature + approximate_noise(key, steps));
    }
    for (; i < d.num_outputs; i++)
        scores[i] = scores[i] / static_cast<float>(d.temperature) + exact_noise(key, d.tokens ? d.tokens[i] : i);
}

void draw(const Draws& d, int64_t depth) {
    float* scores = d.scores + depth * d.num_outputs;
    if (d.temperature > 0.0) add_noise(d, depth, scores);
    int64_t* places = d.token_ids + depth * d.num_ranks;
    take_best(scores, d.num_outputs, d.num_ranks, d.logprobs + depth * d.num_ranks, places);
    for (int64_t r = 0; d.tokens && r < d.num_ranks; r++) places[r] = d.tokens[places[r]];
}

}  // namespace

extern "C" {

int64_t wager_lanes() { return LANES; }

const char* wager_simd() { return WAGER_SIMD; }

// Sizes of the records, for whoever mirrors them: Matrix, Layer, Net, Pass, Ingest, Row.
int64_t wager_size(int64_t record) {
    const int64_t sizes[] = {sizeof(Matrix), sizeof(Layer), sizeof(Net), sizeof(Pass), sizeof(Ingest), sizeof(Row)};
    return sizes[record];
}

// 0: done. Above 0: so many bytes of scratch memory are needed. Below 0: what was out of range.
int64_t wager_pass(const Net* net, const Pass* pass, void* memory, int64_t bytes, int32_t threads) {
    Scratch counted{nullptr};
    plan_pass(*net, *pass, threads, counted);
    if (counted.used > bytes) return counted.used;
    if (int64_t bad = check_pass(*net, *pass)) return bad;
    Scratch scratch{static_cast<char*>(memory)};
    Plan plan = plan_pass(*net, *pass, threads, scratch);
    fill_plan(*net, *pass, threads, plan);
    run_team(threads, [&](const Member& me) { run_all(*net, *pass, plan, me); });
    return 0;
}

int64_t wager_ingest(const Net* net, const Ingest* in, void* memory, int64_t bytes, int32_t threads) {
    Scratch counted{nullptr};
    plan_ingest(*net, *in, threads, counted);
    if (counted.used > bytes) return counted.used;
    if (int64_t bad = check_positions(in->positions, in->num_tokens, in->num_turns)) return bad;
    if (int64_t bad = check_slots(in->slots, in->num_tokens, in->pool)) return bad;
    Scratch scratch{static_cast<char*>(memory)};
    const IngestPlan plan = plan_ingest(*net, *in, threads, scratch);
    reset(plan.phases, INGEST_PHASES, threads);
    run_team(threads, [&](const Member& me) { run_ingest(*net, *in, plan, me); });
    return 0;
}

int64_t wager_project(const Matrix* w, const float* x, int64_t rows, float* out, int64_t columns, void* memory,
                      int64_t bytes, int32_t threads) {
    Scratch counted{nullptr};
    take_workspace(counted, rows, w->num_inputs, threads);
    if (counted.used > bytes) return counted.used;
    Scratch scratch{static_cast<char*>(memory)};
    const Workspace space = take_workspace(scratch, rows, w->num_inputs, threads);
    Phase phases[2]{};
    const StoreSink sink(out, columns, columns, w->bias);
    run_team(threads, [&](const Member& me) {
        const Inputs inputs(space, *w, x, w->num_inputs, rows, phases[0], me);
        multiply_all(Pieces(*w, me), inputs, rows, sink, phases[1], me);
    });
    return 0;
}

// The `ranks` best of every row of scores [rows][columns], best first.
int64_t wager_top(const float* scores, int64_t rows, int64_t columns, int64_t ranks, float* logprobs,
                  int64_t* places, int32_t threads) {
    if (ranks > MAX_RANKS || ranks > columns) return BAD_RANKS;
    Phase phase{};
    run_team(threads, [&](const Member& me) {
        me.work(phase, rows, [&](int64_t row) {
            take_best(scores + row * columns, columns, ranks, logprobs + row * ranks, places + row * ranks);
        });
    });
    return 0;
}

// The best candidates of each depth of a draft, by the scores with the noise of their positions.
int64_t wager_draft_top(const Draws* draws, int32_t threads) {
    const Draws& d = *draws;
    if (d.num_ranks > MAX_RANKS || d.num_ranks > d.num_outputs) return BAD_RANKS;
    Phase phase{};
    run_team(threads, [&](const Member& me) {
        me.work(phase, d.num_depths, [&](int64_t depth) { draw(d, depth); });
    });
    return 0;
}

}  // extern "C"
