/* Sums over the lanes of many vectors at once. */

#ifndef MMSSM_LANE_SUMS_H
#define MMSSM_LANE_SUMS_H

#include "common.h"

#ifdef MMSSM_TRANSPOSE

/* Lanes of two vectors a and b such that LOW_n + HIGH_n holds, in every
 * segment of 2 n lanes, that of a folded to n lanes, then that of b. */
#if VEC_BYTES == 64 && !MMSSM_DOUBLE
#define LOW_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define LOW_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define HIGH_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define LOW_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define LOW_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define HIGH_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#elif VEC_BYTES == 64 || (VEC_BYTES == 32 && !MMSSM_DOUBLE)
#define LOW_4 0, 1, 2, 3, 8, 9, 10, 11
#define HIGH_4 4, 5, 6, 7, 12, 13, 14, 15
#define LOW_2 0, 1, 8, 9, 4, 5, 12, 13
#define HIGH_2 2, 3, 10, 11, 6, 7, 14, 15
#define LOW_1 0, 8, 2, 10, 4, 12, 6, 14
#define HIGH_1 1, 9, 3, 11, 5, 13, 7, 15
#elif VEC_BYTES == 32 || !MMSSM_DOUBLE
#define LOW_2 0, 1, 4, 5
#define HIGH_2 2, 3, 6, 7
#define LOW_1 0, 4, 2, 6
#define HIGH_1 1, 5, 3, 7
#else
#define LOW_1 0, 2
#define HIGH_1 1, 3
#endif

#define FOLD(a, b, n)                                                        \
    (__builtin_shufflevector(a, b, LOW_##n) +                                \
     __builtin_shufflevector(a, b, HIGH_##n))

/* Lane r of the result is the sum over the lanes of row r of VEC_LANES dense
 * rows. */
static inline vec lane_sums(const real *rows)
{
    vec sums[VEC_LANES];
#pragma GCC unroll 16
    for (int r = 0; r < VEC_LANES; r++)
        sums[r] = vec_load(rows + r * VEC_LANES);
#ifdef LOW_8
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) sums[r] = FOLD(sums[r], sums[r + 8], 8);
#endif
#ifdef LOW_4
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) sums[r] = FOLD(sums[r], sums[r + 4], 4);
#endif
#ifdef LOW_2
#pragma GCC unroll 2
    for (int r = 0; r < 2; r++) sums[r] = FOLD(sums[r], sums[r + 2], 2);
#endif
    return FOLD(sums[0], sums[1], 1);
}

#else

static inline vec lane_sums(const real *rows)
{
    vec sums = {0};
    for (int r = 0; r < VEC_LANES; r++)
        for (int j = 0; j < VEC_LANES; j++)
            sums[r] += rows[r * VEC_LANES + j];
    return sums;
}

#endif

#endif
