/* Filter coefficients of token-conditioned poles, forward and backward:
 *
 *     1 + sum_i q_i z^-i = prod (1 - a z^-1)
 *                        * prod (1 - 2 rho cos(theta) z^-1 + rho^2 z^-2),
 *     a = s rho_R^s_rho,  rho = rho_0^s_rho,  theta = clip(s_theta theta_0)
 *
 * An element is a token and a group. Lanes are neighbouring elements of the
 * dense order (token, group), so tables over the groups are repeated for the
 * length of a vector: lane 0 of any vector finds its own group and those of
 * the other lanes side by side. The backward pass makes everything again and
 * keeps the polynomial before each factor.
 */

#include "common.h"

#include <math.h>

#define PI 3.14159265358979323846
#define MAX_ORDER 32
/* Elements of a chunk, which adds up its share of the gradients. */
#define CHUNK 512
/* Elements below which starting a thread costs more than it saves. */
#define SMALL_WORK 2048

typedef struct {
    int64_t tokens, groups, pairs, reals;
    int64_t rho_columns, theta_columns; /* 1 or groups */
    int64_t threads;
    double eps, delta_min, delta_0, lambda_theta;
    tensor rho_hat, theta_hat;     /* (groups, pairs) */
    tensor real_rho_hat, sign_hat; /* (groups, reals) */
    tensor rho_mod, theta_mod;     /* (tokens, columns) dense, or absent */
} pole_inputs;

typedef struct {
    pole_inputs in;
    tensor q; /* (tokens, groups, order) dense */
} pole_denominator_fwd_args;

/* Gradients are dense. */
typedef struct {
    pole_inputs in;
    tensor grad_q;
    tensor drho_hat, dtheta_hat, dreal_rho_hat, dsign_hat;
    tensor drho_mod, dtheta_mod;
} pole_denominator_bwd_args;

/* ---- base poles ------------------------------------------------------- */

/* Rows over the groups, repeated: radii and angles of the pairs, radii and
 * signs of the real poles. Radii are logarithms. */
typedef struct {
    int64_t row; /* length of a row */
    real *log_rho, *theta, *real_log_rho, *sign;
} pole_table;

static int64_t table_size(const pole_inputs *in)
{
    return 2 * (in->pairs + in->reals) * (in->groups + VEC_LANES);
}

static pole_table table_in(const pole_inputs *in, real *memory)
{
    pole_table table = {.row = in->groups + VEC_LANES};
    table.log_rho = memory;
    table.theta = table.log_rho + in->pairs * table.row;
    table.real_log_rho = table.theta + in->pairs * table.row;
    table.sign = table.real_log_rho + in->reals * table.row;
    return table;
}

static double logistic(double x) { return 1 / (1 + exp(-x)); }

/* log((1 - eps) sigmoid(x)), accurate where the radius is close to 1 too. */
static double log_radius(double x, double eps)
{
    return log1p(-eps) + (x < 0 ? x : 0) - log1p(exp(-fabs(x)));
}

static real table_hat(const tensor *hat, int64_t group, int64_t pole)
{
    return hat->data[group * hat->stride[0] + pole * hat->stride[1]];
}

static void table_fill(const pole_table *table, const pole_inputs *in)
{
    for (int64_t i = 0; i < table->row; i++) {
        const int64_t group = i % in->groups;
        if (i >= in->groups) { /* Repeated. */
            const int64_t rows = 2 * (in->pairs + in->reals);
            for (int64_t row = 0; row < rows; row++) {
                real *values = table->log_rho + row * table->row;
                values[i] = values[i - in->groups];
            }
            continue;
        }
        for (int64_t p = 0; p < in->pairs; p++) {
            table->log_rho[p * table->row + i] =
                log_radius(table_hat(&in->rho_hat, group, p), in->eps);
            table->theta[p * table->row + i] =
                PI * logistic(table_hat(&in->theta_hat, group, p));
        }
        for (int64_t p = 0; p < in->reals; p++) {
            table->real_log_rho[p * table->row + i] =
                log_radius(table_hat(&in->real_rho_hat, group, p), in->eps);
            table->sign[p * table->row + i] =
                tanh(table_hat(&in->sign_hat, group, p));
        }
    }
}

