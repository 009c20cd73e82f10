/* made_step.h -- graphs of steps that a test makes by hand, node by node, and their replay
 * (parallel/plan/replay.h). */
#ifndef TESTS_SUPPORT_PLAN_MADE_STEP_H
#define TESTS_SUPPORT_PLAN_MADE_STEP_H

#include "model/kernels/ops.h"
#include "parallel/plan/replay.h"

enum { MADE_STAGES = 64 };

/* The graphs of up to MADE_STAGES stages, each the first of its 4 ranks: ranks 0, 4, 8 ... of the
 * world. Initialise with {.stages = n}. */
typedef struct {
    Graph graph[MADE_STAGES];
    int stages;
} Step;

/* Appends an op, or a collective, that takes so many microseconds. A group called "pp" contains the
 * first ranks of all stages, any other one the ranks of the stage. */
void add_op(Step *step, int stage, int stream, OpId op, int64_t micros);
void add_copy(Step *step, int stage, int stream, int64_t micros);
void add_sum(Step *step, int stage, int stream, const char *group, int64_t micros);
/* Makes the stream wait for all that is now on the other one. */
void add_wait(Step *step, int stage, int stream, int other);
/* Appends messages on the p2p stream that are carried out together: one to stage `to` and one from
 * stage `from`; -1: none. */
void add_messages(Step *step, int stage, int to, int from, int64_t micros);
/* Replays the step. Fails if the parts of a stage do not add up to the step's seconds, exactly. */
StepTime made_step_replay(const Step *step);
/* Returns the sum of the parts of a stage's time. */
double made_step_parts(const StageTime *time);
void made_step_free(Step *step);

#define assert_micros(seconds, micros)                                                             \
    assert_int_equal((int64_t)((seconds)*1e6 + 0.5), (int64_t)(micros))

/* A generator of pseudo-random numbers in [0, n), whose state is *x. */
uint64_t made_step_draw(uint64_t *x, uint64_t n);
/* Returns a random step. In each round all stages append random ops, sums and waits, and then
 * exchange messages in a ring or meet in a sum. So nothing deadlocks. */
Step made_step_random(int stages, int rounds, uint64_t seed);

#endif
