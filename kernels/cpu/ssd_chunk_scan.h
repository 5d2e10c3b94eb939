/* The SSD recurrence: what the forward and the backward pass share.
 *
 *     h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T
 *     y_t = (h_t C_t + D x_t) silu(z_t)
 *
 * A work item is a batch element and a few heads of one group, so that B and C
 * are packed, and their products made, once for all of them. An item goes over
 * the sequence chunk by chunk; inside a chunk everything is a product of small
 * matrices (tile_product.h) that stay in the caches near the core. Let s_i be
 * the sum of dt A over the frames of the chunk up to and with i, and g the
 * state before the chunk:
 *
 *     y_i = sum_{j <= i} (C_i . B_j) exp(s_i - s_j) dt_j x_j + exp(s_i) g C_i
 *
 * Rows of a tile are frames, or the channels of a state, and rows and columns
 * are filled up with zeros to multiples of LANES.
 *
 * No two items write to the same place, and an item adds up in an order of its
 * own: results do not depend on the number of threads.
 */

#ifndef MMSSM_SSD_CHUNK_SCAN_H
#define MMSSM_SSD_CHUNK_SCAN_H

#include "lane_sums.h"
#include "tile_product.h"

/* Like `tensor`, of whole numbers. */
typedef struct {
    const int32_t *data;
    int64_t stride[4];
} index_tensor;

typedef struct {
    int64_t batch, length, heads, headdim, state, groups;
    int64_t chunk;      /* frames of a chunk; the last one may be shorter */
    int64_t item_heads; /* most heads of a work item */
    int64_t dt_softplus, threads;
    tensor x, z;         /* (batch, length, heads, headdim) */
    tensor dt;           /* (batch, length, heads) */
    tensor A, dt_bias;   /* (heads,) */
    tensor B, C;         /* (batch, length, groups, state) */
    tensor D;            /* (heads,), the second stride being 0, or
                            (heads, headdim) */
    index_tensor seq_idx; /* (batch, length) */
    tensor initial_states; /* (batch, heads, headdim, state) */
    tensor chunk_states; /* those before every chunk but the first one,
                            (batch, chunks - 1, heads * headdim, state) */
} scan_inputs;

/* Heads [head, end) of one group and batch element. */
typedef struct {
    int64_t batch, group, part, head, end;
} work_item;

/* Frames [time, time + steps) of a chunk. */
typedef struct {
    int64_t index, time, steps;
} chunk_range;

/* What the frames of a chunk are to a head; padding is 0 in `dt`. */
typedef struct {
    real *dt;
    real *high, *low;  /* their sum is s_i */
    real *from_start;  /* exp(s_i), or 0 if a sequence starts in between */
    real *to_end;      /* exp(s_last - s_i), likewise */
    real total;        /* exp(s_last), likewise */
} frame_terms;

/* Sequences of packed videos: which one of its chunk a frame belongs to. */
typedef struct {
    integer *number;
    int changes; /* whether there is more than the one before the chunk */
} sequence_terms;

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline int64_t padded(int64_t count)
{
    return ceil_div(count, LANES) * LANES;
}

/* Take the next `count` numbers of a piece of memory; a multiple of LANES. */
static inline real *take(real **memory, int64_t count)
{
    real *taken = *memory;
    *memory += count;
    return taken;
}

/* Fast heads make denormal numbers in masses, and a product with one takes as
 * long as a hundred others: while a kernel runs they are 0, as those of vec_exp
 * always are. Returns what `denormals_restore` needs. */
static inline unsigned denormals_to_zero(void)
{
#if defined(__SSE2__)
    const unsigned results = 0x8000, operands = 0x0040;
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | results | operands);
    return before;
#else
    return 0;
#endif
}

