/* schedule_play.h -- a simulation, written for the tests, that plays the schedules of all stages: a
 * group waits until its partners' groups are there. Also the sizes of schedules that tests go
 * through. */
#ifndef TESTS_SUPPORT_GRID_SCHEDULE_PLAY_H
#define TESTS_SUPPORT_GRID_SCHEDULE_PLAY_H

#include "parallel/pipeline/schedule.h"

enum { MOST_CHUNKS = 8 };

/* What a buffer holds: the tensor that a run made of a micro-batch. Zero: nothing. */
typedef struct {
    int run, kind; /* run + 1; an ActionKind */
    int64_t micro;
} Content;

typedef struct {
    Schedule s;
    int64_t at; /* the action that comes next */
    Content *buffer;
    int64_t *slot[MOST_CHUNKS],
        *batch; /* slots by chunk: whose micro-batch is there; -1: nobody's */
    /* For each transfer: its partner on the other side, or -1; the action that is its group; and
     * whether the message has arrived, set by its sender. */
    int64_t *partner, *group;
    bool *delivered;
    double clock, *sent_at; /* the stage's time; of each transfer, when its group was reached */
} PlayedStage;

typedef struct {
    const ScheduleSpec *spec;
    PlayedStage *stage;
    bool *done;               /* what has been done: played_done */
    double forward, backward; /* what an action of one chunk costs; messages cost nothing */
    char wrong[256];          /* the first thing; "" */
} Played;

/* The schedules of all stages, which a test may change before they are played. */
void played_open(Played *p, const ScheduleSpec *spec);
void played_close(Played *p);
/* Plays them from the beginning; what is wrong is in p->wrong. */
void played_play(Played *p);
/* How long a step of this schedule takes by the stages' clocks, beyond a stage's own work and
 * relative to it: 0.25 for a quarter more. Of the whole time, x / (1 + x) is bubble. */
double played_bubble(const ScheduleSpec *spec, double forward, double backward);
/* The answer of the check at a run's start. */
bool played_check(const Played *p, char *err, size_t n);
bool *played_done(const Played *p, ActionKind kind, int run, int64_t micro);

typedef void (*ScheduleVisit)(const ScheduleSpec *spec);

/* Every kind, evaluation and number of chunks up to `chunks`, with so many stages and
 * micro-batches. */
void schedules_of(int stages, int64_t micros, int chunks, ScheduleVisit visit);
/* All up to 8 stages, 16 micro-batches and MOST_CHUNKS chunks, and some of up to 64 stages. With
 * GRID_MOST_RANKS (make grid) many more of up to so many stages. */
void schedules_each(ScheduleVisit visit);

#endif
