/* linear.c -- the three matrix multiplications of a linear layer (forward, input gradient, weight
 * gradient), each divided into tiles of the result that the pool's threads compute. Bias, GELU and
 * the residual are applied to a tile while it is in the cache. */
#include "model/kernels/cpu/column_sum.h"
#include "model/kernels/cpu/gelu.h"
#include "model/kernels/cpu/gemm.h"

/* Smallest amount of work for which a tile is its own task, in floating-point operations: about 40
 * us. */
#define TASK_FLOPS 4e6
/* Tasks per thread: enough that other threads can take over the share of a delayed thread. */
#define TASKS_PER_THREAD 3
/* Upper bounds of the sides of a tile, and of the depth processed at a time when factors need
 * converting, so that the scratch memory of any shape fits the workspace. */
#define TILE_MAX  2048
#define DEPTH_MAX 1024
/* Tile borders are multiples of this. */
#define TILE_GRAIN 16

/* A result (m, n) divided into rows x cols tiles. */
typedef struct {
    int64_t m, n, rows, cols;
} TileGrid;

typedef struct {
    int64_t row, rows, col, cols;
} Tile;

static int64_t parts_max(int64_t n)
{
    return (n + TILE_GRAIN - 1) / TILE_GRAIN;
}

/* Chooses the grid of tiles for which the factors are read (and packed) as few times as possible:
 * among all grids with the wanted number of tiles, the one with the smallest n x rows + m x cols.
 * The result depends only on the shape and the number of threads. */
static TileGrid grid_cut(int64_t m, int64_t n, int64_t k, int threads)
{
    double flops = 2.0 * (double)m * (double)n * (double)k;
    double most = flops / TASK_FLOPS;
    int64_t tiles = TASKS_PER_THREAD * (int64_t)threads;
    if (most < (double)tiles) tiles = (int64_t)most;
    /* Uses whole rounds of tasks: a last round with fewer tiles than threads would leave some idle.
     */
    if (tiles > threads) tiles -= tiles % threads;
    TileGrid best = {.m = m, .n = n, .rows = 1, .cols = 1};
    for (bool found = false; tiles > 1 && !found; tiles--) {
        for (int64_t rows = 1; rows <= tiles && rows <= parts_max(m); rows++) {
            int64_t cols = tiles / rows;
            if (tiles % rows != 0 || cols > parts_max(n)) continue;
            /* A row of tiles reads all of b and a column of tiles all of a, so the total read is n
             * x rows + m x cols, in units of k elements. */
            if (found && n * rows + m * cols >= n * best.rows + m * best.cols) continue;
            best.rows = rows;
            best.cols = cols;
            found = true;
        }
    }
    /* A tile can be TILE_GRAIN longer than the mean, and even then must not exceed TILE_MAX. */
    int64_t rows_min = (m + TILE_MAX - TILE_GRAIN - 1) / (TILE_MAX - TILE_GRAIN);
    int64_t cols_min = (n + TILE_MAX - TILE_GRAIN - 1) / (TILE_MAX - TILE_GRAIN);
    if (best.rows < rows_min) best.rows = rows_min;
    if (best.cols < cols_min) best.cols = cols_min;
    return best;
}

static Tile grid_tile(const TileGrid *g, int64_t task)
{
    /* Consecutive tasks are in the same column of tiles, so tiles that are computed at the same
     * time share their part of b. */
    int64_t i = task % g->rows, j = task / g->rows;
    Tile t = {.row = pool_cut(g->m, g->rows, TILE_GRAIN, i),
              .col = pool_cut(g->n, g->cols, TILE_GRAIN, j)};
    t.rows = pool_cut(g->m, g->rows, TILE_GRAIN, i + 1) - t.row;
    t.cols = pool_cut(g->n, g->cols, TILE_GRAIN, j + 1) - t.col;
    return t;
}

/* One call of an op: result (m, n) = a b. a and b are the stored tensors; a_transposed and
 * b_transposed say that the multiplication reads the transpose of the stored tensor. The remaining
 * fields describe the op's epilogue. */