static inline void denormals_restore(unsigned before)
{
#if defined(__SSE2__)
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

/* ---- what an item works on -------------------------------------------- */

static inline int64_t items_per_group(const scan_inputs *in)
{
    return ceil_div(in->heads / in->groups, in->item_heads);
}

static inline int64_t num_items(const scan_inputs *in)
{
    return in->batch * in->groups * items_per_group(in);
}

static inline work_item item_at(const scan_inputs *in, int64_t index)
{
    const int64_t parts = items_per_group(in);
    const int64_t width = in->heads / in->groups;
    work_item item = {.part = index % parts,
                      .group = index / parts % in->groups,
                      .batch = index / parts / in->groups};
    const int64_t first = item.part * in->item_heads;
    item.head = item.group * width + first;
    item.end = item.head + int64_min(in->item_heads, width - first);
    return item;
}

static inline int64_t num_chunks(const scan_inputs *in)
{
    return ceil_div(in->length, in->chunk);
}

static inline chunk_range chunk_at(const scan_inputs *in, int64_t index)
{
    const int64_t time = index * in->chunk;
    return (chunk_range){index, time, int64_min(in->chunk, in->length - time)};
}

/* Rows of the longest chunk. */
static inline int64_t chunk_rows(const scan_inputs *in)
{
    return padded(int64_min(in->chunk, in->length));
}

/* ---- packing ---------------------------------------------------------- */

/* Copy whole vectors of a dense row; returns how many numbers that were. Two at
 * a time: of a loop over single ones gcc makes a call of memmove, which for a
 * short row takes longer than the copy. */
static inline int64_t row_copy(
    real *restrict target, const real *restrict row, int64_t columns)
{
    int64_t j = 0;
    for (; j + 2 * VEC_LANES <= columns; j += 2 * VEC_LANES) {
        const vec first = vec_load(row + j);
        const vec second = vec_load(row + j + VEC_LANES);
        vec_store(target + j, first);
        vec_store(target + j + VEC_LANES, second);
    }
    if (j + VEC_LANES <= columns) {
        vec_store(target + j, vec_load(row + j));
        j += VEC_LANES;
    }
    return j;
}

/* Pack a matrix into a tile, whose rows are `padded(columns)` long; of those
 * rows, `tile_rows` are written. */
static inline void rows_load(
    real *restrict tile, int64_t tile_rows, const real *restrict src,
    int64_t row_stride, int64_t column_stride, int64_t rows, int64_t columns)
{
    const int64_t pitch = padded(columns);
    for (int64_t i = 0; i < rows; i++) {
        const real *row = src + i * row_stride;
        real *target = tile + i * pitch;
        int64_t j = 0;
        if (column_stride == 1)
            j = row_copy(target, row, columns);
        else if (column_stride == 0)
            for (; j + VEC_LANES <= columns; j += VEC_LANES)
                vec_store(target + j, vec_set(*row));
        for (; j < columns; j++) target[j] = row[j * column_stride];
        for (; j < pitch; j++) target[j] = 0;
    }
    memset(tile + rows * pitch, 0,
           sizeof(real) * (size_t)((tile_rows - rows) * pitch));
}

/* The inverse of rows_load. */
static inline void rows_store(
    real *restrict dst, int64_t row_stride, int64_t column_stride,
    const real *restrict tile, int64_t rows, int64_t columns)
{
    const int64_t pitch = padded(columns);
    for (int64_t i = 0; i < rows; i++) {
        const real *row = tile + i * pitch;
        real *target = dst + i * row_stride;
        int64_t j = column_stride == 1 ? row_copy(target, row, columns) : 0;
        for (; j < columns; j++) target[j * column_stride] = row[j];
    }
}

/* Where axis 2 of a tensor (batch, length, heads or groups, ...) is at `place`
 * in the first frame of a chunk. */
static inline real *frame_address(
    const tensor *t, work_item item, int64_t place, chunk_range at)
{
    return t->data + item.batch * t->stride[0] + at.time * t->stride[1] +
           place * t->stride[2];
}

static inline void frames_load(
    real *tile, const tensor *t, work_item item, int64_t place,
    chunk_range at, int64_t columns)
{
    rows_load(tile, padded(at.steps), frame_address(t, item, place, at),
              t->stride[1], t->stride[3], at.steps, columns);
}

static inline void frames_store(
    const tensor *t, const real *tile, work_item item, int64_t place,
    chunk_range at, int64_t columns)
{
    rows_store(frame_address(t, item, place, at), t->stride[1], t->stride[3],
               tile, at.steps, columns);
}

/* A state of a tensor (batch, heads, headdim, state); zeros if left out. */
static inline void state_load(
    real *tile, const scan_inputs *in, const tensor *t, work_item item,
    int64_t head)
{
    const int64_t rows = padded(in->headdim);
    if (t->data)
        rows_load(tile, rows,
                  t->data + item.batch * t->stride[0] + head * t->stride[1],
                  t->stride[2], t->stride[3], in->headdim, in->state);
    else
        memset(tile, 0, sizeof(real) * (size_t)(rows * padded(in->state)));
}

static inline void state_store(
    const scan_inputs *in, const tensor *t, const real *tile, work_item item,
    int64_t head)
{
    if (t->data)
        rows_store(t->data + item.batch * t->stride[0] + head * t->stride[1],
                   t->stride[2], t->stride[3], tile, in->headdim, in->state);
}

/* Whether the state before a chunk can be anything but zero. */
static inline int has_state(const scan_inputs *in, chunk_range at)
{
    return at.index > 0 || in->initial_states.data;
}

/* The states before a chunk, as a tensor (batch, heads, headdim, state). */
static inline tensor states_before(const scan_inputs *in, chunk_range at)
{
    const tensor *t = &in->chunk_states;
    if (at.index == 0) return in->initial_states;
    return (tensor){t->data + (at.index - 1) * t->stride[1],
                    {t->stride[0], in->headdim * t->stride[2], t->stride[2],
                     t->stride[3]}};
}

/* D of a head, zeros if left out; as long as a padded row of x. */
static inline void skip_load(
    real *row, const scan_inputs *in, int64_t head)
{
    const tensor *D = &in->D;
    for (int64_t p = 0; p < padded(in->headdim); p++)
        row[p] = D->data && p < in->headdim
                     ? D->data[head * D->stride[0] + p * D->stride[1]]
                     : 0;
}

/* ---- tiles ------------------------------------------------------------ */

/* out[j][i] = tile[i][j]; both in multiples of LANES. */
static inline void tile_transpose(
    real *restrict out, const real *restrict tile, int64_t rows,
    int64_t columns)
{
#ifdef MMSSM_TRANSPOSE
    for (int64_t j = 0; j < columns; j += 4)
        for (int64_t i = 0; i < rows; i += VEC_LANES) {
            vec v[4];
            for (int r = 0; r < 4; r++)
                v[r] = vec_gather_quads(tile + (i + r) * columns + j,
                                        4 * columns);
            vec_transpose_quads(v);
            for (int r = 0; r < 4; r++)
                vec_store(out + (j + r) * rows + i, v[r]);
        }
#else
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            out[j * rows + i] = tile[i * columns + j];
#endif
}

/* out_i = factor_i tile_i for rows of `pitch` numbers */
static inline void tile_scale_rows(
    real *restrict out, const real *restrict tile,
    const real *restrict factor, int64_t rows, int64_t pitch)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < pitch; j += VEC_LANES)
            vec_store(out + i * pitch + j,
                      factor[i] * vec_load(tile + i * pitch + j));
}

