// What Python hands over for several decoding steps in one call. Mirrored in nn/native/steps.py.
#pragma once

#include "choose.h"
#include "passes.h"
#include "trees.h"

// Embeddings of tokens: floats, or codes with a scale and perhaps an offset for each group of inputs.
struct Embedding {
    const float* floats;  // [vocab][hidden], or null
    const int8_t* codes;
    const float *scales, *offsets;
    int64_t group;
};

struct TargetModel {
    const Net* net;
    const Matrix* head;
    int64_t vocab;
    Embedding embedding;
    Pool pool;
    const float* turns;
    int64_t num_turns;
    const int64_t* taps;  // layers whose outputs the drafter wants
    int64_t num_taps;
};

struct BlockModel {
    const Net* net;
    const Matrix* fc;
    const float* norm;
    const Matrix* head;
    const int64_t* head_ids;  // the token of each output of the head, or null where it has one for every token
    int64_t num_outputs;
    Pool pool;
    const float* turns;
    int64_t num_turns;
    int64_t sight, mask_token;
    int64_t length, num_depths, num_ranks;  // of a block, of its draft, and of the candidates of each depth
};

// One running text. The last token is pending: known, and in no cache.
struct Text {
    int64_t* tokens;
    int64_t num_tokens, limit;  // and the most that it may have
    const int64_t* pages;
    int64_t num_pages;
    const int64_t* end_tokens;
    int64_t num_end_tokens;
    Sampling sampling;
    int64_t drafts;       // whether it drafts in these steps
    int64_t most_nodes;
    double weight;        // log of what one of its tokens is worth
    int64_t match_length; // the steps end once a tail of this length stood before; 0: never
    float* features;      // of tokens that the drafter's cache lacks, the oldest first; null: nobody wants them
    int64_t num_waiting, most_waiting;
};

// What one step did, and to each row of it.
struct StepTimes {
    double draft_ms, verify_ms;
};

struct RowStep {
    int64_t num_nodes, num_accepted, num_depths;  // num_depths: of its draft; 0: none was made
};

enum Ending : int64_t { DONE = 0, TOKEN = 1, FULL = 2, MATCHED = 3, STOPPED = 4, BROKEN = 5 };

struct Steps {
    const TargetModel* target;
    const BlockModel* drafter;  // null: the steps are plain
    const Rule* rule;
    Text* texts;
    int64_t num_texts, most_steps;
    const volatile int32_t* stop;  // another thread ends the steps by setting it
    // Results, step after step, row after row.
    StepTimes* times;
    RowStep* rows;
    int64_t* draft_tokens;   // [steps][rows][depths][ranks]
    float* draft_logprobs;
    int64_t num_steps;       // taken
    int64_t ending;
};
