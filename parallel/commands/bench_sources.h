/* bench_sources.h -- the source of each number that `./train bench machine` prints: measured, known
 * from the system, or assumed as in a preset. */
#ifndef PARALLEL_COMMANDS_BENCH_SOURCES_H
#define PARALLEL_COMMANDS_BENCH_SOURCES_H

#include "configs/machine_file/hardware.h"

typedef struct {
    const Hardware *printed;  /* the numbers of the file */
    const Hardware *measured; /* the same numbers before hardware_limit */
    const char *preset;       /* the preset on which the file is based */
    const char *by;   /* "./train bench machine, ...": the program, the date and the device */
    bool known;       /* the preset is that of this GPU */
    bool calls;       /* calls between ranks were measured */
    bool f64;         /* the device can compute in f64 */
    bool given_ranks; /* --ranks was given */
    char text[1024];  /* the newest result of bench_source */
} BenchSources;

/* Returns the source of the number `key`; a callback of hardware_print. `context` is a
 * BenchSources. The text is valid until the next call. */
const char *bench_source(void *context, const char *key);

#endif
