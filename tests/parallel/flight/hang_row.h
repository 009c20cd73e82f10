/* hang_row.h -- a hang that test_hangs.c plants, and what the flight recorders say of it. */
#ifndef TESTS_PARALLEL_FLIGHT_HANG_ROW_H
#define TESTS_PARALLEL_FLIGHT_HANG_ROW_H

#include "parallel/comm/comm.h"
#include "parallel/flight/chain.h"

/* Where a rank hangs: before a call of a communicator, or in other work. */
typedef enum {
    AT_CALL,
    AT_GROUP,
    AT_OP,
    AT_STREAM, /* the device's stream hangs, before an op; only where there is a CUDA device */
    AT_LOADER,
    AT_DISK,
    AT_WRITER,
    AT_CONSOLE
} Point;
/* What the rank does there. */
typedef enum {
    HANG,  /* never continues */
    STOP,  /* stops its process */
    OTHER, /* makes another call of the same group */
    WORLD, /* makes a call of the world */
} Deed;

typedef struct {
    const char *name;
    int ranks;
    const char *sets[7];
    bool processes;
    Point point;
    CommVerb verb;     /* AT_CALL */
    const char *group; /* of the call */
    int rank, nth;     /* the rank that hangs; it hangs when it comes to the point for the nth time
                          after the run was opened */
    Deed deed;
    FlightCause cause;
    ExitCode code;
    /* Texts that the sentences of the analysis must contain: begin and action in the sentence about
     * the rank that hangs (the entry that it is in, the action of the step), wait in the sentence
     * about the ranks that wait for it directly. */
    const char *begin, *action, *wait;
} HangRow;

#endif
