// Gumbel noise as a pure function of (seed, position, token); wager/tree/noise.py has the recipe.
//
// Exact noise is computed in double and rounded once, as everywhere else. A bound of it costs a few operations and
// tells which tokens need not be looked at exactly. Approximate noise, for drafts, is computed in float vectors.
#pragma once

#include "vectors.h"

typedef uint32_t UVec __attribute__((vector_size(LANES * 4)));

constexpr uint32_t TOKEN_STEP = 0xC2B2AE3Du;

template <class Words>
INLINE Words mix(Words x) {
    x ^= x >> 16;
    x *= 0x85EBCA6Bu;
    x ^= x >> 13;
    x *= 0xC2B2AE35u;
    return x ^ (x >> 16);
}

// The two words that a seed and a position are turned into.
struct PositionKey {
    uint32_t first, second;

    PositionKey(uint64_t seed, int64_t position) {
        const uint32_t low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
        const uint32_t place = static_cast<uint32_t>(position);
        first = mix((mix(low + 0x9E3779B9u) ^ high));
        second = mix((mix(high + 0x7F4A7C15u) ^ low));
        first = mix(first + place * 0x9E3779B1u);
        second = mix(second ^ (place * 0x85EBCA77u));
    }
};

INLINE float exact_noise(const PositionKey& key, int64_t token) {
    const uint32_t word = mix(mix(static_cast<uint32_t>(token) * TOKEN_STEP + key.first) ^ key.second);
    const double uniform = (static_cast<double>(word) + 0.5) * 0x1p-32;
    return static_cast<float>(-std::log(-std::log(uniform)));
}

// A number that noise does not exceed, of the tokens whose multiples of TOKEN_STEP these are.
//
// With m = 1 - u the noise is -log(-log(1 - m)) <= -log(m), and the bits of a float, read as a whole number, are at
// most its logarithm to base 2, apart from a scale.
INLINE Vec noise_bound(const PositionKey& key, UVec steps) {
    const UVec word = mix(mix(steps + key.first) ^ key.second);
    const Vec missing = (__builtin_convertvector(~word, Vec) + 0.5f) * 0x1p-32f;
    const Vec log2 = fma(__builtin_convertvector(as_bits(missing), Vec), splat(0x1p-23f), splat(-127.0f));
    return fma(log2, splat(-0.69314718056f), splat(1e-3f));  // a little more, for what is rounded
}

// The natural logarithm of positive normal numbers.
INLINE Vec logarithm(Vec x) {
    const IVec bits = as_bits(x);
    // The mantissa from sqrt(1/2) to sqrt(2), and the exponent that belongs to it.
    const IVec shifted = bits - 0x3f3504f3;
    const Vec exponent = __builtin_convertvector(shifted >> 23, Vec);
    const Vec mantissa = as_floats(bits - (shifted & int32_t(0xff800000)));
    const Vec z = (mantissa - 1.0f) / (mantissa + 1.0f), square = z * z;
    Vec poly = splat(2.0f / 9.0f);
    poly = fma(poly, square, splat(2.0f / 7.0f));
    poly = fma(poly, square, splat(2.0f / 5.0f));
    poly = fma(poly, square, splat(2.0f / 3.0f));
    poly = fma(poly, square, splat(2.0f));
    return fma(exponent, splat(0.69314718056f), poly * z);
}

// Approximate noise of the tokens whose multiples of TOKEN_STEP these are.
INLINE Vec approximate_noise(const PositionKey& key, UVec steps) {
    const UVec word = mix(mix(steps + key.first) ^ key.second);
    // Near 1 a float cannot tell uniform numbers apart, so the logarithm is taken of what is missing to 1.
    const Vec missing = (__builtin_convertvector(~word, Vec) + 0.5f) * 0x1p-32f;
    const Vec uniform = (__builtin_convertvector(word, Vec) + 0.5f) * 0x1p-32f;
    const Vec z = missing / (splat(2.0f) - missing), square = z * z;
    Vec poly = splat(2.0f / 11.0f);
    poly = fma(poly, square, splat(2.0f / 9.0f));
    poly = fma(poly, square, splat(2.0f / 7.0f));
    poly = fma(poly, square, splat(2.0f / 5.0f));
    poly = fma(poly, square, splat(2.0f / 3.0f));
    poly = fma(poly, square, splat(2.0f));
    const Vec small = poly * z, large = -logarithm(uniform);
    return -logarithm(missing < 0.5f ? small : large);
}

INLINE UVec first_steps() {
    UVec steps;
    for (int lane = 0; lane < LANES; lane++) steps[lane] = static_cast<uint32_t>(lane) * TOKEN_STEP;
    return steps;
}
