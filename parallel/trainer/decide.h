/* decide.h -- whether a step is applied, skipped or clipped: the decision on the device, and its
 * record on the way to the host.
 *
 * The rule itself is op_step_decide's (model/kernels/decision_rule.h). What belongs to it here: the
 * sums over all ranks that it reads, and the ring through which its results come back, which
 * trainer_read and trainer_read_all (trainer.h) take out. */
#ifndef PARALLEL_TRAINER_DECIDE_H
#define PARALLEL_TRAINER_DECIDE_H

#include "parallel/trainer/trainer.h"

/* The page-locked ring of TRAINER_HISTORY records and the event of each place. Once the device is
 * open. */
void decide_open(Trainer *trainer);
void decide_close(Trainer *trainer);

/* stats = their sums over all ranks, the same bits on every rank: squares of the gradients that
 * each rank counts, nats and targets of each data-parallel rank once. On the compute stream. */
void session_sum_stats(Session *session, StepStats *stats);

/* From the step's final gradients to trainer->state->decision: whether the update is applied, the
 * factor by which gradients are clipped and unscaled, the learning rate; moves the StepState on and
 * clears the sums. On the compute stream; the host waits for nothing. */
void trainer_decide(Trainer *trainer);
/* Sends the decision and the state after it to the host, on the compute stream. Once a step, after
 * the update is ordered and before trainer->steps counts it. */
void trainer_record(Trainer *trainer);

#endif