/* ---- functions -------------------------------------------------------- */

static vec polynomial(vec x, const real *coefs, int count)
{
    vec sum = vec_set(coefs[0]);
    for (int i = 1; i < count; i++) sum = sum * x + coefs[i];
    return sum;
}

/* Cosine and sine of an angle in [0, pi], by the nearest multiple k of pi / 2,
 * which is subtracted in three parts. */
static void cos_and_sin(vec x, vec *cosine, vec *sine)
{
#if MMSSM_DOUBLE
    static const real quarter[] = {1.57079625129699707031,
                                   7.54978941586159635336e-8,
                                   5.39030285815811905290e-15};
    static const real sine_coefs[] = {
        1.58962301576546568060e-10, -2.50507477628578072866e-8,
        2.75573136213857245213e-6,  -1.98412698295895385996e-4,
        8.33333333332211858878e-3,  -1.66666666666666307295e-1};
    static const real cosine_coefs[] = {
        -1.13585365213876817300e-11, 2.08757008419747316778e-9,
        -2.75573141792967388112e-7,  2.48015872888517045348e-5,
        -1.38888888888730564116e-3,  4.16666666666665929218e-2};
#else
    static const real quarter[] = {1.5703125f, 4.837512969970703125e-4f,
                                   7.54978995489188216e-8f};
    static const real sine_coefs[] = {-1.9515295891e-4f, 8.3321608736e-3f,
                                      -1.6666654611e-1f};
    static const real cosine_coefs[] = {2.443315711809948e-5f,
                                        -1.388731625493765e-3f,
                                        4.166664568298827e-2f};
#endif
    const int count = sizeof sine_coefs / sizeof sine_coefs[0];
    const ivec above_1 = x > (real)(PI / 4), above_3 = x > 3 * (real)(PI / 4);
    const vec one = vec_set(1), none = vec_set(0);
    const vec k = vec_select(above_1, one, none) +
                  vec_select(above_3, one, none);
    vec f = ((x - k * quarter[0]) - k * quarter[1]) - k * quarter[2];
    const vec square = f * f;
    const vec s = f + f * square * polynomial(square, sine_coefs, count);
    const vec c = 1 - square / 2 +
                  square * square * polynomial(square, cosine_coefs, count);
    *cosine = vec_select(above_3, -c, vec_select(above_1, -s, c));
    *sine = vec_select(above_3, -s, vec_select(above_1, c, s));
}

typedef struct {
    vec value, slope;
} scale;

/* Scale of the logarithm of a radius, and its derivative. */
static scale radius_scale(const pole_inputs *in, vec modulation)
{
    const real unit = 1 / in->delta_0;
    return (scale){(vec_softplus(modulation) + (real)in->delta_min) * unit,
                   vec_sigmoid(modulation) * unit};
}

/* Scale of an angle, 1 + lambda tanh(modulation), and its derivative. */
static scale angle_scale(const pole_inputs *in, vec modulation)
{
    const real lambda = in->lambda_theta;
    const vec e = vec_exp(-2 * vec_abs(modulation));
    const vec tanh_abs = (1 - e) / (1 + e);
    const vec tanh = vec_select(modulation < 0, -tanh_abs, tanh_abs);
    return (scale){1 + lambda * tanh,
                   4 * lambda * e / ((1 + e) * (1 + e))};
}

/* ---- poles of a vector of elements ------------------------------------ */

typedef struct {
    int64_t first;  /* element in lane 0 */
    int64_t column; /* its group: where its lanes start in a table row */
    int lanes;      /* elements; the lanes beyond get no modulation */
    scale rho, theta;
} element_block;

static vec modulation_load(
    const tensor *modulation, int64_t columns, int64_t groups,
    const element_block *at)
{
    real values[VEC_LANES] = {0};
    for (int j = 0; j < at->lanes; j++) {
        const int64_t element = at->first + j;
        values[j] =
            modulation->data[columns == 1 ? element / groups : element];
    }
    return vec_load(values);
}

