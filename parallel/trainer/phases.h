/* phases.h -- where the time of a step goes, for wall_clock_breakdown. */
#ifndef PARALLEL_TRAINER_PHASES_H
#define PARALLEL_TRAINER_PHASES_H

#include "parallel/report/pace.h"
#include "parallel/trainer/session.h"

/* Seconds of the device. Where its calls finish before they return, as on the CPU, what others take
 * is apart: layers (collectives of tensor-parallel ranks in forward and backward passes, with the
 * wait for peers in them), communication (all other collectives, likewise), exchange (tensors on
 * their way between stages) and bubble (waiting for other stages); and the wait for data is in none
 * of them. Elsewhere all of it is in the first three, and the others are 0; but of these three
 * `exposed` is what the compute stream stood still for, by axis: dp sums and gathers of the store,
 * tp what tensor-parallel ranks send in the layers and what they sum at the step's end, pp tensors
 * of other stages with the wait for the stages, and sums of what stages share. */
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
    Event *border; /* before the first action, behind each, and behind the update */
    PhaseClocks *at;
    int64_t n; /* 0: nothing is timed */
    int64_t next;
    PhaseSeconds seconds;           /* since somebody last set it to zero */
    Exposed *exposed[EXPOSED_AXES]; /* NULL: the axis has one rank, or the device no streams */
} Phases;

/* For steps of at most so many actions, behind session_allocate. An event is made when it is first
 * recorded: here, so that no step makes one. */
void phases_open(Phases *phases, Session *session, int64_t actions);
void phases_close(Phases *phases, Session *session);
/* A step begins: its exposed communication is measured. */
void phases_begin(Phases *phases);
/* The next border of a step. data: seconds waited for data so far. */
void phases_mark(Phases *phases, Session *session, double data);
/* Behind a step's last border: adds up its phases between the borders. Waits for the step: who asks
 * for the breakdown pays with the host's head start. */
void phases_add(Phases *phases, Session *session, const Schedule *schedule);
/* What of a step of one micro-batch comes once a micro-batch and what once a step. data: seconds
 * waited for data, where the phases do not have them. No pipeline to fill is known here. */
StepTimes phases_times(const PhaseSeconds *seconds, double data);

#endif
