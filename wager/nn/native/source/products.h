// Matrix products with packed weights: y[m][n] = sum over k of x[m][k] * w[n][k].
//
// A weight lies in panels of PANEL outputs; within a panel the numbers of one k stand side by side, so that a
// product walks memory from front to back exactly once, whatever the number of rows. These kinds hold them:
//
//   FLOATS   [panel][k][PANEL]         float
//   HALVES   [panel][k / 2][PANEL][2]  bfloat16, where the weights are exactly that: half the bytes, same values
//   BYTES    [panel][k / 4][PANEL][4]  8 bits, with one float per output and GROUP of k; the rows are rounded to
//                                      8 bits too (bytes.h), and a group's sum is exact in whole numbers
//   NIBBLES  [panel][k / 8][PANEL][8]  4 bits without sign, with a scale and an offset per output and 32 of k
//   CODES    [panel][k / 4][PANEL][4]  8 bits with sign, with a scale per output and 32 of k
//   SHORTS   [panel][k / 4][PANEL][4]  the same, with a scale and an offset per output and 16 of k
//
// The last three are quantised weights as GGUF files publish them. Each is widened in a register to the very float
// that dequantising gives (code * scale is exact, and the offset is added with one rounding), so the results are
// those of FLOATS bit for bit.
//
// Order of summation: every output is one chain over k = 0, 1, 2, ... (over the groups, for BYTES) in one
// register, starting from zero. Tiles of other heights, other panels beside it, other threads: none of them
// enters that chain. So a row's result is bit for bit the same alone and in any company.
#pragma once

#include <utility>
#include <vector>

#include "bytes.h"

constexpr int PANEL = 2 * LANES;

constexpr int GROUP = 32;
constexpr int FEW_ROWS = TILE_ROWS / 3;

enum Kind : int64_t { FLOATS = 0, HALVES = 1, BYTES = 2, NIBBLES = 3, CODES = 4, SHORTS = 5 };

struct Matrix {
    const void* panels;
    const float* scales;  // BYTES, CODES: [panel][k / GROUP][PANEL]; NIBBLES, SHORTS: [panel][groups][2][PANEL]
    const float* bias;    // [panels * PANEL] in panel order, or null
    int64_t num_panels;
    int64_t num_inputs;
    int64_t kind;
};

// Rows a matrix is applied to: floats, or 8-bit numbers with a scale and a sum for every group.
struct Rows {
    const float* floats;
    int64_t stride;
    const int8_t* bytes;    // [rows][padded]
    const float* scales;    // [rows][groups]
    const int32_t* sums;    // [rows][groups], times -128
    int64_t padded, groups;
};

INLINE int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

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

// The same for quantised weights: `code` is the weight's number before its scale.
struct Nibbles {
    static constexpr int STEP = 8, INPUTS = 32;
    static constexpr bool OFFSET = true;
    INLINE IVec code(IVec raw, int j) { return (raw >> (4 * j)) & 15; }
};

struct Codes {
    static constexpr int STEP = 4, INPUTS = 32;
    static constexpr bool OFFSET = false;
    INLINE IVec code(IVec raw, int j) { return (raw << (24 - 8 * j)) >> 24; }
};

struct Shorts {
    static constexpr int STEP = 4, INPUTS = 16;
    static constexpr bool OFFSET = true;
    INLINE IVec code(IVec raw, int j) { return Codes::code(raw, j); }
};

INLINE int64_t panel_bytes(const Matrix& w) {
    if (w.kind >= NIBBLES) return w.num_inputs * PANEL / (w.kind == NIBBLES ? 2 : 1);
    const int64_t step = w.kind == FLOATS ? 1 : w.kind == HALVES ? 2 : GROUP;
    return rounded_up(w.num_inputs, step) * PANEL * (w.kind == FLOATS ? 4 : w.kind == HALVES ? 2 : 1);
}

INLINE const char* panel_at(const Matrix& w, int64_t panel) {
    return static_cast<const char*>(w.panels) + panel * panel_bytes(w);
}

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

