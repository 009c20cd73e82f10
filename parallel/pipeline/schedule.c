/* schedule.c -- see schedule.h. */
#include "parallel/pipeline/schedule.h"

#include "model/core/check.h"

#include <stdlib.h>

int64_t schedule_one_stage(int64_t micros, Action *actions)
{
    int64_t n = 0;
    /* Backward follows its own forward at once, so that one slot of activations serves them all. */
    for (int64_t micro = 0; micro < micros; micro++) {
        actions[n++] = (Action){.kind = ACT_FORWARD, .micro = micro, .in = -1, .out = -1};
        actions[n++] = (Action){.kind = ACT_BACKWARD, .micro = micro, .in = -1, .out = -1};
    }
    return n;
}

Schedule schedule_create(const ScheduleSpec *spec, int stage)
{
    CHECK(spec->stages == 1 && spec->chunks == 1 && stage == 0, "stage %d of %d", stage,
          spec->stages);
    Schedule s = {.batches = 1};
    s.action = must_calloc(2 * (size_t)spec->micros, sizeof *s.action);
    s.slots = must_calloc(1, sizeof *s.slots);
    s.slots[0] = 1;
    s.n = schedule_one_stage(spec->micros, s.action);
    return s;
}

void schedule_free(Schedule *s)
{
    free(s->action);
    free(s->transfer);
    free(s->slots);
    *s = (Schedule){0};
}
