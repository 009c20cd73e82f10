/* hopper_absent.c -- takes the place of the attention kernels for Hopper in programs that are built
 * without code for sm_90a. In such a program no device can be opened with cuda.attention
 * "hopper". */
#include "model/core/check.h"
#include "model/kernels/cuda/attention.h"

bool hopper_attention_built(void)
{
    return false;
}

void hopper_attention_forward(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                              Attention attention, Tensor first_key)
{
    (void)dev, (void)o, (void)lse, (void)q, (void)k, (void)v, (void)attention, (void)first_key;
    CHECK(0, "this program has no attention kernels for Hopper");
}

void hopper_attention_backward(Device *dev, const AttentionTensors *t, bool accumulate,
                               Attention attention)
{
    (void)dev, (void)t, (void)accumulate, (void)attention;
    CHECK(0, "this program has no attention kernels for Hopper");
}
