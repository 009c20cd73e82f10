/* openblas.h -- the system's OpenBLAS, opened at run time when it is there and has what it needs.
 */
#ifndef MODEL_CORE_OPENBLAS_H
#define MODEL_CORE_OPENBLAS_H

#include "model/core/device_cpu.h"

/* Fills cpu's library, its name and product functions for calls from `threads` threads of the
 * process at once, this device's and those of the ranks beside it, and takes the memory that they
 * work in. Where address space is limited, `rest` bytes of it must be left for what comes after.
 * Not for two threads at once. False when there is no OpenBLAS (`why` is then empty) or when it
 * cannot serve (a sentence). */
bool openblas_open(CpuDevice *cpu, int threads, size_t rest, char *why, size_t n);

/* Sets what OpenBLAS reads of the environment, if it is not so yet: before ranks start, since a
 * thread may not change the environment beside others. */
void openblas_prepare(void);

#endif
