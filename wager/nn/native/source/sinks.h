// What becomes of a product's tiles: stored, added to the residual, gated.
#pragma once

#include "rows.h"

namespace {

struct StoreSink : Sink {
    float* out;
    int64_t stride, columns;
    const float* bias;
    StoreSink(float* out, int64_t stride, int64_t columns, const float* bias)
        : out(out), stride(stride), columns(columns), bias(bias) {}
    void take(int64_t panel, int64_t first, int rows, const float* sums) const override {
        const int64_t at = panel * PANEL, count = columns - at < PANEL ? columns - at : PANEL;
        for (int m = 0; m < rows; m++) {
            float* to = out + (first + m) * stride + at;
            const float* from = sums + m * PANEL;
            if (bias)
                for (int64_t i = 0; i < count; i++) to[i] = from[i] + bias[at + i];
            else
                std::memcpy(to, from, count * sizeof(float));
        }
    }
};

struct AddSink : StoreSink {
    using StoreSink::StoreSink;
    void take(int64_t panel, int64_t first, int rows, const float* sums) const override {
        const int64_t at = panel * PANEL, count = columns - at < PANEL ? columns - at : PANEL;
        for (int m = 0; m < rows; m++) {
            float* to = out + (first + m) * stride + at;
            const float* from = sums + m * PANEL;
            for (int64_t i = 0; i < count; i++) to[i] += bias ? from[i] + bias[at + i] : from[i];
        }
    }
};

// Adds to x, and hands out what a layer gives to the next where that is wanted.
struct FeatureSink : AddSink {
    const Pass& pass;
    int64_t layer;
    FeatureSink(const Net& net, const Pass& pass, const Plan& plan, int64_t layer, const float* bias)
        : AddSink(plan.x, net.hidden, net.hidden, bias), pass(pass), layer(layer) {}
    void take(int64_t panel, int64_t first, int rows, const float* sums) const override {
        AddSink::take(panel, first, rows, sums);
        const int64_t at = panel * PANEL, count = columns - at < PANEL ? columns - at : PANEL;
        for (int64_t tap = 0; tap < pass.num_taps; tap++) {
            if (pass.taps[tap] != layer) continue;
            for (int m = 0; m < rows; m++)
                std::memcpy(pass.features + ((first + m) * pass.num_taps + tap) * columns + at,
                            out + (first + m) * stride + at, count * sizeof(float));
        }
    }
};

// silu(gate) * up; a panel holds LANES of each.
struct GateSink : Sink {
    float* out;
    int64_t stride;
    const float* bias;
    GateSink(float* out, int64_t stride, const float* bias) : out(out), stride(stride), bias(bias) {}
    void take(int64_t panel, int64_t first, int rows, const float* sums) const override {
        for (int m = 0; m < rows; m++) {
            Vec gate = load(sums + m * PANEL), up = load(sums + m * PANEL + LANES);
            if (bias) {
                gate += load(bias + panel * PANEL);
                up += load(bias + panel * PANEL + LANES);
            }
            store(out + (first + m) * stride + panel * LANES, gate / (exponential(-gate) + 1.0f) * up);
        }
    }
};

}  // namespace
