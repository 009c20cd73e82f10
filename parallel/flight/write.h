/* write.h -- inside parallel/flight: writes the file of one rank. It allocates nothing and takes no
 * lock, because the process may be about to end. */
#ifndef PARALLEL_FLIGHT_WRITE_H
#define PARALLEL_FLIGHT_WRITE_H

#include "model/core/dumps.h"
#include "parallel/flight/dump.h"

/* Buffers for writing one file at a time. */
typedef struct {
    FlightEntry entry[FLIGHT_SNAPSHOT];
    GraphGroup group[FLIGHT_GROUPS];
    char text[1 << 16];
} FlightRoom;

/* Writes the rank's file to the folder with the descriptor `folder`, under a temporary name first.
 * Returns 0 or the errno value. source->host must have no character that JSON escapes. */
int flight_write(const FlightSource *source, Dump dump, int folder, FlightRoom *room);

/* Returns whether the file of this rank in the folder belongs to the dump with this name. */
bool flight_is_written(int folder, int rank, uint64_t name);

#endif