typedef struct {
    Device *dev;
    TileGrid grid;
    int64_t k;
    Tensor a, b;
    bool a_transposed, b_transposed;
    Tensor out, pre,
        bias; /* forward: y, pre, bias; backward input: dx, pre; backward weight: dw, db as bias */
    Tensor residual; /* forward: added to the rounded product, before the bias */
    Tensor columns;  /* backward weight: the column sums of dy, if the caller has computed them */
    Epilogue epilogue;
    bool accumulate;
} ProductJob;

/* Scratch memory of one tile. */
typedef struct {
    real *a, *b, *c; /* converted factors, result */
    real *row[2];    /* rows of operands that are added or multiplied */
} TileScratch;

static TileScratch scratch_take(const ProductJob *job, int worker, Tile t)
{
    size_t depth = (size_t)(job->k < DEPTH_MAX ? job->k : DEPTH_MAX), rows = (size_t)t.rows,
           cols = (size_t)t.cols;
    size_t pad = 16, a = rows * depth, b = cols * depth, c = rows * cols;
    real *p = gemm_workspace(job->dev, worker, (a + b + c + 2 * cols + pad) * sizeof(real));
    real *row = p + a + b + c;
    return (TileScratch){.a = p, .b = p + a, .c = p + a + b, .row = {row, row + cols}};
}

/* Returns the part [line, line + lines) x [depth, depth + depths) of a factor. A line belongs to
 * one row of the result (factor a) or to one column (factor b), and the depth is the dimension that
 * is summed over. `deep`: true if the depth runs along a stored row. */
static Factor job_factor(Tensor t, bool deep, int64_t line, int64_t lines, int64_t depth,
                         int64_t depths, real *buffer)
{
    return deep ? factor_load(t, line, lines, depth, depths, buffer)
                : factor_load(t, depth, depths, line, lines, buffer);
}

/* Computes a tile c = a b + beta c of the result, where a and b are the job's factors. Factors
 * stored as reals are read in place, in one piece over the whole depth. */
static void job_product(const ProductJob *job, int worker, Tile t, const TileScratch *s, real beta,
                        real *c, int64_t ldc)
{
    /* One piece is enough if nothing is converted: the multiplication itself splits its depth to
     * fit the caches. */
    bool in_place = job->a.dtype == REAL_DTYPE && job->b.dtype == REAL_DTYPE;
    int64_t step = in_place ? job->k : DEPTH_MAX;
    for (int64_t p = 0; p < job->k; p += step) {
        int64_t n = job->k - p < step ? job->k - p : step;
        Factor a = job_factor(job->a, !job->a_transposed, t.row, t.rows, p, n, s->a);
        Factor b = job_factor(job->b, job->b_transposed, t.col, t.cols, p, n, s->b);
        a.transposed = job->a_transposed;
        b.transposed = job->b_transposed;
        CPU(gemm)(job->dev, worker, t.rows, t.cols, n, 1, a, b, p == 0 ? beta : (real)1, c, ldc);
    }
}

/* Returns the address of element [row, col]. */
static void *element(Tensor t, int64_t row, int64_t col)
{
    return (char *)tensor_row(t, row) + (size_t)col * dtype_size(t.dtype);
}

/* Rounds values (n) to t's type, stores them at [row, col] and reads the rounded values back. Does
 * nothing if values are t's own elements. */
static void round_through(Tensor t, int64_t row, int64_t col, real *values, int64_t n)
{
    void *to = element(t, row, col);
    /* Epilogues use the stored value, not the computed one: otherwise recomputation from the stored
     * value would not give the same bits. */
    if (to == (void *)values) return;
    reals_store(t.dtype, to, values, n);
    if (t.dtype != REAL_DTYPE) reals_load(values, t.dtype, to, n);
}

/* Applies bias, epilogue and rounding to one row of a tile; value (cols) holds the result of the
 * multiplication. */
