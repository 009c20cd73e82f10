/* openblas.h -- the system's OpenBLAS, opened at run time when it is there and has what it needs.
 */
#ifndef MODEL_CORE_OPENBLAS_H
#define MODEL_CORE_OPENBLAS_H

#include "model/core/device_cpu.h"

/* Fills cpu's library, its name and product functions for calls from `threads` threads at once, and
 * takes the memory that they work in. False when there is no OpenBLAS (`why` is then empty) or when
 * it cannot serve (a sentence). */
bool openblas_open(CpuDevice *cpu, int threads, char *why, size_t n);

#endif
