/* phases.h -- where the time of a step goes, for wall_clock_breakdown. */
#ifndef PARALLEL_TRAINER_PHASES_H
#define PARALLEL_TRAINER_PHASES_H

#include "parallel/report/pace.h"
#include "parallel/trainer/session.h"

/* Seconds of the device, by phase.
 *
 * On the CPU, whose calls finish before they return, communication is counted apart: layers are the
 * collectives of tensor-parallel ranks in forward and backward passes, communication all other
 * collectives, exchange the transfer of tensors between stages, and bubble the wait for other
 * stages. Collectives include the wait for peers. The wait for data is in none of the phases.
 *
 * On a GPU everything is in the first three, and the other four are 0. `exposed` is how long the
 * compute stream waited within these three, by axis: dp for sums and gathers of the store; tp for
 * what tensor-parallel ranks send in the layers and sum at the step's end; pp for tensors of other
 * stages, including the wait until they are there, and for sums of what stages share. */
typedef struct {
    double forward, backward, optimizer, layers, communication, exchange, bubble;
    double exposed[EXPOSED_AXES];
} PhaseSeconds;

/* The host's clocks at a border between phases. */
typedef struct {
    CommSeconds comm;
    double data;
} PhaseClocks;

typedef struct {
    Event *border; /* before the first action, after each, and after the update */
    PhaseClocks *at;
    int64_t n; /* 0: nothing is timed */
    int64_t next;
    PhaseSeconds seconds;           /* since somebody last set it to zero */
    Exposed *exposed[EXPOSED_AXES]; /* NULL: the axis has one rank, or the device no streams */
} Phases;

/* For steps of at most so many actions; call it after session_allocate. An event is made when it is
 * first recorded: here, so that no step makes one. */
void phases_open(Phases *phases, Session *session, int64_t actions);
void phases_close(Phases *phases, Session *session);
/* A step begins: its exposed communication is measured. */
void phases_begin(Phases *phases);
/* The next border of a step. data: seconds waited for data so far. */
void phases_mark(Phases *phases, Session *session, double data);
/* After a step's last border: adds the time between its borders to the phases. Waits for the step
 * to end: whoever asks for the breakdown pays with the host's head start over the device. */
void phases_add(Phases *phases, Session *session, const Schedule *schedule);
/* Which part of a step of one micro-batch is spent per micro-batch, and which once a step. data:
 * seconds waited for data, where the phases do not include them. `fill` is left 0: the phases do
 * not know the pipeline. */
StepTimes phases_times(const PhaseSeconds *seconds, double data);

#endif
