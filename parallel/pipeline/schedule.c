/* schedule.c -- see schedule.h. */
#include "parallel/pipeline/schedule.h"

int64_t schedule_one_stage(int64_t micros, Action *actions)
{
    int64_t n = 0;
    /* Backward follows its own forward at once, so that one slot of activations serves them all. */
    for (int64_t micro = 0; micro < micros; micro++) {
        actions[n++] = (Action){.kind = ACT_FORWARD, .micro = micro};
        actions[n++] = (Action){.kind = ACT_BACKWARD, .micro = micro};
    }
    return n;
}
