/* Causal depthwise convolution with SiLU, forward and backward:
 *
 *     pre_t = bias + sum_k w_k x_{t - (width - 1) + k},   y_t = silu(pre_t)
 *
 * Channels-last tensors are convolved with channels in the lanes, all others
 * with time in the lanes. Time is in the order of processing. A backward pass
 * goes from the last tile of time to the first: with d = dL/dpre,
 *
 *     dx_t = sum_j w_{width - 1 - j} d_{t + j}.
 */

#include "rows.h"

#define MAX_WIDTH 32
#define MAX_PAST (MAX_WIDTH - 1)
/* Time steps of a tile with channels, and with time, in the lanes. */
#define STEPS 32
#define SPAN 256
/* Elements below which starting a thread costs more than it saves. */
#define SMALL_WORK 32768

typedef struct {
    int64_t batch, dim, length, width, silu, reverse, threads;
    tensor x;              /* (batch, dim, length) */
    tensor weight, bias;   /* (dim, width) dense, (dim,) */
    tensor initial_states; /* (batch, dim, width - 1), oldest first */
    tensor y;
} causal_conv1d_fwd_args;

typedef struct {
    int64_t batch, dim, length, width, silu, reverse, threads;
    tensor grad_y, x, weight, bias, initial_states;
    tensor dx;
    tensor dweight, dbias; /* (batch, dim, width), (batch, dim) */
    tensor dinitial_states;
} causal_conv1d_bwd_args;

/* From (batch, channel, time) to (batch, time, channel), time in the order of
 * processing. */
static tensor time_first(tensor t, int64_t length, int64_t reverse)
{
    tensor swapped = {t.data, {t.stride[0], t.stride[2], t.stride[1]}};
    return reverse ? tensor_reversed(swapped, 1, length) : swapped;
}

/* To (batch, age, channel), age 0 being the newest. */
static tensor by_age(tensor states, int64_t width)
{
    return time_first(states, width - 1, 1);
}

/* The cores with a constant width, for the usual ones. */
#define BY_WIDTH(core, width, ...)                                           \
    switch (width) {                                                         \
    case 2: core(__VA_ARGS__, 2); break;                                     \
    case 3: core(__VA_ARGS__, 3); break;                                     \
    case 4: core(__VA_ARGS__, 4); break;                                     \
    default: core(__VA_ARGS__, width);                                       \
    }

/* ---- channels in the lanes -------------------------------------------- */

typedef vec taps[MAX_WIDTH][2];

static void taps_load(
    vec (*w)[2], const tensor *weight, const block *at, int width)
{
    for (int k = 0; k < width; k++) {
        const tensor column = {weight->data + k, {weight->stride[0]}};
        real row[ROW_LANES];
        row_load(row, &column, at);
        for (int v = 0; v < 2; v++) w[k][v] = vec_load(row + v * VEC_LANES);
    }
}

typedef struct {
    int count, vectors, silu;
    const vec (*w)[2];
    const real *bias;
    rows x, y;
} forward_tile;

FORCE_INLINE vec tap_sum(
    const real *newest, int64_t stride, const vec (*w)[2], int v, vec sum,
    int width)
{
    for (int k = 0; k < width; k++)
        sum += w[k][v] * vec_load(newest + (k - width + 1) * stride);
    return sum;
}

FORCE_INLINE void convolve_rows(const forward_tile *tile, int width)
{
    const rows x = tile->x, y = tile->y;
    for (int v = 0; v < tile->vectors; v++) {
        const vec bias = vec_load(tile->bias + v * VEC_LANES);
        for (int t = 0; t < tile->count; t++) {
            vec sum = tap_sum(x.data + t * x.stride + v * VEC_LANES, x.stride,
                              tile->w, v, bias, width);
            if (tile->silu) sum = vec_silu(sum);
            vec_store(y.data + t * y.stride + v * VEC_LANES, sum);
        }
    }
}

static void forward_channels(
    const causal_conv1d_fwd_args *args, const block *at)
{
    real x_tile[(MAX_PAST + STEPS) * ROW_LANES], y_tile[STEPS * ROW_LANES];
    real bias[ROW_LANES];
    taps w;
    const int width = (int)args->width;
    taps_load(w, &args->weight, at, width);
    row_load(bias, &args->bias, at);
    for (int64_t start = 0; start < args->length; start += STEPS) {
        const int count = (int)int64_min(args->length - start, STEPS);
        const forward_tile tile = {
            .count = count,
            .vectors = at->vectors,
            .silu = (int)args->silu,
            .w = (const vec(*)[2])w,
            .bias = bias,
            .x = rows_read_past(&args->x, &args->initial_states, at, start,
                                count, width - 1, x_tile),
            .y = rows_begin(&args->y, at, start, y_tile),
        };
        BY_WIDTH(convolve_rows, width, &tile)
        rows_finish(&args->y, at, start, count, y_tile);
    }
}

