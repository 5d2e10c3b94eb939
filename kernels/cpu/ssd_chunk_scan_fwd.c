/* The SSD recurrence, forward pass; see ssd_chunk_scan.h. */

#include "ssd_chunk_scan.h"

typedef struct {
    scan_inputs in;
    tensor y;            /* (batch, length, heads, headdim) */
    tensor final_states; /* (batch, heads, headdim, state) */
} forward_arguments;

typedef struct {
    real *states;            /* [head of the item][headdim][state] */
    real *state_turned;      /* [state][headdim] */
    real *B, *C, *B_weighted; /* [frame][state] */
    real *B_turned;          /* [state][frame] */
    real *scores, *mixing;   /* [frame][frame] */
    real *x, *y, *z;         /* [frame][headdim] */
    real *skip;              /* [headdim] */
    real *weight;            /* [frame] */
    frame_terms frames;
    sequence_terms sequences;
} forward_scratch;

static int64_t forward_scratch_size(const scan_inputs *in)
{
    const int64_t rows = chunk_rows(in), channels = padded(in->headdim);
    const int64_t states = padded(in->state);
    return (in->item_heads + 1) * channels * states + 4 * rows * states +
           2 * rows * rows + 3 * rows * channels + channels +
           (2 + FRAME_TERMS_ROWS) * rows;
}

static forward_scratch forward_scratch_in(real *memory, const scan_inputs *in)
{
    const int64_t rows = chunk_rows(in), channels = padded(in->headdim);
    const int64_t states = padded(in->state);
    return (forward_scratch){
        .states = take(&memory, in->item_heads * channels * states),
        .state_turned = take(&memory, channels * states),
        .B = take(&memory, rows * states),
        .C = take(&memory, rows * states),
        .B_weighted = take(&memory, rows * states),
        .B_turned = take(&memory, rows * states),
        .scores = take(&memory, rows * rows),
        .mixing = take(&memory, rows * rows),
        .x = take(&memory, rows * channels),
        .y = take(&memory, rows * channels),
        .z = take(&memory, rows * channels),
        .skip = take(&memory, channels),
        .weight = take(&memory, rows),
        .frames = frame_terms_in(&memory, rows),
        /* An integer is as long as a real. */
        .sequences = {.number = (integer *)take(&memory, rows)},
    };
}

/* mixing_ij = (C_i . B_j) exp(s_i - s_j) dt_j */
static void mixing_fill(forward_scratch *s, int64_t steps)
{
    const int64_t pitch = padded(steps);
    for (int64_t i = 0; i < steps; i++)
        for (int64_t j = 0; j < causal_columns(i); j += VEC_LANES) {
            const vec decay =
                decay_between(&s->frames, &s->sequences, i, j);
            vec_store(s->mixing + i * pitch + j,
                      vec_load(s->scores + i * pitch + j) * decay *
                          vec_load(s->frames.dt + j));
        }
}

/* y, without skip and gate; the state before the chunk is added if it is not
 * zero. */
static void output_fill(
    forward_scratch *s, const scan_inputs *in, const real *state,
    int64_t steps, int add)
{
    const int64_t channels = padded(in->headdim), states = padded(in->state);
    if (add) {
        tile_transpose(s->state_turned, state, channels, states);
        product_compute(&(product){
            .rows = steps, .columns = channels, .depth = in->state,
            .a = s->C, .a_row = states, .a_depth = 1,
            .b = s->state_turned, .b_pitch = channels,
            .out = s->y, .out_pitch = channels,
            .factor = s->frames.from_start,
        });
    }
    product_compute(&(product){
        .shape = CAUSAL,
        .rows = steps, .columns = channels, .depth = steps,
        .a = s->mixing, .a_row = padded(steps), .a_depth = 1,
        .b = s->x, .b_pitch = channels,
        .out = s->y, .out_pitch = channels,
        .add = add,
    });
}

