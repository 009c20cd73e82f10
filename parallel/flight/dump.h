/* dump.h -- writes the flight recorders of this process's ranks to RUN/flight/ when dumps.h
 * requests it. Each rank has a file there, rank_00003.jsonl; the README has the format. */
#ifndef PARALLEL_FLIGHT_DUMP_H
#define PARALLEL_FLIGHT_DUMP_H

#include "model/core/flight.h"

#include <stdio.h>

enum { FLIGHT_HOST_BYTES = 65 };

/* A rank, and what its file contains besides the recorded entries. */
typedef struct {
    const Flight *flight;
    GraphNames names;
    int rank, ranks;              /* in the world */
    int here;                     /* number of ranks of this process */
    int pp, dp, tp;               /* coordinates in the grid */
    int attempt;                  /* number of this start of the run */
    char host[FLIGHT_HOST_BYTES]; /* name of its machine */
    /* The same number on all ranks of this start of the run, different for every other start. It
     * distinguishes their dumps. */
    uint64_t start;
    FILE *log; /* set by flight_dump_add: the rank's log */
} FlightSource;

/* From flight_dump_add to flight_dump_remove, dumps of the run in the folder `run` include this
 * rank's flight recorder. After flight_dump_remove the recorder may be freed, and the rank's log
 * closed. Each rank's own thread calls both functions. The thread of dumps.h is started when the
 * process's last rank is added, and ended when the last one is removed. Warns if the system refuses
 * to start it. */
void flight_dump_add(const FlightSource *source, const char *run);
void flight_dump_remove(const Flight *flight);

/* Returns the name of a dump: the same on all ranks, different for every other dump. */
uint64_t flight_dump_name(uint64_t start, int64_t number);

/* Bytes of the name of a rank's file in RUN/flight. */
enum { FLIGHT_FILE_BYTES = 32 };
/* Writes the name of the file of a rank, "rank_00003.jsonl". */
void flight_file_name(int rank, char name[FLIGHT_FILE_BYTES]);

#endif
