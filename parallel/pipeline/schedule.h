/* schedule.h -- the list of actions of one rank in a step, computed by pure functions. Gradient
 * accumulation without a pipeline is the schedule of a single stage, so training has only one code
 * path. */
#ifndef PARALLEL_PIPELINE_SCHEDULE_H
#define PARALLEL_PIPELINE_SCHEDULE_H

#include "model/core/kinds.h"
#include "model/param/stage.h"

#include <stdio.h>

/* The complete description of a schedule. Layer range r is chunk r / stages of stage r % stages. */
typedef struct {
    ScheduleKind kind; /* gpipe and 1f1b have one chunk */
    int stages, chunks;
    int64_t micros;
    bool evaluate; /* forward passes only, for any kind */
} ScheduleSpec;

/* The actions of one stage. */
typedef struct {
    Action *action;
    int64_t n;
    Transfer *transfer;
    int64_t n_transfers;
    int *slots; /* for each chunk, how many sets of activations it needs; 1 in an evaluation */
    int batches, buffers; /* how many micro-batches and buffers it needs at a time */
} Schedule;

/* Returns the schedule of a stage; free it with schedule_free. In each chunk the forward passes of
 * the micro-batches run in ascending order, and so do the backward passes, so all kinds of schedule
 * add gradients in the same order. A tensor for another stage is sent directly after the action
 * that computes it, in one fused group of transfers on each of the two stages. All groups of the
 * same moment complete together, on all stages, so they cannot deadlock. A group has at most three
 * transfers. Time and memory are linear in the number of micro-batches. */
Schedule schedule_create(const ScheduleSpec *spec, int stage);
/* Computes the schedules of all stages, in about the time of one, and writes them to
 * of_stage[0..stages). */
void schedule_create_all(const ScheduleSpec *spec, Schedule *of_stage);
void schedule_free(Schedule *schedule);

/* Simulates the schedules of all stages. At a group of transfers, a stage waits until all stages
 * with which it exchanges tensors there have begun their groups, too. Checks that no stage waits
 * forever, that both sides of each pair agree on the order of messages, and that each action runs
 * once, after its input was computed. Also checks that slots, batches and buffers contain the right
 * tensors and are never overwritten while needed. Returns false and sets err if a check fails,
 * which is a bug. The time is linear in the number of actions of all stages. */
bool schedule_check(const ScheduleSpec *spec, char *err, size_t n);
/* Checks the given schedules, one per stage, in the same way. Tests call it with damaged schedules.
 */
bool schedule_check_all(const ScheduleSpec *spec, const Schedule *of_stage, char *err, size_t n);
/* Draws the schedule with one line per stage and time from left to right, as if a backward pass
 * took as long as two forward passes: "F0 F1       B0--- F2 B1--- ". F is a forward pass, B a
 * backward pass, E an evaluation, followed by the micro-batch and, if a stage has several chunks,
 * the chunk's letter. A line has at most `width` columns (0: no limit). If it would end before
 * stage 0's first backward pass (in an evaluation, before the end of the first micro-batch), only
 * letters are drawn, and a line above explains them: "FF    B-FB-", or with chunks "ab    B-aA-".
 * Lines that are still too long end in "...". */
void schedule_draw(const ScheduleSpec *spec, FILE *to, int width);
/* Returns the letter of a chunk: a to z, then a again. */
char schedule_chunk_letter(int chunk);

#endif
