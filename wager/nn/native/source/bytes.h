// Rows rounded to whole numbers of 8 or 16 bits, and their products with unsigned 8-bit codes.
//
// A row is rounded group by group: the largest of a group becomes 127 or 32512, and the others keep their share
// of it. A number of 16 bits is 256 * high + low with two signed bytes, its limbs. The products of a group are
// summed exactly, in 32-bit integers, so their order does not matter, and every machine finds the same sums.
#pragma once

#include "vectors.h"

typedef int8_t BVec __attribute__((vector_size(LANES)));
typedef int8_t BVecAt __attribute__((vector_size(LANES), aligned(1), may_alias));

constexpr int MAX_LIMBS = 2;

// Four consecutive bytes of a row in every lane.
INLINE IVec four_bytes(const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return (IVec)_mm512_set1_epi32(four);
#elif defined(__AVX2__) && defined(__FMA__)
    return (IVec)_mm256_set1_epi32(four);
#else
    const IVec none = {};
    return none + four;
#endif
}

// dot<BITS>(sum, w, x): sum + w0 x0 + w1 x1 + w2 x2 + w3 x3 in every lane. The bytes of x have a sign; those of w
// have none and are below 2^BITS. WEIGHTS_HAVE_SIGN: bytes of w with 8 bits are 128 less, and have a sign.
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
constexpr bool WEIGHTS_HAVE_SIGN = false;
template <int BITS>
INLINE IVec dot(IVec sum, IVec w, IVec x) {
    return (IVec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
}
#elif defined(__AVXVNNI__) && defined(__AVX2__) && !defined(__AVX512BW__)
constexpr bool WEIGHTS_HAVE_SIGN = false;
template <int BITS>
INLINE IVec dot(IVec sum, IVec w, IVec x) {
    return (IVec)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x);
}
#elif defined(__AVX512F__) && defined(__AVX512BW__)
constexpr bool WEIGHTS_HAVE_SIGN = false;
template <int BITS>
INLINE IVec dot(IVec sum, IVec w, IVec x) {
    const __m512i a = (__m512i)w, b = (__m512i)x;
    if (BITS == 4) {  // 2 * 15 * 128 is far from the limit of 16 bits
        return sum + (IVec)_mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1));
    }
    // NOTE: maddubs would saturate: 2 * 255 * 128 exceeds 16 bits. So even and odd bytes are widened.
    const __m512i even = _mm512_and_si512(a, _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(a, 8);
    const __m512i x_even = _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8), x_odd = _mm512_srai_epi16(b, 8);
    return sum + (IVec)_mm512_madd_epi16(even, x_even) + (IVec)_mm512_madd_epi16(odd, x_odd);
}
#elif defined(__AVX2__) && defined(__FMA__)
constexpr bool WEIGHTS_HAVE_SIGN = false;
template <int BITS>
INLINE IVec dot(IVec sum, IVec w, IVec x) {
    const __m256i a = (__m256i)w, b = (__m256i)x;
    if (BITS == 4) {  // 2 * 15 * 128 is far from the limit of 16 bits
        return sum + (IVec)_mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1));
    }
    // NOTE: maddubs would saturate: 2 * 255 * 128 exceeds 16 bits. So even and odd bytes are widened.
    const __m256i even = _mm256_and_si256(a, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(a, 8);
    const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8), x_odd = _mm256_srai_epi16(b, 8);
    return sum + (IVec)_mm256_madd_epi16(even, x_even) + (IVec)_mm256_madd_epi16(odd, x_odd);
}
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr bool WEIGHTS_HAVE_SIGN = true;
template <int BITS>
INLINE IVec dot(IVec sum, IVec w, IVec x) {
    return (IVec)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x);
}
#else
constexpr bool WEIGHTS_HAVE_SIGN = false;
template <int BITS>
INLINE IVec dot(IVec sum, IVec w, IVec x) {
    for (int j = 0; j < 4; j++) sum += ((w >> (8 * j)) & 255) * ((x << (24 - 8 * j)) >> 24);
    return sum;
}
#endif

// What a product reads of `count` rounded rows, each [groups][rows], so that a tile's rows lie side by side; `bytes`
// is [groups][rows][limbs][inputs of a group].
struct RoundedRows {
    int8_t* bytes;
    float* scales;
    int32_t* starts;  // -zero times the sum of the group's whole numbers
    float* totals;    // the sum of the group's numbers after rounding
    int64_t count;
};

// Rounds row `m` of `size` numbers, and fills its last group up with zeros.
template <int LIMBS, int INPUTS>
static void round_row(const float* x, int64_t size, int64_t m, int32_t zero, const RoundedRows& to) {
    static_assert(INPUTS % LANES == 0 && INPUTS <= 32, "a group is a few whole vectors");
    constexpr int VECS = INPUTS / LANES;
    constexpr float MOST = LIMBS == 1 ? 127.0f : 127.0f * 256.0f;
    const Vec magic = splat(12582912.0f);
    for (int64_t g = 0; g * INPUTS < size; g++) {
        const float* from = x + g * INPUTS;
        float last[INPUTS] = {};
        if (size - g * INPUTS < INPUTS) {
            std::memcpy(last, from, (size - g * INPUTS) * sizeof(float));
            from = last;
        }
        Vec best = {}, strange = {};
        for (int v = 0; v < VECS; v++) {
            const Vec numbers = load(from + v * LANES);
            best = larger(larger(numbers, -numbers), best);
            strange += numbers - numbers;  // 0, or NaN where a number is not finite: it must not vanish
        }
        const float largest = max_lanes(best);
        const Vec shrink = splat(largest > 1e-30f ? MOST / largest : 0.0f);  // smaller: the share would overflow
        IVec total = {};
        const int64_t at = g * to.count + m;
        int8_t* bytes = to.bytes + at * LIMBS * INPUTS;
        for (int v = 0; v < VECS; v++, bytes += LANES) {
            const IVec whole = as_bits(fma(load(from + v * LANES), shrink, magic)) - as_bits(magic);
            total += whole;
            if (LIMBS == 1) {
                *reinterpret_cast<BVecAt*>(bytes) = __builtin_convertvector(whole, BVec);
                continue;
            }
            const IVec low = (whole << 24) >> 24;
            *reinterpret_cast<BVecAt*>(bytes) = __builtin_convertvector((whole - low) >> 8, BVec);
            *reinterpret_cast<BVecAt*>(bytes + INPUTS) = __builtin_convertvector(low, BVec);
        }
        const int32_t sum = sum_lanes(total);
        to.scales[at] = any_nan(strange) ? std::numeric_limits<float>::quiet_NaN() : largest / MOST;
        to.starts[at] = -zero * sum;
        to.totals[at] = to.scales[at] * static_cast<float>(sum);
    }
}
