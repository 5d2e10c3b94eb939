/* The SSD recurrence, backward pass; see ssd_chunk_scan.h.
 *
 * With M_ij = (C_i . B_j) exp(s_i - s_j), dy the gradient of y before skip and
 * gate, u that of the state after the chunk, and the weights e_i = exp(s_i)
 * and f_i = exp(s_last - s_i):
 *
 *     G_ij = dy_i . dt_j x_j,   dS_ij = G_ij exp(s_i - s_j)
 *     dC_i = sum_j dS_ij B_j + q_i,              q_i = e_i g^T dy_i
 *     dB_j = sum_i dS_ij C_i + w_j,              w_j = f_j dt_j u^T x_j
 *     d(dt x)_j = sum_i M_ij dy_i + f_j u B_j
 *     dg = exp(s_last) u + sum_i e_i dy_i C_i^T
 *
 * The gradient of dt_n A is the sum of G_ij M_ij over j < n <= i, of q_i . C_i
 * over i >= n, of w_j . B_j over j < n, and exp(s_last) u . g. What would
 * cancel between sums over rows and columns of G M is in none of these.
 */

#include "ssd_chunk_scan.h"

/* Gradients of parameters are given per batch element, those of B and C per
 * work item of the group (`part_stride` apart): the caller adds them up. */
typedef struct {
    scan_inputs in;
    int64_t part_stride;
    tensor grad_y;            /* (batch, length, heads, headdim) */
    tensor grad_final_states; /* (batch, heads, headdim, state) */
    tensor dx, dz;            /* (batch, length, heads, headdim) */
    tensor ddt;               /* (batch, length, heads) */
    tensor dA, ddt_bias;      /* (batch, heads) */
    tensor dB, dC;            /* (batch, length, groups, state) */
    tensor dD;                /* (batch, heads, headdim) */
    tensor dinitial_states;   /* (batch, heads, headdim, state) */
} backward_arguments;

typedef struct {
    real *grad_states;    /* [head of the item][headdim][state] */
    real *dD;             /* [head of the item][headdim] */
    double *dA, *dbias;   /* [head of the item] */
    real *before;         /* [headdim][state] */
    real *state_turned;   /* [state][headdim] */
    real *B, *C, *dB, *dC, *given; /* [frame][state] */
    real *B_turned;       /* [state][frame] */
    real *scores, *decay, *mixing, *grad_mixing, *grad_scores;
                          /* [frame][frame] */
    real *x, *y, *z, *grad_y, *dx; /* [frame][headdim] */
    real *x_turned;       /* [headdim][frame] */
    real *skip;           /* [headdim] */
    real *vectors;        /* [frame][VEC_LANES] */
    real *below;          /* [frame] */
    real *between, *read, *left, *to_x, *raw, *weight; /* [frame] */
    frame_terms frames;
    sequence_terms sequences;
} backward_scratch;

static int64_t backward_scratch_size(const scan_inputs *in)
{
    const int64_t rows = chunk_rows(in), channels = padded(in->headdim);
    const int64_t states = padded(in->state);
    return (in->item_heads + 2) * channels * states +
           (in->item_heads + 1) * channels + 4 * padded(in->item_heads) +
           6 * rows * states + 5 * rows * rows + 6 * rows * channels +
           rows * LANES + (8 + FRAME_TERMS_ROWS) * rows;
}

