/* Blocks of neighbouring channels, one row per time step.
 *
 * Unlike a tile of common.h, a row is read and written in place where the
 * channels lie side by side: channels-last tensors are not copied. Time is in
 * the order of processing (see tensor_reversed).
 */

#ifndef MMSSM_ROWS_H
#define MMSSM_ROWS_H

#include "common.h"

#define FORCE_INLINE static inline __attribute__((always_inline))

/* Channels of the widest block: two vectors, so that two chains of dependent
 * operations overlap. */
#define ROW_LANES (2 * VEC_LANES)

/* Neighbouring channels of one element of the batch. A block has one or two
 * vectors; only one with a single vector may have lanes beyond `channels`. */
typedef struct {
    int64_t batch, first;
    int channels, vectors;
} block;

typedef struct {
    real *data;
    int64_t stride;
} rows;

static inline int64_t block_count(int64_t channels)
{
    return channels / ROW_LANES +
           (channels % ROW_LANES + VEC_LANES - 1) / VEC_LANES;
}

/* The block number `index` of the channels from `begin` to `end`. */
static inline block block_at(
    int64_t batch, int64_t begin, int64_t end, int64_t index)
{
    int64_t wide = (end - begin) / ROW_LANES;
    block at = {.batch = batch, .vectors = 2, .channels = ROW_LANES};
    at.first = begin + index * ROW_LANES;
    if (index >= wide) {
        at.first = begin + wide * ROW_LANES + (index - wide) * VEC_LANES;
        at.vectors = 1;
        at.channels = (int)int64_min(end - at.first, VEC_LANES);
    }
    return at;
}

/* Tensors have the axes (batch, time, channel). */
static inline real *rows_address(
    const tensor *t, const block *at, int64_t time)
{
    return t->data + at->batch * t->stride[0] + time * t->stride[1] +
           at->first * t->stride[2];
}

static inline int rows_in_place(const tensor *t, const block *at)
{
    return t->stride[2] == 1 && at->channels == at->vectors * VEC_LANES;
}

#ifdef MMSSM_TRANSPOSE
/* Whether the block is full and time runs with the memory, or against it. */
static inline int rows_are_columns(const tensor *t, const block *at)
{
    const int lanes = at->vectors * VEC_LANES;
    return at->channels == lanes && lanes % 4 == 0 &&
           (t->stride[1] == 1 || t->stride[1] == -1);
}

/* Copy 4 rows of 4 that lie `from` apart to columns; these lie `to` apart. */
static inline void copy_transposed(
    real *dst, int64_t to, const real *src, int64_t from)
{
    quad a, b, c, d;
    memcpy(&a, src, sizeof a);
    memcpy(&b, src + from, sizeof b);
    memcpy(&c, src + 2 * from, sizeof c);
    memcpy(&d, src + 3 * from, sizeof d);
    const quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const quad ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const quad cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    a = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    b = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    c = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    d = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
    memcpy(dst, &a, sizeof a);
    memcpy(dst + to, &b, sizeof b);
    memcpy(dst + 2 * to, &c, sizeof c);
    memcpy(dst + 3 * to, &d, sizeof d);
}
#endif

/* Copy rows to a tile [time][lane]; lanes beyond the channels become 0. */
static inline void rows_pack(
    real *tile, const tensor *t, const block *at, int64_t time, int count)
{
    const int lanes = at->vectors * VEC_LANES;
    const int64_t step = t->stride[1], next = t->stride[2];
    const real *src = rows_address(t, at, time);
    int done = 0;
#ifdef MMSSM_TRANSPOSE
    if (rows_are_columns(t, at)) {
        for (; done + 4 <= count; done += 4)
            for (int j = 0; j < lanes; j += 4) {
                const real *from = src + j * next + done * step;
                real *to = tile + done * lanes + j;
                if (step == 1)
                    copy_transposed(to, lanes, from, next);
                else
                    copy_transposed(to + 3 * lanes, -lanes, from - 3, next);
            }
    }
#endif
    for (int row = done; row < count; row++)
        for (int j = 0; j < lanes; j++)
            tile[row * lanes + j] =
                j < at->channels ? src[row * step + j * next] : 0;
}

/* Rows to read: of the tensor itself, or of a copy in the tile. */
static inline rows rows_read(
    const tensor *t, const block *at, int64_t time, int count, real *tile)
{
    if (rows_in_place(t, at))
        return (rows){rows_address(t, at, time), t->stride[1]};
    rows_pack(tile, t, at, time, count);
    return (rows){tile, at->vectors * VEC_LANES};
}

/* Rows to write: of the tensor, or of a tile that rows_finish copies to it. */
static inline rows rows_begin(
    const tensor *t, const block *at, int64_t time, real *tile)
{
    if (rows_in_place(t, at))
        return (rows){rows_address(t, at, time), t->stride[1]};
    return (rows){tile, at->vectors * VEC_LANES};
}

static inline void rows_finish(
    const tensor *t, const block *at, int64_t time, int count,
    const real *tile)
{
    if (rows_in_place(t, at)) return;
    const int lanes = at->vectors * VEC_LANES;
    const int64_t step = t->stride[1], next = t->stride[2];
    real *dst = rows_address(t, at, time);
    int done = 0;
#ifdef MMSSM_TRANSPOSE
    if (rows_are_columns(t, at)) {
        for (; done + 4 <= count; done += 4)
            for (int j = 0; j < lanes; j += 4) {
                const real *from = tile + done * lanes + j;
                real *to = dst + j * next + done * step;
                if (step == 1)
                    copy_transposed(to, next, from, lanes);
                else
                    copy_transposed(to - 3, next, from + 3 * lanes, -lanes);
            }
    }
#endif
    for (int row = done; row < count; row++)
        for (int j = 0; j < at->channels; j++)
            dst[row * step + j * next] = tile[row * lanes + j];
}

/* Rows to read from `time` on, which `past` earlier ones precede. Those before
 * the first time step are in `history` (batch, age, channel), age 0 being the
 * newest; without a history they are 0. The tile has past + count rows. */
static inline rows rows_read_past(
    const tensor *t, const tensor *history, const block *at, int64_t time,
    int count, int past, real *tile)
{
    if (time >= past && rows_in_place(t, at))
        return (rows){rows_address(t, at, time), t->stride[1]};
    const int lanes = at->vectors * VEC_LANES;
    real *here = tile + past * lanes;
    for (int back = 1; back <= past; back++) {
        real *row = here - back * lanes;
        if (time >= back)
            rows_pack(row, t, at, time - back, 1);
        else if (history->data)
            rows_pack(row, history, at, back - time - 1, 1);
        else
            memset(row, 0, sizeof(real) * lanes);
    }
    rows_pack(here, t, at, time, count);
    return (rows){here, lanes};
}

/* A row of the block from a tensor (channel); 0 without one. */
static inline void row_load(real *row, const tensor *t, const block *at)
{
    for (int j = 0; j < ROW_LANES; j++)
        row[j] = t->data && j < at->channels
                     ? t->data[(at->first + j) * t->stride[0]]
                     : 0;
}

/* A row of the block to its place in a dense tensor (batch, channel). */
static inline void row_store(const tensor *t, const real *row, const block *at)
{
    memcpy(t->data + at->batch * t->stride[0] + at->first, row,
           sizeof(real) * at->channels);
}

#endif
