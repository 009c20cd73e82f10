/* flash_backward.cu -- computes the gradients of attention on tensor cores, for bf16 and f16. */
#include "model/kernels/cuda/flash_backward.cuh"

void flash_attention_backward(Device *dev, const AttentionTensors *t, bool accumulate,
                              Attention attention)
{
    BackwardCall c = backward_call(t, accumulate, attention);
    int64_t pairs = t->q.dim[0] * attention.kv_heads, each = (int64_t)c.shape.group * c.shape.tq;
    int64_t portion = attention_portion(dev, each, pairs);
    c.delta = (float *)cuda_workspace(dev, (size_t)(portion * each) * sizeof(float));
    /* As many pairs at a time as have room for their delta in the workspace. */
    for (int64_t pair = 0; pair < pairs; pair += portion) {
        int n = (int)(portion < pairs - pair ? portion : pairs - pair);
        flash_backward_query(dev, &c, (int)pair, n);
        flash_backward_key(dev, &c, (int)pair, n);
    }
}
