// Attention of one row's queries over its keys: the cached context, then the row's own tokens.
//
// Query heads that share a key head and several tokens of a row are worked on together, so that keys and values
// are read once for all of them. Keys may lie anywhere (`Keys` knows the place of each).
//
// Order of summation, for each query by itself: a score is one chain over the head's numbers; the largest score
// is taken exactly; the weights' sum and the weighted values are chains over the keys in their order. A key the
// query does not see has weight exactly 0 and leaves those chains as they are, so a token of a tree, of a chain
// and of plain decoding has bit for bit the same result.
#pragma once

#include <type_traits>

#include "vectors.h"

constexpr int KEY_VECS = 4;                    // vectors of keys that are scored at once
constexpr int KEY_BLOCK = KEY_VECS * LANES;

// Where a row's keys and values of one layer and head lie. `slots[j]` >= 0: in the pool; below 0: the pass's
// own memory at ~slots[j].
struct Keys {
    const float *pool_keys, *pool_values, *own_keys, *own_values;
    const int32_t* slots;
    int64_t head_dim;

    const float* key(int64_t j) const { return place(pool_keys, own_keys, slots[j]); }
    const float* value(int64_t j) const { return place(pool_values, own_values, slots[j]); }
    const float* place(const float* pool, const float* own, int64_t slot) const {
        return slot >= 0 ? pool + slot * head_dim : own + ~slot * head_dim;
    }
};

#if defined(__AVX512F__) && defined(__AVX512BW__)
// LANES numbers of LANES keys, from rows to columns. Four numbers of every fourth key make a vector, four of which
// are then transposed within their quarters: half of the work is done by the reading.
INLINE void transpose(const float* const* rows, int64_t offset, float* out, int64_t out_stride) {
    for (int four = 0; four < LANES; four += 4) {
        __m512 v[4];
        for (int i = 0; i < 4; i++) {
            const float* const* row = rows + i;
            const int64_t at = offset + four;
            v[i] = _mm512_castps128_ps512(_mm_loadu_ps(row[0] + at));
            v[i] = _mm512_mask_broadcast_f32x4(v[i], 0x00f0, _mm_loadu_ps(row[4] + at));
            v[i] = _mm512_mask_broadcast_f32x4(v[i], 0x0f00, _mm_loadu_ps(row[8] + at));
            v[i] = _mm512_mask_broadcast_f32x4(v[i], 0xf000, _mm_loadu_ps(row[12] + at));
        }
        const __m512 low = _mm512_unpacklo_ps(v[0], v[2]), high = _mm512_unpackhi_ps(v[0], v[2]);
        const __m512 low_odd = _mm512_unpacklo_ps(v[1], v[3]), high_odd = _mm512_unpackhi_ps(v[1], v[3]);
        float* to = out + four * out_stride;
        store(to, (Vec)_mm512_unpacklo_ps(low, low_odd));
        store(to + out_stride, (Vec)_mm512_unpackhi_ps(low, low_odd));
        store(to + 2 * out_stride, (Vec)_mm512_unpacklo_ps(high, high_odd));
        store(to + 3 * out_stride, (Vec)_mm512_unpackhi_ps(high, high_odd));
    }
}
#else
// One interleaving step of a transposition: a0 b0 a1 b1 ... and the upper halves likewise.
INLINE void interleave(Vec& a, Vec& b) {
    IVec low, high;
    for (int i = 0; i < LANES; i++) {
        low[i] = i / 2 + i % 2 * LANES;
        high[i] = i / 2 + LANES / 2 + i % 2 * LANES;
    }
    const Vec first = a, second = b;
#if defined(__clang__)
    for (int i = 0; i < LANES; i++) {
        a[i] = i % 2 ? second[i / 2] : first[i / 2];
        b[i] = i % 2 ? second[i / 2 + LANES / 2] : first[i / 2 + LANES / 2];
    }
#else
    a = __builtin_shuffle(first, second, low);
    b = __builtin_shuffle(first, second, high);
#endif
}

// LANES numbers of LANES keys, from rows to columns: log2(LANES) rounds of interleaving i with i + LANES / 2.
INLINE void transpose(const float* const* rows, int64_t offset, float* out, int64_t out_stride) {
    Vec v[LANES];
    for (int i = 0; i < LANES; i++) v[i] = load(rows[i] + offset);
    for (int round = 1; round < LANES; round *= 2) {
        Vec next[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            Vec a = v[i], b = v[i + LANES / 2];
            interleave(a, b);
            next[2 * i] = a;
            next[2 * i + 1] = b;
        }
        for (int i = 0; i < LANES; i++) v[i] = next[i];
    }
    for (int i = 0; i < LANES; i++) store(out + i * out_stride, v[i]);
}
#endif

// Ask for one row of a head ahead of its use.
INLINE void fetch_row(const float* row, int64_t head_dim) {
    for (int64_t d = 0; d < head_dim; d += 16) __builtin_prefetch(row + d, 0, 2);
}

