// Attention of a pass: its plan of work, who sees whom, and one item of it.
//
// An item is a few tokens of one row and the query heads of one key head. Items are independent; threads take
// them as they come.
#pragma once

#include "attention.h"
#include "inputs.h"
#include "passes.h"

namespace {

constexpr int64_t TILE_QUERIES = 32;  // queries that share one reading of the keys

struct Item {
    int32_t row, from, to;      // tokens from..to-1 of the row
    int32_t head, num_heads;    // query heads that share a key head
};

// The shared memory of a pass.
struct Plan {
    Workspace space;
    int64_t unit;          // columns of one head: head_dim rounded up to panels
    int64_t num_units;
    int64_t middle_stride;
    float *x, *fused, *attended, *middle, *own_keys, *own_values, *columns, *scores;
    int64_t score_stride;
    int64_t* units;        // heads in the order in which they are computed
    int32_t** key_slots;   // per row
    Item* items;
    int64_t num_items;
    Phase* phases;
};

float* pool_at(const Net& net, const Pool& pool, int64_t layer, int64_t which, int64_t kv_head) {
    const int64_t place = (layer * 2 + which) * net.num_kv_heads + kv_head;
    return pool.store + place * pool.num_slots * net.head_dim;
}

bool sees(const Pass& pass, const Row& row, int64_t window, int64_t i, int64_t j) {
    const int64_t apart = pass.positions[row.start + i] - pass.positions[row.start + j];
    if (pass.sight == CAUSAL) {
        const bool visible = row.mask ? row.mask[i * (row.stop - row.start) + j] != 0 : j <= i;
        return visible && (!window || apart < window);
    }
    return pass.sight == ALL || !window || (apart >= 0 && apart < window);
}

// Scores of keys that token i of the row does not see become minus infinity. `first` is the key of scores[0].
void hide(const Pass& pass, const Row& row, int64_t window, int64_t i, int64_t first, int64_t count,
          float* scores) {
    const float hidden = -std::numeric_limits<float>::infinity();
    const int64_t own = row.context_len - first;
    if (window) {
        const int64_t unseen = pass.positions[row.start + i] - window + 1 - first;
        for (int64_t j = 0; j < unseen && j < own; j++) scores[j] = hidden;
    }
    if (pass.sight == CAUSAL && !row.mask && !window) {
        for (int64_t j = own + i + 1; j < count; j++) scores[j] = hidden;
    } else {
        for (int64_t j = own; j < count; j++)
            if (!sees(pass, row, window, i, j - own)) scores[j] = hidden;
    }
    for (int64_t j = count; j < rounded_up(count, LANES); j++) scores[j] = hidden;
}

int64_t first_key(const Pass& pass, const Row& row, int64_t window, int64_t from, int64_t to) {
    int64_t first = row.context_len;
    if (!window) return 0;
    for (int64_t i = from; i < to; i++) {
        const int64_t seen = pass.positions[row.start + i] - window + 1;
        first = seen < first ? seen : first;
    }
    return first > 0 ? first : 0;
}

Keys keys_of(const Net& net, const Pass& pass, const Plan& plan, int64_t layer, const Item& item) {
    const int64_t kv_head = item.head / (net.num_heads / net.num_kv_heads);
    const int64_t own = kv_head * pass.num_tokens * net.head_dim;
    return {pool_at(net, pass.pool, layer, 0, kv_head), pool_at(net, pass.pool, layer, 1, kv_head),
            plan.own_keys + own, plan.own_values + own, plan.key_slots[item.row], net.head_dim};
}

// Ask for the first block of cached keys that this thread will meet in a layer.
void expect_keys(const Net& net, const Pass& pass, const Plan& plan, int64_t layer, const Member& me) {
    const Share own = me.share(plan.num_items);
    if (own.from >= own.to) return;
    const Item& item = plan.items[own.from];
    const Keys keys = keys_of(net, pass, plan, layer, item);
    const Row& row = pass.rows[item.row];
    const int64_t first = first_key(pass, row, net.layers[layer].window, item.from, item.to);
    for (int64_t j = first; j < first + KEY_BLOCK && j < row.context_len; j++) fetch_row(keys.key(j), net.head_dim);
}

void attend(const Net& net, const Pass& pass, const Plan& plan, int64_t layer, const Item& item, int rank) {
    const Row& row = pass.rows[item.row];
    const int64_t size = net.head_dim, heads = item.num_heads;
    const int64_t window = net.layers[layer].window, tokens = row.stop - row.start;
    const int64_t first = first_key(pass, row, window, item.from, item.to);
    const bool cut = pass.sight == CAUSAL && !row.mask;
    const int64_t count = row.context_len + (cut ? item.to : tokens) - first;
    const Keys keys = keys_of(net, pass, plan, layer, item);
    float* columns = plan.columns + rank * size * KEY_BLOCK;
    float* scores = plan.scores + rank * TILE_QUERIES * plan.score_stride;
    const float* queries[TILE_QUERIES];
    float *places[TILE_QUERIES], *lines[TILE_QUERIES];
    const int64_t num_queries = (item.to - item.from) * heads;
    for (int64_t q = 0; q < num_queries; q++) {
        const int64_t token = row.start + item.from + q / heads, head = item.head + q % heads;
        queries[q] = plan.fused + (token * plan.num_units + head) * plan.unit;
        places[q] = plan.attended + (token * net.num_heads + head) * size;
        lines[q] = scores + q * plan.score_stride;
    }
    for (int64_t at = 0; at < count; at += KEY_BLOCK) {
        gather_keys(keys, first + at, first + count, columns);
        in_groups<QUERY_ROWS>(num_queries, [&](auto queries_at_once, int64_t q) {
            score_block<decltype(queries_at_once)::value>(queries + q, columns, size, lines + q, at, count - at);
        });
    }
    for (int64_t q = 0; q < num_queries; q++) {
        hide(pass, row, window, item.from + q / heads, first, count, lines[q]);
        soften(lines[q], rounded_up(count, LANES));
    }
    in_groups<BLEND_ROWS>(num_queries, [&](auto queries_at_once, int64_t q) {
        blend_all<decltype(queries_at_once)::value>(keys, first, count, lines + q, places + q);
    });
}

}  // namespace