static element_block element_block_at(
    const pole_inputs *in, int64_t first, int64_t end)
{
    const scale identity = {vec_set(1), vec_set(0)};
    element_block at = {.first = first, .column = first % in->groups};
    at.lanes = (int)int64_min(end - first, VEC_LANES);
    at.rho = at.theta = identity;
    if (in->rho_mod.data)
        at.rho = radius_scale(in, modulation_load(&in->rho_mod,
                                                  in->rho_columns, in->groups,
                                                  &at));
    if (in->theta_mod.data)
        at.theta = angle_scale(in, modulation_load(&in->theta_mod,
                                                   in->theta_columns,
                                                   in->groups, &at));
    return at;
}

/* A factor 1 + b1 z^-1 + b2 z^-2 and what its derivative needs. */
typedef struct {
    vec b1, b2;
    vec log_rho, rho; /* base, modulated */
    vec sign;         /* of a real pole */
    vec theta, cosine, sine;
    ivec inside; /* whether the angle is not clipped */
} factor;

static factor real_factor(
    const pole_table *table, const element_block *at, int64_t pole)
{
    const int64_t index = pole * table->row + at->column;
    factor f = {.log_rho = vec_load(table->real_log_rho + index),
                .sign = vec_load(table->sign + index)};
    f.rho = vec_exp(at->rho.value * f.log_rho);
    f.b1 = -f.sign * f.rho;
    return f;
}

static factor pair_factor(
    const pole_table *table, const element_block *at, int64_t pair)
{
    const int64_t index = pair * table->row + at->column;
    factor f = {.log_rho = vec_load(table->log_rho + index),
                .theta = vec_load(table->theta + index)};
    f.rho = vec_exp(at->rho.value * f.log_rho);
    const vec angle = at->theta.value * f.theta;
    f.inside = (angle >= 0) & (angle <= (real)PI);
    cos_and_sin(vec_at_least(vec_at_most(angle, (real)PI), 0), &f.cosine,
                &f.sine);
    f.b1 = -2 * f.rho * f.cosine;
    f.b2 = f.rho * f.rho;
    return f;
}

/* Multiply a polynomial by a factor; `degree` is that of the product. */
static void multiply(vec *product, int degree, const factor *f)
{
    for (int i = degree; i > 0; i--) {
        const vec before_last = i > 1 ? product[i - 2] : (vec){0};
        product[i] += f->b1 * product[i - 1] + f->b2 * before_last;
    }
}

/* ---- forward ---------------------------------------------------------- */

static void coefficients(
    real *q, const pole_inputs *in, const pole_table *table,
    const element_block *at)
{
    vec polynomial[MAX_ORDER + 1] = {vec_set(1)};
    int degree = 0;
    for (int64_t pole = 0; pole < in->reals; pole++) {
        const factor f = real_factor(table, at, pole);
        degree += 1;
        polynomial[degree] = (vec){0};
        multiply(polynomial, degree, &f);
    }
    for (int64_t pair = 0; pair < in->pairs; pair++) {
        const factor f = pair_factor(table, at, pair);
        degree += 2;
        polynomial[degree - 1] = polynomial[degree] = (vec){0};
        multiply(polynomial, degree, &f);
    }
    const real *lanes = (const real *)(polynomial + 1);
    for (int j = 0; j < at->lanes; j++)
        for (int i = 0; i < degree; i++)
            q[j * degree + i] = lanes[i * VEC_LANES + j];
}

MMSSM_KERNEL(pole_denominator_fwd, pole_denominator_fwd_args)
{
    const pole_inputs *in = &args->in;
    const int64_t elements = in->tokens * in->groups;
    const int64_t order = in->reals + 2 * in->pairs;
    real *memory = scratch_new(table_size(in));
    if (!memory) return 1;
    const pole_table table = table_in(in, memory);
    table_fill(&table, in);
#pragma omp parallel for schedule(static) num_threads((int)in->threads) \
    if (in->threads > 1 && elements > SMALL_WORK)
    for (int64_t first = 0; first < elements; first += VEC_LANES) {
        const element_block at = element_block_at(in, first, elements);
        coefficients(args->q.data + first * order, in, &table, &at);
    }
    free(memory);
    return 0;
}

