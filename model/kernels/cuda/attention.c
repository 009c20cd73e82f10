/* attention.c -- chooses between the three implementations of attention on CUDA. */
#include "model/kernels/cuda/attention.h"
#include "model/core/check.h"

/* Returns true if attention with these operands can use the tensor cores: the scale is positive,
 * the elements have 16 bits, and every head and row starts on a 16-byte boundary. operand[0] is q.
 */
static bool attention_is_flash(const Tensor *operand, int n, Attention attention)
{
    enum { PACK = 8 };
    DType dtype = operand[0].dtype;
    if (!(attention.scale > 0)) return false;
    if ((dtype != BF16 && dtype != F16) || attention.head_size % PACK != 0) return false;
    for (int i = 0; i < n; i++)
        if ((uintptr_t)operand[i].data % 16 != 0 ||
            (operand[i].ld % PACK != 0 && tensor_rows(operand[i]) > 1))
            return false;
    return true;
}

/* Returns true if the kernels for Hopper can be used: the device was opened for them, and they
 * accept these operands. They accept the head sizes that nearly all models have. */
static bool attention_is_hopper(const Device *dev, const Tensor *operand, int n,
                                Attention attention)
{
    return cuda_device(dev)->hopper_attention &&
           (attention.head_size == 64 || attention.head_size == 128) &&
           attention_is_flash(operand, n, attention);
}

static void head_check(Attention attention)
{
    CHECK(attention.head_size <= ATTENTION_MAX_HEAD, "attention on CUDA takes heads up to %d: %lld",
          ATTENTION_MAX_HEAD, (long long)attention.head_size);
}

void cuda_attention_forward(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                            Attention attention, Tensor first_key)
{
    head_check(attention);
    Tensor operand[] = {q, k, v, o};
    if (attention_is_hopper(dev, operand, 4, attention))
        hopper_attention_forward(dev, o, lse, q, k, v, attention, first_key);
    else if (attention_is_flash(operand, 4, attention))
        flash_attention_forward(dev, o, lse, q, k, v, attention, first_key);
    else
        plain_attention_forward(dev, o, lse, q, k, v, attention, first_key);
}

void attention_bias_sums(Device *dev, const AttentionTensors *t)
{
    if (!tensor_present(t->dbq)) return;
    cuda_bias_sums(dev, t->dbq, t->dq, t->accumulate_db);
    cuda_bias_sums(dev, t->dbk, t->dk, t->accumulate_db);
    cuda_bias_sums(dev, t->dbv, t->dv, t->accumulate_db);
}

void cuda_attention_backward(Device *dev, const AttentionTensors *t, bool accumulate,
                             Attention attention)
{
    head_check(attention);
    Tensor operand[] = {t->q, t->k, t->v, t->o, t->dout, t->dq, t->dk, t->dv};
    if (attention_is_hopper(dev, operand, 8, attention)) {
        hopper_attention_backward(dev, t, accumulate, attention);
        return;
    }
    bool flash = attention_is_flash(operand, 8, attention);
    (flash ? flash_attention_backward : plain_attention_backward)(dev, t, accumulate, attention);
    attention_bias_sums(dev, t);
}
