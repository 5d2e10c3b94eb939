/* What every kernel shares: types, vectors, functions on them, tiles.
 *
 * A source is compiled once per type (MMSSM_DOUBLE is 0 or 1) and instruction
 * set (MMSSM_ISA is its name). A kernel works on tiles: up to TILE_STEPS time
 * steps of LANES neighbouring channels, packed as [time][lane], so that one
 * vector holds the same step of several channels. Tiles hide the strides and
 * the direction of time of the tensors they are packed from.
 */

#ifndef MMSSM_COMMON_H
#define MMSSM_COMMON_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if MMSSM_DOUBLE
typedef double real;
typedef int64_t integer; /* as wide as a real */
#define MMSSM_TYPE f64
#else
typedef float real;
typedef int32_t integer;
#define MMSSM_TYPE f32
#endif

#define MMSSM_JOIN_(name, type, isa, end) mmssm_##name##_##type##_##isa##end
#define MMSSM_JOIN(name, type, isa, end) MMSSM_JOIN_(name, type, isa, end)
#define MMSSM_PUBLIC __attribute__((visibility("default")))

/* A kernel's public function; the body follows. It takes one structure, whose
 * size the Python side compares with its own, and returns 0, or 1 if there
 * was no memory. */
#define MMSSM_KERNEL(name, arguments)                                        \
    MMSSM_PUBLIC int32_t MMSSM_JOIN(name, MMSSM_TYPE, MMSSM_ISA, _size)(void) \
    {                                                                        \
        return (int32_t)sizeof(arguments);                                   \
    }                                                                        \
    MMSSM_PUBLIC int32_t MMSSM_JOIN(name, MMSSM_TYPE, MMSSM_ISA, )(          \
        const arguments *args)

/* A tensor: its first element and its strides, in elements, in the order of
 * its axes. `data` is NULL for an argument that was left out. */
typedef struct {
    real *data;
    int64_t stride[4];
} tensor;

/* Let `t` run backwards along an axis of `length` elements. */
static inline tensor tensor_reversed(tensor t, int axis, int64_t length)
{
    if (t.data) {
        t.data += (length - 1) * t.stride[axis];
        t.stride[axis] = -t.stride[axis];
    }
    return t;
}

static inline int64_t int64_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* Memory for `count` reals, aligned for vectors; NULL if there is none. */
static inline real *scratch_new(int64_t count)
{
    size_t bytes = ((size_t)count * sizeof(real) + 63) / 64 * 64;
    return aligned_alloc(64, bytes ? bytes : 64);
}

/* ---- vectors ---------------------------------------------------------- */

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX2__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif
#if MMSSM_DOUBLE
#define VEC_LANES (VEC_BYTES / 8)
#else
#define VEC_LANES (VEC_BYTES / 4)
#endif

/* Extensions of gcc and clang: arithmetic works on all lanes, also between a
 * vector and a scalar; comparisons give 0 or -1 in each lane of an ivec. */
typedef real vec __attribute__((vector_size(VEC_BYTES)));
typedef integer ivec __attribute__((vector_size(VEC_BYTES)));