/* Let a state pass a chunk; one that a new sequence ends is forgotten. */
static inline void state_decay(real *state, real total, int ends, int64_t size)
{
    for (int64_t i = 0; i < size; i += VEC_LANES)
        vec_store(state + i,
                  ends ? vec_set(0) : total * vec_load(state + i));
}

/* Finish the sums of `rows` rows, a multiple of LANES: one vector each. */
static inline void finish_sums(
    real *restrict sums, const real *restrict vectors, int64_t rows)
{
    for (int64_t i = 0; i < rows; i += VEC_LANES)
        vec_store(sums + i, lane_sums(vectors + i * VEC_LANES));
}

/* ---- frames ----------------------------------------------------------- */

/* Number the sequences of a chunk; a change lets the first one be 1. */
static inline void number_sequences(
    sequence_terms *sequences, const scan_inputs *in, work_item item,
    chunk_range at)
{
    const index_tensor *t = &in->seq_idx;
    integer number = 0;
    sequences->changes = 0;
    if (!t->data) return;
    const int32_t *row = t->data + item.batch * t->stride[0];
    for (int64_t i = 0; i < padded(at.steps); i++) {
        const int64_t time = at.time + i;
        if (i < at.steps && time > 0 &&
            row[time * t->stride[1]] != row[(time - 1) * t->stride[1]])
            number++;
        sequences->number[i] = number;
    }
    sequences->changes = number != 0;
}