/* Let the state pass the chunk. */
static void state_advance(
    forward_scratch *s, const scan_inputs *in, real *state, int64_t steps,
    int add)
{
    const int64_t channels = padded(in->headdim), states = padded(in->state);
    for (int64_t i = 0; i < padded(steps); i += VEC_LANES)
        vec_store(s->weight + i, vec_load(s->frames.to_end + i) *
                                     vec_load(s->frames.dt + i));
    tile_scale_rows(s->B_weighted, s->B, s->weight, steps, states);
    if (add)
        state_decay(state, s->frames.total, s->sequences.changes,
                    channels * states);
    product_compute(&(product){
        .rows = in->headdim, .columns = states, .depth = steps,
        .a = s->x, .a_row = 1, .a_depth = channels,
        .b = s->B_weighted, .b_pitch = states,
        .out = state, .out_pitch = states,
        .add = add,
    });
}

/* Add the skip, multiply by the gate, and write y. */
static void output_store(
    const forward_arguments *args, forward_scratch *s, work_item item,
    int64_t head, chunk_range at)
{
    const scan_inputs *in = &args->in;
    const int64_t channels = padded(in->headdim);
    if (in->D.data) skip_load(s->skip, in, head);
    if (in->z.data) frames_load(s->z, &in->z, item, head, at, in->headdim);
    for (int64_t i = 0; i < at.steps; i++)
        for (int64_t p = 0; p < channels; p += VEC_LANES) {
            const int64_t k = i * channels + p;
            vec y = vec_load(s->y + k);
            if (in->D.data)
                y += vec_load(s->skip + p) * vec_load(s->x + k);
            if (in->z.data) y *= vec_silu(vec_load(s->z + k));
            vec_store(s->y + k, y);
        }
    frames_store(&args->y, s->y, item, head, at, in->headdim);
}

static void forward_head(
    const forward_arguments *args, forward_scratch *s, work_item item,
    int64_t head, chunk_range at)
{
    const scan_inputs *in = &args->in;
    const int64_t size = padded(in->headdim) * padded(in->state);
    real *state = s->states + (head - item.head) * size;
    const int add = has_state(in, at);
    if (at.index > 0) {
        const tensor before = states_before(in, at);
        state_store(in, &before, state, item, head);
    }
    frames_load(s->x, &in->x, item, head, at, in->headdim);
    raw_steps_load(s->frames.dt, in, item, head, at);
    frames_prepare(&s->frames, &s->sequences,
                   in->A.data[head * in->A.stride[0]], in->dt_softplus,
                   at.steps);
    mixing_fill(s, at.steps);
    output_fill(s, in, state, at.steps, add);
    output_store(args, s, item, head, at);
    state_advance(s, in, state, at.steps, add);
}

static void forward_chunk(
    const forward_arguments *args, forward_scratch *s, work_item item,
    chunk_range at)
{
    const scan_inputs *in = &args->in;
    const int64_t rows = padded(at.steps), states = padded(in->state);
    frames_load(s->B, &in->B, item, item.group, at, in->state);
    frames_load(s->C, &in->C, item, item.group, at, in->state);
    tile_transpose(s->B_turned, s->B, rows, states);
    product_compute(&(product){
        .shape = CAUSAL_RESULT,
        .rows = at.steps, .columns = rows, .depth = in->state,
        .a = s->C, .a_row = states, .a_depth = 1,
        .b = s->B_turned, .b_pitch = rows,
        .out = s->scores, .out_pitch = rows,
    });
    number_sequences(&s->sequences, in, item, at);
    for (int64_t head = item.head; head < item.end; head++)
        forward_head(args, s, item, head, at);
}

static void forward_item(
    const forward_arguments *args, forward_scratch *s, work_item item)
{
    const scan_inputs *in = &args->in;
    const int64_t size = padded(in->headdim) * padded(in->state);
    for (int64_t head = item.head; head < item.end; head++)
        state_load(s->states + (head - item.head) * size, in,
                   &in->initial_states, item, head);
    for (int64_t chunk = 0; chunk < num_chunks(in); chunk++)
        forward_chunk(args, s, item, chunk_at(in, chunk));
    for (int64_t head = item.head; head < item.end; head++)
        state_store(in, &args->final_states,
                    s->states + (head - item.head) * size, item, head);
}

MMSSM_KERNEL(ssd_chunk_scan_fwd, forward_arguments)
{
    const int64_t items = num_items(&args->in);
    const int64_t size = forward_scratch_size(&args->in);
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
                forward_scratch s = forward_scratch_in(memory, &args->in);
                forward_item(args, &s, item_at(&args->in, i));
            }
        denormals_restore(control);
        free(memory);
    }
    return failed;
}