typedef struct {
    int count, vectors, silu;
    const vec (*w)[2];
    const real *bias;
    vec (*dw)[2], *dbias;
    rows grad, x, dx;
    real *d; /* (count + width - 1, lanes): later steps follow */
} backward_tile;

FORCE_INLINE void adjoin_rows(const backward_tile *tile, int width)
{
    const rows grad = tile->grad, x = tile->x, dx = tile->dx;
    const int lanes = tile->vectors * VEC_LANES;
    for (int v = 0; v < tile->vectors; v++) {
        const vec bias = vec_load(tile->bias + v * VEC_LANES);
        const int lane = v * VEC_LANES;
        for (int t = 0; t < tile->count; t++) {
            const real *newest = x.data + t * x.stride + lane;
            vec d = vec_load(grad.data + t * grad.stride + lane);
            if (tile->silu)
                d *= vec_silu_slope(
                    tap_sum(newest, x.stride, tile->w, v, bias, width));
            vec_store(tile->d + t * lanes + lane, d);
            tile->dbias[v] += d;
            for (int k = 0; k < width; k++)
                tile->dw[k][v] +=
                    d * vec_load(newest + (k - width + 1) * x.stride);
        }
        for (int t = 0; t < tile->count; t++) {
            vec sum = {0};
            for (int j = 0; j < width; j++)
                sum += tile->w[width - 1 - j][v] *
                       vec_load(tile->d + (t + j) * lanes + lane);
            vec_store(dx.data + t * dx.stride + lane, sum);
        }
    }
}

/* Gradient of the steps before the first one; d starts with that one. */
static void history_gradient(
    const causal_conv1d_bwd_args *args, const block *at, const real *d,
    const vec (*w)[2])
{
    const int width = (int)args->width, lanes = at->vectors * VEC_LANES;
    for (int age = 0; age < width - 1; age++) {
        real tile[ROW_LANES];
        for (int v = 0; v < at->vectors; v++) {
            vec sum = {0};
            for (int j = age + 1; j < width; j++)
                sum += w[width - 1 - j][v] *
                       vec_load(d + (j - age - 1) * lanes + v * VEC_LANES);
            vec_store(tile + v * VEC_LANES, sum);
        }
        const rows row = rows_begin(&args->dinitial_states, at, age, tile);
        if (row.data != tile) memcpy(row.data, tile, sizeof(real) * lanes);
        rows_finish(&args->dinitial_states, at, age, 1, tile);
    }
}

static void backward_channels(
    const causal_conv1d_bwd_args *args, const block *at)
{
    real x_tile[(MAX_PAST + STEPS) * ROW_LANES], dx_tile[STEPS * ROW_LANES];
    real grad_tile[STEPS * ROW_LANES], d[(STEPS + MAX_PAST) * ROW_LANES];
    real bias[ROW_LANES], row[ROW_LANES];
    taps w, dw;
    vec dbias[2] = {{0}, {0}};
    const int width = (int)args->width, lanes = at->vectors * VEC_LANES;
    const size_t past_bytes = sizeof(real) * (width - 1) * lanes;
    taps_load(w, &args->weight, at, width);
    row_load(bias, &args->bias, at);
    memset(dw, 0, sizeof dw);
    const int64_t last = (args->length - 1) / STEPS * STEPS;
    memset(d + (args->length - last) * lanes, 0, past_bytes);
    for (int64_t start = last; start >= 0; start -= STEPS) {
        const int count = (int)int64_min(args->length - start, STEPS);
        const backward_tile tile = {
            .count = count,
            .vectors = at->vectors,
            .silu = (int)args->silu,
            .w = (const vec(*)[2])w,
            .bias = bias,
            .dw = dw,
            .dbias = dbias,
            .grad = rows_read(&args->grad_y, at, start, count, grad_tile),
            .x = rows_read_past(&args->x, &args->initial_states, at, start,
                                count, width - 1, x_tile),
            .dx = rows_begin(&args->dx, at, start, dx_tile),
            .d = d,
        };
        BY_WIDTH(adjoin_rows, width, &tile)
        rows_finish(&args->dx, at, start, count, dx_tile);
        if (start > 0) memcpy(d + STEPS * lanes, d, past_bytes);
    }
    if (args->dinitial_states.data)
        history_gradient(args, at, d, (const vec(*)[2])w);
    for (int v = 0; v < 2; v++) vec_store(row + v * VEC_LANES, dbias[v]);
    if (args->dbias.data) row_store(&args->dbias, row, at);
    for (int k = 0; k < width; k++) {
        for (int v = 0; v < 2; v++) vec_store(row + v * VEC_LANES, dw[k][v]);
        real *column = args->dweight.data +
                       (at->batch * args->dim + at->first) * width + k;
        for (int j = 0; j < at->channels; j++) column[j * width] = row[j];
    }
}

