/* grid_fault_ops.c -- injects those faults of grid_faults.h that change the result of an op. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/grid/grid_fault_state.h"

/* Rounds a sum of gradients to bf16. Sums in F64, such as the three sums from which a step's
 * decision is computed, are not rounded. */
static void narrow_sum(Device *dev, Tensor dst, const Tensor *src, int n)
{
    planted.ops_real[dst.dtype == F64]->sum(dev, dst, src, n);
    if (dst.dtype == F64) return;
    for (int64_t i = 0; i < tensor_count(dst); i++) {
        uint16_t narrow;
        dtype_set(BF16, &narrow, 0, dtype_get(dst.dtype, dst.data, i));
        dtype_set(dst.dtype, dst.data, i, dtype_get(BF16, &narrow, 0));
    }
}

/* Omits every fill with zeros. The program fills only gaps with zeros and, at the start, newly
 * allocated memory, which already contains zeros. */
static void no_zeros(Device *dev, Tensor x, double value)
{
    if (value != 0) planted.ops_real[x.dtype == F64]->fill(dev, x, value);
}

static const OpTable *real_ops(DType dtype)
{
    return planted.ops_real[dtype == F64];
}

/* Returns whether this rank is the last data-parallel rank, and `weight` its shard of the faulty
 * unit. That update is omitted. */
static bool forgotten(Tensor weight)
{
    const Trainer *t = planted.trainer;
    const Grid *grid = &t->session.grid;
    for (int i = 0; i < t->optimizer.n_shards; i++) {
        const Shard *shard = &t->optimizer.shard[i].shard;
        if (shard->unit == FAULTY_UNIT && shard->weight.data == weight.data)
            return grid->at.dp == grid->size.dp - 1;
    }
    return false;
}

static void some_adamw(Device *dev, const UpdateRange *range, int n, const StepDecision *decision,
                       const AdamW *hyper)
{
    for (int i = 0; i < n; i++)
        if (!forgotten(range[i].weight))
            real_ops(range->weight.dtype)->adamw(dev, &range[i], 1, decision, hyper);
}

static void some_sgd(Device *dev, const UpdateRange *range, int n, const StepDecision *decision,
                     const Sgd *hyper)
{
    for (int i = 0; i < n; i++)
        if (!forgotten(range[i].weight))
            real_ops(range->weight.dtype)->sgd(dev, &range[i], 1, decision, hyper);
}

/* Returns the bias multiplied by the number of tensor-parallel ranks. This has the same effect as
 * adding the bias to each rank's partial product before the sum over the ranks. */
static Tensor early_bias(Tensor bias)
{
    const Grid *grid = &planted.trainer->session.grid;
    int64_t n = tensor_present(bias) ? tensor_count(bias) : 0;
    CHECK(n <= MOST_BIASES, "%lld biases", (long long)n);
    Tensor often = tensor_1d(planted.bias, bias.dtype, n);
    for (int64_t i = 0; i < n; i++)
        dtype_set(bias.dtype, often.data, i, dtype_get(bias.dtype, bias.data, i) * grid->size.tp);
    return n ? often : bias;
}

static void early_bias_residual(Device *dev, Tensor y, Tensor a, Tensor bias, Tensor x)
{
    real_ops(x.dtype)->bias_residual(dev, y, a, early_bias(bias), x);
}

static void early_residual_norm(Device *dev, Tensor sum, Tensor y, Tensor stats, Tensor x, Tensor a,
                                Tensor bias, Tensor w, Tensor b, Norm norm)
{
    real_ops(x.dtype)->residual_norm_forward(dev, sum, y, stats, x, a, early_bias(bias), w, b,
                                             norm);
}

/* Sums the columns over the rows of all tensor-parallel ranks, by adding the ranks' column sums. */
static void all_columns(Device *dev, Tensor columns, Tensor x)
{
    real_ops(x.dtype)->column_sum(dev, columns, x);
    comm_all_reduce(&planted.trainer->session.grid.tp, dev, columns, REDUCE_SUM);
}

void plant_ops(Trainer *t)
{
    Device *dev = &t->session.dev;
    planted.ops_real[0] = dev->ops;
    planted.ops_real[1] = dev->ops_f64;
    for (int i = 0; i < 2; i++) {
        planted.ops[i] = *planted.ops_real[i];
        if (planted.fault == FAULT_16_BIT_SUM) planted.ops[i].sum = narrow_sum;
        if (planted.fault == FAULT_SKIPPED_UNIT) {
            planted.ops[i].adamw = some_adamw;
            planted.ops[i].sgd = some_sgd;
        }
        if (planted.fault == FAULT_GAP) planted.ops[i].fill = no_zeros;
        if (planted.fault == FAULT_ALL_COLUMNS) planted.ops[i].column_sum = all_columns;
        if (planted.fault == FAULT_EARLY_BIAS) {
            planted.ops[i].bias_residual = early_bias_residual;
            planted.ops[i].residual_norm_forward = early_residual_norm;
        }
    }
    dev->ops = &planted.ops[0];
    dev->ops_f64 = &planted.ops[1];
}
