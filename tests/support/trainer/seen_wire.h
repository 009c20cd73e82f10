/* seen_wire.h -- the table of comms_logger on the console of a run: what rank 0 has called, by
 * group, operation and type. */
#ifndef TESTS_SUPPORT_TRAINER_SEEN_WIRE_H
#define TESTS_SUPPORT_TRAINER_SEEN_WIRE_H

#include "tests/support/trainer/seen_run.h"

#include <stdint.h>

typedef struct {
    int64_t calls, elements;
} SeenCount;

/* The rows of the first table, after the first steps_per_print steps, without those of all ranks
 * (world). The caller frees. The table at the run's end, with an evaluation and a sample, begins
 * with the same row, which is how it is told from the first. */
char *seen_rows(const Seen *seen);
/* What a row of these that begins so ("tp all-reduce f32") has; zeros where there is none. */
SeenCount seen_count(const Seen *seen, const char *row);

#endif
