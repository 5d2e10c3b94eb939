/* Selective scan, backward pass; see selective_scan.h. */

#include "selective_scan.h"

/* Gradients of parameters are given per batch element, those of B and C per
 * work item of the group (`dB_item` apart): the caller adds them up. */
typedef struct {
    scan_inputs in;
    int64_t dB_item;
    tensor grad_y;          /* (batch, dim, length) */
    tensor grad_last_state; /* (batch, dim, state) */
    tensor du, ddelta, dz;  /* (batch, dim, length) */
    tensor dA;              /* (batch, dim, state) */
    tensor dB, dC;          /* (batch, groups, state, length) */
    tensor dD, ddelta_bias; /* (batch, dim) */
    tensor dinitial_state;  /* (batch, dim, state) */
} backward_arguments;

static void store_channels(tensor t, const real *lanes, block at)
{
    if (t.data)
        tile_store(t.data + at.batch * t.stride[0] +
                       at.channel * t.stride[1],
                   lanes, t.stride[1], 0, at.lanes, 1);
}

static vec step_size_slope(vec x, int64_t softplus)
{
    if (!softplus) return vec_set(1);
    return vec_select(x > 20, vec_set(1), vec_sigmoid(x));
}

typedef struct {
    real *A, *lambda, *dA; /* [block of the item][state][LANES] */
    real *dD, *dbias;      /* [block of the item][LANES] */
    real *start;           /* [state][LANES] */
    real *B, *C, *dB, *dC; /* [state][TILE_STEPS] */
    real *u, *delta, *z, *dt, *input, *y, *grad_y, *grad_z;
    real *decay, *before, *dinput, *ddt, *product;
} backward_scratch;

static int64_t backward_scratch_size(const scan_inputs *in)
{
    return in->state * (3 * item_lanes(in) + LANES + 4 * TILE_STEPS) +
           2 * item_lanes(in) + 13 * TILE_SIZE;
}

static backward_scratch backward_scratch_in(
    real *memory, const scan_inputs *in)
{
    const int64_t states = item_lanes(in) * in->state;
    const int64_t rows = in->state * TILE_STEPS;
    return (backward_scratch){
        .A = take(&memory, states),
        .lambda = take(&memory, states),
        .dA = take(&memory, states),
        .dD = take(&memory, item_lanes(in)),
        .dbias = take(&memory, item_lanes(in)),
        .start = take(&memory, in->state * LANES),
        .B = take(&memory, rows),
        .C = take(&memory, rows),
        .dB = take(&memory, rows),
        .dC = take(&memory, rows),
        .u = take(&memory, TILE_SIZE),
        .delta = take(&memory, TILE_SIZE),
        .z = take(&memory, TILE_SIZE),
        .dt = take(&memory, TILE_SIZE),
        .input = take(&memory, TILE_SIZE),
        .y = take(&memory, TILE_SIZE),
        .grad_y = take(&memory, TILE_SIZE),
        .grad_z = take(&memory, TILE_SIZE),
        .decay = take(&memory, TILE_SIZE),
        .before = take(&memory, TILE_SIZE),
        .dinput = take(&memory, TILE_SIZE),
        .ddt = take(&memory, TILE_SIZE),
        .product = take(&memory, TILE_SIZE),
    };
}

/* Compute one state of a block again, from the start of the chunk: its decay
 * and its value before each token, C h in y, and grad_y h in `product`. */
static inline void recompute_state(
    const backward_scratch *s, const real *restrict start,
    const real *restrict rate, const real *restrict B, const real *restrict C,
    const int with_y, int steps)
{
    const real *restrict dt = s->dt, *restrict input = s->input;
    const real *restrict grad = s->grad_y;
    real *restrict decay = s->decay, *restrict before = s->before;
    real *restrict y = s->y, *restrict product = s->product;
    for (int v = 0; v < LANES; v += VEC_LANES) {
        vec a = binary_rate(rate + v);
        vec h = vec_load(start + v);
        for (int t = 0; t < steps; t++) {
            int i = t * LANES + v;
            vec e = vec_exp2(vec_load(dt + i) * a);
            vec_store(decay + i, e);
            vec_store(before + i, h);
            h = e * h + vec_load(input + i) * B[t];
            vec_store(product + i, vec_load(grad + i) * h);
            if (with_y) vec_store(y + i, vec_load(y + i) + h * C[t]);
        }
    }
}

/* Run the adjoint of one state over the chunk, from its last token on. What
 * goes to dB is left in `product`. */