// The same for BYTES and one panel. Sums need twice the registers and more, so tiles are a third as high. Weights
// are kept as w + 128, without sign, as the machine's instruction wants them; what that adds is taken off at the
// start of a group.
template <int ROWS>
static void tile_bytes(const Matrix& w, int64_t panel, const Rows& rows, int64_t first, int64_t ahead, float* out) {
    constexpr int VECS = 2;
    const int64_t groups = rows.groups, padded = rows.padded;
    // All of these move on group by group, so that every place within a group is a fixed distance away.
    const char* weights = panel_at(w, panel);
    const float *scales = w.scales + panel * groups * PANEL, *row_scales = rows.scales + first * groups;
    const int32_t* row_sums = rows.sums + first * groups;
    const int8_t* x = rows.bytes + first * padded;
    Vec sums[ROWS][VECS] = {};
    for (int64_t g = 0; g < groups; g++) {
        IVec whole[ROWS][VECS];
        for (int m = 0; m < ROWS; m++)
            for (int v = 0; v < VECS; v++) whole[m][v] = splat_whole(row_sums[m * groups]);
        for (int quad = 0; quad < GROUP / 4; quad++) {
            for (int v = 0; v < VECS; v++) {
                const char* at = weights + (quad * VECS + v) * (LANES * 4);
                const IVec raw = as_bits(held(as_floats(load_bits(at))));
                __builtin_prefetch(at + ahead);
                for (int m = 0; m < ROWS; m++) whole[m][v] = dot_bytes(whole[m][v], raw, x + m * padded + quad * 4);
            }
        }
        for (int v = 0; v < VECS; v++) {
            const Vec scale = load(scales + v * LANES);
            for (int m = 0; m < ROWS; m++) {
                const Vec both = scale * splat(row_scales[m * groups]);
                sums[m][v] = fma(__builtin_convertvector(whole[m][v], Vec), both, sums[m][v]);
            }
        }
        weights += GROUP * PANEL, scales += PANEL, x += GROUP, row_sums++, row_scales++;
    }
    for (int v = 0; v < VECS; v++)
        for (int m = 0; m < ROWS; m++)
            store(out + m * PANEL + v * LANES, sums[m][v]);
}

// The same for quantised weights.
template <class Source, int ROWS, int SIDE>
static void tile_codes(const Matrix& w, int64_t panel, const Rows& rows, int64_t first, int64_t ahead, float* out) {
    constexpr int STEP = Source::STEP, VECS = 2 * SIDE, PARTS = Source::OFFSET ? 2 : 1;
    const int64_t groups = w.num_inputs / Source::INPUTS, bytes = panel_bytes(w), next = groups * PARTS * PANEL;
    const char* weights = panel_at(w, panel);
    const float *scales = w.scales + panel * next, *x = rows.floats + first * rows.stride;
    Vec sums[ROWS][VECS] = {};
    for (int64_t g = 0; g < groups; g++) {
        Vec scale[VECS], offset[VECS];
        for (int v = 0; v < VECS; v++) {
            const float* at = scales + v / 2 * next + v % 2 * LANES;
            scale[v] = load(at);
            if (Source::OFFSET) offset[v] = load(at + PANEL);
        }
        for (int part = 0; part < Source::INPUTS / STEP; part++) {
            IVec raw[VECS];
            for (int v = 0; v < VECS; v++) {
                const char* at = weights + v / 2 * bytes + (part * 2 + v % 2) * (LANES * 4);
                raw[v] = load_bits(at);
                __builtin_prefetch(at + ahead, 0, 2);
            }
            for (int j = 0; j < STEP; j++) {
                Vec values[VECS];
                for (int v = 0; v < VECS; v++) {
                    const Vec code = __builtin_convertvector(Source::code(raw[v], j), Vec);
                    values[v] = held(Source::OFFSET ? fma(code, scale[v], offset[v]) : code * scale[v]);
                }
                for (int m = 0; m < ROWS; m++) {
                    const Vec input = splat(x[m * rows.stride + part * STEP + j]);
                    for (int v = 0; v < VECS; v++) sums[m][v] = fma(input, values[v], sums[m][v]);
                }
            }
        }
        weights += Source::INPUTS / STEP * PANEL * 4, scales += PARTS * PANEL, x += Source::INPUTS;
    }
    for (int v = 0; v < VECS; v++)
        for (int m = 0; m < ROWS; m++)
            store(out + (v / 2 * ROWS + m) * PANEL + v % 2 * LANES, sums[m][v]);
}

// One panel of quantised weights as FLOATS hold it: with many rows this is done once for all their tiles.
template <class Source>
static void widen_codes(const Matrix& w, int64_t panel, float* out) {
    constexpr int STEP = Source::STEP, PARTS = Source::OFFSET ? 2 : 1;
    const int64_t groups = w.num_inputs / Source::INPUTS;
    const char* weights = panel_at(w, panel);
    const float* scales = w.scales + panel * groups * PARTS * PANEL;
    for (int64_t g = 0; g < groups; g++, scales += PARTS * PANEL)
        for (int part = 0; part < Source::INPUTS / STEP; part++, weights += PANEL * 4, out += STEP * PANEL)
            for (int v = 0; v < 2; v++) {
                const IVec raw = load_bits(weights + v * LANES * 4);
                const Vec scale = load(scales + v * LANES);
                for (int j = 0; j < STEP; j++) {
                    const Vec code = __builtin_convertvector(Source::code(raw, j), Vec);
                    const float* offset = scales + PANEL + v * LANES;
                    store(out + j * PANEL + v * LANES, Source::OFFSET ? fma(code, scale, load(offset)) : code * scale);
                }
            }
}

