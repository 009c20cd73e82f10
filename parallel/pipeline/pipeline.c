/* pipeline.c -- see pipeline.h. With one stage nothing comes from or goes to a wire. */
#include "parallel/pipeline/pipeline.h"

#include "model/core/check.h"

void pipeline_run(const Stage *stage, const Action *actions, int64_t n)
{
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
