/* host_states.h -- page-locked host memory for the optimizer states
 * (zero_optimization.offload_optimizer), one block per unit. */
#ifndef PARALLEL_TRAINER_HOST_STATES_H
#define PARALLEL_TRAINER_HOST_STATES_H

#include "model/core/device.h"

typedef struct {
    Arena *arena; /* (units) one arena per block; empty for units without states on the host */
    int units;
    size_t bytes;   /* size of all blocks together */
    double seconds; /* how long their allocation took */
} HostStates;

/* Allocates a block of bytes[u] bytes for each unit u < units. Shows the progress on the terminal's
 * live line, because page-locking takes a third of a second for each GB. On a counted device, which
 * computes nothing, the blocks are addresses without memory. Call it before ranks are connected.
 * Ends the program (EXIT_NO_MEMORY) if a block is refused. */
void host_states_open(HostStates *states, Device *dev, const size_t *bytes, int units);
/* Releases the blocks. The device must have finished all work on them. */
void host_states_close(HostStates *states, Device *dev);

#endif