/* ---- backward --------------------------------------------------------- */

/* What a chunk of tokens adds up: the gradients of the table, with lanes still
 * where the table was read, and of the modulation of every element. */
typedef struct {
    pole_table table;
    real *rho_mod, *theta_mod;
} chunk_gradient;

static void add_lanes(real *sums, vec values)
{
    vec_store(sums, vec_load(sums) + values);
}

/* Gradients of one factor's parameters from those of b1 and b2. */
static void factor_adjoint(
    const factor *f, vec db1, vec db2, int is_pair, const element_block *at,
    const pole_table *sums, int64_t pole, vec *ds_rho, vec *ds_theta)
{
    const int64_t index = pole * sums->row + at->column;
    if (!is_pair) {
        const vec dlog = -db1 * f->sign * f->rho;
        *ds_rho += dlog * f->log_rho;
        add_lanes(sums->real_log_rho + index, dlog * at->rho.value);
        add_lanes(sums->sign + index, -db1 * f->rho);
        return;
    }
    const vec dlog =
        2 * (db2 * f->rho - db1 * f->cosine) * f->rho;
    const vec dangle =
        (vec)((ivec)(2 * db1 * f->rho * f->sine) & f->inside);
    *ds_rho += dlog * f->log_rho;
    *ds_theta += dangle * f->theta;
    add_lanes(sums->log_rho + index, dlog * at->rho.value);
    add_lanes(sums->theta + index, dangle * at->theta.value);
}

static void coefficients_adjoint(
    const chunk_gradient *sums, int64_t offset, const real *grad_q,
    const pole_inputs *in, const pole_table *table, const element_block *at)
{
    factor factors[MAX_ORDER];
    vec before[MAX_ORDER][MAX_ORDER + 1]; /* polynomials before each factor */
    vec product[MAX_ORDER + 1] = {vec_set(1)};
    vec grad[MAX_ORDER + 3] = {{0}};
    vec ds_rho = {0}, ds_theta = {0};
    const int reals = (int)in->reals, count = reals + (int)in->pairs;
    int degree = 0;
    for (int k = 0; k < count; k++) {
        const int width = k < reals ? 1 : 2;
        factors[k] = k < reals ? real_factor(table, at, k)
                               : pair_factor(table, at, k - reals);
        memcpy(before[k], product, sizeof(vec) * (degree + 1));
        for (int i = 0; i < width; i++) product[++degree] = (vec){0};
        multiply(product, degree, &factors[k]);
    }
    real *lanes = (real *)(grad + 1);
    for (int j = 0; j < at->lanes; j++)
        for (int i = 0; i < degree; i++)
            lanes[i * VEC_LANES + j] = grad_q[j * degree + i];
    for (int k = count - 1; k >= 0; k--) {
        const int width = k < reals ? 1 : 2, lower = degree - width;
        vec db1 = {0}, db2 = {0};
        for (int i = 0; i <= lower; i++) {
            db1 += grad[i + 1] * before[k][i];
            db2 += grad[i + 2] * before[k][i];
        }
        factor_adjoint(&factors[k], db1, db2, width == 2, at, &sums->table,
                       k < reals ? k : k - reals, &ds_rho, &ds_theta);
        for (int i = 1; i <= lower; i++)
            grad[i] += factors[k].b1 * grad[i + 1] +
                       factors[k].b2 * grad[i + 2];
        degree = lower;
    }
    vec_store(sums->rho_mod + offset, ds_rho * at->rho.slope);
    vec_store(sums->theta_mod + offset, ds_theta * at->theta.slope);
}

/* Gradient of the modulation of `tokens` tokens from that of the elements. */
static void modulation_gradient(
    const tensor *gradient, const real *elements, int64_t columns,
    int64_t first, int64_t tokens, int64_t groups)
{
    if (!gradient->data) return;
    if (columns == groups) {
        memcpy(gradient->data + first * groups, elements,
               sizeof(real) * tokens * groups);
        return;
    }
    for (int64_t token = 0; token < tokens; token++) {
        real sum = 0;
        for (int64_t group = 0; group < groups; group++)
            sum += elements[token * groups + group];
        gradient->data[first + token] = sum;
    }
}

