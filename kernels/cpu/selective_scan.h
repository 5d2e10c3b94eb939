/* Selective scan: what the forward and the backward pass share.
 *
 *     dt = softplus(delta + delta_bias)
 *     h_t = exp(dt A) h_{t-1} + dt u B_t
 *     y_t = (sum_n C_t h_t + D u) silu(z)
 *
 * A work item is a batch element and a few blocks of LANES channels of one
 * group, so that B and C are packed once for all of them. An item goes over
 * the sequence in chunks of TILE_STEPS tokens. Within a chunk each state runs
 * over all tokens before the next one starts: its decay rate and its value
 * stay in registers, and what the backward pass keeps of it in the L1 cache.
 *
 * No two items write to the same place, and an item adds up in an order of its
 * own: results do not depend on the number of threads.
 */

#ifndef MMSSM_SELECTIVE_SCAN_H
#define MMSSM_SELECTIVE_SCAN_H

#include "common.h"

typedef struct {
    int64_t batch, dim, length, state, groups;
    int64_t item_channels; /* most channels of a work item */
    int64_t delta_softplus, reverse, threads;
    tensor u, delta, z;    /* (batch, dim, length) */
    tensor A;              /* (dim, state) */
    tensor B, C;           /* (batch, groups, state, length) */
    tensor D, delta_bias;  /* (dim,) */
    tensor checkpoints;    /* (batch, chunks, dim, state) */
} scan_inputs;

/* Channels [channel, end) of one group and batch element. */
typedef struct {
    int64_t batch, group, part, channel, end;
} work_item;

/* Up to LANES channels of an item, and the tokens of a chunk. */
typedef struct {
    int64_t batch, channel, time;
    int lanes, steps;
} block;

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline int64_t items_per_group(const scan_inputs *in)
{
    return ceil_div(in->dim / in->groups, in->item_channels);
}

/* Lanes of the blocks of an item. */
static inline int64_t item_lanes(const scan_inputs *in)
{
    return ceil_div(in->item_channels, LANES) * LANES;
}

static inline work_item item_at(const scan_inputs *in, int64_t index)
{
    int64_t parts = items_per_group(in);
    int64_t width = in->dim / in->groups;
    work_item item = {.part = index % parts,
                      .group = index / parts % in->groups,
                      .batch = index / parts / in->groups};
    int64_t first = item.part * in->item_channels;
    item.channel = item.group * width + first;
    item.end = item.channel + int64_min(in->item_channels, width - first);
    return item;
}

/* Block `index` of an item, and the tokens from `time` on. */
static inline block block_at(
    const scan_inputs *in, work_item item, int64_t index, int64_t time)
{
    int64_t channel = item.channel + index * LANES;
    return (block){
        .batch = item.batch,
        .channel = channel,
        .time = time,
        .lanes = (int)int64_min(LANES, item.end - channel),
        .steps = (int)int64_min(TILE_STEPS, in->length - time),
    };
}

static inline int64_t blocks_of(work_item item)
{
    return ceil_div(item.end - item.channel, LANES);
}

static inline void reverse_inputs(scan_inputs *in)
{
    in->u = tensor_reversed(in->u, 2, in->length);
    in->delta = tensor_reversed(in->delta, 2, in->length);
    in->z = tensor_reversed(in->z, 2, in->length);
    in->B = tensor_reversed(in->B, 3, in->length);
    in->C = tensor_reversed(in->C, 3, in->length);
}

/* ---- packing ---------------------------------------------------------- */

static inline void load_tokens(real *tile, tensor t, block at)
{
    tile_load(tile,
              t.data + at.batch * t.stride[0] + at.channel * t.stride[1] +
                  at.time * t.stride[2],
              t.stride[1], t.stride[2], at.lanes, at.steps);
}

static inline void store_tokens(tensor t, const real *tile, block at)
{
    tile_store(t.data + at.batch * t.stride[0] + at.channel * t.stride[1] +
                   at.time * t.stride[2],
               tile, t.stride[1], t.stride[2], at.lanes, at.steps);
}

