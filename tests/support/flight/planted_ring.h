/* planted_ring.h -- writes files of flight recorders that a test makes up, one entry after the
 * other. */
#ifndef TESTS_SUPPORT_FLIGHT_PLANTED_RING_H
#define TESTS_SUPPORT_FLIGHT_PLANTED_RING_H

#include "parallel/flight/words.h"

#include <stdio.h>

/* The file of one rank. The fields may be changed until planted_text. Not to be copied after the
 * first entry or group. */
typedef struct {
    int rank, ranks;
    const char *dump, *reason, *host, *action; /* action of the header and of new entries */
    double time;
    int64_t step, micro_batch;
    int64_t n; /* number of the last entry; it grows with each */
    int entries;
    FILE *lines;
    char *text;
    size_t size;
} PlantedRing;

/* Begins the file of a rank, of a dump because of a deadline. */
PlantedRing planted_ring(int rank, int ranks);
/* Adds a group: the ranks first + i stride. Before all entries. */
void planted_group(PlantedRing *ring, int group, const char *name, int first, int stride, int size);
/* Adds a collective of 64 f32 or a message of them; `stream`: compute, comm, p2p, host ... It has
 * begun so many seconds ago. NAN `ended`: it has not finished. */
void planted_collective(PlantedRing *ring, const char *name, const char *stream, int group,
                        int64_t call, double begun, double ended);
void planted_message(PlantedRing *ring, bool send, const char *stream, int group, int peer,
                     int64_t call, double begun, double ended);
/* Adds an op, a work or a wait: kind "op", "work" or "wait". */
void planted_entry(PlantedRing *ring, const char *kind, const char *name, const char *stream,
                   double begun, double ended);
/* Returns the text of the file, which the caller frees; the ring is closed. */
char *planted_text(PlantedRing *ring);
/* Returns what the program reads from it; the ring is closed. Fails the test if it is refused. */
RingFile *planted_parse(PlantedRing *ring);

#endif