/* Add up a row of the tables of all chunks, for one group. */
static double table_sum(
    const real *row, int64_t group, const pole_inputs *in, int64_t chunks,
    int64_t chunk_stride)
{
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        for (int64_t i = group; i < in->groups + VEC_LANES; i += in->groups)
            sum += row[chunk * chunk_stride + i];
    return sum;
}

static void parameter_gradients(
    const pole_denominator_bwd_args *args, const pole_table *sums,
    int64_t chunks, int64_t stride)
{
    const pole_inputs *in = &args->in;
    for (int64_t g = 0; g < in->groups; g++) {
        for (int64_t p = 0; p < in->pairs; p++) {
            const int64_t row = p * sums->row, out = g * in->pairs + p;
            const double x = table_hat(&in->rho_hat, g, p);
            const double angle = table_hat(&in->theta_hat, g, p);
            args->drho_hat.data[out] =
                table_sum(sums->log_rho + row, g, in, chunks, stride) *
                logistic(-x);
            args->dtheta_hat.data[out] =
                table_sum(sums->theta + row, g, in, chunks, stride) * PI *
                logistic(angle) * logistic(-angle);
        }
        for (int64_t p = 0; p < in->reals; p++) {
            const int64_t row = p * sums->row, out = g * in->reals + p;
            const double x = table_hat(&in->real_rho_hat, g, p);
            const double sign = table_hat(&in->sign_hat, g, p);
            args->dreal_rho_hat.data[out] =
                table_sum(sums->real_log_rho + row, g, in, chunks, stride) *
                logistic(-x);
            args->dsign_hat.data[out] =
                table_sum(sums->sign + row, g, in, chunks, stride) * 4 *
                logistic(2 * sign) * logistic(-2 * sign);
        }
    }
}

MMSSM_KERNEL(pole_denominator_bwd, pole_denominator_bwd_args)
{
    const pole_inputs *in = &args->in;
    const int64_t groups = in->groups, order = in->reals + 2 * in->pairs;
    const int64_t chunk_tokens = groups < CHUNK ? CHUNK / groups : 1;
    const int64_t chunks = (in->tokens + chunk_tokens - 1) / chunk_tokens;
    const int64_t span = chunk_tokens * groups + VEC_LANES;
    const int64_t stride = table_size(in) + 2 * span;
    real *memory = scratch_new(table_size(in) + chunks * stride);
    if (!memory) return 1;
    const pole_table table = table_in(in, memory);
    real *partial = memory + table_size(in);
    table_fill(&table, in);
#pragma omp parallel for schedule(static) num_threads((int)in->threads) \
    if (in->threads > 1 && in->tokens * groups > SMALL_WORK)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        const int64_t token = chunk * chunk_tokens;
        const int64_t tokens = int64_min(in->tokens - token, chunk_tokens);
        const int64_t begin = token * groups, end = begin + tokens * groups;
        real *mine = partial + chunk * stride;
        memset(mine, 0, sizeof(real) * table_size(in));
        const chunk_gradient sums = {
            .table = table_in(in, mine),
            .rho_mod = mine + table_size(in),
            .theta_mod = mine + table_size(in) + span,
        };
        for (int64_t first = begin; first < end; first += VEC_LANES) {
            const element_block at = element_block_at(in, first, end);
            coefficients_adjoint(&sums, first - begin,
                                 args->grad_q.data + first * order, in, &table,
                                 &at);
        }
        modulation_gradient(&args->drho_mod, sums.rho_mod, in->rho_columns,
                            token, tokens, groups);
        modulation_gradient(&args->dtheta_mod, sums.theta_mod,
                            in->theta_columns, token, tokens, groups);
    }
    const pole_table sums = table_in(in, partial);
    parameter_gradients(args, &sums, chunks, stride);
    free(memory);
    return 0;
}
