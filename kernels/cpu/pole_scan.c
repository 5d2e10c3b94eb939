/* The token-conditioned recurrence of the pole scan and its adjoint:
 *
 *     y_t = eta_t - sum_i q_{t,i} y_{t-i},   out_t = (y_t + D x_t) silu(z_t)
 *
 * Lanes are channels of one group: the coefficients of a token are the same
 * in all of them. The adjoint runs in transposed form. With g = dL/dy and the
 * carry a, from the last token to the first:
 *
 *     lam_t = g_t + a_1,   a_j <- a_{j+1} - q_{t,j} lam_t,
 *     deta_t = lam_t,      dq_{t,i} = -sum_c lam_{t,c} y_{t-i,c}.
 */

#include "lane_sums.h"
#include "rows.h"

#define MAX_ORDER 32
/* Tokens of a tile: all that is read twice stays in the first-level cache. */
#define STEPS 32
/* Channels of a group whose shares of dq are summed before they leave it. */
#define SLAB 128
#define SLAB_BLOCKS (SLAB / ROW_LANES + 2)
/* Elements below which starting a thread costs more than it saves. */
#define SMALL_WORK 32768

typedef struct {
    int64_t batch, length, channels, groups, order, reverse, threads;
    tensor eta;              /* (batch, length, channels), like x, z, y, out */
    tensor q;                /* (batch, length, groups, order), order dense */
    tensor x, D, z;          /* D: (channels,) */
    tensor initial_history;  /* (batch, order, channels), most recent first */
    tensor y, out;           /* out only with x or z */
    tensor final_history;
} pole_scan_fwd_args;

typedef struct {
    int64_t batch, length, channels, groups, order, reverse, threads;
    int64_t dq_slab; /* from the dq of a slab to that of the next one */
    tensor grad_out, grad_final_history, y, q, x, D, z, initial_history;
    tensor deta, dq, dx;
    tensor dD; /* (batch, channels) */
    tensor dz, dinitial_history;
} pole_scan_bwd_args;

/* What one token leaves to the next, most recent first; one or two vectors. */
typedef vec carry[MAX_ORDER][2];

/* ---- recurrence of one tile ------------------------------------------- */

typedef struct {
    int count, order;
    rows eta, q, y;
} recurrence;

/* `order` and `vectors` are constants in the cores for small orders: their h
 * is in registers. */
FORCE_INLINE void recur(
    const recurrence *tile, vec (*history)[2], vec (*h)[2], int order,
    int vectors)
{
    const int count = tile->count;
    const rows eta = tile->eta, q = tile->q, y = tile->y;
    for (int i = 0; i < order; i++)
        for (int v = 0; v < vectors; v++) h[i][v] = history[i][v];
    for (int t = 0; t < count; t++) {
        const real *q_t = q.data + t * q.stride;
        vec now[2];
        for (int v = 0; v < vectors; v++)
            now[v] = vec_load(eta.data + t * eta.stride + v * VEC_LANES);
        /* The newest output comes last: only one operation waits for it. */
        for (int i = order - 1; i >= 0; i--)
            for (int v = 0; v < vectors; v++)
                now[v] -= vec_set(q_t[i]) * h[i][v];
        for (int i = order - 1; i > 0; i--)
            for (int v = 0; v < vectors; v++) h[i][v] = h[i - 1][v];
        for (int v = 0; v < vectors; v++) {
            h[0][v] = now[v];
            vec_store(y.data + t * y.stride + v * VEC_LANES, now[v]);
        }
    }
    for (int i = 0; i < order; i++)
        for (int v = 0; v < vectors; v++) history[i][v] = h[i][v];
}

/* ---- adjoint of one tile ---------------------------------------------- */

typedef struct {
    int count, order, channels;
    int accumulate; /* whether products holds those of other channels */
    rows grad, q, y, lam;
    real *products; /* (count, order) vectors: lam_t y_{t-i} before the sum */
} adjoint;

