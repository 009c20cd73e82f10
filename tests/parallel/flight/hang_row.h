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
/* What it does there. */
typedef enum {
    HANG,  /* nothing any more */
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
    int rank, nth;     /* on this rank, at this time it comes there after the run is open */
    Deed deed;
    FlightCause cause;
    ExitCode code;
    /* Parts of the sentences about the rank (what it is in, and in which action), and about those
     * that wait nearest to it. */
    const char *begin, *action, *wait;
} HangRow;

#endif
