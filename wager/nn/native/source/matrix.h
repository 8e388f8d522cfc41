// A packed matrix, and where its parts lie.
//
// A matrix lies in panels of PANEL outputs, so that a product walks memory from front to back exactly once. FLOATS
// and HALVES hold the numbers of one k (or two) side by side. Codes are quantised weights as GGUF files publish
// them, and as int8 is made: whole numbers of 4 or 8 bits, with a scale and perhaps an offset for every output
// and group of inputs. Within a panel each group is one block: scales [PANEL], offsets [PANEL], codes.
//
//   FLOATS   [panel][k][PANEL]         float
//   HALVES   [panel][k / 2][PANEL][2]  bfloat16, where the weights are exactly that: half the bytes, same values
//   NIBBLES  [panel][group of 32]{scales, offsets, [k / 8][PANEL][4 bytes]}: byte i has k + i below, k + 4 + i above
//   CODES    [panel][group of 32]{scales, offsets, [k / 4][PANEL][4]}  8 bits, stored plus 128
//   SHORTS   [panel][group of 16]{scales, offsets, [k / 4][PANEL][4]}  the same with smaller groups
//
// Scales and offsets are float16 where that is exact, else float32. Nibbles without offsets stand for codes from
// -8 on.
#pragma once

#include "bytes.h"

constexpr int PANEL = 2 * LANES;
constexpr int FEW_ROWS = TILE_ROWS / 3;

enum Kind : int64_t { FLOATS = 0, HALVES = 1, NIBBLES = 2, CODES = 3, SHORTS = 4 };

struct Matrix {
    const void* panels;
    const float* bias;  // [panels * PANEL] in panel order, or null
    int64_t num_panels;
    int64_t num_inputs;
    int64_t kind;
    int64_t limbs;        // codes: bytes of a rounded row's number; 0: rows stay floats
    int64_t has_offsets;  // codes: whether blocks have offsets
    int64_t half_scales;  // codes: whether scales and offsets are float16
};

// Rows a matrix is applied to: floats, or the same rounded for codes.
struct Rows {
    const float* floats;
    int64_t stride;
    RoundedRows rounded;
};

INLINE int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

INLINE bool has_codes(const Matrix& w) { return w.kind >= NIBBLES; }
INLINE int64_t group_inputs(const Matrix& w) { return w.kind == SHORTS ? 16 : 32; }
INLINE int64_t num_groups(const Matrix& w) { return rounded_up(w.num_inputs, group_inputs(w)) / group_inputs(w); }

// What stored codes have to be less by.
INLINE int32_t code_zero(const Matrix& w) { return w.kind != NIBBLES ? 128 : w.has_offsets ? 0 : 8; }

// The same as the machine's dot product sees it.
INLINE int32_t dot_zero(const Matrix& w) { return w.kind != NIBBLES && WEIGHTS_HAVE_SIGN ? 0 : code_zero(w); }

INLINE int64_t parts_bytes(const Matrix& w) {
    return (w.has_offsets ? 2 : 1) * PANEL * (w.half_scales ? 2 : 4);
}

INLINE int64_t block_bytes(const Matrix& w) {
    return parts_bytes(w) + group_inputs(w) * PANEL / (w.kind == NIBBLES ? 2 : 1);
}

INLINE int64_t panel_bytes(const Matrix& w) {
    if (has_codes(w)) return num_groups(w) * block_bytes(w);
    return w.kind == FLOATS ? w.num_inputs * PANEL * 4 : rounded_up(w.num_inputs, 2) * PANEL * 2;
}

INLINE const char* panel_at(const Matrix& w, int64_t panel) {
    return static_cast<const char*>(w.panels) + panel * panel_bytes(w);
}

// Part 0 of a block are its scales, part 1 its offsets.
INLINE Vec load_part(const Matrix& w, const char* block, int part, int vec) {
    const int64_t at = part * PANEL + vec * LANES;
    return w.half_scales ? load_halves(block + at * 2) : load(reinterpret_cast<const float*>(block) + at);
}

typedef void (*TileFunction)(const Matrix&, int64_t, const Rows&, int64_t, int64_t, float*);
