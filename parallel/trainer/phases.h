/* phases.h -- measures which parts of a training step take how much time, for
 * wall_clock_breakdown. */
#ifndef PARALLEL_TRAINER_PHASES_H
#define PARALLEL_TRAINER_PHASES_H

#include "parallel/report/pace.h"
#include "parallel/trainer/session.h"

/* Seconds measured on the device, by phase.
 *
 * On the CPU, whose calls finish before they return, communication is counted separately. `layers`
 * is the time in collectives of tensor-parallel ranks in forward and backward passes, and
 * `communication` the time in all other collectives. `exchange` is the transfer of tensors between
 * stages, and `bubble` the wait for other stages. Collectives include the wait for peers. The wait
 * for data is in none of the phases.
 *
 * On a GPU all time is in the first three phases, and the other four are 0. `exposed` is how long
 * the compute stream waited during these three phases, by axis. dp: waits for sums and gathers of
 * the store. tp: for what tensor-parallel ranks send in the layers and sum at the end of the step.
 * pp: for tensors from other stages, including the time until the other stage sends them, and for
 * gradient sums of parameters that stages share. host: for updates of optimizer states in host
 * memory; from ZeRO stage 1 on, the wait for the gather that follows the update counts as dp. */
typedef struct {
    double forward, backward, optimizer, layers, communication, exchange, bubble;
    double exposed[EXPOSED_AXES];
    /* Updates of optimizer states in host memory run on their own stream. `updates` is their
     * duration in seconds, and `updated_bytes` the size of the states that they read and also
     * wrote. The updates of a step are added in the next step. */
    double updates, updated_bytes;
} PhaseSeconds;

/* The host's clocks at a border between two phases: seconds spent so far in communication and in
 * waiting for data. */
typedef struct {
    CommSeconds comm;
    double data;
} PhaseClocks;

typedef struct {
    Event *border;        /* events before the first action, after each one and after the update */
    PhaseClocks *at;      /* the clocks at each border */
    int64_t n;            /* number of borders; 0: nothing is timed */
    int64_t next;         /* index of the next border */
    PhaseSeconds seconds; /* sums since the caller last reset them */
    Exposed *exposed[EXPOSED_AXES]; /* NULL if the axis has one rank or the device has no streams */
} Phases;

/* Prepares to measure steps of at most `actions` actions; call it after session_allocate. Records
 * every event once, which creates it, so no training step has to create one. */
void phases_open(Phases *phases, Session *session, int64_t actions);
void phases_close(Phases *phases, Session *session);
/* Begins a step: starts to measure its exposed communication. */
void phases_begin(Phases *phases);
/* Marks the next border of a step. `data` is the time in seconds that has been spent waiting for
 * data so far. */
void phases_mark(Phases *phases, Session *session, double data);
/* Adds the times between the step's borders to the phases; call it after the last border. Waits for
 * the step to end, so with the breakdown the host cannot run ahead of the device. */
void phases_add(Phases *phases, Session *session, const Schedule *schedule);
/* From the phases of a step with a single micro-batch, returns the seconds that each micro-batch
 * takes and the seconds that are spent once per step. `data` is the wait for data in seconds, which
 * the phases do not include. The field `fill` stays 0, because it depends on the pipeline. */
StepTimes phases_times(const PhaseSeconds *seconds, double data);

#endif
