// Tiles of codes: rows of floats with codes widened in a register, and rounded rows with whole-number products.
//
// A widened code is the very float that dequantising gives (code * scale is exact, and the offset is added with one
// rounding), so tile_codes has the results of FLOATS bit for bit. tile_rounded sums the products of a group
// exactly, in whole numbers, and adds the groups up in their order as floats.
#pragma once

#include <vector>

#include "matrix.h"

constexpr int64_t READ_AHEAD = 8192;  // enough to hide far memory, and little enough for the nearest cache

// Codes of BITS bits in groups of INPUTS; STEP of them come with one read of a vector for every output.
template <int BITS, int INPUTS_, bool OFFSET_>
struct Codes {
    static constexpr int STEP = 32 / BITS, INPUTS = INPUTS_, QUADS = STEP / 4, WIDTH = BITS;
    static constexpr bool OFFSET = OFFSET_;

    // The number of input j of a read.
    INLINE IVec at(IVec raw, int j) {
        if (BITS == 8) return ((raw ^ int32_t(0x80808080)) << (24 - 8 * j)) >> 24;
        const IVec code = (raw >> (j < 4 ? 8 * j : 8 * j - 28)) & 15;
        return OFFSET ? code : code - 8;
    }

    // Inputs 4 * quad .. 4 * quad + 3 as bytes for `dot`.
    INLINE IVec bytes(IVec raw, int quad) {
        if (BITS == 8) return WEIGHTS_HAVE_SIGN ? raw ^ int32_t(0x80808080) : raw;
        return (quad ? raw >> 4 : raw) & 0x0f0f0f0f;
    }
};

// One tile: ROWS rows of floats against SIDE panels that lie behind one another; out is [SIDE][ROWS][PANEL]. While
// it is at work it asks for what comes next: the weights `ahead` bytes behind its own.
template <class Source, int ROWS, int SIDE>
static void tile_codes(const Matrix& w, int64_t panel, const Rows& rows, int64_t first, int64_t ahead, float* out) {
    constexpr int STEP = Source::STEP, VECS = 2 * SIDE, PARTS = Source::OFFSET ? 2 : 1;
    const int64_t groups = num_groups(w), bytes = panel_bytes(w), block = block_bytes(w), parts = parts_bytes(w);
    const char* weights = panel_at(w, panel);
    const float* x = rows.floats + first * rows.stride;
    Vec sums[ROWS][VECS] = {};
    for (int64_t g = 0; g < groups; g++, weights += block, x += Source::INPUTS) {
        Vec scale[VECS], offset[VECS];
        for (int v = 0; v < VECS; v++) {
            scale[v] = load_part(w, weights + v / 2 * bytes, 0, v % 2);
            if (Source::OFFSET) offset[v] = load_part(w, weights + v / 2 * bytes, 1, v % 2);
            for (int part = 0; part < PARTS; part++)
                __builtin_prefetch(weights + v / 2 * bytes + (part * 2 + v % 2) * parts / (2 * PARTS) + ahead, 0, 2);
        }
        for (int part = 0; part < Source::INPUTS / STEP; part++) {
            IVec raw[VECS];
            for (int v = 0; v < VECS; v++) {
                const char* at = weights + parts + v / 2 * bytes + (part * 2 + v % 2) * (LANES * 4);
                raw[v] = load_bits(at);
                __builtin_prefetch(at + ahead, 0, 2);
            }
            for (int j = 0; j < STEP; j++) {
                Vec values[VECS];
                for (int v = 0; v < VECS; v++) {
                    const Vec code = __builtin_convertvector(Source::at(raw[v], j), Vec);
                    values[v] = held(Source::OFFSET ? fma(code, scale[v], offset[v]) : code * scale[v]);
                }
                for (int m = 0; m < ROWS; m++) {
                    const Vec input = splat(x[m * rows.stride + part * STEP + j]);
                    for (int v = 0; v < VECS; v++) sums[m][v] = fma(input, values[v], sums[m][v]);
                }
            }
        }
    }
    for (int v = 0; v < VECS; v++)
        for (int m = 0; m < ROWS; m++)
            store(out + (v / 2 * ROWS + m) * PANEL + v % 2 * LANES, sums[m][v]);
}