static backward_scratch backward_scratch_in(
    real *memory, const scan_inputs *in)
{
    const int64_t rows = chunk_rows(in), channels = padded(in->headdim);
    const int64_t states = padded(in->state), heads = in->item_heads;
    return (backward_scratch){
        .grad_states = take(&memory, heads * channels * states),
        .dD = take(&memory, heads * channels),
        /* A double is as long as two reals, at most. */
        .dA = (double *)take(&memory, 2 * padded(heads)),
        .dbias = (double *)take(&memory, 2 * padded(heads)),
        .before = take(&memory, channels * states),
        .state_turned = take(&memory, channels * states),
        .B = take(&memory, rows * states),
        .C = take(&memory, rows * states),
        .dB = take(&memory, rows * states),
        .dC = take(&memory, rows * states),
        .given = take(&memory, rows * states),
        .B_turned = take(&memory, rows * states),
        .scores = take(&memory, rows * rows),
        .decay = take(&memory, rows * rows),
        .mixing = take(&memory, rows * rows),
        .grad_mixing = take(&memory, rows * rows),
        .grad_scores = take(&memory, rows * rows),
        .x = take(&memory, rows * channels),
        .y = take(&memory, rows * channels),
        .z = take(&memory, rows * channels),
        .grad_y = take(&memory, rows * channels),
        .dx = take(&memory, rows * channels),
        .x_turned = take(&memory, rows * channels),
        .skip = take(&memory, channels),
        .vectors = take(&memory, rows * LANES),
        .below = take(&memory, rows),
        .between = take(&memory, rows),
        .read = take(&memory, rows),
        .left = take(&memory, rows),
        .to_x = take(&memory, rows),
        .raw = take(&memory, rows),
        .weight = take(&memory, rows),
        .frames = frame_terms_in(&memory, rows),
        /* An integer is as long as a real. */
        .sequences = {.number = (integer *)take(&memory, rows)},
    };
}

/* A head of an item in a chunk. */
typedef struct {
    work_item item;
    int64_t head, local; /* its number, and that within the item */
    chunk_range at;
    int64_t rows, channels, states; /* of padded tiles */
    int has_state;
    real A;
} head_range;

/* exp(s_i - s_j), and M */
static void mixing_fill(backward_scratch *s, const head_range *h)
{
    for (int64_t i = 0; i < h->at.steps; i++)
        for (int64_t j = 0; j < causal_columns(i); j += VEC_LANES) {
            const int64_t k = i * h->rows + j;
            const vec decay =
                decay_between(&s->frames, &s->sequences, i, j);
            vec_store(s->decay + k, decay);
            vec_store(s->mixing + k, vec_load(s->scores + k) * decay);
        }
}

/* What y was before the gate. */
static void output_recompute(
    backward_scratch *s, const scan_inputs *in, const head_range *h)
{
    if (h->has_state) {
        tile_transpose(s->state_turned, s->before, h->channels, h->states);
        product_compute(&(product){
            .rows = h->at.steps, .columns = h->channels, .depth = in->state,
            .a = s->C, .a_row = h->states, .a_depth = 1,
            .b = s->state_turned, .b_pitch = h->channels,
            .out = s->y, .out_pitch = h->channels,
            .factor = s->frames.from_start,
        });
    }
    /* Where the gradient of x will be, dt x waits. */
    tile_scale_rows(s->dx, s->x, s->frames.dt, h->at.steps, h->channels);
    product_compute(&(product){
        .shape = CAUSAL,
        .rows = h->at.steps, .columns = h->channels, .depth = h->at.steps,
        .a = s->mixing, .a_row = h->rows, .a_depth = 1,
        .b = s->dx, .b_pitch = h->channels,
        .out = s->y, .out_pitch = h->channels,
        .add = h->has_state,
    });
    for (int64_t i = 0; i < h->at.steps; i++)
        for (int64_t p = 0; p < h->channels; p += VEC_LANES) {
            const int64_t k = i * h->channels + p;
            vec_store(s->y + k, vec_load(s->y + k) +
                                    vec_load(s->skip + p) *
                                        vec_load(s->x + k));
        }
}

