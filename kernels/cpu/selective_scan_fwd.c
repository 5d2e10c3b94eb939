/* Selective scan, forward pass; see selective_scan.h. */

#include "selective_scan.h"

typedef struct {
    scan_inputs in;
    tensor initial_state; /* (batch, dim, state) */
    tensor y;             /* (batch, dim, length) */
    tensor last_state;    /* (batch, dim, state) */
} forward_arguments;

/* Advance one state of a block over a chunk, and add C h to y. */
static void scan_state(
    real *restrict carry, real *restrict y, const real *restrict rate,
    const real *restrict dt, const real *restrict input,
    const real *restrict B, const real *restrict C, int steps)
{
    for (int v = 0; v < LANES; v += VEC_LANES) {
        vec a = binary_rate(rate + v);
        vec h = vec_load(carry + v);
        for (int t = 0; t < steps; t++) {
            int i = t * LANES + v;
            h = vec_exp2(vec_load(dt + i) * a) * h +
                vec_load(input + i) * B[t];
            vec_store(y + i, vec_load(y + i) + h * C[t]);
        }
        vec_store(carry + v, h);
    }
}

typedef struct {
    real *A, *carry; /* [block of the item][state][LANES] */
    real *B, *C;     /* [state][TILE_STEPS] */
    real *u, *delta, *z, *dt, *input, *y;
} forward_scratch;

static int64_t forward_scratch_size(const scan_inputs *in)
{
    return in->state * (2 * item_lanes(in) + 2 * TILE_STEPS) + 6 * TILE_SIZE;
}

static forward_scratch forward_scratch_in(real *memory, const scan_inputs *in)
{
    const int64_t states = item_lanes(in) * in->state;
    const int64_t rows = in->state * TILE_STEPS;
    return (forward_scratch){
        .A = take(&memory, states),
        .carry = take(&memory, states),
        .B = take(&memory, rows),
        .C = take(&memory, rows),
        .u = take(&memory, TILE_SIZE),
        .delta = take(&memory, TILE_SIZE),
        .z = take(&memory, TILE_SIZE),
        .dt = take(&memory, TILE_SIZE),
        .input = take(&memory, TILE_SIZE),
        .y = take(&memory, TILE_SIZE),
    };
}

static void forward_block(
    const forward_arguments *args, const forward_scratch *s, const real *A,
    real *carry, block at)
{
    const scan_inputs *in = &args->in;
    real bias[LANES];
    load_channels(bias, in->delta_bias, at);
    load_tokens(s->u, in->u, at);
    load_tokens(s->delta, in->delta, at);
    step_sizes(s->dt, s->input, s->delta, s->u, bias, in->delta_softplus,
               at.steps);
    skip_connection(s->y, s->u, in->D, at);
    for (int64_t n = 0; n < in->state; n++)
        scan_state(carry + n * LANES, s->y, A + n * LANES, s->dt, s->input,
                   s->B + n * TILE_STEPS, s->C + n * TILE_STEPS, at.steps);
    if (in->z.data) {
        load_tokens(s->z, in->z, at);
        for (int i = 0; i < at.steps * LANES; i += VEC_LANES)
            vec_store(s->y + i,
                      vec_load(s->y + i) * vec_silu(vec_load(s->z + i)));
    }
    store_tokens(args->y, s->y, at);
}

static void forward_item(
    const forward_arguments *args, const forward_scratch *s, work_item item)
{
    const scan_inputs *in = &args->in;
    const int64_t blocks = blocks_of(item), size = in->state * LANES;
    for (int64_t k = 0; k < blocks; k++) {
        block at = block_at(in, item, k, 0);
        load_states(s->A + k * size, rates(in), at, in->state);
        load_states(s->carry + k * size, args->initial_state, at, in->state);
    }
    for (int64_t time = 0; time < in->length; time += TILE_STEPS) {
        load_rows(s->B, in, in->B, item, time);
        load_rows(s->C, in, in->C, item, time);
        for (int64_t k = 0; k < blocks; k++) {
            block at = block_at(in, item, k, time);
            store_states(checkpoint(in, time), s->carry + k * size, at,
                         in->state);
            forward_block(args, s, s->A + k * size, s->carry + k * size, at);
        }
    }
    for (int64_t k = 0; k < blocks; k++)
        store_states(args->last_state, s->carry + k * size,
                     block_at(in, item, k, 0), in->state);
}

MMSSM_KERNEL(selective_scan_fwd, forward_arguments)
{
    forward_arguments a = *args;
    if (a.in.reverse) {
        reverse_inputs(&a.in);
        a.y = tensor_reversed(a.y, 2, a.in.length);
    }
    const int64_t items = a.in.batch * a.in.groups * items_per_group(&a.in);
    const int64_t size = forward_scratch_size(&a.in);
    const int threads = (int)int64_min(a.in.threads, items);
    int32_t failed = 0;
#pragma omp parallel num_threads(threads) reduction(|| : failed)
    {
        real *memory = scratch_new(size);
        failed = !memory;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < items; i++)
            if (memory) {
                forward_scratch s = forward_scratch_in(memory, &a.in);
                forward_item(&a, &s, item_at(&a.in, i));
            }
        free(memory);
    }
    return failed;
}