static void adjoint_state(
    const backward_scratch *s, real *restrict lambda, real *restrict dA,
    const real *restrict rate, const real *restrict B, const real *restrict C,
    int steps)
{
    const real *restrict dt = s->dt, *restrict input = s->input;
    const real *restrict grad = s->grad_y;
    const real *restrict decay = s->decay, *restrict before = s->before;
    real *restrict dinput = s->dinput, *restrict ddt = s->ddt;
    real *restrict product = s->product;
    for (int v = 0; v < LANES; v += VEC_LANES) {
        vec a = vec_load(rate + v);
        vec next = vec_load(lambda + v);
        vec sum = vec_load(dA + v);
        for (int t = steps - 1; t >= 0; t--) {
            int i = t * LANES + v;
            vec d = vec_load(decay + i);
            vec own = vec_load(grad + i) * C[t];
            vec l = own + next;
            vec_store(product + i, l * vec_load(input + i));
            vec_store(dinput + i, vec_load(dinput + i) + l * B[t]);
            /* d (own + next), with one operation from token to token. */
            next = d * next + d * own;
            vec ddecay = next * vec_load(before + i);
            sum += ddecay * vec_load(dt + i);
            vec_store(ddt + i, vec_load(ddt + i) + ddecay * a);
        }
        vec_store(lambda + v, next);
        vec_store(dA + v, sum);
    }
}

/* Add the sum over the channels of a block to a row of dB or dC. */
static void add_channels(real *restrict row, real *restrict tile, block at)
{
    real sums[TILE_STEPS];
    /* Lanes without a channel hold no zeros where B or C is infinite. */
    for (int t = 0; t < at.steps; t++)
        for (int j = at.lanes; j < LANES; j++) tile[t * LANES + j] = 0;
    tile_sum_lanes(sums, tile, at.steps);
    for (int t = 0; t < at.steps; t++) row[t] += sums[t];
}

/* Through y = (C h + D u) silu(z): grad_y becomes the gradient before it. */
static void gate_backward(const backward_scratch *s, int steps)
{
    for (int i = 0; i < steps * LANES; i += VEC_LANES) {
        vec z = vec_load(s->z + i), grad = vec_load(s->grad_y + i);
        vec_store(s->grad_z + i, grad * vec_silu_slope(z));
        vec_store(s->grad_y + i, grad * vec_silu(z));
    }
}

/* From the sums over the states to du (in `u`) and ddelta (in `delta`). */
static void tokens_backward(
    const backward_scratch *s, const real *restrict skip,
    const real *restrict bias, real *restrict dD, real *restrict dbias,
    int64_t softplus, int steps)
{
    for (int i = 0; i < steps * LANES; i += VEC_LANES) {
        const int v = i % LANES;
        vec u = vec_load(s->u + i), grad = vec_load(s->grad_y + i);
        vec dinput = vec_load(s->dinput + i);
        vec x = vec_load(s->delta + i) + vec_load(bias + v);
        vec ddelta = (vec_load(s->ddt + i) + dinput * u) *
                     step_size_slope(x, softplus);
        vec_store(dD + v, vec_load(dD + v) + grad * u);
        vec_store(dbias + v, vec_load(dbias + v) + ddelta);
        vec_store(s->u + i,
                  dinput * vec_load(s->dt + i) + grad * vec_load(skip + v));
        vec_store(s->delta + i, ddelta);
    }
}

static void backward_block(
    const backward_arguments *args, const backward_scratch *s, int64_t k,
    block at)
{
    const scan_inputs *in = &args->in;
    const int64_t first = k * in->state * LANES;
    const size_t bytes = sizeof(real) * LANES * at.steps;
    real bias[LANES], skip[LANES];
    load_channels(bias, in->delta_bias, at);
    load_channels(skip, in->D, at);
    load_tokens(s->u, in->u, at);
    load_tokens(s->delta, in->delta, at);
    load_tokens(s->grad_y, args->grad_y, at);
    load_states(s->start, checkpoint(in, at.time), at, in->state);
    step_sizes(s->dt, s->input, s->delta, s->u, bias, in->delta_softplus,
               at.steps);
    if (in->z.data) {
        load_tokens(s->z, in->z, at);
        gate_backward(s, at.steps);
        skip_connection(s->y, s->u, in->D, at);
    }
    memset(s->dinput, 0, bytes);
    memset(s->ddt, 0, bytes);
    for (int64_t n = 0; n < in->state; n++) {
        const real *start = s->start + n * LANES, *A = s->A + first + n * LANES;
        const real *B = s->B + n * TILE_STEPS, *C = s->C + n * TILE_STEPS;
        if (in->z.data)
            recompute_state(s, start, A, B, C, 1, at.steps);
        else
            recompute_state(s, start, A, B, C, 0, at.steps);
        add_channels(s->dC + n * TILE_STEPS, s->product, at);
        adjoint_state(s, s->lambda + first + n * LANES,
                      s->dA + first + n * LANES, A, B, C, at.steps);
        add_channels(s->dB + n * TILE_STEPS, s->product, at);
    }
    if (in->z.data) {
        for (int i = 0; i < at.steps * LANES; i += VEC_LANES)
            vec_store(s->grad_z + i,
                      vec_load(s->grad_z + i) * vec_load(s->y + i));
        store_tokens(args->dz, s->grad_z, at);
    }
    tokens_backward(s, skip, bias, s->dD + k * LANES, s->dbias + k * LANES,
                    in->delta_softplus, at.steps);
    store_tokens(args->du, s->u, at);
    store_tokens(args->ddelta, s->delta, at);
}