/* The gradient of z; that of y becomes the one before the gate. */
static void gate_backward(
    const backward_arguments *args, backward_scratch *s, const head_range *h)
{
    const int64_t headdim = args->in.headdim;
    output_recompute(s, &args->in, h);
    frames_load(s->z, &args->in.z, h->item, h->head, h->at, headdim);
    for (int64_t k = 0; k < h->at.steps * h->channels; k += VEC_LANES) {
        const vec z = vec_load(s->z + k), grad = vec_load(s->grad_y + k);
        vec_store(s->z + k, grad * vec_load(s->y + k) * vec_silu_slope(z));
        vec_store(s->grad_y + k, grad * vec_silu(z));
    }
    frames_store(&args->dz, s->z, h->item, h->head, h->at, headdim);
}

static void skip_backward(backward_scratch *s, const head_range *h)
{
    real *dD = s->dD + h->local * h->channels;
    for (int64_t p = 0; p < h->channels; p += VEC_LANES) {
        vec sum = vec_load(dD + p);
        for (int64_t i = 0; i < h->at.steps; i++)
            sum += vec_load(s->grad_y + i * h->channels + p) *
                   vec_load(s->x + i * h->channels + p);
        vec_store(dD + p, sum);
    }
}

/* Add to dS; and for every frame n, the sum of G_ij M_ij over j < n <= i:
 * going up from the last row, `below` holds the sums of the columns so far. */
static void scores_backward(
    backward_scratch *s, const scan_inputs *in, const head_range *h)
{
    tile_transpose(s->x_turned, s->x, h->rows, h->channels);
    product_compute(&(product){
        .shape = CAUSAL_RESULT,
        .rows = h->at.steps, .columns = h->rows, .depth = in->headdim,
        .a = s->grad_y, .a_row = h->channels, .a_depth = 1,
        .b = s->x_turned, .b_pitch = h->rows,
        .out = s->grad_mixing, .out_pitch = h->rows,
    });
    memset(s->below, 0, sizeof(real) * (size_t)h->rows);
    memset(s->vectors, 0, sizeof(real) * (size_t)(h->rows * VEC_LANES));
    for (int64_t i = h->at.steps - 1; i >= 0; i--) {
        vec sum = {0};
        for (int64_t j = 0; j < causal_columns(i); j += VEC_LANES) {
            const int64_t k = i * h->rows + j;
            const vec grad = vec_load(s->grad_mixing + k) *
                             vec_load(s->frames.dt + j);
            const vec below = vec_load(s->below + j) +
                              grad * vec_load(s->mixing + k);
            vec_store(s->below + j, below);
            vec_store(s->grad_scores + k,
                      vec_load(s->grad_scores + k) +
                          grad * vec_load(s->decay + k));
            const ivec earlier = lane_numbers() < (integer)(i - j);
            sum += vec_select(earlier, below, vec_set(0));
        }
        vec_store(s->vectors + i * VEC_LANES, sum);
    }
    finish_sums(s->between, s->vectors, h->rows);
}

/* sum += tile, and the products of their rows with those of `other` */
static void add_rows_and_products(
    backward_scratch *s, real *restrict sum, real *restrict products,
    const real *restrict other, const head_range *h)
{
    for (int64_t i = 0; i < h->at.steps; i++) {
        vec total = {0};
        for (int64_t n = 0; n < h->states; n += VEC_LANES) {
            const int64_t k = i * h->states + n;
            const vec given = vec_load(s->given + k);
            vec_store(sum + k, vec_load(sum + k) + given);
            total += given * vec_load(other + k);
        }
        vec_store(s->vectors + i * VEC_LANES, total);
    }
    finish_sums(products, s->vectors, h->rows);
}

/* What the chunk read from the state before it. */
static void reading_backward(
    backward_scratch *s, const scan_inputs *in, const head_range *h)
{
    product_compute(&(product){
        .rows = h->at.steps, .columns = h->states, .depth = in->headdim,
        .a = s->grad_y, .a_row = h->channels, .a_depth = 1,
        .b = s->before, .b_pitch = h->states,
        .out = s->given, .out_pitch = h->states,
        .factor = s->frames.from_start,
    });
    add_rows_and_products(s, s->dC, s->read, s->C, h);
}

