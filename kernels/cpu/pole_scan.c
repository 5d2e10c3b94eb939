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
/* Blocks of a job: those of 512 channels, and those of a slab. */
#define JOB_BLOCKS (512 / ROW_LANES + SLAB / ROW_LANES + 2)
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

/* ---- division of the work --------------------------------------------- */

/* A block of a job. Blocks of a slab follow each other. */
typedef struct {
    block at;
    int64_t group, slab;           /* the slab counts within its group */
    int begins_slab, ends_slab;
    vec (*carried)[2];
} member;

/* Neighbouring slabs of one element of the batch. A job goes over time once,
 * tile by tile, for all its blocks: it reads and writes rows of memory that
 * are long enough for the prefetchers of a CPU. */
typedef struct {
    int count;
    member members[JOB_BLOCKS];
    vec carried[JOB_BLOCKS * MAX_ORDER][2];
} job;

/* How jobs are cut: the results do not depend on it. */
typedef struct {
    int64_t width, order; /* width: channels of a group */
    int64_t group_slabs, slabs, job_slabs, jobs;
} division;

static division divide(
    int64_t batch, int64_t channels, int64_t groups, int64_t order,
    int64_t threads)
{
    division d = {.width = channels / groups, .order = order};
    d.group_slabs = (d.width + SLAB - 1) / SLAB;
    d.slabs = groups * d.group_slabs;
    /* The last slab of a group may have one block more than a full one. */
    const int64_t blocks =
        d.width < SLAB ? block_count(d.width) : SLAB / ROW_LANES + 1;
    const int64_t share = (batch * d.slabs + threads - 1) / threads;
    d.job_slabs = int64_min(JOB_BLOCKS / blocks, int64_min(share, d.slabs));
    d.jobs = batch * ((d.slabs + d.job_slabs - 1) / d.job_slabs);
    return d;
}

static void job_begin(job *work, const division *d, int64_t index)
{
    const int64_t parts = (d->slabs + d->job_slabs - 1) / d->job_slabs;
    const int64_t first = index % parts * d->job_slabs;
    const int64_t last = int64_min(first + d->job_slabs, d->slabs);
    work->count = 0;
    for (int64_t slab = first; slab < last; slab++) {
        const int64_t group = slab / d->group_slabs;
        const int64_t begin =
            group * d->width + slab % d->group_slabs * SLAB;
        const int64_t end = int64_min(begin + SLAB, (group + 1) * d->width);
        const int64_t blocks = block_count(end - begin);
        for (int64_t b = 0; b < blocks; b++, work->count++)
            work->members[work->count] = (member){
                .at = block_at(index / parts, begin, end, b),
                .group = group,
                .slab = slab % d->group_slabs,
                .begins_slab = b == 0,
                .ends_slab = b == blocks - 1,
                .carried = work->carried + work->count * d->order,
            };
    }
}

/* Coefficients of the tokens from `time` on, for the group of a block. */
static rows q_rows(const tensor *q, const member *m, int64_t time)
{
    return (rows){q->data + m->at.batch * q->stride[0] +
                      time * q->stride[1] + m->group * q->stride[2],
                  q->stride[1]};
}

/* ---- forward ---------------------------------------------------------- */

static void forward_gate(
    const pole_scan_fwd_args *args, const block *at, int64_t start, int count,
    rows y)
{
    real x_tile[STEPS * ROW_LANES], z_tile[STEPS * ROW_LANES];
    real out_tile[STEPS * ROW_LANES], skip[ROW_LANES];
    gate_rows gate = {.y = y};
    row_load(skip, &args->D, at);
    if (args->x.data)
        gate.x = rows_read(&args->x, at, start, count, x_tile);
    if (args->z.data)
        gate.z = rows_read(&args->z, at, start, count, z_tile);
    gate.out = rows_begin(&args->out, at, start, out_tile);
    skip_and_gate(&gate, skip, count, at->vectors);
    rows_finish(&args->out, at, start, count, out_tile);
}

static void forward_tile(
    const pole_scan_fwd_args *args, const member *m, int64_t start, int count)
{
    real eta_tile[STEPS * ROW_LANES], y_tile[STEPS * ROW_LANES];
    const block *at = &m->at;
    recurrence tile = {.count = count, .order = (int)args->order};
    tile.eta = rows_read(&args->eta, at, start, count, eta_tile);
    tile.q = q_rows(&args->q, m, start);
    tile.y = rows_begin(&args->y, at, start, y_tile);
    recur_cores[at->vectors - 1][core_index(args->order)](&tile, m->carried);
    rows_finish(&args->y, at, start, count, y_tile);
    if (args->out.data) forward_gate(args, at, start, count, tile.y);
}