static void widen_panel(const Matrix& w, int64_t panel, float* out) {
    if (w.kind == NIBBLES) return widen_codes<Nibbles>(w, panel, out);
    if (w.kind == CODES) return widen_codes<Codes>(w, panel, out);
    widen_codes<Shorts>(w, panel, out);
}

typedef void (*TileFunction)(const Matrix&, int64_t, const Rows&, int64_t, int64_t, float*);

template <class Source, int SIDE, int... R>
static TileFunction float_tile(int rows, std::integer_sequence<int, R...>) {
    static const TileFunction table[] = {tile<Source, R + 1, SIDE>...};
    return table[rows - 1];
}

template <class Source, int SIDE, int... R>
static TileFunction code_tile(int rows, std::integer_sequence<int, R...>) {
    static const TileFunction table[] = {tile_codes<Source, R + 1, SIDE>...};
    return table[rows - 1];
}

template <int... R>
static TileFunction byte_tile(int rows, std::integer_sequence<int, R...>) {
    static const TileFunction table[] = {tile_bytes<R + 1>...};
    return table[rows - 1];
}

template <int N>
using Up = std::make_integer_sequence<int, N>;

constexpr int PAIRED_CODE_ROWS = TILE_ROWS / 4;

INLINE int tile_rows(int64_t kind) { return kind == BYTES ? TILE_ROWS / 3 : TILE_ROWS; }

// Panels side by side. A few rows leave registers free, and two panels keep the adders busy while sums wait for
// themselves; with fewer rows still, memory is the limit, and one panel is one stream to read.
INLINE int panels_at_once(int64_t kind, int rows) {
    if (kind >= NIBBLES) return rows <= PAIRED_CODE_ROWS ? 2 : 1;
    if (kind == BYTES || rows > TILE_ROWS / 2) return 1;
    return rows > (kind == FLOATS ? FEW_ROWS : 1) ? 2 : 1;
}

template <class Source>
static TileFunction codes_for(int rows, int side) {
    return side == 2 ? code_tile<Source, 2>(rows, Up<PAIRED_CODE_ROWS>{}) : code_tile<Source, 1>(rows, Up<TILE_ROWS>{});
}

static TileFunction tile_for(int64_t kind, int rows, int side) {
    constexpr int HIGH = TILE_ROWS, LOW = TILE_ROWS / 2;
    if (kind == FLOATS)
        return side == 2 ? float_tile<Floats, 2>(rows, Up<LOW>{}) : float_tile<Floats, 1>(rows, Up<HIGH>{});
    if (kind == HALVES)
        return side == 2 ? float_tile<Halves, 2>(rows, Up<LOW>{}) : float_tile<Halves, 1>(rows, Up<HIGH>{});
    if (kind == NIBBLES) return codes_for<Nibbles>(rows, side);
    if (kind == CODES) return codes_for<Codes>(rows, side);
    if (kind == SHORTS) return codes_for<Shorts>(rows, side);
    return byte_tile(rows, Up<TILE_ROWS / 3>{});
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
    const Matrix wide = {panel_floats.data(), nullptr, nullptr, 1, w.num_inputs, FLOATS};
    const int64_t tiles = (count + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t panel = from; panel < to; panel++) {
        widen_panel(w, panel, panel_floats.data());
        for (int64_t t = 0, first = 0; t < tiles; t++) {
            const int height = static_cast<int>((count - first + tiles - t - 1) / (tiles - t));
            tile_for(FLOATS, height, 1)(wide, 0, rows, first, 0, sums);
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
    const int64_t highest = tile_rows(w.kind), tiles = (count + highest - 1) / highest;
    // Widening a panel and reading it back takes as long as three tiles need to widen what they read.
    if (w.kind >= NIBBLES && tiles > 3) return multiply_widened(w, rows, count, from, to, sink);
    for (int64_t panel = from; panel < to;) {
        int64_t taken = 1;
        for (int64_t t = 0, first = 0; t < tiles; t++) {
            const int height = static_cast<int>((count - first + tiles - t - 1) / (tiles - t));
            const int side = tiles == 1 && panel + 1 < to ? panels_at_once(w.kind, height) : 1;
            const char* soon = panel + side < to || !next ? panel_at(w, panel + side) : next;
            tile_for(w.kind, height, side)(w, panel, rows, first, soon - panel_at(w, panel), sums);
            for (int s = 0; s < side; s++) sink.take(panel + s, first, height, sums + s * height * PANEL);
            first += height;
            taken = side;
        }
        panel += taken;
    }
}