static inline vec vec_load(const real *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void vec_store(real *p, vec v) { memcpy(p, &v, sizeof v); }

/* Minus zero keeps the sign of a zero. */
static inline vec vec_set(real x) { return x - (vec){0}; }

static inline vec vec_select(ivec mask, vec yes, vec no)
{
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

/* The smaller and the larger one of a bound and x; x if x is a NaN. */
#if defined(__AVX512F__) && MMSSM_DOUBLE
static inline vec vec_at_most(vec x, real b) { return (vec)_mm512_min_pd((__m512d)vec_set(b), (__m512d)x); }
static inline vec vec_at_least(vec x, real b) { return (vec)_mm512_max_pd((__m512d)vec_set(b), (__m512d)x); }
#elif defined(__AVX512F__)
static inline vec vec_at_most(vec x, real b) { return (vec)_mm512_min_ps((__m512)vec_set(b), (__m512)x); }
static inline vec vec_at_least(vec x, real b) { return (vec)_mm512_max_ps((__m512)vec_set(b), (__m512)x); }
#elif defined(__AVX2__) && MMSSM_DOUBLE
static inline vec vec_at_most(vec x, real b) { return (vec)_mm256_min_pd((__m256d)vec_set(b), (__m256d)x); }
static inline vec vec_at_least(vec x, real b) { return (vec)_mm256_max_pd((__m256d)vec_set(b), (__m256d)x); }
#elif defined(__AVX2__)
static inline vec vec_at_most(vec x, real b) { return (vec)_mm256_min_ps((__m256)vec_set(b), (__m256)x); }
static inline vec vec_at_least(vec x, real b) { return (vec)_mm256_max_ps((__m256)vec_set(b), (__m256)x); }
#elif defined(__SSE2__) && MMSSM_DOUBLE
static inline vec vec_at_most(vec x, real b) { return (vec)_mm_min_pd((__m128d)vec_set(b), (__m128d)x); }
static inline vec vec_at_least(vec x, real b) { return (vec)_mm_max_pd((__m128d)vec_set(b), (__m128d)x); }
#elif defined(__SSE2__)
static inline vec vec_at_most(vec x, real b) { return (vec)_mm_min_ps((__m128)vec_set(b), (__m128)x); }
static inline vec vec_at_least(vec x, real b) { return (vec)_mm_max_ps((__m128)vec_set(b), (__m128)x); }
#else
static inline vec vec_at_most(vec x, real b) { return vec_select(x > b, vec_set(b), x); }
static inline vec vec_at_least(vec x, real b) { return vec_select(x < b, vec_set(b), x); }
#endif

static inline vec vec_abs(vec x)
{
    const integer sign = (integer)1 << (8 * sizeof(real) - 1);
    return (vec)((ivec)x & ~sign);
}

/* ---- functions -------------------------------------------------------- */

/* exp(x), within 1 unit in the last place; denormal results become 0.
 *
 * x = k log 2 + f; the polynomial is 2 exp(f), so that the factor 2^(k-1) is
 * a number for every k up to the overflow, and 0 at the underflow. Adding
 * `magic` rounds to an integer, which the low bits of the sum then hold. */
static inline vec vec_exp(vec x)
{
#if MMSSM_DOUBLE
    const real lowest = -708.39, highest = 710.0;
    const real magic = 6755399441055744.0;
    const real log2_high = 6.93147180369123816490e-01;
    const real log2_low = 1.90821492927058770002e-10;
    const int mantissa = 52;
    const integer bias = 1022;
    static const real coefs[] = {
        5.0000123205671333399e-8, 5.526049675842288795e-7,
        5.5115172747680327387e-6, 4.9602986197813101318e-5,
        3.9682539013157375307e-4, 2.7777777887260225892e-3,
        1.6666666666988923328e-2, 8.333333333306031718e-2,
        3.3333333333332825046e-1, 1.0000000000000021254,
        2.0, 2.0,
    };
#else
    const real lowest = -87.3f, highest = 89.0f;
    const real magic = 12582912.0f;
    const real log2_high = 0.693359375f;
    const real log2_low = -2.12194440054690583e-4f;
    const int mantissa = 23;
    const integer bias = 126;
    static const real coefs[] = {
        2.7629197293e-3f, 1.67374337594e-2f, 8.33367760906e-2f,
        3.33330412634e-1f, 9.9999986895593e-1f, 2.0f, 2.0f,
    };
#endif
    const int count = sizeof coefs / sizeof coefs[0];
    x = vec_at_least(vec_at_most(x, highest), lowest);
    vec rounded = x * (real)1.44269504088896340736 + magic;
    vec k = rounded - magic;
    vec f = (x - k * log2_high) - k * log2_low;
    vec p = vec_set(coefs[0]);
    for (int i = 1; i < count; i++) p = p * f + coefs[i];
    return p * (vec)(((ivec)rounded << mantissa) + (bias << mantissa));
}

/* 2^x for decays: less work than vec_exp; denormal results become 0.
 *
 * The integer below x goes to the exponent, the rest f, from 0 to 1, to a
 * polynomial 2^f that is 1 for f = 0. */
static inline vec vec_exp2(vec x)
{
#if MMSSM_DOUBLE
    const real lowest = -1022;
    static const real coefs[] = {
        6.2634661422960210149e-10, 6.559529322770528367e-9,
        1.0253212435721934234e-7, 1.3208367288951140366e-6,
        1.5253175055562795993e-5, 1.5403512309628660399e-4,
        1.3333558629566755226e-3, 9.6181290995507955717e-3,
        5.5504108665602253297e-2, 2.4022650695906330204e-1,
        6.9314718055994592842e-1, 1.0,
    };
#else
    const real lowest = -126;
    static const real coefs[] = {
        2.1612915944102780e-4f, 1.2467846173865844e-3f,
        9.6754515935860426e-3f, 5.5485280607947349e-2f,
        2.4022930555352396e-1f, 6.9314704444339827e-1f, 1.0f,
    };
#endif
    const int count = sizeof coefs / sizeof coefs[0];
    vec p = vec_set(coefs[0]);
#if defined(__AVX512DQ__) && MMSSM_DOUBLE
    const vec f = (vec)_mm512_reduce_pd((__m512d)x, _MM_FROUND_FLOOR);
    for (int i = 1; i < count; i++) p = p * f + coefs[i];
    return (vec)_mm512_maskz_scalef_pd(
        _mm512_cmp_pd_mask((__m512d)x, (__m512d)vec_set(lowest), _CMP_NLT_UQ),
        (__m512d)p, (__m512d)x);
#elif defined(__AVX512DQ__)
    const vec f = (vec)_mm512_reduce_ps((__m512)x, _MM_FROUND_FLOOR);
    for (int i = 1; i < count; i++) p = p * f + coefs[i];
    return (vec)_mm512_maskz_scalef_ps(
        _mm512_cmp_ps_mask((__m512)x, (__m512)vec_set(lowest), _CMP_NLT_UQ),
        (__m512)p, (__m512)x);
#else
    /* As in vec_exp: the exponent is one less and the polynomial twice 2^f,
     * so that the factor is a number, or 0 at the underflow. */
    const real magic = MMSSM_DOUBLE ? 6755399441055744.0 : 12582912.0;
    const int mantissa = MMSSM_DOUBLE ? 52 : 23;
    const integer bias = MMSSM_DOUBLE ? 1022 : 126;
    x = vec_at_least(vec_at_most(x, 2 - lowest), lowest);
    const vec rounded = (x - (real)0.5) + magic;
    const vec f = x - (rounded - magic);
    for (int i = 1; i < count; i++) p = p * f + coefs[i];
    return (p + p) * (vec)(((ivec)rounded << mantissa) + (bias << mantissa));
#endif
}

/* log(1 + y) for 0 <= y <= 1: 2 artanh(s) with s = y / (2 + y). */
static inline vec vec_log1p_unit(vec y)
{
#if MMSSM_DOUBLE
    static const real coefs[] = {
        1.7019618245120895755e-1, 8.339555541101340359e-2,
        1.2106207697670361758e-1, 1.3300958704206637346e-1,
        1.5386561018223298568e-1, 1.8181743875461338396e-1,
        2.2222223971074977967e-1, 2.8571428547833321494e-1,
        4.0000000000157396294e-1, 6.666666666666630341e-1,
    };
#else
    static const real coefs[] = {
        2.43016727e-1f, 2.14274776436e-1f, 2.8616899779e-1f,
        3.9998877260e-1f, 6.66666756267e-1f,
    };
#endif
    const int count = sizeof coefs / sizeof coefs[0];
    vec s = y / (y + 2);
    vec square = s * s;
    vec p = vec_set(coefs[0]);
    for (int i = 1; i < count; i++) p = p * square + coefs[i];
    return s * square * p + 2 * s;
}

/* log(1 + exp(x)), exact over the whole range. */
static inline vec vec_softplus(vec x)
{
    return vec_at_least(x, 0) + vec_log1p_unit(vec_exp(-vec_abs(x)));
}

static inline vec vec_sigmoid(vec x) { return 1 / (1 + vec_exp(-x)); }

static inline vec vec_silu(vec x) { return x * vec_sigmoid(x); }

/* d silu(x) / dx */
static inline vec vec_silu_slope(vec x)
{
    vec s = vec_sigmoid(x);
    return s * (1 + x * (1 - s));
}

/* ---- tiles ------------------------------------------------------------ */

#define LANES 16
#define TILE_STEPS 64
#define TILE_SIZE (TILE_STEPS * LANES)

/* A vector holds the quads of several channels: groups of 4 lanes. The four
 * shuffles below act on each quad alone; two rounds of them transpose the
 * quads of 4 vectors. Older compilers, and vectors shorter than a quad, copy
 * element by element instead. */
typedef real quad __attribute__((vector_size(4 * sizeof(real))));

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE __builtin_shufflevector
#if VEC_LANES == 16
#define MMSSM_TRANSPOSE 1
typedef real half __attribute__((vector_size(8 * sizeof(real))));
#define LOW(a, b) \
    SHUFFLE(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define HIGH(a, b) \
    SHUFFLE(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define FRONT(a, b) \
    SHUFFLE(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define BACK(a, b) \
    SHUFFLE(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#elif VEC_LANES == 8
#define MMSSM_TRANSPOSE 1
#define LOW(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(a, b) SHUFFLE(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define FRONT(a, b) SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define BACK(a, b) SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#elif VEC_LANES == 4
#define MMSSM_TRANSPOSE 1
#define LOW(a, b) SHUFFLE(a, b, 0, 4, 1, 5)
#define HIGH(a, b) SHUFFLE(a, b, 2, 6, 3, 7)
#define FRONT(a, b) SHUFFLE(a, b, 0, 1, 4, 5)
#define BACK(a, b) SHUFFLE(a, b, 2, 3, 6, 7)
#endif
#endif
#endif

#ifdef MMSSM_TRANSPOSE
static inline quad quad_load(const real *p)
{
    quad q;
    memcpy(&q, p, sizeof q);
    return q;
}

static inline void quad_store(real *p, quad q) { memcpy(p, &q, sizeof q); }

/* Element c of quad g in vector r trades places with element r of quad g in
 * vector c. */
static inline void vec_transpose_quads(vec *v)
{
    vec a = LOW(v[0], v[1]), b = HIGH(v[0], v[1]);
    vec c = LOW(v[2], v[3]), d = HIGH(v[2], v[3]);
    v[0] = FRONT(a, c);
    v[1] = BACK(a, c);
    v[2] = FRONT(b, d);
    v[3] = BACK(b, d);
}

/* A vector of the quads at p, p + step, p + 2 step, ... */
static inline vec vec_gather_quads(const real *p, int64_t step)
{
#if VEC_LANES == 16
    half low = SHUFFLE(quad_load(p), quad_load(p + step), 0, 1, 2, 3, 4, 5,
                       6, 7);
    half high = SHUFFLE(quad_load(p + 2 * step), quad_load(p + 3 * step), 0,
                        1, 2, 3, 4, 5, 6, 7);
    return SHUFFLE(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,
                   14, 15);
#elif VEC_LANES == 8
    return SHUFFLE(quad_load(p), quad_load(p + step), 0, 1, 2, 3, 4, 5, 6, 7);
#else
    (void)step;
    return quad_load(p);
#endif
}

static inline void vec_scatter_quads(real *p, int64_t step, vec v)
{
    (void)step;
    quad_store(p, SHUFFLE(v, v, 0, 1, 2, 3));
#if VEC_LANES >= 8
    quad_store(p + step, SHUFFLE(v, v, 4, 5, 6, 7));
#endif
#if VEC_LANES == 16
    quad_store(p + 2 * step, SHUFFLE(v, v, 8, 9, 10, 11));
    quad_store(p + 3 * step, SHUFFLE(v, v, 12, 13, 14, 15));
#endif
}

/* Copy 4 steps of LANES channels, from channels of contiguous steps to a tile
 * and back. With `forward` -1 the steps run against the memory. */
static inline void tile_load_4(
    real *tile, const real *src, int64_t lane_stride, int64_t forward)
{
    const real *start = forward == 1 ? src : src - 3;
    for (int j = 0; j < LANES; j += VEC_LANES) {
        vec v[4];
        for (int r = 0; r < 4; r++)
            v[r] = vec_gather_quads(start + (j + r) * lane_stride,
                                    4 * lane_stride);
        vec_transpose_quads(v);
        for (int r = 0; r < 4; r++)
            vec_store(tile + (forward == 1 ? r : 3 - r) * LANES + j, v[r]);
    }
}

static inline void tile_store_4(
    real *dst, const real *tile, int64_t lane_stride, int64_t forward)
{
    real *start = forward == 1 ? dst : dst - 3;
    for (int j = 0; j < LANES; j += VEC_LANES) {
        vec v[4];
        for (int r = 0; r < 4; r++)
            v[r] = vec_load(tile + (forward == 1 ? r : 3 - r) * LANES + j);
        vec_transpose_quads(v);
        for (int r = 0; r < 4; r++)
            vec_scatter_quads(start + (j + r) * lane_stride, 4 * lane_stride,
                              v[r]);
    }
}
#endif

/* Pack `steps` steps of `lanes` channels into tile[time][LANES]; lanes beyond
 * the last channel become 0. */
static inline void tile_load(
    real *restrict tile, const real *restrict src, int64_t lane_stride,
    int64_t time_stride, int lanes, int steps)
{
    int done = 0;
    if (lanes < LANES) memset(tile, 0, sizeof(real) * LANES * steps);
    if (lane_stride == 1 && lanes == LANES) {
        for (int t = 0; t < steps; t++)
            memcpy(tile + t * LANES, src + t * time_stride,
                   sizeof(real) * LANES);
        return;
    }
#ifdef MMSSM_TRANSPOSE
    if (lanes == LANES && (time_stride == 1 || time_stride == -1)) {
        for (; done + 4 <= steps; done += 4)
            tile_load_4(tile + done * LANES, src + done * time_stride,
                        lane_stride, time_stride);
    }
#endif
    for (int t = done; t < steps; t++)
        for (int j = 0; j < lanes; j++)
            tile[t * LANES + j] = src[j * lane_stride + t * time_stride];
}

/* The inverse of tile_load: write the first `lanes` lanes. */
static inline void tile_store(
    real *restrict dst, const real *restrict tile, int64_t lane_stride,
    int64_t time_stride, int lanes, int steps)
{
    int done = 0;
    if (lane_stride == 1 && lanes == LANES) {
        for (int t = 0; t < steps; t++)
            memcpy(dst + t * time_stride, tile + t * LANES,
                   sizeof(real) * LANES);
        return;
    }
#ifdef MMSSM_TRANSPOSE
    if (lanes == LANES && (time_stride == 1 || time_stride == -1)) {
        for (; done + 4 <= steps; done += 4)
            tile_store_4(dst + done * time_stride, tile + done * LANES,
                         lane_stride, time_stride);
    }
#endif
    for (int t = done; t < steps; t++)
        for (int j = 0; j < lanes; j++)
            dst[j * lane_stride + t * time_stride] = tile[t * LANES + j];
}

/* Add up the lanes of each step. */
static inline void tile_sum_lanes(
    real *restrict sums, const real *restrict tile, int steps)
{
    int t = 0;
#ifdef MMSSM_TRANSPOSE
    for (; t + 4 <= steps; t += 4) {
        vec sum = {0};
        real quads[VEC_LANES];
        for (int j = 0; j < LANES; j += VEC_LANES) {
            vec v[4];
            for (int r = 0; r < 4; r++)
                v[r] = vec_load(tile + (t + r) * LANES + j);
            vec_transpose_quads(v);
            sum += (v[0] + v[1]) + (v[2] + v[3]);
        }
        vec_store(quads, sum);
        quad total = quad_load(quads);
        for (int j = 4; j < VEC_LANES; j += 4) total += quad_load(quads + j);
        quad_store(sums + t, total);
    }
#endif
    for (; t < steps; t++) {
        sums[t] = 0;
        for (int j = 0; j < LANES; j++) sums[t] += tile[t * LANES + j];
    }
}

#endif
