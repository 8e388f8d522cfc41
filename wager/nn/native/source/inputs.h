// The rows a product is applied to, made ready for it, and a whole product as one phase of the team.
#pragma once

#include "passes.h"
#include "products.h"
#include "team.h"

namespace {

constexpr int64_t OWN_ROWS = 64;  // up to here each thread makes rows ready for itself: cheaper than a phase

// Memory in which rows are made ready for products: for all threads together, or for each.
struct Workspace {
    float* normed;
    RoundedRows rounded;
    int64_t width, groups;
};

// Memory for prepared rows of up to `width` numbers.
Workspace take_workspace(Scratch& scratch, int64_t rows, int64_t width, int threads) {
    const int64_t copies = rows > OWN_ROWS ? rows : rows * threads;
    Workspace space{};
    space.width = width;
    space.groups = rounded_up(width, 32) / 16;  // the smallest groups have 16 inputs
    space.normed = scratch.take<float>(copies * width);
    space.rounded.bytes = scratch.take<int8_t>(copies * space.groups * 16 * MAX_LIMBS);
    space.rounded.scales = scratch.take<float>(copies * space.groups);
    space.rounded.starts = scratch.take<int32_t>(copies * space.groups);
    space.rounded.totals = scratch.take<float>(copies * space.groups);
    return space;
}

// The rows of a product, made ready: normed where there is a norm, rounded where the weights are bytes. With few
// tokens each thread does so for itself, and only once it has got a piece of the product; with many it is a phase
// of its own.
class Inputs {
  public:
    Inputs(const Workspace& space, const Matrix& w, const float* x, int64_t stride, int64_t count, Phase& phase,
           const Member& me, const float* norm = nullptr, float eps = 0.0f)
        : x(x), stride(stride), count(count), norm(norm), eps(eps), w(w) {
        const bool shared = count > OWN_ROWS;
        const int64_t first = shared ? 0 : me.rank * count, at = first * space.groups;
        const RoundedRows& all = space.rounded;
        normed = space.normed + first * space.width;
        rows = {norm ? normed : x, norm ? w.num_inputs : stride,
                {all.bytes + at * 16 * MAX_LIMBS, all.scales + at, all.starts + at, all.totals + at, count}};
        ready = !norm && !w.limbs;
        if (ready || !shared) return;
        me.work(phase, count, [&](int64_t m) { prepare(m); });
        ready = true;
    }

    const Rows& get() const {
        for (int64_t m = 0; !ready && m < count; m++) prepare(m);
        ready = true;
        return rows;
    }

  private:
    const float* x;
    int64_t stride, count;
    const float* norm;
    float eps;
    const Matrix& w;
    float* normed;
    Rows rows;
    mutable bool ready;

    void prepare(int64_t m) const {
        const float* from = x + m * stride;
        if (norm) {
            rms_norm(from, norm, eps, w.num_inputs, normed + m * w.num_inputs);
            from = normed + m * w.num_inputs;
        }
        if (w.limbs) round_for(w, from, m);
    }

    void round_for(const Matrix& w, const float* from, int64_t m) const {
        const auto round = w.kind == SHORTS ? (w.limbs == 1 ? round_row<1, 16> : round_row<2, 16>)
                                            : (w.limbs == 1 ? round_row<1, 32> : round_row<2, 32>);
        round(from, w.num_inputs, m, dot_zero(w), rows.rounded);
    }
};

// A matrix in pieces of some panels: what a thread takes at once. They are taken in the order of memory, or in
// the one that is given.
struct Pieces {
    const Matrix& w;
    int64_t step, total;
    const int64_t* order;

    Pieces(const Matrix& w, int64_t step, const int64_t* order = nullptr)
        : w(w), step(step), total(rounded_up(w.num_panels, step) / step), order(order) {}

    // Two panels, which few rows meet together, where all threads then have equally many or very many pieces.
    Pieces(const Matrix& w, const Member& me)
        : Pieces(w, w.num_panels % (2 * me.size) == 0 || w.num_panels >= 16 * me.size ? 2 : 1) {}

    const char* at(int64_t piece) const { return panel_at(w, (order ? order[piece] : piece) * step); }

    // Where this thread will begin.
    const char* begin(const Member& me) const { return at(me.share(total).from); }

    // What it will read after a piece: the next of its share; behind the last, `then`.
    const char* after(int64_t piece, const Member& me, const char* then) const {
        const Share own = me.share(total);
        return piece >= own.from && piece + 1 < own.to ? at(piece + 1) : then;
    }
};

// All panels of a matrix as one phase. `then` is what this thread reads in the next one, or null.
void multiply_all(const Pieces& pieces, const Inputs& inputs, int64_t count, const Sink& sink, Phase& phase,
                  const Member& me, const char* then = nullptr) {
    const Matrix& w = pieces.w;
    me.work(phase, pieces.total, [&](int64_t piece) {
        const int64_t from = piece * pieces.step, to = from + pieces.step;
        multiply(w, inputs.get(), count, from, to < w.num_panels ? to : w.num_panels,
                 pieces.after(piece, me, then), sink);
    });
}

}  // namespace
