/* Products of small matrices. */

#ifndef MMSSM_TILE_PRODUCT_H
#define MMSSM_TILE_PRODUCT_H

#include "common.h"

#define FORCE_INLINE static inline __attribute__((always_inline))

/* Sums that are kept in registers: rows, and vectors of a row. */
#define PRODUCT_ROWS 4
#if defined(__AVX512F__)
#define PRODUCT_VECTORS 4
#else
#define PRODUCT_VECTORS 2 /* of 16 registers */
#endif

/* Which elements count; rows and columns, or rows and depth, are frames. */
typedef enum {
    EVERYTHING,
    CAUSAL_RESULT, /* columns <= row, in whole blocks of LANES */
    CAUSAL,        /* k <= row: `a` is 0 elsewhere */
    ANTICAUSAL,    /* k >= row: `a` is 0 elsewhere */
} product_shape;

/* out[i][j] = factor[i] sum_k a[i][k] b[k][j], added to what is there if
 * asked. `a` has any strides. `columns` is a multiple of LANES; the rows are
 * handled PRODUCT_ROWS at a time, so that the tiles have to have those. */
typedef struct {
    product_shape shape;
    int64_t rows, columns, depth;
    const real *a;
    int64_t a_row, a_depth;
    const real *b;
    int64_t b_pitch;
    real *out;
    int64_t out_pitch;
    const real *factor; /* NULL: 1 */
    int add;
} product;

/* `vectors` is a constant in each call. */
FORCE_INLINE void product_block(
    const product *p, int64_t row, int64_t column, int64_t from, int64_t to,
    const int vectors)
{
    vec sums[PRODUCT_ROWS][PRODUCT_VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < PRODUCT_ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sums[r][v] = (vec){0};
    const int64_t a_row = p->a_row, a_depth = p->a_depth;
    const int64_t pitch = p->b_pitch;
    const real *a = p->a + row * a_row + from * a_depth;
    const real *b = p->b + column + from * pitch;
    for (int64_t k = from; k < to; k++) {
        vec values[PRODUCT_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            values[v] = vec_load(b + v * VEC_LANES);
#pragma GCC unroll 4
        for (int r = 0; r < PRODUCT_ROWS; r++) {
            const vec factor = vec_set(a[r * a_row]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sums[r][v] += factor * values[v];
        }
        a += a_depth;
        b += pitch;
    }
#pragma GCC unroll 4
    for (int r = 0; r < PRODUCT_ROWS; r++) {
        real *out = p->out + (row + r) * p->out_pitch + column;
        const vec factor = vec_set(p->factor ? p->factor[row + r] : 1);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            vec sum = factor * sums[r][v];
            if (p->add) sum += vec_load(out + v * VEC_LANES);
            vec_store(out + v * VEC_LANES, sum);
        }
    }
}

static void product_compute(const product *p)
{
    const int64_t width = PRODUCT_VECTORS * VEC_LANES;
    for (int64_t row = 0; row < p->rows; row += PRODUCT_ROWS) {
        const int64_t end = row + PRODUCT_ROWS;
        int64_t from = 0, to = p->depth, columns = p->columns, column = 0;
        if (p->shape == ANTICAUSAL) from = row;
        if (p->shape == CAUSAL) to = int64_min(to, end);
        if (p->shape == CAUSAL_RESULT)
            columns = int64_min(columns, (end + LANES - 1) / LANES * LANES);
        for (; column + width <= columns; column += width)
            product_block(p, row, column, from, to, PRODUCT_VECTORS);
#if PRODUCT_VECTORS * VEC_LANES > LANES
        /* What is left is one to three blocks of LANES. */
        for (; column + 2 * VEC_LANES <= columns; column += 2 * VEC_LANES)
            product_block(p, row, column, from, to, 2);
        if (column < columns) product_block(p, row, column, from, to, 1);
#endif
    }
}

#endif
