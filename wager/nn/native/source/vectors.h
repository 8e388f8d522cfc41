// Vectors of floats as wide as this machine has them, and the few operations the kernels need.
//
// Arithmetic is spelled out (every fused multiply-add is asked for by name, the compiler may contract nothing:
// -ffp-contract=off), so that the same sum is rounded the same way in every kernel it is compiled into.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>
#define WAGER_SIMD "avx512"
constexpr int LANES = 16;
constexpr int TILE_ROWS = 12;   // 12 x 2 sums, 2 weights and a broadcast: 27 of 32 registers
constexpr int QUERY_ROWS = 6;   // attention: 6 queries x 4 vectors of keys, or
constexpr int BLEND_ROWS = 4;   // 4 x 4 sums, 4 totals, 4 values and a broadcast
constexpr int ROUNDED_ROWS = 8;
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define WAGER_SIMD "avx2"
constexpr int LANES = 8;
constexpr int TILE_ROWS = 6;    // 6 x 2 sums, 2 weights and a broadcast: 15 of 16 registers
constexpr int QUERY_ROWS = 2;
constexpr int BLEND_ROWS = 2;
constexpr int ROUNDED_ROWS = 4;
#else
#define WAGER_SIMD "plain"
constexpr int LANES = 4;
#if defined(__aarch64__)
#include <arm_neon.h>
constexpr int TILE_ROWS = 12;
constexpr int QUERY_ROWS = 4;
constexpr int BLEND_ROWS = 4;
constexpr int ROUNDED_ROWS = 8;
#else
constexpr int TILE_ROWS = 6;
constexpr int QUERY_ROWS = 2;
constexpr int BLEND_ROWS = 2;
constexpr int ROUNDED_ROWS = 4;
#endif
#endif

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t IVec __attribute__((vector_size(LANES * 4)));
// The same in memory: at any address of a float, and allowed to look at any type.
typedef float VecAt __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t IVecAt __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE Vec load(const float* at) { return *reinterpret_cast<const VecAt*>(at); }
INLINE void store(float* at, Vec value) { *reinterpret_cast<VecAt*>(at) = value; }
INLINE IVec load_bits(const void* at) { return *reinterpret_cast<const IVecAt*>(at); }
INLINE Vec as_floats(IVec bits) { return reinterpret_cast<Vec>(bits); }
INLINE IVec as_bits(Vec value) { return reinterpret_cast<IVec>(value); }

#if defined(__AVX512F__) && defined(__AVX512BW__)
INLINE Vec splat(float x) { return (Vec)_mm512_set1_ps(x); }
INLINE Vec fma(Vec a, Vec b, Vec c) { return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(__AVX2__) && defined(__FMA__)
INLINE Vec splat(float x) { return (Vec)_mm256_set1_ps(x); }
INLINE Vec fma(Vec a, Vec b, Vec c) { return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#elif defined(__aarch64__)
INLINE Vec splat(float x) { return (Vec)vdupq_n_f32(x); }
INLINE Vec fma(Vec a, Vec b, Vec c) {
    return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
INLINE Vec splat(float x) { return Vec{x, x, x, x}; }
INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
#endif

// LANES float16 numbers, which must be finite, as floats.
INLINE Vec load_halves(const void* at) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(at)));
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
    return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(at)));
#else
    // The exponent is moved to its place and then made up for: 2^112 is the ratio of the two biases.
    int16_t halves[LANES];
    std::memcpy(halves, at, sizeof(halves));
    IVec bits = {};
    for (int i = 0; i < LANES; i++) bits[i] = halves[i];
    const Vec size = as_floats((bits & 0x7fff) << 13) * 5.192296858534828e33f;
    return as_floats(as_bits(size) | (bits & int32_t(0x80000000)));
#endif
}

// Keeps a value in a register that is used several times: compilers else read it from memory for every use.
INLINE Vec held(Vec value) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(value));
#elif defined(__AVX2__)
    __asm__("" : "+x"(value));
#endif
    return value;
}

INLINE IVec held(IVec value) { return as_bits(held(as_floats(value))); }

// A fused multiply-add of single numbers, rounded as the vectors are.
INLINE float fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

INLINE Vec larger(Vec a, Vec b) { return a > b ? a : b; }

// Whether any lane of a is larger than b's.
INLINE bool any_larger(Vec a, Vec b) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0;
#elif defined(__AVX2__) && defined(__FMA__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ)) != 0;
#else
    const IVec beyond = a > b;
    int32_t any = 0;
    for (int i = 0; i < LANES; i++) any |= beyond[i];
    return any != 0;
#endif
}

INLINE bool any_nan(Vec value) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return _mm512_cmp_ps_mask((__m512)value, (__m512)value, _CMP_UNORD_Q) != 0;
#else
    const IVec strange = value != value;
    int32_t any = 0;
    for (int i = 0; i < LANES; i++) any |= strange[i];
    return any != 0;
#endif
}

// Halves are added until one number is left: the same order for every machine's width up to 16 lanes.
INLINE float sum_lanes(Vec value) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return _mm512_reduce_add_ps((__m512)value);
#else
    float lanes[LANES];
    store(lanes, value);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
#endif
}

INLINE int32_t sum_lanes(IVec value) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return _mm512_reduce_add_epi32((__m512i)value);
#else
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) sum += value[i];
    return sum;
#endif
}

// No lane may be NaN.
INLINE float max_lanes(Vec value) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return _mm512_reduce_max_ps((__m512)value);
#else
    float best = value[0];
    for (int i = 1; i < LANES; i++) best = value[i] > best ? value[i] : best;
    return best;
#endif
}

// e^x to within two units of the last place; 0 below -87, where results would no longer be normal numbers.
// NaN stays NaN.
INLINE Vec exponential(Vec x) {
    const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    Vec clipped = x > 88.0f ? splat(88.0f) : x;
    Vec shifted = fma(clipped, splat(1.44269504088896341f), magic);
    Vec whole = shifted - magic;
    Vec rest = fma(whole, splat(-0.693359375f), clipped);
    rest = fma(whole, splat(2.12194440e-4f), rest);
    Vec poly = splat(1.9875691500e-4f);
    poly = fma(poly, rest, splat(1.3981999507e-3f));
    poly = fma(poly, rest, splat(8.3334519073e-3f));
    poly = fma(poly, rest, splat(4.1665795894e-2f));
    poly = fma(poly, rest, splat(1.6666665459e-1f));
    poly = fma(poly, rest, splat(5.0000001201e-1f));
    poly = fma(poly, rest * rest, rest) + 1.0f;
    IVec exponent = (as_bits(shifted) - as_bits(magic)) << 23;
    Vec result = as_floats(as_bits(poly) + exponent);
    result = x == x ? result : x;
    return x < -87.0f ? Vec{} : result;
}

// weight * x / sqrt(mean(x^2) + eps) for `size` numbers; sums run in LANES columns, then over the lanes.
static void rms_norm(const float* x, const float* weight, float eps, int64_t size, float* out) {
    Vec squares = {};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        Vec v = load(x + i);
        squares = fma(v, v, squares);
    }
    float total = sum_lanes(squares);
    for (; i < size; i++) total += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(total / static_cast<float>(size) + eps);
    for (i = 0; i + LANES <= size; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
    for (; i < size; i++) out[i] = x[i] * scale * weight[i];
}