static void forward_row(const ProductJob *job, int64_t row, const Tile *t, real *restrict value,
                        const real *restrict bias)
{
    bool kept = tensor_present(job->pre);
    void *out = element(job->out, row, t->col), *pre = kept ? element(job->pre, row, t->col) : NULL;
    int64_t n = t->cols;
    if (bias)
        for (int64_t j = 0; j < n; j++)
            value[j] += bias[j];
    switch (job->epilogue) {
    case EPILOGUE_NONE:
        if (out != (void *)value) reals_store(job->out.dtype, out, value, n);
        return;
    case EPILOGUE_GELU: round_through(kept ? job->pre : job->out, row, t->col, value, n); break;
    case EPILOGUE_GELU_OF_SUM:
        if (kept && pre != (void *)value) reals_store(job->pre.dtype, pre, value, n);
        break;
    }
    real *y = job->out.dtype == REAL_DTYPE ? out : value;
    for (int64_t j = 0; j < n; j++)
        y[j] = gelu(value[j]);
    if (out != (void *)y) reals_store(job->out.dtype, out, y, n);
}

/* Adds residual and bias (if not NULL) to one row of a tile. The product in value (cols) is rounded
 * first, so the bits are the same as with linear_forward followed by bias_residual. */
static void residual_add(const ProductJob *job, int64_t row, const Tile *t, real *restrict value,
                         const real *restrict bias, real *restrict buffer)
{
    void *out = element(job->out, row, t->col);
    const real *residual = element(job->residual, row, t->col);
    if (job->residual.dtype != REAL_DTYPE) {
        reals_load(buffer, job->residual.dtype, residual, t->cols);
        residual = buffer;
    }
    round_through(job->out, row, t->col, value, t->cols);
    residual_row(value, residual, value, bias, t->cols);
    if (out != (void *)value) reals_store(job->out.dtype, out, value, t->cols);
}

static void forward_task(void *context, int64_t task, int worker)
{
    const ProductJob *job = context;
    Tile t = grid_tile(&job->grid, task);
    TileScratch s = scratch_take(job, worker, t);
    /* The result is written directly to the tensor that keeps it, if that tensor holds reals: no
     * copy and no scratch memory are needed. */
    Tensor target = tensor_present(job->pre) ? job->pre : job->out;
    bool in_place = target.dtype == REAL_DTYPE;
    real *c = in_place ? element(target, t.row, t.col) : s.c;
    int64_t ldc = in_place ? target.ld : t.cols;
    job_product(job, worker, t, &s, 0, c, ldc);
    const real *bias = NULL;
    if (tensor_present(job->bias)) {
        reals_load(s.row[0], job->bias.dtype, element(job->bias, 0, t.col), t.cols);
        bias = s.row[0];
    }
    if (tensor_present(job->residual)) {
        for (int64_t i = 0; i < t.rows; i++)
            residual_add(job, t.row + i, &t, c + i * ldc, bias, s.row[1]);
        return;
    }
    if (in_place && bias == NULL && job->epilogue == EPILOGUE_NONE && target.data == job->out.data)
        return;
    for (int64_t i = 0; i < t.rows; i++)
        forward_row(job, t.row + i, &t, c + i * ldc, bias);
}

/* Computes y = x w^T with the job's bias, residual and epilogue. */
static void forward_run(ProductJob job, Tensor y, Tensor x, Tensor w)
{
    job.k = tensor_cols(x);
    job.a = x;
    job.b = w;
    job.b_transposed = true;
    job.out = y;
    job.grid = grid_cut(tensor_rows(x), tensor_cols(y), job.k, pool_threads(job.dev->pool));
    pool_run(job.dev->pool, job.grid.rows * job.grid.cols, forward_task, &job);
}

void CPU(linear_forward)(Device *dev, Tensor y, Tensor x, Tensor w, Tensor bias, Epilogue epilogue,
                         Tensor pre)
{
    forward_run((ProductJob){.dev = dev, .pre = pre, .bias = bias, .epilogue = epilogue}, y, x, w);
}

void CPU(linear_residual_forward)(Device *dev, Tensor y, Tensor x, Tensor w, Tensor bias,
                                  Tensor residual)
{
    forward_run((ProductJob){.dev = dev, .bias = bias, .residual = residual}, y, x, w);
}

/* Sets elements [row, col ..] of t to values (n), or adds the values to them; rounds once. */
static void rounded_store(Tensor t, int64_t row, int64_t col, const real *values, int64_t n,
                          bool accumulate, real *restrict scratch)
{
    void *to = element(t, row, col);
    if (!accumulate) {
        reals_store(t.dtype, to, values, n);
        return;
    }
    reals_load(scratch, t.dtype, to, n);
    for (int64_t j = 0; j < n; j++)
        scratch[j] += values[j];
    reals_store(t.dtype, to, scratch, n);
}

