/* One frame of the SSD recurrence, with skip and gate:
 *
 *     h' = exp(dt A) h + dt x B^T,   y = (h' C + D x) silu(z)
 *
 * Lanes are neighbouring elements of the state of a channel, so that the state
 * is read and written once, in the order of memory. The sums over it that make
 * y are finished for as many channels at a time as a vector has lanes.
 */

#include "lane_sums.h"

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

/* Advance the state of one channel. Returns the products of state and C, whose
 * lanes are still to be added up. */
static vec channel_advance(
    real *restrict target, const real *restrict state, const real *B,
    const real *C, real decay, real input, int64_t size)
{
    const vec decay_lanes = vec_set(decay), input_lanes = vec_set(input);
    vec products = {0};
    int64_t n = 0;
    for (; n + VEC_LANES <= size; n += VEC_LANES) {
        const vec h = decay_lanes * vec_load(state + n) +
                      input_lanes * vec_load(B + n);
        vec_store(target + n, h);
        products += h * vec_load(C + n);
    }
    real rest = 0;
    for (; n < size; n++) {
        target[n] = decay * state[n] + input * B[n];
        rest += target[n] * C[n];
    }
    products[0] += rest;
    return products;
}

static void step_block(const ssd_step_fwd_args *args, const channel_block *at)
{
    real products[VEC_LANES * VEC_LANES] = {0}, y[VEC_LANES];
    const int64_t group = at->head / (args->heads / args->groups);
    const tensor *state = &args->state, *target = &args->new_state;
    const real *B = args->B.data + at->batch * args->B.stride[0] +
                    group * args->B.stride[1];
    const real *C = args->C.data + at->batch * args->C.stride[0] +
                    group * args->C.stride[1];
    const real dt = step_size(args, at);
    const real A = args->A.data[at->head * args->A.stride[0]];
    const real decay = vec_exp(vec_set(dt * A))[0];
    const vec x = channels_load(channel_address(&args->x, at),
                                args->x.stride[2], at->channels);
    for (int j = 0; j < at->channels; j++)
        vec_store(products + j * VEC_LANES,
                  channel_advance(
                      channel_address(target, at) + j * target->stride[2],
                      channel_address(state, at) + j * state->stride[2], B, C,
                      decay, dt * x[j], args->state_size));
    vec sum = lane_sums(products);
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
    const int64_t blocks = (args->headdim + VEC_LANES - 1) / VEC_LANES;
    const int64_t jobs = args->batch * args->heads * blocks;
    const int64_t work =
        args->batch * args->heads * args->headdim * args->state_size;
#pragma omp parallel for schedule(static) num_threads((int)args->threads) \
    if (args->threads > 1 && work > SMALL_WORK)
    for (int64_t job = 0; job < jobs; job++) {
        const int64_t first = job % blocks * VEC_LANES;
        const channel_block at = {
            .batch = job / blocks / args->heads,
            .head = job / blocks % args->heads,
            .first = first,
            .channels = (int)int64_min(args->headdim - first, VEC_LANES),
        };
        step_block(args, &at);
    }
    return 0;
}
