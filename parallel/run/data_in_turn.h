/* data_in_turn.h -- opens the data on ranks that a launcher has started, on one machine or on
 * several. Each of these ranks opens the data itself. */
#ifndef PARALLEL_RUN_DATA_IN_TURN_H
#define PARALLEL_RUN_DATA_IN_TURN_H

#include "data/dataset.h"
#include "parallel/comm/comm.h"

/* data_open or data_open_validation. */
typedef bool (*DataOpen)(const Config *config, DataSet *out, char *err, size_t n, ExitCode *code);

/* Calls `open` on every rank, in three groups one after the other, so that each file system's text
 * is prepared only once: first on rank 0, then on the first rank of each other machine, then on all
 * remaining ranks. A later group finds the prepared text of an earlier one if it sees the same file
 * system. Ranks that wait for another group have no deadline. Returns false on all ranks if a rank
 * has failed, and sets err and *code to its error; some ranks may then have opened the data. All
 * ranks of the world call it. */
bool data_in_turn(Comm *world, DataOpen open, const Config *config, DataSet *data, char *err,
                  size_t n, ExitCode *code);
/* Ends the program (EXIT_CONFIG) if the data of a rank differ from rank 0's. All ranks call it. */
void data_require_same(Comm *world, const DataSet *data);

#endif
