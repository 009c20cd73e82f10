/* hopper_backward.cu -- computes the gradients of attention on Hopper, for bf16 and f16 and head
 * sizes 64 and 128. */
#include "model/kernels/cuda/hopper_backward.cuh"
#include "model/kernels/cuda/reduce.h"

static BackwardMaps maps_of(const Device *dev, const AttentionTensors *t, Attention a)
{
    BackwardMaps maps;
    tensor_map_heads(dev, &maps.q, t->q, a.heads, a.head_size, GROUP_ROWS);
    tensor_map_heads(dev, &maps.k, t->k, a.kv_heads, a.head_size, GROUP_ROWS);
    tensor_map_heads(dev, &maps.v, t->v, a.kv_heads, a.head_size, GROUP_ROWS);
    tensor_map_heads(dev, &maps.dout, t->dout, a.heads, a.head_size, GROUP_ROWS);
    return maps;
}

/* How a call divides its workspace, in floats: first delta of `portion` (batch row, kv head) pairs,
 * `each` floats a pair; then the rows of partial sums for the biases. The numbers of these rows are
 * 0 if the biases' gradients are not requested, or if the rows do not fit beside one pair's
 * delta. */
typedef struct {
    int64_t each, portion, q_rows, q_cols, kv_rows, kv_cols;
} Scratch;

static Scratch scratch_of(const Device *dev, const AttentionTensors *t, Attention a, int64_t pairs)
{
    int64_t batch = t->q.dim[0], tq = t->q.dim[1], tk = t->k.dim[1];
    int64_t floats = (int64_t)(cuda_device(dev)->workspace_bytes / sizeof(float));
    Scratch x = {a.heads / a.kv_heads * tq,        0,
                 batch * ceil_div(tq, GROUP_ROWS), a.heads * a.head_size,
                 batch * ceil_div(tk, GROUP_ROWS), 2 * a.kv_heads * a.head_size};
    int64_t left = floats - x.q_rows * x.q_cols - x.kv_rows * x.kv_cols;
    x.portion = attention_portion(dev, x.each, pairs);
    if (!tensor_present(t->dbq) || left < x.each)
        x.q_rows = x.kv_rows = 0;
    else if (left / x.each < x.portion)
        x.portion = left / x.each;
    return x;
}

static BiasPartials partials_of(float *sums, int64_t rows, int64_t cols, int64_t batch)
{
    BiasPartials p = {rows > 0 ? sums : NULL, cols, (int)(rows / batch)};
    return p;
}

/* Computes the gradients of the biases from the partial sums that the kernels have stored. If the
 * workspace had no room for these, computes the gradients by reading dq, dk and dv again. */
static void biases_finish(Device *dev, const AttentionTensors *t, const Scratch *x,
                          const BackwardBiases *biases)
{
    if (!tensor_present(t->dbq)) return;
    if (x->q_rows == 0) {
        attention_bias_sums(dev, t);
        return;
    }
    cuda_partials_sum(dev, t->dbq, NO_TENSOR, NO_TENSOR,
                      tensor_2d(biases->q.sums, F32, x->q_rows, x->q_cols), t->accumulate_db);
    cuda_partials_sum(dev, t->dbk, t->dbv, NO_TENSOR,
                      tensor_2d(biases->kv.sums, F32, x->kv_rows, x->kv_cols), t->accumulate_db);
}

void hopper_attention_backward(Device *dev, const AttentionTensors *t, bool accumulate,
                               Attention attention)
{
    BackwardCall c = backward_call(t, accumulate, attention);
    BackwardMaps maps = maps_of(dev, t, attention);
    int64_t batch = t->q.dim[0], pairs = batch * attention.kv_heads;
    Scratch x = scratch_of(dev, t, attention, pairs);
    int64_t delta = x.portion * x.each, q_sums = x.q_rows * x.q_cols;
    c.delta = (float *)cuda_workspace(dev, (size_t)(delta + q_sums + x.kv_rows * x.kv_cols) *
                                               sizeof(float));
    BackwardBiases biases = {partials_of(c.delta + delta, x.q_rows, x.q_cols, batch),
                             partials_of(c.delta + delta + q_sums, x.kv_rows, x.kv_cols, batch)};
    /* As many pairs at a time as have room for their delta in the workspace. */
    for (int64_t pair = 0; pair < pairs; pair += x.portion) {
        int n = (int)(x.portion < pairs - pair ? x.portion : pairs - pair);
        hopper_backward_query(dev, &c, &maps, &biases, (int)pair, n);
        hopper_backward_key(dev, &c, &maps, &biases, (int)pair, n);
    }
    biases_finish(dev, t, &x, &biases);
}
