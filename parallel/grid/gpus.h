/* gpus.h -- which GPU is whose, and what the ranks of this machine reach each other through: rank r
 * computes on GPU r, and NCCL carries what devices send each other; where there is one GPU all
 * share it, and its memory carries that (parallel/comm/local). */
#ifndef PARALLEL_GRID_GPUS_H
#define PARALLEL_GRID_GPUS_H

#include "parallel/comm/comm.h"

typedef enum {
    GPUS_NONE, /* a single rank, or ranks on CPUs */
    GPUS_ONE,  /* that all ranks share */
    GPUS_EACH  /* a GPU each: nccl_open has been called */
} Gpus;

/* The end of a sentence that begins with "ranks": how those that share a GPU reach each other. */
extern const char gpus_shared[];

/* Before ranks are started that will open `backend` (device_choice; NULL: none): opens NCCL where
 * they will need it, since that sets variables of the environment, which threads must not. Says
 * nothing: gpus_agree will. */
void gpus_prepare(const Backend *backend, int ranks);
/* What it is for these ranks, which call it together, each with its open device; the same on all.
 * Ends the program where there are more ranks than GPUs and more GPUs than one, where two ranks
 * have one GPU under two numbers (unless NCCL_MULTI_RANK_GPU_ENABLE=1), and without NCCL. */
Gpus gpus_agree(Comm *world, const Device *dev);

#endif