FORCE_INLINE void adjoin(
    const adjoint *tile, vec (*carried)[2], vec (*a)[2], int order,
    int vectors)
{
    const int accumulate = tile->accumulate;
    const rows grad = tile->grad, q = tile->q, y = tile->y, lam = tile->lam;
    ivec valid;
    for (int j = 0; j < VEC_LANES; j++) valid[j] = -(j < tile->channels);
    for (int i = 0; i < order; i++)
        for (int v = 0; v < vectors; v++) a[i][v] = carried[i][v];
    for (int t = tile->count - 1; t >= 0; t--) {
        const real *q_t = q.data + t * q.stride;
        vec now[2];
        for (int v = 0; v < vectors; v++) {
            now[v] = vec_load(grad.data + t * grad.stride + v * VEC_LANES);
            now[v] += a[0][v];
            /* Lanes beyond the channels must not reach the sum over these,
             * not even as 0 times infinity. */
            if (vectors == 1) now[v] = (vec)((ivec)now[v] & valid);
            vec_store(lam.data + t * lam.stride + v * VEC_LANES, now[v]);
        }
        for (int i = 0; i < order; i++)
            for (int v = 0; v < vectors; v++) {
                const vec older = i + 1 < order ? a[i + 1][v] : (vec){0};
                a[i][v] = older - vec_set(q_t[i]) * now[v];
            }
        const real *past = y.data + t * y.stride;
        real *products = tile->products + (int64_t)t * order * VEC_LANES;
        for (int i = 0; i < order; i++) {
            past -= y.stride;
            vec product = now[0] * vec_load(past);
            if (vectors == 2) product += now[1] * vec_load(past + VEC_LANES);
            if (accumulate) product += vec_load(products + i * VEC_LANES);
            vec_store(products + i * VEC_LANES, product);
        }
    }
    for (int i = 0; i < order; i++)
        for (int v = 0; v < vectors; v++) carried[i][v] = a[i][v];
}

/* ---- cores by order --------------------------------------------------- */

#define CORES(name, size, order, vectors)                                    \
    static void recur_##name##_##vectors(                                    \
        const recurrence *tile, vec (*history)[2])                           \
    {                                                                        \
        vec h[size][2];                                                      \
        recur(tile, history, h, order, vectors);                             \
    }                                                                        \
    static void adjoin_##name##_##vectors(                                   \
        const adjoint *tile, vec (*carried)[2])                              \
    {                                                                        \
        vec a[size][2];                                                      \
        adjoin(tile, carried, a, order, vectors);                            \
    }
#define SMALL_ORDER(order)                                                   \
    CORES(order, order, order, 1)                                            \
    CORES(order, order, order, 2)

SMALL_ORDER(1)
SMALL_ORDER(2)
SMALL_ORDER(3)
SMALL_ORDER(4)
SMALL_ORDER(5)
SMALL_ORDER(6)
SMALL_ORDER(7)
SMALL_ORDER(8)
CORES(any, MAX_ORDER, tile->order, 1)
CORES(any, MAX_ORDER, tile->order, 2)

#define SMALL_ORDERS 8
#define CORE_ROW(name, vectors)                                              \
    {                                                                        \
        name##_any_##vectors, name##_1_##vectors, name##_2_##vectors,        \
            name##_3_##vectors, name##_4_##vectors, name##_5_##vectors,      \
            name##_6_##vectors, name##_7_##vectors, name##_8_##vectors       \
    }

typedef void recur_core(const recurrence *, vec (*)[2]);
typedef void adjoin_core(const adjoint *, vec (*)[2]);

static recur_core *const recur_cores[2][SMALL_ORDERS + 1] = {
    CORE_ROW(recur, 1), CORE_ROW(recur, 2)};
static adjoin_core *const adjoin_cores[2][SMALL_ORDERS + 1] = {
    CORE_ROW(adjoin, 1), CORE_ROW(adjoin, 2)};

static int core_index(int64_t order)
{
    return order <= SMALL_ORDERS ? (int)order : 0;
}

/* ---- carries in memory: (batch, order, channels) ---------------------- */

