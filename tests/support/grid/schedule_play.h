/* schedule_play.h -- simulates the schedules of all stages, independently of the program: a group
 * of transfers waits until its partners' groups have begun. Also lists the sizes of schedules that
 * tests use. */
#ifndef TESTS_SUPPORT_GRID_SCHEDULE_PLAY_H
#define TESTS_SUPPORT_GRID_SCHEDULE_PLAY_H

#include "parallel/pipeline/schedule.h"

enum { MOST_CHUNKS = 8 };

/* The contents of a buffer: the tensor that a layer range computed for a micro-batch. Zero: empty.
 */
typedef struct {
    int run, kind; /* run + 1; an ActionKind */
    int64_t micro;
} Content;

typedef struct {
    Schedule s;
    int64_t at; /* the next action */
    Content *buffer;
    int64_t *slot[MOST_CHUNKS],
        *batch; /* for each slot of each chunk, and each batch, its micro-batch; -1: none */
    /* For each transfer: its partner on the other side, or -1; the action that is its group; and
     * whether the message has arrived, set by its sender. */
    int64_t *partner, *group;
    bool *delivered;
    double clock,
        *sent_at; /* the stage's time; for each transfer, the time at which its group began */
} PlayedStage;

typedef struct {
    const ScheduleSpec *spec;
    PlayedStage *stage;
    bool *done; /* which actions have run: see played_done */
    double forward,
        backward;    /* cost of a forward and a backward pass of one chunk; messages cost nothing */
    char wrong[256]; /* the first error; "": none */
} Played;

/* Computes the schedules of all stages; a test may change them before the simulation. */
void played_open(Played *p, const ScheduleSpec *spec);
void played_close(Played *p);
/* Simulates them from the beginning; sets p->wrong if there is an error. */
void played_play(Played *p);
/* Returns the idle time of a step according to the stages' clocks, relative to the work of a stage:
 * 0.25 if the step takes a quarter longer than its work. The bubble is x / (1 + x) of the whole
 * time. */
double played_bubble(const ScheduleSpec *spec, double forward, double backward);
/* Returns the result of the check that a run makes at its start. */
bool played_check(const Played *p, char *err, size_t n);
bool *played_done(const Played *p, ActionKind kind, int run, int64_t micro);

typedef void (*ScheduleVisit)(const ScheduleSpec *spec);

/* Calls `visit` for every kind of schedule, evaluations and numbers of chunks up to `chunks`, with
 * so many stages and micro-batches. */
void schedules_of(int stages, int64_t micros, int chunks, ScheduleVisit visit);
/* Calls `visit` for all sizes up to 8 stages, 16 micro-batches and MOST_CHUNKS chunks, and for some
 * of up to 64 stages; with TEST_SAMPLE only for every fifth size, by turns (turns.h). With
 * GRID_MOST_RANKS (make grid) for many more of up to so many stages. */
void schedules_each(ScheduleVisit visit);

#endif
