/* dump.h -- writes the flight recorders of the ranks of this process to RUN/flight/, when dumps.h
 * says so. Each rank has a file there, rank_00003.jsonl; the README has the format. */
#ifndef PARALLEL_FLIGHT_DUMP_H
#define PARALLEL_FLIGHT_DUMP_H

#include "model/core/flight.h"

#include <stdio.h>

enum { FLIGHT_HOST_BYTES = 65 };

/* A rank, and what its file says besides its flight. */
typedef struct {
    const Flight *flight;
    GraphNames names;
    int rank, ranks;              /* in the world */
    int here;                     /* number of ranks of this process */
    int pp, dp, tp;               /* coordinates in the grid */
    int attempt;                  /* of the run */
    char host[FLIGHT_HOST_BYTES]; /* its machine */
    /* A number that all ranks of this start have, and no other start: dumps are told apart by it.
     */
    uint64_t start;
    FILE *log; /* set by flight_dump_add: the rank's log */
} FlightSource;

/* From now on dumps of the run in the folder `run` have this rank's flight, until
 * flight_dump_remove: the flight may be freed after that, and the log of the rank closed. The last
 * of the process's ranks to come starts the thread of dumps.h, and the last to go ends it. Warns if
 * the system refuses the thread. Called by each rank's own thread. */
void flight_dump_add(const FlightSource *source, const char *run);
void flight_dump_remove(const Flight *flight);

/* Returns the name of a dump: equal on all ranks, and of no other dump. */
uint64_t flight_dump_name(uint64_t start, int64_t number);

/* Bytes of the name of a rank's file in RUN/flight. */
enum { FLIGHT_FILE_BYTES = 32 };
/* Writes the name of the file of a rank, "rank_00003.jsonl". */
void flight_file_name(int rank, char name[FLIGHT_FILE_BYTES]);

#endif