static void carry_load(
    vec (*carried)[2], const tensor *states, const block *at, int64_t order)
{
    real row[ROW_LANES] = {0};
    for (int64_t i = 0; i < order; i++) {
        if (states->data) rows_pack(row, states, at, i, 1);
        for (int v = 0; v < 2; v++)
            carried[i][v] = vec_load(row + v * VEC_LANES);
    }
}

static void carry_store(
    const tensor *states, vec (*carried)[2], const block *at, int64_t order)
{
    for (int64_t i = 0; i < order; i++) {
        real tile[ROW_LANES];
        const rows row = rows_begin(states, at, i, tile);
        for (int v = 0; v < at->vectors; v++)
            vec_store(row.data + v * VEC_LANES, carried[i][v]);
        rows_finish(states, at, i, 1, tile);
    }
}

/* ---- skip and gate ---------------------------------------------------- */

typedef struct {
    rows y, x, z, out; /* data of x or z is NULL without skip or gate */
} gate_rows;

static void skip_and_gate(
    const gate_rows *at, const real *skip, int count, int vectors)
{
    for (int t = 0; t < count; t++)
        for (int j = 0; j < vectors * VEC_LANES; j += VEC_LANES) {
            vec sum = vec_load(at->y.data + t * at->y.stride + j);
            if (at->x.data)
                sum += vec_load(skip + j) *
                       vec_load(at->x.data + t * at->x.stride + j);
            if (at->z.data)
                sum *= vec_silu(vec_load(at->z.data + t * at->z.stride + j));
            vec_store(at->out.data + t * at->out.stride + j, sum);
        }
}

typedef struct {
    rows grad_out, y, x, z, dx, dz;
    real *grad_y;    /* (count, lanes) */
    real *skip_grad; /* (lanes), accumulated */
} gate_adjoint_rows;

static void skip_and_gate_adjoint(
    const gate_adjoint_rows *at, const real *skip, int count, int vectors)
{
    const int lanes = vectors * VEC_LANES;
    for (int t = 0; t < count; t++)
        for (int j = 0; j < lanes; j += VEC_LANES) {
            vec grad =
                vec_load(at->grad_out.data + t * at->grad_out.stride + j);
            vec x = {0};
            if (at->x.data)
                x = vec_load(at->x.data + t * at->x.stride + j);
            if (at->z.data) {
                vec sum = vec_load(at->y.data + t * at->y.stride + j);
                if (at->x.data) sum += vec_load(skip + j) * x;
                const vec z = vec_load(at->z.data + t * at->z.stride + j);
                const vec gate = vec_sigmoid(z);
                const vec slope = gate * (1 + z * (1 - gate));
                vec_store(at->dz.data + t * at->dz.stride + j,
                          grad * sum * slope);
                grad *= z * gate;
            }
            vec_store(at->grad_y + t * lanes + j, grad);
            if (at->x.data) {
                vec_store(at->dx.data + t * at->dx.stride + j,
                          vec_load(skip + j) * grad);
                vec_store(at->skip_grad + j,
                          vec_load(at->skip_grad + j) + grad * x);
            }
        }
}

/* ---- forward ---------------------------------------------------------- */

/* Coefficients of the tokens from `time` on, for the group of a block. */
static rows q_rows(
    const tensor *q, const block *at, int64_t time, int64_t group_channels)
{
    return (rows){q->data + at->batch * q->stride[0] + time * q->stride[1] +
                      at->first / group_channels * q->stride[2],
                  q->stride[1]};
}