static inline ivec numbers_load(const integer *p)
{
    ivec v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The step size before softplus, 0 beyond the last frame. */
static inline void raw_steps_load(
    real *raw, const scan_inputs *in, work_item item, int64_t head,
    chunk_range at)
{
    const tensor *t = &in->dt;
    const real *src = frame_address(t, item, head, at);
    const real bias =
        in->dt_bias.data ? in->dt_bias.data[head * in->dt_bias.stride[0]] : 0;
    for (int64_t i = 0; i < padded(at.steps); i++)
        raw[i] = i < at.steps ? src[i * t->stride[1]] + bias : 0;
}

/* softplus as defined: beyond 20 it is the identity. */
static inline vec step_size(vec x, int64_t softplus)
{
    return softplus ? vec_select(x > 20, x, vec_softplus(x)) : x;
}

/* Everything of a head's `frame_terms`; the step sizes before softplus are in
 * `dt`. The sums are made in double precision: only their differences count,
 * and those are as wrong as the larger one of the sums. */
static inline void frames_prepare(
    frame_terms *f, const sequence_terms *sequences, real A,
    int64_t softplus, int64_t steps)
{
    const int64_t rows = padded(steps);
    for (int64_t i = 0; i < rows; i += VEC_LANES)
        vec_store(f->dt + i, step_size(vec_load(f->dt + i), softplus));
    double sum = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (i >= steps) f->dt[i] = 0;
        sum += (double)f->dt[i] * (double)A;
        f->high[i] = (real)sum;
        f->low[i] = (real)(sum - (double)f->high[i]);
    }
    const real high = f->high[rows - 1], low = f->low[rows - 1];
    for (int64_t i = 0; i < rows; i += VEC_LANES) {
        const vec h = vec_load(f->high + i), l = vec_load(f->low + i);
        vec from_start = vec_exp(h);
        vec to_end = vec_exp((high - h) + (low - l));
        if (sequences->changes) {
            const ivec number = numbers_load(sequences->number + i);
            from_start = vec_select(number == 0, from_start, vec_set(0));
            to_end = vec_select(number == sequences->number[rows - 1], to_end,
                                vec_set(0));
        }
        vec_store(f->from_start + i, from_start);
        vec_store(f->to_end + i, to_end);
    }
    f->total = f->from_start[rows - 1];
}

static inline frame_terms frame_terms_in(real **memory, int64_t rows)
{
    return (frame_terms){
        .dt = take(memory, rows),
        .high = take(memory, rows),
        .low = take(memory, rows),
        .from_start = take(memory, rows),
        .to_end = take(memory, rows),
    };
}

#define FRAME_TERMS_ROWS 5

/* 0, 1, 2, ... */
static inline ivec lane_numbers(void)
{
    integer numbers[VEC_LANES];
    for (int j = 0; j < VEC_LANES; j++) numbers[j] = j;
    return numbers_load(numbers);
}

/* exp(s_i - s_j) of frame i and the frames from j on; 0 for later frames and
 * for those of other sequences. */
static inline vec decay_between(
    const frame_terms *f, const sequence_terms *sequences, int64_t i,
    int64_t j)
{
    vec decay = vec_exp((f->high[i] - vec_load(f->high + j)) +
                        (f->low[i] - vec_load(f->low + j)));
    if (j + VEC_LANES > i) {
        const ivec later = lane_numbers() > (integer)(i - j);
        decay = vec_select(later, vec_set(0), decay);
    }
    if (sequences->changes) {
        const ivec number = numbers_load(sequences->number + j);
        decay = vec_select(number == sequences->number[i], decay, vec_set(0));
    }
    return decay;
}

/* Columns of row i of a causal matrix, in whole blocks of LANES. */
static inline int64_t causal_columns(int64_t i) { return padded(i + 1); }

#endif