// The same for rows of LIMBS bytes a number, and one panel. It asks for the weights READ_AHEAD bytes behind its own,
// and at the panel's end for the first ones of what comes next.
template <class Source, int LIMBS, int ROWS>
static void tile_rounded(const Matrix& w, int64_t panel, const Rows& rows, int64_t first, int64_t ahead, float* out) {
    constexpr int VECS = 2, INPUTS = Source::INPUTS;
    const int64_t groups = num_groups(w), block = block_bytes(w), parts = parts_bytes(w), count = rows.rounded.count;
    const char* weights = panel_at(w, panel);
    // All of these move on group by group, so that every place within a group is a fixed distance away.
    const int8_t* x = rows.rounded.bytes + first * (INPUTS * LIMBS);
    const float *row_scales = rows.rounded.scales + first, *totals = rows.rounded.totals + first;
    const int32_t* starts = rows.rounded.starts + first;
    const int64_t bytes = groups * block, near = bytes < READ_AHEAD ? bytes : READ_AHEAD;
    const IVec none = {};
    Vec sums[ROWS][VECS] = {};
    for (int64_t g = 0; g < groups; g++) {
        IVec whole[LIMBS][ROWS][VECS];
        for (int m = 0; m < ROWS; m++)
            for (int v = 0; v < VECS; v++) {
                whole[0][m][v] = none;
                // The last limb counts once: what the zero of the codes adds is taken off there.
                whole[LIMBS - 1][m][v] = none + starts[m];
            }
        const char* soon = weights + (g * block + near < bytes ? near : near - bytes + ahead);
        for (int64_t line = 0; line < parts; line += 64) __builtin_prefetch(soon + line);
        for (int part = 0; part < INPUTS / Source::STEP; part++) {
            IVec raw[VECS];
            for (int v = 0; v < VECS; v++) {
                const int64_t at = parts + (part * VECS + v) * (LANES * 4);
                raw[v] = held(load_bits(weights + at));
                __builtin_prefetch(soon + at);
            }
            for (int quad = 0; quad < Source::QUADS; quad++) {
                IVec four[VECS];
                for (int v = 0; v < VECS; v++) four[v] = held(Source::bytes(raw[v], quad));
                for (int m = 0; m < ROWS; m++)
                    for (int limb = 0; limb < LIMBS; limb++) {
                        const int8_t* at = x + (m * LIMBS + limb) * INPUTS + part * Source::STEP + quad * 4;
                        const IVec input = four_bytes(at);
                        for (int v = 0; v < VECS; v++)
                            whole[limb][m][v] = dot<Source::WIDTH>(whole[limb][m][v], four[v], input);
                    }
            }
        }
        for (int v = 0; v < VECS; v++) {
            const Vec scale = load_part(w, weights, 0, v), offset = Source::OFFSET ? load_part(w, weights, 1, v) : Vec{};
            for (int m = 0; m < ROWS; m++) {
                IVec sum = whole[LIMBS - 1][m][v];
                if (LIMBS == 2) sum += whole[0][m][v] << 8;
                const Vec both = scale * splat(row_scales[m]);
                sums[m][v] = fma(__builtin_convertvector(sum, Vec), both, sums[m][v]);
                if (Source::OFFSET) sums[m][v] = fma(offset, splat(totals[m]), sums[m][v]);
            }
        }
        weights += block, x += count * (INPUTS * LIMBS), row_scales += count, totals += count, starts += count;
    }
    for (int v = 0; v < VECS; v++)
        for (int m = 0; m < ROWS; m++) store(out + m * PANEL + v * LANES, sums[m][v]);
}

// One panel of codes as FLOATS hold it: with many rows this is done once for all their tiles.
template <class Source>
static void widen_codes(const Matrix& w, int64_t panel, float* out) {
    constexpr int STEP = Source::STEP;
    const int64_t groups = num_groups(w), parts = parts_bytes(w);
    const char* block = panel_at(w, panel);
    for (int64_t g = 0; g < groups; g++, block += block_bytes(w))
        for (int part = 0; part < Source::INPUTS / STEP; part++, out += STEP * PANEL)
            for (int v = 0; v < 2; v++) {
                const IVec raw = load_bits(block + parts + (part * 2 + v) * (LANES * 4));
                const Vec scale = load_part(w, block, 0, v);
                for (int j = 0; j < STEP; j++) {
                    const Vec code = __builtin_convertvector(Source::at(raw, j), Vec);
                    const Vec value = Source::OFFSET ? fma(code, scale, load_part(w, block, 1, v)) : code * scale;
                    store(out + j * PANEL + v * LANES, value);
                }
            }
}

// Calls `use` with the Codes of a matrix.
template <class Use>
static auto with_codes(const Matrix& w, const Use& use) {
    if (w.kind == NIBBLES) return w.has_offsets ? use(Codes<4, 32, true>{}) : use(Codes<4, 32, false>{});
    if (w.kind == CODES) return w.has_offsets ? use(Codes<8, 32, true>{}) : use(Codes<8, 32, false>{});
    return w.has_offsets ? use(Codes<8, 16, true>{}) : use(Codes<8, 16, false>{});
}

template <class Source, int SIDE, int... R>
static TileFunction code_tile(int rows, std::integer_sequence<int, R...>) {
    static const TileFunction table[] = {tile_codes<Source, R + 1, SIDE>...};
    return table[rows - 1];
}

template <class Source, int LIMBS, int... R>
static TileFunction rounded_tile(int rows, std::integer_sequence<int, R...>) {
    static const TileFunction table[] = {tile_rounded<Source, LIMBS, R + 1>...};
    return table[rows - 1];
}

template <int N>
using Up = std::make_integer_sequence<int, N>;

constexpr int PAIRED_CODE_ROWS = TILE_ROWS / 4;

// Rows of a tile where numbers have so many limbs: sums need registers for every limb, and those of the groups.
constexpr int rounded_rows(int limbs) { return limbs == 1 ? ROUNDED_ROWS : ROUNDED_ROWS * 3 / 4; }

template <class Source>
static TileFunction codes_for(int64_t limbs, int rows, int side) {
    if (limbs == 1) return rounded_tile<Source, 1>(rows, Up<rounded_rows(1)>{});
    if (limbs == 2) return rounded_tile<Source, 2>(rows, Up<rounded_rows(2)>{});
    return side == 2 ? code_tile<Source, 2>(rows, Up<PAIRED_CODE_ROWS>{}) : code_tile<Source, 1>(rows, Up<TILE_ROWS>{});
}
