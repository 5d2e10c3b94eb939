/* One frame of the SSD recurrence, with skip and gate:
 *
 *     h' = exp(dt A) h + dt x B^T,   y = (h' C + D x) silu(z)
 *
 * Lanes are neighbouring elements of the state of a channel, so that the state
 * is read and written once, in the order of memory. The sums over it that make
 * y are finished for as many channels at a time as a vector has lanes.
 */

#include "lane_sums.h"

#define FORCE_INLINE static inline __attribute__((always_inline))

/* Elements of the state below which a thread costs more than it saves. */
#define SMALL_WORK 32768

typedef struct {
    int64_t batch, heads, headdim, state_size, groups, dt_softplus, threads;
    tensor state;      /* (batch, heads, headdim, state), the last one dense */
    tensor x;          /* (batch, heads, headdim), like z and y */
    tensor dt;         /* (batch, heads) */
    tensor A;          /* (heads,), like dt_bias */
    tensor B, C;       /* (batch, groups, state), the last one dense */
    tensor D;          /* (heads,), the second stride being 0, or
                          (heads, headdim) */
    tensor z, dt_bias;
    tensor y, new_state;
} ssd_step_fwd_args;

/* Neighbouring channels of a head, at most as many as a vector has lanes. */
typedef struct {
    int64_t batch, head, first;
    int channels;
} channel_block;

static real *channel_address(const tensor *t, const channel_block *at)
{
    return t->data + at->batch * t->stride[0] + at->head * t->stride[1] +
           at->first * t->stride[2];
}

static vec channels_load(const real *src, int64_t stride, int channels)
{
    if (stride == 1 && channels == VEC_LANES) return vec_load(src);
    real values[VEC_LANES] = {0};
    for (int j = 0; j < channels; j++) values[j] = src[j * stride];
    return vec_load(values);
}

static real step_size(const ssd_step_fwd_args *args, const channel_block *at)
{
    real dt = args->dt.data[at->batch * args->dt.stride[0] +
                            at->head * args->dt.stride[1]];
    if (args->dt_bias.data)
        dt += args->dt_bias.data[at->head * args->dt_bias.stride[0]];
    return args->dt_softplus ? vec_softplus(vec_set(dt))[0] : dt;
}

/* Advance the state of one channel. Its products with C are left to be added
 * up: those of whole vectors in `products`, the others in `rest`. */
FORCE_INLINE void channel_advance(
    real *restrict target, const real *restrict state,
    const real *restrict B, const real *restrict C, real decay, real input,
    int64_t size, real *restrict products, real *restrict rest)
{
    const vec decay_lanes = vec_set(decay), input_lanes = vec_set(input);
    vec sum = {0};
    int64_t n = 0;
    for (; n + VEC_LANES <= size; n += VEC_LANES) {
        const vec h = decay_lanes * vec_load(state + n) +
                      input_lanes * vec_load(B + n);
        vec_store(target + n, h);
        sum += h * vec_load(C + n);
    }
    vec_store(products, sum);
    real remainder = 0;
    for (; n < size; n++) {
        target[n] = decay * state[n] + input * B[n];
        remainder += target[n] * C[n];
    }
    *rest = remainder;
}

/* What the channels of a head share. */
typedef struct {
    const real *B, *C;
    real dt, decay;
} head_terms;

static head_terms terms_of(
    const ssd_step_fwd_args *args, const channel_block *at)
{
    const int64_t group = at->head / (args->heads / args->groups);
    const tensor *B = &args->B, *C = &args->C;
    const real dt = step_size(args, at);
    const real A = args->A.data[at->head * args->A.stride[0]];
    return (head_terms){
        .B = B->data + at->batch * B->stride[0] + group * B->stride[1],
        .C = C->data + at->batch * C->stride[0] + group * C->stride[1],
        .dt = dt,
        .decay = vec_exp(vec_set(dt * A))[0],
    };
}

static void step_block(
    const ssd_step_fwd_args *args, const channel_block *at,
    const head_terms *head)
{
    real products[VEC_LANES * VEC_LANES], rest[VEC_LANES];
    real inputs[VEC_LANES], y[VEC_LANES];
    const tensor *state = &args->state, *target = &args->new_state;
    const vec x = channels_load(channel_address(&args->x, at),
                                args->x.stride[2], at->channels);
    vec_store(inputs, head->dt * x);
    for (int j = 0; j < at->channels; j++)
        channel_advance(channel_address(target, at) + j * target->stride[2],
                        channel_address(state, at) + j * state->stride[2],
                        head->B, head->C, head->decay, inputs[j],
                        args->state_size, products + j * VEC_LANES, rest + j);
    /* Lanes beyond the channels are not stored. */
    vec sum = lane_sums(products) + vec_load(rest);
    if (args->D.data) {
        const real *D = args->D.data + at->head * args->D.stride[0] +
                        at->first * args->D.stride[1];
        sum += x * channels_load(D, args->D.stride[1], at->channels);
    }
    if (args->z.data)
        sum *= vec_silu(channels_load(channel_address(&args->z, at),
                                      args->z.stride[2], at->channels));
    vec_store(y, sum);
    real *out = channel_address(&args->y, at);
    for (int j = 0; j < at->channels; j++) out[j * args->y.stride[2]] = y[j];
}

MMSSM_KERNEL(ssd_step_fwd, ssd_step_fwd_args)
{
    const int64_t heads = args->batch * args->heads;
    const int64_t work = heads * args->headdim * args->state_size;
#pragma omp parallel for schedule(static) num_threads((int)args->threads) \
    if (args->threads > 1 && work > SMALL_WORK)
    for (int64_t index = 0; index < heads; index++) {
        channel_block at = {.batch = index / args->heads,
                            .head = index % args->heads};
        const head_terms head = terms_of(args, &at);
        for (; at.first < args->headdim; at.first += VEC_LANES) {
            at.channels =
                (int)int64_min(args->headdim - at.first, VEC_LANES);
            step_block(args, &at, &head);
        }
    }
    return 0;
}
