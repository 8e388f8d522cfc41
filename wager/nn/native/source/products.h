// Matrix products with packed weights: y[m][n] = sum over k of x[m][k] * w[n][k] (matrix.h has the layout).
//
// Order of summation: every output is one chain over k = 0, 1, 2, ... in one register, starting from zero; over the
// groups, where rows are rounded. Tiles of other heights, other panels beside it, other threads: none of them
// enters that chain. So a row's result is bit for bit the same alone and in any company.
#pragma once

#include <utility>

#include "codes.h"

// How each kind hands out the weights of consecutive k: STEP of them come with one read (`raw`).
struct Floats {
    static constexpr int STEP = 1;
    INLINE Vec at(IVec raw, int) { return as_floats(raw); }
};

struct Halves {
    static constexpr int STEP = 2;
    // A bfloat16 is the upper half of a float: the even k is shifted up, the odd one already stands there.
    INLINE Vec at(IVec raw, int j) { return as_floats(j == 0 ? raw << 16 : raw & int32_t(0xffff0000)); }
};

// One tile: ROWS rows against SIDE panels that lie behind one another; out is [SIDE][ROWS][PANEL]. While it is at
// work it asks for what comes next: the weights `ahead` bytes behind its own.
template <class Source, int ROWS, int SIDE>
static void tile(const Matrix& w, int64_t panel, const Rows& rows, int64_t first, int64_t ahead, float* out) {
    constexpr int STEP = Source::STEP, VECS = 2 * SIDE;
    // Where floats meet few rows reading is all there is to do, and the machine reads ahead best by itself.
    constexpr bool AHEAD = STEP > 1 || ROWS > FEW_ROWS;
    const int64_t inputs = w.num_inputs, bytes = panel_bytes(w);
    const char* weights = panel_at(w, panel);
    const float* x = rows.floats + first * rows.stride;
    Vec sums[ROWS][VECS] = {};
    auto step = [&](int64_t k, int count) __attribute__((always_inline)) {
        IVec raw[VECS];
        for (int v = 0; v < VECS; v++) {
            const char* at = weights + v / 2 * bytes + (k / STEP * 2 + v % 2) * (LANES * 4);
            raw[v] = load_bits(at);
            if (AHEAD) __builtin_prefetch(at + ahead, 0, 2);
        }
        for (int j = 0; j < count; j++) {
            Vec values[VECS];
            for (int v = 0; v < VECS; v++) values[v] = held(Source::at(raw[v], j));
            for (int m = 0; m < ROWS; m++) {
                const Vec input = splat(x[m * rows.stride + k + j]);
                for (int v = 0; v < VECS; v++) sums[m][v] = fma(input, values[v], sums[m][v]);
            }
        }
    };
    int64_t k = 0;
    for (; k + STEP <= inputs; k += STEP) step(k, STEP);
    if (k < inputs) step(k, 1);
    for (int v = 0; v < VECS; v++)
        for (int m = 0; m < ROWS; m++)
            store(out + (v / 2 * ROWS + m) * PANEL + v % 2 * LANES, sums[m][v]);
}

template <class Source, int SIDE, int... R>
static TileFunction float_tile(int rows, std::integer_sequence<int, R...>) {
    static const TileFunction table[] = {tile<Source, R + 1, SIDE>...};
    return table[rows - 1];
}

INLINE int tile_rows(const Matrix& w) { return w.limbs ? rounded_rows(static_cast<int>(w.limbs)) : TILE_ROWS; }

// Panels side by side. A few rows leave registers free, and two panels keep the adders busy while sums wait for
// themselves; with fewer rows still, memory is the limit, and one panel is one stream to read.
INLINE int panels_at_once(const Matrix& w, int rows) {
    if (w.limbs) return 1;
    if (has_codes(w)) return rows <= PAIRED_CODE_ROWS ? 2 : 1;
    if (rows > TILE_ROWS / 2) return 1;
    return rows > (w.kind == FLOATS ? FEW_ROWS : 1) ? 2 : 1;
}

template <class Source>
static TileFunction floats_for(int rows, int side) {
    return side == 2 ? float_tile<Source, 2>(rows, Up<TILE_ROWS / 2>{})
                     : float_tile<Source, 1>(rows, Up<TILE_ROWS>{});
}

static TileFunction tile_for(const Matrix& w, int rows, int side) {
    if (w.kind == FLOATS) return floats_for<Floats>(rows, side);
    if (w.kind == HALVES) return floats_for<Halves>(rows, side);
    return with_codes(w, [&](auto source) { return codes_for<decltype(source)>(w.limbs, rows, side); });
}

// What becomes of a finished tile: rows first .. first + rows - 1 of one panel, [rows][PANEL].
struct Sink {
    virtual void take(int64_t panel, int64_t first, int rows, const float* sums) const = 0;
};

// Panels from..to-1 of a matrix of codes times many rows, each panel widened first.
static void multiply_widened(const Matrix& w, const Rows& rows, int64_t count, int64_t from, int64_t to,
                             const Sink& sink) {
    alignas(64) float sums[TILE_ROWS * PANEL];
    static thread_local std::vector<float> panel_floats;
    panel_floats.resize(w.num_inputs * PANEL);
    const Matrix wide = {panel_floats.data(), nullptr, 1, w.num_inputs, FLOATS, 0, 0, 0};
    const int64_t tiles = (count + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t panel = from; panel < to; panel++) {
        with_codes(w, [&](auto source) { widen_codes<decltype(source)>(w, panel, panel_floats.data()); });
        for (int64_t t = 0, first = 0; t < tiles; t++) {
            const int height = static_cast<int>((count - first + tiles - t - 1) / (tiles - t));
            tile_for(wide, height, 1)(wide, 0, rows, first, 0, sums);
            sink.take(panel, first, height, sums);
            first += height;
        }
    }
}

// Panels from..to-1 of a matrix times `count` rows, which are cut into tiles of nearly equal height. `next` is
// what this thread will read after them, or null.
static void multiply(const Matrix& w, const Rows& rows, int64_t count, int64_t from, int64_t to, const char* next,
                     const Sink& sink) {
    alignas(64) float sums[2 * TILE_ROWS * PANEL];
    const int64_t highest = tile_rows(w), tiles = (count + highest - 1) / highest;
    // Widening a panel and reading it back takes as long as three tiles need to widen what they read.
    if (has_codes(w) && !w.limbs && tiles > 3) return multiply_widened(w, rows, count, from, to, sink);
    for (int64_t panel = from; panel < to;) {
        int64_t taken = 1;
        for (int64_t t = 0, first = 0; t < tiles; t++) {
            const int height = static_cast<int>((count - first + tiles - t - 1) / (tiles - t));
            const int side = tiles == 1 && panel + 1 < to ? panels_at_once(w, height) : 1;
            const char* soon = panel + side < to || !next ? panel_at(w, panel + side) : next;
            tile_for(w, height, side)(w, panel, rows, first, soon - panel_at(w, panel), sums);
            for (int s = 0; s < side; s++) sink.take(panel + s, first, height, sums + s * height * PANEL);
            first += height;
            taken = side;
        }
        panel += taken;
    }
}