/* ---- time in the lanes ------------------------------------------------ */

#define PADDED (MAX_PAST + SPAN + VEC_LANES)

typedef struct {
    int64_t batch, channel;
} row_index;

static void steps_read(real *dst, const real *src, int64_t stride, int count)
{
    if (stride == 1)
        memcpy(dst, src, sizeof(real) * count);
    else if (stride == -1)
        for (int t = 0; t < count; t++) dst[t] = src[-t];
    else
        for (int t = 0; t < count; t++) dst[t] = src[t * stride];
}

static void steps_write(real *dst, const real *src, int64_t stride, int count)
{
    if (stride == 1)
        memcpy(dst, src, sizeof(real) * count);
    else if (stride == -1)
        for (int t = 0; t < count; t++) dst[-t] = src[t];
    else
        for (int t = 0; t < count; t++) dst[t * stride] = src[t];
}

static real *step_address(const tensor *t, row_index at, int64_t time)
{
    return t->data + at.batch * t->stride[0] + time * t->stride[1] +
           at.channel * t->stride[2];
}

/* `past` steps before `start`, `count` from it on, then zeros for a vector. */
static void padded_read(
    real *dst, const tensor *x, const tensor *history, row_index at,
    int64_t start, int count, int past)
{
    const int known = (int)int64_min(start, past), missing = past - known;
    for (int i = 0; i < missing; i++)
        dst[i] = history->data
                     ? *step_address(history, at, missing - i - 1)
                     : 0;
    steps_read(dst + missing, step_address(x, at, start - known),
               x->stride[1], known + count);
    memset(dst + past + count, 0, sizeof(real) * VEC_LANES);
}

/* Sum of the taps for VEC_LANES steps; x starts `width - 1` steps earlier. */
FORCE_INLINE vec span_sum(const real *x, const real *w, vec sum, int width)
{
    for (int k = 0; k < width; k++) sum += w[k] * vec_load(x + k);
    return sum;
}

FORCE_INLINE void convolve_span(
    real *y, const real *x, const real *w, real bias, int silu, int count,
    int width)
{
    for (int t = 0; t < count; t += VEC_LANES) {
        vec sum = span_sum(x + t, w, vec_set(bias), width);
        vec_store(y + t, silu ? vec_silu(sum) : sum);
    }
}

static real channel_bias(const tensor *bias, int64_t channel)
{
    return bias->data ? bias->data[channel * bias->stride[0]] : 0;
}

static void forward_row(const causal_conv1d_fwd_args *args, row_index at)
{
    real x[PADDED], y[SPAN + VEC_LANES];
    const int width = (int)args->width;
    const real *w = args->weight.data + at.channel * width;
    const real bias = channel_bias(&args->bias, at.channel);
    for (int64_t start = 0; start < args->length; start += SPAN) {
        const int count = (int)int64_min(args->length - start, SPAN);
        padded_read(x, &args->x, &args->initial_states, at, start, count,
                    width - 1);
        BY_WIDTH(convolve_span, width, y, x, w, bias, (int)args->silu, count)
        steps_write(step_address(&args->y, at, start), y, args->y.stride[1],
                    count);
    }
}

static real sum_of(vec v)
{
    real sum = 0;
    for (int j = 0; j < VEC_LANES; j++) sum += v[j];
    return sum;
}

/* d = dL/dpre of a span; dw has width + 1 sums, the last one for the bias. */
FORCE_INLINE void slope_span(
    real *d, vec *dw, const real *grad, const real *x, const real *w,
    real bias, int silu, int count, int width)
{
    for (int t = 0; t < count; t += VEC_LANES) {
        ivec valid;
        for (int j = 0; j < VEC_LANES; j++) valid[j] = -(t + j < count);
        vec d_t = vec_load(grad + t);
        if (silu)
            d_t *=
                vec_silu_slope(span_sum(x + t, w, vec_set(bias), width));
        vec_store(d + t, d_t);
        for (int k = 0; k < width; k++)
            dw[k] += (vec)((ivec)(d_t * vec_load(x + t + k)) & valid);
        dw[width] += (vec)((ivec)d_t & valid);
    }
}