// Keys from..from+KEY_BLOCK-1, or as many as there are before `to`, as columns: out [head_dim][KEY_BLOCK]. Columns
// beyond the last repeat it. The next block's keys and this one's values are asked for meanwhile: since their
// last use the weights of the other layers have pushed them out of near memory.
static void gather_keys(const Keys& keys, int64_t from, int64_t to, float* out) {
    const float* rows[KEY_BLOCK];
    const int64_t count = to - from < KEY_BLOCK ? to - from : KEY_BLOCK;
    const int64_t used = (count + LANES - 1) / LANES * LANES;
    for (int64_t j = 0; j < used; j++) {
        rows[j] = keys.key(from + (j < count ? j : count - 1));
        if (from + KEY_BLOCK + j < to) fetch_row(keys.key(from + KEY_BLOCK + j), keys.head_dim);
        if (j < count) fetch_row(keys.value(from + j), keys.head_dim);
    }
    const int64_t whole = keys.head_dim / LANES * LANES;
    for (int64_t j = 0; j < used; j += LANES) {
        for (int64_t d = 0; d < whole; d += LANES) transpose(rows + j, d, out + d * KEY_BLOCK + j, KEY_BLOCK);
        for (int64_t d = whole; d < keys.head_dim; d++)
            for (int64_t i = 0; i < LANES; i++) out[d * KEY_BLOCK + j + i] = rows[j + i][d];
    }
}

// Scores of QUERIES queries for VECS vectors of keys.
template <int QUERIES, int VECS>
static void score(const float* const* queries, const float* columns, int64_t head_dim, float* const* scores,
                  int64_t at) {
    Vec sums[QUERIES][VECS] = {};
    const float* lines[QUERIES];
    for (int q = 0; q < QUERIES; q++) lines[q] = queries[q];
    for (int64_t d = 0; d < head_dim; d++, columns += KEY_BLOCK) {
        Vec keys[VECS];
        for (int v = 0; v < VECS; v++) keys[v] = held(load(columns + v * LANES));
        for (int q = 0; q < QUERIES; q++) {
            const Vec query = splat(lines[q][d]);
            for (int v = 0; v < VECS; v++) sums[q][v] = fma(query, keys[v], sums[q][v]);
        }
    }
    for (int q = 0; q < QUERIES; q++)
        for (int v = 0; v < VECS; v++) store(scores[q] + at + v * LANES, sums[q][v]);
}

// The same for a block of `count` keys, the first of which is number `at`.
template <int QUERIES>
static void score_block(const float* const* queries, const float* columns, int64_t head_dim, float* const* scores,
                        int64_t at, int64_t count) {
    if (count > KEY_BLOCK - LANES) return score<QUERIES, KEY_VECS>(queries, columns, head_dim, scores, at);
    for (int64_t j = 0; j < count; j += LANES)
        score<QUERIES, 1>(queries, columns + j, head_dim, scores, at + j);
}

// e^(score - largest) in place, for a multiple of LANES scores.
static void soften(float* scores, int64_t count) {
    Vec best = splat(-std::numeric_limits<float>::infinity());
    for (int64_t j = 0; j < count; j += LANES) best = larger(load(scores + j), best);
    const Vec top = splat(max_lanes(best));
    for (int64_t j = 0; j < count; j += LANES) store(scores + j, exponential(load(scores + j) - top));
}

// The weighted mean of values for QUERIES queries: VECS vectors of the head from `offset` on.
template <int QUERIES, int VECS>
static void blend(const Keys& keys, int64_t from, int64_t count, const float* const* weights, int64_t offset,
                  float* const* out) {
    Vec sums[QUERIES][VECS] = {}, totals[QUERIES] = {};
    for (int64_t j = 0; j < count; j++) {
        const float* value = keys.value(from + j) + offset;
        Vec values[VECS];
        for (int v = 0; v < VECS; v++) values[v] = held(load(value + v * LANES));
        for (int q = 0; q < QUERIES; q++) {
            const Vec weight = splat(weights[q][j]);
            totals[q] += weight;
            for (int v = 0; v < VECS; v++) sums[q][v] = fma(weight, values[v], sums[q][v]);
        }
    }
    for (int q = 0; q < QUERIES; q++)
        for (int v = 0; v < VECS; v++) store(out[q] + offset + v * LANES, sums[q][v] / totals[q]);
}

// The same for the few numbers behind the last whole vector of a head.
static void blend_rest(const Keys& keys, int64_t from, int64_t count, const float* weights, int64_t offset,
                       float* out) {
    float total = 0.0f;
    for (int64_t j = 0; j < count; j++) total += weights[j];
    for (int64_t d = offset; d < keys.head_dim; d++) {
        float sum = 0.0f;
        for (int64_t j = 0; j < count; j++) sum = fma(weights[j], keys.value(from + j)[d], sum);
        out[d] = sum / total;
    }
}

template <int QUERIES>
static void blend_all(const Keys& keys, int64_t from, int64_t count, const float* const* weights,
                      float* const* out) {
    int64_t offset = 0;
    for (; offset + 4 * LANES <= keys.head_dim; offset += 4 * LANES)
        blend<QUERIES, 4>(keys, from, count, weights, offset, out);
    for (; offset + LANES <= keys.head_dim; offset += LANES)
        blend<QUERIES, 1>(keys, from, count, weights, offset, out);
    if (offset < keys.head_dim)
        for (int q = 0; q < QUERIES; q++) blend_rest(keys, from, count, weights[q], offset, out[q]);
}

// Runs `body(std::integral_constant<int, n>, first)` over `count` things in groups of MOST, then smaller.
template <int MOST, class Body>
INLINE void in_groups(int64_t count, Body body) {
    int64_t at = 0;
    for (; at + MOST <= count; at += MOST) body(std::integral_constant<int, MOST>{}, at);
    for (; MOST > 4 && at + 4 <= count; at += 4) body(std::integral_constant<int, 4>{}, at);
    for (; at + 2 <= count; at += 2) body(std::integral_constant<int, 2>{}, at);
    for (; at < count; at++) body(std::integral_constant<int, 1>{}, at);
}
