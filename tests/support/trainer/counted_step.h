/* counted_step.h -- compares one rank of a run with its plan (parallel/plan/counted_stage.h): the
 * memory by class, what a step sends by group, operation and dtype, and the step's graph. */
#ifndef TESTS_SUPPORT_TRAINER_COUNTED_STEP_H
#define TESTS_SUPPORT_TRAINER_COUNTED_STEP_H

#include "model/core/recorder.h"
#include "parallel/memory/memory_plan.h"

typedef struct {
    MemoryPlan memory; /* of the run, by memory_plan */
    Recorder recorder;
} CountedStep;

/* Takes the memory plan of a trainer that is laid out but not allocated yet, and prepares to record
 * its steps. `c` must outlive the trainer. */
void counted_step_open(CountedStep *c, Trainer *trainer, const DataSet *data);
/* Makes a step. Then plans this rank, and reports with
 * rank_wrong what differs from the run: of the memory any class but `reserve`, of the wire any
 * count, and any node of the graph. Also plans the first rank of its stage and compares what this
 * stands for: the memory, and the groups in which all ranks of a stage make the same calls. */
void counted_step_check(CountedStep *c, Comm *world, Trainer *trainer);

#endif
