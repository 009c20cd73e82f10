/* cmd_bench_replay.c -- repeats only the matrix products of a step, for `./train bench step`. */
#include "parallel/commands/cmd_bench.h"

#include "model/core/check.h"

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void *filled(Device *dev, DType dtype, int64_t n, const char *what, uint64_t stream,
                    double std)
{
    void *p = device_alloc(dev, (size_t)n * dtype_size(dtype), what);
    op_normal(dev, tensor_1d(p, dtype, n), 1, &(Segment){.stream = stream}, std);
    return p;
}

Replay replay_open(Device *dev, DType dtype, const Profile *list, int64_t n_weights)
{
    Replay r = {.dev = dev, .dtype = dtype, .gradient = dtype, .n_weights = n_weights};
    /* One buffer serves all products of the list, so it has the size of the largest. */
    for (int64_t i = 0; i < list->n_products; i++) {
        const Product *p = &list->product[i];
        r.n_x = most(r.n_x, p->n * p->inputs);
        r.n_y = most(r.n_y, p->n * p->outputs);
        r.n_weights = most(r.n_weights, p->outputs * p->inputs);
        if (p->op == OP_linear_backward_weight && p->result != dtype) r.gradient = p->result;
    }
    r.x = filled(dev, dtype, r.n_x, "inputs", 1, 1.0);
    r.y = filled(dev, dtype, r.n_y, "outputs", 2, 1e-3);
    r.w = filled(dev, dtype, r.n_weights, "weights", 3, 0.02);
    if (r.gradient != dtype) r.g = filled(dev, r.gradient, r.n_weights, "gradients", 4, 1e-3);
    return r;
}

/* Returns the next outputs x inputs elements: of the weights if `dtype` is the type in which they
 * are stored, otherwise of the gradients. Starts again at the beginning when the buffer is used
 * up. */
static Tensor next_weight(Replay *r, DType dtype, int64_t outputs, int64_t inputs)
{
    /* As in a step, no weight is used twice in a row, because the second time it would be read from
     * the cache. */
    if (r->at + outputs * inputs > r->n_weights) r->at = 0;
    char *from = dtype == r->dtype ? r->w : r->g;
    Tensor t = tensor_2d(from + (size_t)r->at * dtype_size(dtype), dtype, outputs, inputs);
    r->at += outputs * inputs;
    return t;
}

static void replay_product(Replay *r, const Product *p)
{
    bool weight = p->op == OP_linear_backward_weight;
    CHECK(p->result == (weight ? r->gradient : r->dtype), "a product of %s in %s",
          dtype_name(r->dtype), dtype_name(p->result));
    Tensor w = next_weight(r, p->result, p->outputs, p->inputs);
    Tensor x = tensor_2d(r->x, r->dtype, p->n, p->inputs),
           y = tensor_2d(r->y, r->dtype, p->n, p->outputs);
    if (p->op == OP_linear_forward)
        op_linear_forward(r->dev, y, x, w, NO_TENSOR, EPILOGUE_NONE, NO_TENSOR);
    else if (p->op == OP_linear_backward_input)
        op_linear_backward_input(r->dev, x, y, w, EPILOGUE_NONE, NO_TENSOR, p->accumulate);
    else
        op_linear_backward_weight(r->dev, w, NO_TENSOR, y, x, NO_TENSOR, p->accumulate);
}

void replay_run(Replay *r, const Profile *list)
{
    for (int64_t i = 0; i < list->n_products; i++)
        replay_product(r, &list->product[i]);
}

void replay_close(Replay *r)
{
    device_release(r->dev, r->x, (size_t)r->n_x * dtype_size(r->dtype));
    device_release(r->dev, r->y, (size_t)r->n_y * dtype_size(r->dtype));
    device_release(r->dev, r->w, (size_t)r->n_weights * dtype_size(r->dtype));
    if (r->g) device_release(r->dev, r->g, (size_t)r->n_weights * dtype_size(r->gradient));
    *r = (Replay){0};
}
