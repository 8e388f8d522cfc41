// 8-bit numbers: rows rounded to them, and their products with 8-bit weights.
//
// A row is rounded group by group: the largest of GROUP numbers becomes 127, the others keep their share of it.
// The products of a group are summed exactly, in whole numbers, so their order does not matter.
#pragma once

#include "vectors.h"

typedef int8_t BVec __attribute__((vector_size(LANES)));
typedef int8_t BVecAt __attribute__((vector_size(LANES), aligned(1), may_alias));

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
INLINE IVec splat_whole(int32_t x) { return (IVec)_mm512_set1_epi32(x); }
// sum + w0 x0 + w1 x1 + w2 x2 + w3 x3 in every lane: w four bytes of the lane without sign, x four with.
INLINE IVec dot_bytes(IVec sum, IVec weights, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return (IVec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(four));
}
#elif defined(__AVXVNNI__) && defined(__AVX2__) && !defined(__AVX512BW__)
INLINE IVec splat_whole(int32_t x) { return (IVec)_mm256_set1_epi32(x); }
INLINE IVec dot_bytes(IVec sum, IVec weights, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return (IVec)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, _mm256_set1_epi32(four));
}
#else
INLINE IVec splat_whole(int32_t x) {
    const IVec none = {};
    return none + x;
}
INLINE IVec dot_bytes(IVec sum, IVec weights, const int8_t* x) {
    for (int j = 0; j < 4; j++) sum += ((weights >> (8 * j)) & 255) * static_cast<int32_t>(x[j]);
    return sum;
}
#endif

// Round `size` numbers; `bytes` has room for whole groups of `group`, and is filled up with zeros.
static void round_row(const float* x, int64_t size, int64_t group, int8_t* bytes, float* scales, int32_t* sums) {
    for (int64_t g = 0; g * group < size; g++) {
        const float* from = x + g * group;
        int8_t* to = bytes + g * group;
        const int64_t count = size - g * group < group ? size - g * group : group;
        float last[64] = {};
        if (count < group) {
            std::memcpy(last, from, count * sizeof(float));
            from = last;
        }
        Vec best = {}, strange = {};
        for (int64_t i = 0; i < group; i += LANES) {
            const Vec v = load(from + i);
            best = larger(larger(v, -v), best);
            strange += v - v;  // 0, or NaN where a number is not finite: it must not vanish in the rounding
        }
        const float largest = max_lanes(best);
        const Vec shrink = splat(largest > 0.0f ? 127.0f / largest : 0.0f), magic = splat(12582912.0f);
        IVec total = {};
        for (int64_t i = 0; i < group; i += LANES) {
            const IVec whole = as_bits(fma(load(from + i), shrink, magic)) - as_bits(magic);
            *reinterpret_cast<BVecAt*>(to + i) = __builtin_convertvector(whole, BVec);
            total += whole;
        }
        scales[g] = any_nan(strange) ? std::numeric_limits<float>::quiet_NaN() : largest / 127.0f;
        sums[g] = -128 * sum_lanes(total);
    }
}