FORCE_INLINE void adjoin_span(
    real *dx, const real *d, const real *w, int count, int width)
{
    for (int t = 0; t < count; t += VEC_LANES) {
        vec sum = {0};
        for (int j = 0; j < width; j++)
            sum += w[width - 1 - j] * vec_load(d + t + j);
        vec_store(dx + t, sum);
    }
}

static void backward_row(const causal_conv1d_bwd_args *args, row_index at)
{
    real x[PADDED], d[PADDED], grad[SPAN + VEC_LANES], dx[SPAN + VEC_LANES];
    real later[MAX_WIDTH] = {0};
    vec dw[MAX_WIDTH + 1];
    const int width = (int)args->width, past = width - 1;
    const real *w = args->weight.data + at.channel * width;
    const real bias = channel_bias(&args->bias, at.channel);
    for (int k = 0; k <= width; k++) dw[k] = (vec){0};
    const int64_t last = (args->length - 1) / SPAN * SPAN;
    for (int64_t start = last; start >= 0; start -= SPAN) {
        const int count = (int)int64_min(args->length - start, SPAN);
        padded_read(x, &args->x, &args->initial_states, at, start, count,
                    past);
        steps_read(grad, step_address(&args->grad_y, at, start),
                   args->grad_y.stride[1], count);
        memset(grad + count, 0, sizeof(real) * VEC_LANES);
        BY_WIDTH(slope_span, width, d, dw, grad, x, w, bias, (int)args->silu,
                 count)
        memcpy(d + count, later, sizeof(real) * past);
        memset(d + count + past, 0, sizeof(real) * VEC_LANES);
        BY_WIDTH(adjoin_span, width, dx, d, w, count)
        memcpy(later, d, sizeof(real) * past);
        steps_write(step_address(&args->dx, at, start), dx,
                    args->dx.stride[1], count);
    }
    for (int age = 0; args->dinitial_states.data && age < past; age++) {
        real sum = 0;
        for (int j = age + 1; j < width; j++)
            sum += w[width - 1 - j] * later[j - age - 1];
        *step_address(&args->dinitial_states, at, age) = sum;
    }
    const int64_t index = at.batch * args->dim + at.channel;
    for (int k = 0; k < width; k++)
        args->dweight.data[index * width + k] = sum_of(dw[k]);
    if (args->dbias.data) args->dbias.data[index] = sum_of(dw[width]);
}

/* ---- entry points ----------------------------------------------------- */

static int channels_last(const tensor *x, int64_t dim)
{
    return x->stride[2] == 1 && dim > 1;
}

MMSSM_KERNEL(causal_conv1d_fwd, causal_conv1d_fwd_args)
{
    causal_conv1d_fwd_args a = *args;
    a.x = time_first(a.x, a.length, a.reverse);
    a.y = time_first(a.y, a.length, a.reverse);
    a.initial_states = by_age(a.initial_states, a.width);
    const int in_channels = channels_last(&a.x, a.dim);
    const int64_t parts = in_channels ? block_count(a.dim) : a.dim;
    const int64_t work = a.batch * a.dim * a.length;
#pragma omp parallel for schedule(static) num_threads((int)a.threads) \
    if (a.threads > 1 && work > SMALL_WORK)
    for (int64_t job = 0; job < a.batch * parts; job++) {
        if (in_channels) {
            const block at = block_at(job / parts, 0, a.dim, job % parts);
            forward_channels(&a, &at);
        } else {
            forward_row(&a, (row_index){job / parts, job % parts});
        }
    }
    return 0;
}

MMSSM_KERNEL(causal_conv1d_bwd, causal_conv1d_bwd_args)
{
    causal_conv1d_bwd_args a = *args;
    a.grad_y = time_first(a.grad_y, a.length, a.reverse);
    a.x = time_first(a.x, a.length, a.reverse);
    a.dx = time_first(a.dx, a.length, a.reverse);
    a.initial_states = by_age(a.initial_states, a.width);
    a.dinitial_states = by_age(a.dinitial_states, a.width);
    const int in_channels = channels_last(&a.x, a.dim);
    const int64_t parts = in_channels ? block_count(a.dim) : a.dim;
    const int64_t work = a.batch * a.dim * a.length;
#pragma omp parallel for schedule(static) num_threads((int)a.threads) \
    if (a.threads > 1 && work > SMALL_WORK)
    for (int64_t job = 0; job < a.batch * parts; job++) {
        if (in_channels) {
            const block at = block_at(job / parts, 0, a.dim, job % parts);
            backward_channels(&a, &at);
        } else {
            backward_row(&a, (row_index){job / parts, job % parts});
        }
    }
    return 0;
}
