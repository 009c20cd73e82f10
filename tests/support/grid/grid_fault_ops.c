/* grid_fault_ops.c -- the faults of grid_faults.h that are planted in ops. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/grid/grid_fault_state.h"

/* Of gradients: the three numbers of a step's decision stay as they are. */
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

/* Zeros are only written to gaps, and at the start to fresh memory, which has them. */
static void no_zeros(Device *dev, Tensor x, double value)
{
    if (value != 0) planted.ops_real[x.dtype == F64]->fill(dev, x, value);
}

/* Whether the last rank is about to update its part of the faulty unit. */
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

static void some_adamw(Device *dev, Tensor weight, Tensor grad, Tensor master, Tensor exp_avg,
                       Tensor exp_avg_sq, const StepDecision *decision, const AdamW *hyper,
                       const Rounding *rounding)
{
    if (!forgotten(weight))
        planted.ops_real[weight.dtype == F64]->adamw(dev, weight, grad, master, exp_avg, exp_avg_sq,
                                                     decision, hyper, rounding);
}

static void some_sgd(Device *dev, Tensor weight, Tensor grad, Tensor master, Tensor momentum,
                     const StepDecision *decision, const Sgd *hyper, const Rounding *rounding)
{
    if (!forgotten(weight))
        planted.ops_real[weight.dtype == F64]->sgd(dev, weight, grad, master, momentum, decision,
                                                   hyper, rounding);
}

/* Each rank's part of a row-cut product has the bias, and so the sum over the ranks has it as often
 * as there are ranks. */
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

static const OpTable *real_ops(DType dtype)
{
    return planted.ops_real[dtype == F64];
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

/* The sums of all ranks' rows are the sum of the ranks' sums. */
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