/* A tensor (batch, dim, state) packs as [state][LANES]; zeros if left out. */
static inline void load_states(real *tile, tensor t, block at, int64_t state)
{
    if (t.data)
        tile_load(tile,
                  t.data + at.batch * t.stride[0] + at.channel * t.stride[1],
                  t.stride[1], t.stride[2], at.lanes, (int)state);
    else
        memset(tile, 0, sizeof(real) * LANES * state);
}

static inline void store_states(tensor t, const real *tile, block at, int64_t state)
{
    if (t.data)
        tile_store(t.data + at.batch * t.stride[0] + at.channel * t.stride[1],
                   tile, t.stride[1], t.stride[2], at.lanes, (int)state);
}

/* A, as a tensor (batch, dim, state). */
static inline tensor rates(const scan_inputs *in)
{
    return (tensor){in->A.data, {0, in->A.stride[0], in->A.stride[1], 0}};
}

/* The states before the chunk that starts at `time`, likewise. */
static inline tensor checkpoint(const scan_inputs *in, int64_t time)
{
    const tensor *c = &in->checkpoints;
    return (tensor){c->data + time / TILE_STEPS * c->stride[1],
                    {c->stride[0], c->stride[2], c->stride[3], 0}};
}

/* B or C of an item in a chunk: [state][TILE_STEPS]. */
static inline void load_rows(
    real *rows, const scan_inputs *in, tensor t, work_item item, int64_t time)
{
    const real *src = t.data + item.batch * t.stride[0] +
                      item.group * t.stride[1] + time * t.stride[3];
    const int64_t steps = int64_min(TILE_STEPS, in->length - time);
    for (int64_t n = 0; n < in->state; n++)
        for (int64_t i = 0; i < steps; i++)
            rows[n * TILE_STEPS + i] =
                src[n * t.stride[2] + i * t.stride[3]];
}

/* One value per channel, 0 for an argument that was left out. */
static inline void load_channels(real *lanes, tensor t, block at)
{
    if (t.data)
        tile_load(lanes, t.data + at.channel * t.stride[0], t.stride[0], 0,
                  at.lanes, 1);
    else
        memset(lanes, 0, sizeof(real) * LANES);
}

/* Take the next `count` reals of a piece of memory. */
static inline real *take(real **memory, int64_t count)
{
    real *taken = *memory;
    *memory += count;
    return taken;
}

/* Rates of powers of 2, which are cheaper than those of e. */
static inline vec binary_rate(const real *rate)
{
    return vec_load(rate) * (real)1.44269504088896340736;
}

/* ---- token-wise parts ------------------------------------------------- */

/* softplus as defined: beyond 20 it is the identity. */
static inline vec step_size(vec x, int64_t softplus)
{
    return softplus ? vec_select(x > 20, x, vec_softplus(x)) : x;
}

/* dt and dt u of a block from its tiles of delta and u. */
static inline void step_sizes(
    real *restrict dt, real *restrict input, const real *restrict delta,
    const real *restrict u, const real *restrict bias, int64_t softplus,
    int steps)
{
    for (int i = 0; i < steps * LANES; i += VEC_LANES) {
        vec x = vec_load(delta + i) + vec_load(bias + i % LANES);
        vec step = step_size(x, softplus);
        vec_store(dt + i, step);
        vec_store(input + i, step * vec_load(u + i));
    }
}

/* What y is before the states are added: D u, 0 without D. */
static inline void skip_connection(
    real *restrict y, const real *restrict u, tensor D, block at)
{
    real skip[LANES];
    if (!D.data) {
        memset(y, 0, sizeof(real) * LANES * at.steps);
        return;
    }
    load_channels(skip, D, at);
    for (int i = 0; i < at.steps * LANES; i += VEC_LANES)
        vec_store(y + i, vec_load(u + i) * vec_load(skip + i % LANES));
}

#endif
