/* schedule.h -- a step as data: the list of actions of one rank, from pure functions. Gradient
 * accumulation without a pipeline is the schedule of one stage, so there is one training path. */
#ifndef PARALLEL_PIPELINE_SCHEDULE_H
#define PARALLEL_PIPELINE_SCHEDULE_H

#include "model/core/kinds.h"
#include "model/param/stage.h"

#include <stdio.h>

/* A schedule is made from this and from nothing else. Run r of layers is chunk r / stages of stage
 * r % stages. */
typedef struct {
    ScheduleKind kind; /* gpipe and 1f1b have one chunk */
    int stages, chunks;
    int64_t micros;
    bool evaluate; /* forward alone, whatever the kind */
} ScheduleSpec;

/* What one stage does. */
typedef struct {
    Action *action;
    int64_t n;
    Transfer *transfer;
    int64_t n_transfers;
    int *slots; /* sets of activations of each chunk; of an evaluation 1 */
    int batches, buffers;
} Schedule;

/* The schedule of a stage. In each chunk micro-batches go forward in ascending order, and backward,
 * too: so all kinds add up gradients in the same order. What is made for another stage is sent, and
 * received there, in one fused group on each right after the action that has made it: groups of
 * one moment on all stages complete together, so no order of them can lock the stages. A group has
 * at most three transfers. Time and memory are linear in the micro-batches. Free with
 * schedule_free. */
Schedule schedule_create(const ScheduleSpec *spec, int stage);
/* The schedules of all stages, in about the time that one takes; of_stage has room for `stages`. */
void schedule_create_all(const ScheduleSpec *spec, Schedule *of_stage);
void schedule_free(Schedule *schedule);

/* Plays the schedules of all stages, each stage waiting in a group until all its partners' groups
 * are there, and checks what they promise: none waits for ever; both sides of each pair agree on
 * the order of messages; each action is run once, after what it reads was made, on a slot, a batch
 * and buffers that hold what they should and nothing that is still needed. False with a sentence:
 * a bug. Linear in the actions of all stages. */
bool schedule_check(const ScheduleSpec *spec, char *err, size_t n);
/* For tests, too: the same of given schedules, one for each stage. */
bool schedule_check_all(const ScheduleSpec *spec, const Schedule *of_stage, char *err, size_t n);
/* Draws it, a line for each stage and time from left to right, as if a backward took as long as two
 * forwards: "F0 F1       B0--- F2 B1--- ". F forward, B backward, E evaluation, the micro-batch,
 * and where a stage has several chunks, the chunk's letter. Where `width` columns (0: no limit) do
 * not reach to stage 0's first backward (an evaluation's first micro-batch at its end), letters
 * alone, which a line above explains: "FF    B-FB-"; of chunks "ab    B-aA-". Lines that would be
 * longer still end in "...". */
void schedule_draw(const ScheduleSpec *spec, FILE *to, int width);
/* That letter: a to z, and from a again. */
char schedule_chunk_letter(int chunk);

#endif
