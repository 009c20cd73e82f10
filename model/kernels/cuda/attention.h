/* attention.h -- the two ways to compute attention on CUDA, and the choice between them.
 *
 * Plain: float arithmetic, any head size up to 256, all storage types; what f32 runs on and what
 * the other is held to. Flash: tensor cores, 16-bit storage. */
#ifndef MODEL_KERNELS_CUDA_ATTENTION_H
#define MODEL_KERNELS_CUDA_ATTENTION_H

#include "model/kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Largest head that either way takes. */
enum { ATTENTION_MAX_HEAD = 256 };

/* Contracts of all three: op_attention_forward and op_attention_backward in ops.h. */
void plain_attention_backward(Device *dev, Tensor dq, Tensor dk, Tensor dv, bool accumulate,
                              Tensor dout, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse,
                              Attention attention, Tensor first_key);

void flash_attention_forward(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                             Attention attention, Tensor first_key);
void flash_attention_backward(Device *dev, Tensor dq, Tensor dk, Tensor dv, bool accumulate,
                              Tensor dout, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse,
                              Attention attention, Tensor first_key);

/* Whether these operands, of which the first is q, take the tensor cores: 16-bit elements, heads
 * and rows in packs of 16 bytes. */
static inline bool attention_is_flash(const Tensor *operand, int n, Attention attention)
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

/* How many pairs (batch row, kv head), of `pairs`, a backward pass may take at once so that `each`
 * floats of every one of them fit the workspace. */
static inline int64_t attention_portion(const Device *dev, int64_t each, int64_t pairs)
{
    int64_t fitting = (int64_t)(cuda_device(dev)->workspace_bytes / sizeof(float)) / each;
    CHECK(fitting > 0, "attention over %lld queries of a group of heads", (long long)each);
    return fitting < pairs ? fitting : pairs;
}

#ifdef __cplusplus
}
#endif

#endif
