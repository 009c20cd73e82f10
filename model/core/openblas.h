/* openblas.h -- loads the system's OpenBLAS at run time, if it is installed and gets the memory it
 * needs. */
#ifndef MODEL_CORE_OPENBLAS_H
#define MODEL_CORE_OPENBLAS_H

#include "model/core/device_cpu.h"

/* Loads OpenBLAS and fills in cpu's library, its name and its product functions. `threads` is the
 * number of threads of this process, of all ranks together, that may call OpenBLAS at the same
 * time. The buffers for these calls are allocated now. If the address space is limited, `rest`
 * bytes of it must remain for later allocations. Not thread-safe. Returns false if OpenBLAS is not
 * installed (`why` is then empty) or cannot be used (`why` tells the reason). */
bool openblas_open(CpuDevice *cpu, int threads, size_t rest, char *why, size_t n);

/* Sets the environment variables that OpenBLAS reads, unless they are right already. Called before
 * the threads of ranks start, because changing the environment is not thread-safe. */
void openblas_prepare(void);

#endif