/* Write dB or dC of an item in a chunk. */
static void store_rows(
    const scan_inputs *in, tensor t, int64_t item_stride, const real *rows,
    work_item item, int64_t time)
{
    real *dst = t.data + item.part * item_stride +
                item.batch * t.stride[0] + item.group * t.stride[1] +
                time * t.stride[3];
    const int64_t steps = int64_min(TILE_STEPS, in->length - time);
    for (int64_t n = 0; n < in->state; n++)
        for (int64_t i = 0; i < steps; i++)
            dst[n * t.stride[2] + i * t.stride[3]] =
                rows[n * TILE_STEPS + i];
}

static void backward_item(
    const backward_arguments *args, const backward_scratch *s, work_item item)
{
    const scan_inputs *in = &args->in;
    const int64_t blocks = blocks_of(item), size = in->state * LANES;
    const int64_t chunks = ceil_div(in->length, TILE_STEPS);
    for (int64_t k = 0; k < blocks; k++) {
        block at = block_at(in, item, k, 0);
        load_states(s->A + k * size, rates(in), at, in->state);
        load_states(s->lambda + k * size, args->grad_last_state, at,
                    in->state);
    }
    memset(s->dA, 0, sizeof(real) * blocks * size);
    memset(s->dD, 0, sizeof(real) * blocks * LANES);
    memset(s->dbias, 0, sizeof(real) * blocks * LANES);
    for (int64_t chunk = chunks - 1; chunk >= 0; chunk--) {
        const int64_t time = chunk * TILE_STEPS;
        load_rows(s->B, in, in->B, item, time);
        load_rows(s->C, in, in->C, item, time);
        memset(s->dB, 0, sizeof(real) * in->state * TILE_STEPS);
        memset(s->dC, 0, sizeof(real) * in->state * TILE_STEPS);
        for (int64_t k = 0; k < blocks; k++)
            backward_block(args, s, k, block_at(in, item, k, time));
        store_rows(in, args->dB, args->dB_item, s->dB, item, time);
        store_rows(in, args->dC, args->dB_item, s->dC, item, time);
    }
    for (int64_t k = 0; k < blocks; k++) {
        block at = block_at(in, item, k, 0);
        store_states(args->dA, s->dA + k * size, at, in->state);
        store_states(args->dinitial_state, s->lambda + k * size, at,
                     in->state);
        store_channels(args->dD, s->dD + k * LANES, at);
        store_channels(args->ddelta_bias, s->dbias + k * LANES, at);
    }
}

static void reverse_gradients(backward_arguments *args)
{
    const int64_t length = args->in.length;
    args->grad_y = tensor_reversed(args->grad_y, 2, length);
    args->du = tensor_reversed(args->du, 2, length);
    args->ddelta = tensor_reversed(args->ddelta, 2, length);
    args->dz = tensor_reversed(args->dz, 2, length);
    args->dB = tensor_reversed(args->dB, 3, length);
    args->dC = tensor_reversed(args->dC, 3, length);
}

MMSSM_KERNEL(selective_scan_bwd, backward_arguments)
{
    backward_arguments a = *args;
    if (a.in.reverse) {
        reverse_inputs(&a.in);
        reverse_gradients(&a);
    }
    const int64_t items = a.in.batch * a.in.groups * items_per_group(&a.in);
    const int64_t size = backward_scratch_size(&a.in);
    const int threads = (int)int64_min(a.in.threads, items);
    int32_t failed = 0;
#pragma omp parallel num_threads(threads) reduction(|| : failed)
    {
        real *memory = scratch_new(size);
        failed = !memory;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < items; i++)
            if (memory) {
                backward_scratch s = backward_scratch_in(memory, &a.in);
                backward_item(&a, &s, item_at(&a.in, i));
            }
        free(memory);
    }
    return failed;
}