static void forward_block(const pole_scan_fwd_args *args, const block *at)
{
    real eta_tile[STEPS * ROW_LANES], y_tile[STEPS * ROW_LANES];
    real x_tile[STEPS * ROW_LANES], z_tile[STEPS * ROW_LANES];
    real out_tile[STEPS * ROW_LANES], skip[ROW_LANES];
    carry history;
    recur_core *core = recur_cores[at->vectors - 1][core_index(args->order)];
    carry_load(history, &args->initial_history, at, args->order);
    row_load(skip, &args->D, at);
    for (int64_t start = 0; start < args->length; start += STEPS) {
        const int count = (int)int64_min(args->length - start, STEPS);
        recurrence tile = {.count = count, .order = (int)args->order};
        tile.eta = rows_read(&args->eta, at, start, count, eta_tile);
        tile.q = q_rows(&args->q, at, start, args->channels / args->groups);
        tile.y = rows_begin(&args->y, at, start, y_tile);
        core(&tile, history);
        rows_finish(&args->y, at, start, count, y_tile);
        if (!args->out.data) continue;
        gate_rows gate = {.y = tile.y};
        if (args->x.data)
            gate.x = rows_read(&args->x, at, start, count, x_tile);
        if (args->z.data)
            gate.z = rows_read(&args->z, at, start, count, z_tile);
        gate.out = rows_begin(&args->out, at, start, out_tile);
        skip_and_gate(&gate, skip, count, at->vectors);
        rows_finish(&args->out, at, start, count, out_tile);
    }
    carry_store(&args->final_history, history, at, args->order);
}

MMSSM_KERNEL(pole_scan_fwd, pole_scan_fwd_args)
{
    pole_scan_fwd_args a = *args;
    tensor *of_time[] = {&a.eta, &a.q, &a.x, &a.z, &a.y, &a.out};
    if (a.reverse)
        for (int i = 0; i < 6; i++)
            *of_time[i] = tensor_reversed(*of_time[i], 1, a.length);
    const int64_t width = a.channels / a.groups;
    const int64_t blocks = block_count(width);
    const int64_t jobs = a.batch * a.groups * blocks;
    const int64_t work = a.batch * a.length * a.channels;
#pragma omp parallel for schedule(static) num_threads((int)a.threads) \
    if (a.threads > 1 && work > SMALL_WORK)
    for (int64_t job = 0; job < jobs; job++) {
        const int64_t group = job / blocks % a.groups;
        const block at =
            block_at(job / blocks / a.groups, group * width,
                     (group + 1) * width, job % blocks);
        forward_block(&a, &at);
    }
    return 0;
}

/* ---- backward --------------------------------------------------------- */

/* Gradient of the output of the recurrence, from that of skip and gate. */
static rows gate_backward(
    const pole_scan_bwd_args *args, const block *at, int64_t start, int count,
    gate_adjoint_rows *gate)
{
    real x_tile[STEPS * ROW_LANES], dx_tile[STEPS * ROW_LANES];
    real z_tile[STEPS * ROW_LANES], dz_tile[STEPS * ROW_LANES];
    real skip[ROW_LANES];
    row_load(skip, &args->D, at);
    if (args->x.data) {
        gate->x = rows_read(&args->x, at, start, count, x_tile);
        gate->dx = rows_begin(&args->dx, at, start, dx_tile);
    }
    if (args->z.data) {
        gate->z = rows_read(&args->z, at, start, count, z_tile);
        gate->dz = rows_begin(&args->dz, at, start, dz_tile);
    }
    skip_and_gate_adjoint(gate, skip, count, at->vectors);
    if (args->x.data) rows_finish(&args->dx, at, start, count, dx_tile);
    if (args->z.data) rows_finish(&args->dz, at, start, count, dz_tile);
    return (rows){gate->grad_y, at->vectors * VEC_LANES};
}

typedef struct {
    carry carried;
    real skip_grad[ROW_LANES];
} block_state;

static void backward_tile(
    const pole_scan_bwd_args *args, const block *at, int64_t start, int count,
    int accumulate, block_state *state, real *products)
{
    real grad_tile[STEPS * ROW_LANES], grad_y[STEPS * ROW_LANES];
    real y_tile[(MAX_ORDER + STEPS) * ROW_LANES], lam_tile[STEPS * ROW_LANES];
    adjoint tile = {
        .count = count,
        .order = (int)args->order,
        .channels = at->channels,
        .accumulate = accumulate,
        .products = products,
    };
    tile.y = rows_read_past(&args->y, &args->initial_history, at, start, count,
                            (int)args->order, y_tile);
    tile.grad = rows_read(&args->grad_out, at, start, count, grad_tile);
    tile.q = q_rows(&args->q, at, start, args->channels / args->groups);
    if (args->x.data || args->z.data) {
        gate_adjoint_rows gate = {
            .grad_out = tile.grad,
            .y = tile.y,
            .grad_y = grad_y,
            .skip_grad = state->skip_grad,
        };
        tile.grad = gate_backward(args, at, start, count, &gate);
    }
    tile.lam = rows_begin(&args->deta, at, start, lam_tile);
    adjoin_cores[at->vectors - 1][core_index(args->order)](
        &tile, state->carried);
    rows_finish(&args->deta, at, start, count, lam_tile);
}

