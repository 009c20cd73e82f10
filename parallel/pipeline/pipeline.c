/* pipeline.c -- see pipeline.h. With one stage nothing comes from or goes to a wire. */
#include "parallel/pipeline/pipeline.h"

#include "model/core/check.h"

Pipeline *pipeline_create(Device *dev, Comm *pp, int buffers, DType dtype, int64_t rows,
                          int64_t cols)
{
    (void)dev, (void)dtype, (void)rows, (void)cols;
    CHECK(pp->size == 1 && buffers == 0, "a pipeline of %d stages", pp->size);
    return NULL;
}

void pipeline_destroy(Pipeline *pipeline)
{
    (void)pipeline;
}

size_t pipeline_bytes(int buffers, DType dtype, int64_t rows, int64_t cols)
{
    (void)buffers, (void)dtype, (void)rows, (void)cols;
    return 0;
}

void pipeline_run(Pipeline *pipeline, const Stage *stage, const Action *actions, int64_t n,
                  const Transfer *transfers)
{
    (void)pipeline, (void)transfers;
    for (int64_t i = 0; i < n; i++) {
        switch (actions[i].kind) {
        case ACT_FORWARD: stage->forward(stage->self, &actions[i], NO_TENSOR, NO_TENSOR); break;
        case ACT_BACKWARD: stage->backward(stage->self, &actions[i], NO_TENSOR, NO_TENSOR); break;
        case ACT_EVALUATE: stage->evaluate(stage->self, &actions[i], NO_TENSOR, NO_TENSOR); break;
        case ACT_EXCHANGE:
            CHECK(0, "an exchange in a schedule of one stage (action %lld)", (long long)i);
        }
    }
}
