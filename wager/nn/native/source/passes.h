// What Python hands over: a network, one pass over it, and the memory both lie in. Mirrored in library.py.
#pragma once

#include "matrix.h"

struct Layer {
    const float* input_norm;
    const float* qk_norm;  // [heads + kv_heads][head_dim], or null
    const float* post_norm;
    Matrix qkv;      // one unit of panels per head: queries, keys, values
    Matrix out;
    Matrix gate_up;  // each panel: LANES gates, then the LANES ups that belong to them
    Matrix down;
    int64_t window;  // 0: all keys are seen
};

struct Net {
    int64_t hidden, middle, num_layers, num_heads, num_kv_heads, head_dim;
    double eps;
    const Layer* layers;
    const float* norm;
    const float* embedding;  // [vocab][hidden], or null where the caller embeds
    int64_t vocab;
};

struct Pool {
    float* store;  // [layers][2][kv_heads][slots][head_dim]
    int64_t num_slots, page_size;
};

struct Row {
    int64_t start, stop, context_len;
    const int64_t* pages;
    int64_t num_pages;
    const uint8_t* mask;  // [tokens][tokens], or null
};

// Who sees whom among a row's own tokens where it has no mask.
enum Sight : int64_t { CAUSAL = 0, ALL = 1, ALL_BUT_CAUSAL_IN_WINDOWS = 2 };

struct Pass {
    int64_t num_tokens, num_rows;
    const int64_t* token_ids;
    const float* embeddings;  // [tokens][hidden], or null: looked up
    const int64_t* positions;
    const int64_t* slots;     // where K/V go, or null: they are kept for this pass only
    const float* turns;       // [positions][2][head_dim]: cosines, signed sines
    int64_t num_turns;
    const Row* rows;
    Pool pool;
    int64_t sight;
    const int64_t* taps;      // layers whose outputs are wanted
    int64_t num_taps;
    float* features;          // [tokens][taps * hidden]
    float* out;               // [tokens][hidden] after the final norm
};

struct Ingest {
    int64_t num_tokens, num_features;
    const float* features;
    const int64_t* positions;
    const int64_t* slots;
    const float* turns;
    int64_t num_turns;
    Pool pool;
    const Matrix* fc;
    const float* norm;
};

// Scores of one row's draft, depth after depth, and where its candidates go.
struct Draws {
    float* scores;         // [depths][outputs]; scaled and noised in place where the row samples
    int64_t num_depths, num_outputs, num_ranks;
    const int64_t* tokens; // of the outputs, or null where they are the vocabulary in its order
    double temperature;
    uint64_t seed;
    int64_t position;      // of the first depth
    float* logprobs;       // [depths][ranks], the best first
    int64_t* token_ids;
};

// Answers of a call that was refused.
enum Refusal : int64_t { BAD_TOKEN = -1, BAD_POSITION = -2, BAD_SLOT = -3, BAD_RANKS = -4 };

// Memory for one pass, handed out front to back. With `at` null it only counts.
struct Scratch {
    char* at;
    int64_t used = 0;

    template <class T>
    T* take(int64_t count) {
        T* found = reinterpret_cast<T*>(at ? at + used : nullptr);
        used += rounded_up(count * static_cast<int64_t>(sizeof(T)), 64);
        return found;
    }
};