/* What it added to the state after it, and its frames gave to each other: dB,
 * and the gradient of dt x. */
static void input_backward(
    backward_scratch *s, const scan_inputs *in, const real *grad_state,
    const head_range *h)
{
    for (int64_t i = 0; i < h->rows; i += VEC_LANES)
        vec_store(s->weight + i, vec_load(s->frames.to_end + i) *
                                     vec_load(s->frames.dt + i));
    product_compute(&(product){
        .rows = h->at.steps, .columns = h->states, .depth = in->headdim,
        .a = s->x, .a_row = h->channels, .a_depth = 1,
        .b = grad_state, .b_pitch = h->states,
        .out = s->given, .out_pitch = h->states,
        .factor = s->weight,
    });
    add_rows_and_products(s, s->dB, s->left, s->B, h);
    tile_transpose(s->state_turned, grad_state, h->channels, h->states);
    product_compute(&(product){
        .rows = h->at.steps, .columns = h->channels, .depth = in->state,
        .a = s->B, .a_row = h->states, .a_depth = 1,
        .b = s->state_turned, .b_pitch = h->channels,
        .out = s->dx, .out_pitch = h->channels,
        .factor = s->frames.to_end,
    });
    product_compute(&(product){
        .shape = ANTICAUSAL,
        .rows = h->at.steps, .columns = h->channels, .depth = h->at.steps,
        .a = s->mixing, .a_row = 1, .a_depth = h->rows,
        .b = s->grad_y, .b_pitch = h->channels,
        .out = s->dx, .out_pitch = h->channels,
        .add = 1,
    });
}

/* Gradient of the state before the chunk, from that after it. Returns the
 * gradient of the sum of the log decay over the chunk. */
static real state_backward(
    backward_scratch *s, const scan_inputs *in, real *grad_state,
    const head_range *h)
{
    const int64_t size = h->channels * h->states;
    real product_lanes[VEC_LANES];
    vec sum = {0};
    for (int64_t k = 0; k < size; k += VEC_LANES)
        sum += vec_load(grad_state + k) * vec_load(s->before + k);
    vec_store(product_lanes, sum);
    real total = 0;
    for (int j = 0; j < VEC_LANES; j++) total += product_lanes[j];
    state_decay(grad_state, s->frames.total, s->sequences.changes, size);
    tile_scale_rows(s->given, s->C, s->frames.from_start, h->at.steps,
                    h->states);
    product_compute(&(product){
        .rows = in->headdim, .columns = h->states, .depth = h->at.steps,
        .a = s->grad_y, .a_row = 1, .a_depth = h->channels,
        .b = s->given, .b_pitch = h->states,
        .out = grad_state, .out_pitch = h->states,
        .add = 1,
    });
    return s->sequences.changes ? 0 : total * s->frames.total;
}

/* dx, and the products of x with the gradient of dt x. */
static void input_store(
    const backward_arguments *args, backward_scratch *s, const head_range *h)
{
    for (int64_t i = 0; i < h->at.steps; i++) {
        vec total = {0};
        for (int64_t p = 0; p < h->channels; p += VEC_LANES) {
            const int64_t k = i * h->channels + p;
            const vec grad = vec_load(s->dx + k);
            total += grad * vec_load(s->x + k);
            vec dx = s->frames.dt[i] * grad;
            if (args->in.D.data)
                dx += vec_load(s->skip + p) * vec_load(s->grad_y + k);
            vec_store(s->dx + k, dx);
        }
        vec_store(s->vectors + i * VEC_LANES, total);
    }
    finish_sums(s->to_x, s->vectors, h->rows);
    frames_store(&args->dx, s->dx, h->item, h->head, h->at,
                 args->in.headdim);
}