/* dq of the tokens of a tile from products that are still split by lanes. */
static void products_sum(rows dq, const real *products, int count, int order)
{
    real sums[STEPS * MAX_ORDER + VEC_LANES];
    for (int i = 0; i < count * order; i += VEC_LANES)
        vec_store(sums + i, -lane_sums(products + (int64_t)i * VEC_LANES));
    for (int t = 0; t < count; t++)
        memcpy(dq.data + t * dq.stride, sums + t * order,
               sizeof(real) * order);
}

/* All tokens of the channels from `begin` to `end`, which share a group. */
static void backward_slab(
    const pole_scan_bwd_args *args, int64_t batch, int64_t begin, int64_t end,
    tensor dq)
{
    block_state states[SLAB_BLOCKS];
    real products[(STEPS * MAX_ORDER + VEC_LANES) * VEC_LANES];
    const int64_t order = args->order, channels = args->channels;
    const int64_t blocks = block_count(end - begin);
    for (int64_t b = 0; b < blocks; b++) {
        const block at = block_at(batch, begin, end, b);
        carry_load(states[b].carried, &args->grad_final_history, &at, order);
        memset(states[b].skip_grad, 0, sizeof states[b].skip_grad);
    }
    const int64_t last = (args->length - 1) / STEPS * STEPS;
    for (int64_t start = last; start >= 0; start -= STEPS) {
        const int count = (int)int64_min(args->length - start, STEPS);
        for (int64_t b = 0; b < blocks; b++) {
            const block at = block_at(batch, begin, end, b);
            backward_tile(args, &at, start, count, b > 0, &states[b],
                          products);
        }
        const block at = block_at(batch, begin, end, 0);
        products_sum(q_rows(&dq, &at, start, channels / args->groups),
                     products, count, (int)order);
    }
    for (int64_t b = 0; b < blocks; b++) {
        const block at = block_at(batch, begin, end, b);
        if (args->dinitial_history.data)
            carry_store(&args->dinitial_history, states[b].carried, &at,
                        order);
        if (args->dD.data) row_store(&args->dD, states[b].skip_grad, &at);
    }
}

MMSSM_KERNEL(pole_scan_bwd, pole_scan_bwd_args)
{
    pole_scan_bwd_args a = *args;
    tensor *of_time[] = {&a.grad_out, &a.y,  &a.q,  &a.x, &a.z,
                         &a.deta,     &a.dx, &a.dz, &a.dq};
    if (a.reverse)
        for (int i = 0; i < 9; i++)
            *of_time[i] = tensor_reversed(*of_time[i], 1, a.length);
    const int64_t width = a.channels / a.groups;
    const int64_t slabs = (width + SLAB - 1) / SLAB;
    const int64_t jobs = a.batch * a.groups * slabs;
    const int64_t work = a.batch * a.length * a.channels;
#pragma omp parallel for schedule(static) num_threads((int)a.threads) \
    if (a.threads > 1 && work > SMALL_WORK)
    for (int64_t job = 0; job < jobs; job++) {
        const int64_t slab = job % slabs, group = job / slabs % a.groups;
        const int64_t begin = group * width + slab * SLAB;
        tensor dq = a.dq;
        dq.data += slab * a.dq_slab;
        backward_slab(&a, job / slabs / a.groups, begin,
                      int64_min(begin + SLAB, (group + 1) * width), dq);
    }
    return 0;
}
