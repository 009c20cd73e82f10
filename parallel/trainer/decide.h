/* decide.h -- decides on the device whether a step's update is applied, skipped or clipped, and
 * sends a record of the decision to the host.
 *
 * The rule itself is in op_step_decide (model/kernels/decision_rule.h). This file computes the sums
 * over all ranks that the rule reads. It also manages the ring buffer through which the results
 * reach the host, where trainer_read and trainer_read_all (trainer.h) read them. */
#ifndef PARALLEL_TRAINER_DECIDE_H
#define PARALLEL_TRAINER_DECIDE_H

#include "parallel/trainer/trainer.h"

/* Allocates the page-locked ring buffer of TRAINER_HISTORY records and one event per entry. Call it
 * once the device is open. */
void decide_open(Trainer *trainer);
void decide_close(Trainer *trainer);

/* Replaces `stats` by its sums over all ranks; every rank gets the same bits. Squares of gradients
 * are counted once per element; nats and targets are counted once per data-parallel rank. Runs on
 * the compute stream. */
void session_sum_stats(Session *session, StepStats *stats);

/* Computes trainer->state->decision from the step's final gradients: whether the update is applied,
 * the factor that clips and unscales the gradients, and the learning rate. Advances the StepState
 * and clears the sums. Runs on the compute stream; the host does not wait. */
void trainer_decide(Trainer *trainer);
/* Copies the decision and the new state to the host, on the compute stream. Call it once per step,
 * after the update has been issued and before trainer->steps is incremented. */
void trainer_record(Trainer *trainer);
/* Returns a record of the step that ended in `state`, with only the totals that `state` holds, such
 * as steps and tokens. The loss is NAN, and all other fields, which come from the step's decision,
 * are 0. */
StepRecord decide_totals(const StepState *state);

#endif