/* Gradients of the step sizes, and what they give to A and the bias. */
static void steps_backward(
    const backward_arguments *args, backward_scratch *s, const head_range *h,
    real of_total)
{
    const int64_t steps = h->at.steps;
    double later = 0, earlier = 0, dA = 0, dbias = 0;
    /* What all frames from n on read, then what all before n have left. */
    for (int64_t n = steps - 1; n >= 0; n--) {
        later += s->read[n];
        s->read[n] = (real)(later + of_total) + s->between[n];
    }
    for (int64_t n = 0; n < steps; n++) {
        const real of_decay = s->read[n] + (real)earlier;
        earlier += s->left[n];
        dA += (double)of_decay * s->frames.dt[n];
        s->to_x[n] += of_decay * h->A;
    }
    const tensor *t = &args->ddt;
    real *ddt = frame_address(t, h->item, h->head, h->at);
    for (int64_t n = 0; n < h->rows && args->in.dt_softplus; n += VEC_LANES) {
        const vec raw = vec_load(s->raw + n);
        const vec slope =
            vec_select(raw > 20, vec_set(1), vec_sigmoid(raw));
        vec_store(s->to_x + n, vec_load(s->to_x + n) * slope);
    }
    for (int64_t n = 0; n < steps; n++) {
        ddt[n * t->stride[1]] = s->to_x[n];
        dbias += s->to_x[n];
    }
    s->dA[h->local] += dA;
    s->dbias[h->local] += dbias;
}

static void backward_head(
    const backward_arguments *args, backward_scratch *s, const head_range *h)
{
    const scan_inputs *in = &args->in;
    real *grad_state = s->grad_states + h->local * h->channels * h->states;
    if (h->has_state) {
        const tensor before = states_before(in, h->at);
        state_load(s->before, in, &before, h->item, h->head);
    }
    frames_load(s->x, &in->x, h->item, h->head, h->at, in->headdim);
    frames_load(s->grad_y, &args->grad_y, h->item, h->head, h->at,
                in->headdim);
    skip_load(s->skip, in, h->head);
    raw_steps_load(s->raw, in, h->item, h->head, h->at);
    memcpy(s->frames.dt, s->raw, sizeof(real) * (size_t)h->rows);
    frames_prepare(&s->frames, &s->sequences, h->A, in->dt_softplus,
                   h->at.steps);
    mixing_fill(s, h);
    if (in->z.data) gate_backward(args, s, h);
    if (in->D.data) skip_backward(s, h);
    scores_backward(s, in, h);
    input_backward(s, in, grad_state, h);
    real of_total = 0;
    memset(s->read, 0, sizeof(real) * (size_t)h->rows);
    if (h->has_state) {
        reading_backward(s, in, h);
        of_total = state_backward(s, in, grad_state, h);
    }
    input_store(args, s, h);
    steps_backward(args, s, h, of_total);
}

/* What the heads of the item gave to the scores goes to B and C. */
static void matrices_backward(
    const backward_arguments *args, backward_scratch *s, work_item item,
    chunk_range at)
{
    const int64_t rows = padded(at.steps), states = padded(args->in.state);
    product_compute(&(product){
        .shape = CAUSAL,
        .rows = at.steps, .columns = states, .depth = at.steps,
        .a = s->grad_scores, .a_row = rows, .a_depth = 1,
        .b = s->B, .b_pitch = states,
        .out = s->dC, .out_pitch = states,
        .add = 1,
    });
    product_compute(&(product){
        .shape = ANTICAUSAL,
        .rows = at.steps, .columns = states, .depth = at.steps,
        .a = s->grad_scores, .a_row = 1, .a_depth = rows,
        .b = s->C, .b_pitch = states,
        .out = s->dB, .out_pitch = states,
        .add = 1,
    });
    tensor dB = args->dB, dC = args->dC;
    dB.data += item.part * args->part_stride;
    dC.data += item.part * args->part_stride;
    frames_store(&dB, s->dB, item, item.group, at, args->in.state);
    frames_store(&dC, s->dC, item, item.group, at, args->in.state);
}