static void forward_job(
    const pole_scan_fwd_args *args, const division *d, int64_t index)
{
    job work;
    job_begin(&work, d, index);
    for (int b = 0; b < work.count; b++)
        carry_load(work.members[b].carried, &args->initial_history,
                   &work.members[b].at, args->order);
    for (int64_t start = 0; start < args->length; start += STEPS) {
        const int count = (int)int64_min(args->length - start, STEPS);
        for (int b = 0; b < work.count; b++)
            forward_tile(args, &work.members[b], start, count);
    }
    for (int b = 0; b < work.count; b++)
        carry_store(&args->final_history, work.members[b].carried,
                    &work.members[b].at, args->order);
}

MMSSM_KERNEL(pole_scan_fwd, pole_scan_fwd_args)
{
    pole_scan_fwd_args a = *args;
    tensor *of_time[] = {&a.eta, &a.q, &a.x, &a.z, &a.y, &a.out};
    if (a.reverse)
        for (int i = 0; i < 6; i++)
            *of_time[i] = tensor_reversed(*of_time[i], 1, a.length);
    const int64_t work = a.batch * a.length * a.channels;
    const int64_t threads = work > SMALL_WORK ? a.threads : 1;
    const division d =
        divide(a.batch, a.channels, a.groups, a.order, threads);
#pragma omp parallel for schedule(static) num_threads((int)threads) \
    if (threads > 1)
    for (int64_t index = 0; index < d.jobs; index++)
        forward_job(&a, &d, index);
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

static void backward_tile(
    const pole_scan_bwd_args *args, const member *m, int64_t start, int count,
    real *skip_grad, real *products)
{
    real grad_tile[STEPS * ROW_LANES], grad_y[STEPS * ROW_LANES];
    real y_tile[(MAX_ORDER + STEPS) * ROW_LANES], lam_tile[STEPS * ROW_LANES];
    const block *at = &m->at;
    adjoint tile = {
        .count = count,
        .order = (int)args->order,
        .channels = at->channels,
        .accumulate = !m->begins_slab,
        .products = products,
    };
    tile.y = rows_read_past(&args->y, &args->initial_history, at, start, count,
                            (int)args->order, y_tile);
    tile.grad = rows_read(&args->grad_out, at, start, count, grad_tile);
    tile.q = q_rows(&args->q, m, start);
    if (args->x.data || args->z.data) {
        gate_adjoint_rows gate = {
            .grad_out = tile.grad,
            .y = tile.y,
            .grad_y = grad_y,
            .skip_grad = skip_grad,
        };
        tile.grad = gate_backward(args, at, start, count, &gate);
    }
    tile.lam = rows_begin(&args->deta, at, start, lam_tile);
    adjoin_cores[at->vectors - 1][core_index(args->order)](&tile, m->carried);
    rows_finish(&args->deta, at, start, count, lam_tile);
}

/* dq of the tokens of a tile from products that are still split by lanes. */
static void products_sum(rows dq, const real *products, int count, int order)
{
    real sums[STEPS * MAX_ORDER + VEC_LANES];
    for (int i = 0; i < count * order; i += VEC_LANES)
        vec_store(sums + i, -lane_sums(products + (int64_t)i * VEC_LANES));
    for (int t = 0; t < count; t++)
        for (int i = 0; i < order; i++)
            dq.data[t * dq.stride + i] = sums[t * order + i];
}

static void backward_job(
    const pole_scan_bwd_args *args, const division *d, int64_t index)
{
    job work;
    real skip_grads[JOB_BLOCKS][ROW_LANES];
    real products[(STEPS * MAX_ORDER + VEC_LANES) * VEC_LANES];
    job_begin(&work, d, index);
    for (int b = 0; b < work.count; b++) {
        carry_load(work.members[b].carried, &args->grad_final_history,
                   &work.members[b].at, args->order);
        memset(skip_grads[b], 0, sizeof skip_grads[b]);
    }
    const int64_t last = (args->length - 1) / STEPS * STEPS;
    for (int64_t start = last; start >= 0; start -= STEPS) {
        const int count = (int)int64_min(args->length - start, STEPS);
        for (int b = 0; b < work.count; b++) {
            const member *m = &work.members[b];
            backward_tile(args, m, start, count, skip_grads[b], products);
            if (!m->ends_slab) continue;
            rows dq = q_rows(&args->dq, m, start);
            dq.data += m->slab * args->dq_slab;
            products_sum(dq, products, count, (int)args->order);
        }
    }
    for (int b = 0; b < work.count; b++) {
        const member *m = &work.members[b];
        if (args->dinitial_history.data)
            carry_store(&args->dinitial_history, m->carried, &m->at,
                        args->order);
        if (args->dD.data) row_store(&args->dD, skip_grads[b], &m->at);
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
    const int64_t work = a.batch * a.length * a.channels;
    const int64_t threads = work > SMALL_WORK ? a.threads : 1;
    const division d =
        divide(a.batch, a.channels, a.groups, a.order, threads);
#pragma omp parallel for schedule(static) num_threads((int)threads) \
    if (threads > 1)
    for (int64_t index = 0; index < d.jobs; index++)
        backward_job(&a, &d, index);
    return 0;
}