static void backward_input_task(void *context, int64_t task, int worker)
{
    const ProductJob *job = context;
    Tile t = grid_tile(&job->grid, task);
    TileScratch s = scratch_take(job, worker, t);
    bool in_place = job->out.dtype == REAL_DTYPE;
    real *c = in_place ? element(job->out, t.row, t.col) : s.c;
    int64_t ldc = in_place ? job->out.ld : t.cols;
    job_product(job, worker, t, &s, in_place && job->accumulate ? 1 : 0, c, ldc);
    if (in_place && job->epilogue == EPILOGUE_NONE) return;
    for (int64_t i = 0; i < t.rows; i++) {
        real *restrict value = c + i * ldc;
        if (job->epilogue == EPILOGUE_GELU) {
            const real *pre = element(job->pre, t.row + i, t.col);
            if (job->pre.dtype != REAL_DTYPE) {
                reals_load(s.row[0], job->pre.dtype, pre, t.cols);
                pre = s.row[0];
            }
            for (int64_t j = 0; j < t.cols; j++)
                value[j] *= gelu_derivative(pre[j]);
        }
        if (!in_place)
            rounded_store(job->out, t.row + i, t.col, value, t.cols, job->accumulate, s.row[0]);
    }
}

void CPU(linear_backward_input)(Device *dev, Tensor dx, Tensor dy, Tensor w, Epilogue epilogue,
                                Tensor pre, bool accumulate)
{
    int64_t n = tensor_rows(dy), inputs = tensor_cols(dx), outputs = tensor_cols(dy);
    ProductJob job = {.dev = dev,
                      .k = outputs,
                      .a = dy,
                      .b = w,
                      .out = dx,
                      .pre = pre,
                      .epilogue = epilogue,
                      .accumulate = accumulate,
                      .grid = grid_cut(n, inputs, outputs, pool_threads(dev->pool))};
    pool_run(dev->pool, job.grid.rows * job.grid.cols, backward_input_task, &job);
}

static void backward_weight_task(void *context, int64_t task, int worker)
{
    const ProductJob *job = context;
    Tile t = grid_tile(&job->grid, task);
    TileScratch s = scratch_take(job, worker, t);
    if (tensor_present(job->bias)) { /* the tiles in one row of the grid share their part of db */
        /* Each tile in a row of tiles sums its share of dy's columns, so the bias gradient needs no
         * tasks of its own, and all tasks sum about the same number of columns of dy. */
        int64_t parts = job->grid.cols, part = task / job->grid.rows;
        int64_t first = pool_cut(t.rows, parts, TILE_GRAIN, part);
        CPU(bias_part)
        (job->bias, job->columns, job->a, t.row + first,
         pool_cut(t.rows, parts, TILE_GRAIN, part + 1) - first, job->accumulate);
    }
    if (job->out.dtype == REAL_DTYPE) {
        job_product(job, worker, t, &s, job->accumulate ? 1 : 0, element(job->out, t.row, t.col),
                    job->out.ld);
        return;
    }
    job_product(job, worker, t, &s, 0, s.c, t.cols);
    for (int64_t i = 0; i < t.rows; i++)
        rounded_store(job->out, t.row + i, t.col, s.c + i * t.cols, t.cols, job->accumulate,
                      s.row[0]);
}

void CPU(linear_backward_weight)(Device *dev, Tensor dw, Tensor db, Tensor dy, Tensor x,
                                 Tensor columns, bool accumulate)
{
    int64_t n = tensor_rows(x), inputs = tensor_cols(x), outputs = tensor_cols(dy);
    ProductJob job = {.dev = dev,
                      .k = n,
                      .a = dy,
                      .a_transposed = true,
                      .b = x,
                      .out = dw,
                      .bias = db,
                      .columns = columns,
                      .accumulate = accumulate,
                      .grid = grid_cut(outputs, inputs, n, pool_threads(dev->pool))};
    pool_run(dev->pool, job.grid.rows * job.grid.cols, backward_weight_task, &job);
}