static void backward_chunk(
    const backward_arguments *args, backward_scratch *s, work_item item,
    chunk_range at)
{
    const scan_inputs *in = &args->in;
    head_range h = {
        .item = item,
        .at = at,
        .rows = padded(at.steps),
        .channels = padded(in->headdim),
        .states = padded(in->state),
        .has_state = has_state(in, at),
    };
    frames_load(s->B, &in->B, item, item.group, at, in->state);
    frames_load(s->C, &in->C, item, item.group, at, in->state);
    tile_transpose(s->B_turned, s->B, h.rows, h.states);
    product_compute(&(product){
        .shape = CAUSAL_RESULT,
        .rows = at.steps, .columns = h.rows, .depth = in->state,
        .a = s->C, .a_row = h.states, .a_depth = 1,
        .b = s->B_turned, .b_pitch = h.rows,
        .out = s->scores, .out_pitch = h.rows,
    });
    number_sequences(&s->sequences, in, item, at);
    memset(s->dB, 0, sizeof(real) * (size_t)(h.rows * h.states));
    memset(s->dC, 0, sizeof(real) * (size_t)(h.rows * h.states));
    memset(s->grad_scores, 0, sizeof(real) * (size_t)(h.rows * h.rows));
    for (h.head = item.head; h.head < item.end; h.head++) {
        h.local = h.head - item.head;
        h.A = in->A.data[h.head * in->A.stride[0]];
        backward_head(args, s, &h);
    }
    matrices_backward(args, s, item, at);
}

/* Gradients of what a head has one of. */
static void parameters_store(
    const backward_arguments *args, const backward_scratch *s, work_item item,
    int64_t head)
{
    const int64_t local = head - item.head;
    const int64_t channels = padded(args->in.headdim);
    const tensor *dA = &args->dA, *dbias = &args->ddt_bias, *dD = &args->dD;
    dA->data[item.batch * dA->stride[0] + head * dA->stride[1]] =
        (real)s->dA[local];
    if (dbias->data)
        dbias->data[item.batch * dbias->stride[0] + head * dbias->stride[1]] =
            (real)s->dbias[local];
    if (dD->data)
        rows_store(dD->data + item.batch * dD->stride[0] +
                       head * dD->stride[1],
                   0, dD->stride[2], s->dD + local * channels, 1,
                   args->in.headdim);
    state_store(&args->in, &args->dinitial_states,
                s->grad_states +
                    local * channels * padded(args->in.state),
                item, head);
}

static void backward_item(
    const backward_arguments *args, backward_scratch *s, work_item item)
{
    const scan_inputs *in = &args->in;
    const int64_t channels = padded(in->headdim);
    const int64_t size = channels * padded(in->state);
    for (int64_t head = item.head; head < item.end; head++) {
        const int64_t local = head - item.head;
        state_load(s->grad_states + local * size, in,
                   &args->grad_final_states, item, head);
        memset(s->dD + local * channels, 0,
               sizeof(real) * (size_t)channels);
        s->dA[local] = s->dbias[local] = 0;
    }
    for (int64_t chunk = num_chunks(in) - 1; chunk >= 0; chunk--)
        backward_chunk(args, s, item, chunk_at(in, chunk));
    for (int64_t head = item.head; head < item.end; head++)
        parameters_store(args, s, item, head);
}

MMSSM_KERNEL(ssd_chunk_scan_bwd, backward_arguments)
{
    const int64_t items = num_items(&args->in);
    const int64_t size = backward_scratch_size(&args->in);
    const int threads = (int)int64_min(args->in.threads, items);
    int32_t failed = 0;
#pragma omp parallel num_threads(threads) reduction(|| : failed)
    {
        real *memory = scratch_new(size);
        const unsigned control = denormals_to_zero();
        failed = !memory;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < items; i++)
            if (memory) {
                backward_scratch s = backward_scratch_in(memory, &args->in);
                backward_item(args, &s, item_at(&args->in, i));
            }
        denormals_restore(control);
        free(memory);
    }
    return failed;
}
