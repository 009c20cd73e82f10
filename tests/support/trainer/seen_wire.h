/* seen_wire.h -- reads the table of comms_logger from the console of a run: what rank 0 has called,
 * by group, operation and dtype. */
#ifndef TESTS_SUPPORT_TRAINER_SEEN_WIRE_H
#define TESTS_SUPPORT_TRAINER_SEEN_WIRE_H

#include "tests/support/trainer/seen_run.h"

#include <stdint.h>

typedef struct {
    int64_t calls, elements;
} SeenCount;

/* Returns the rows of the first table, printed after the first steps_per_print steps, without those
 * of the group of all ranks (world). The caller frees it. The table at the end of the run, which
 * includes an evaluation and a sample, begins with the same row; this marks the end of the first
 * table. */
char *seen_rows(const Seen *seen);
/* Returns the counts of the row that begins with `row`, such as "tp all-reduce f32"; zeros if there
 * is none. */
SeenCount seen_count(const Seen *seen, const char *row);

#endif
