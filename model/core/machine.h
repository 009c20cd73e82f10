/* machine.h -- the machine that a run uses: memory it may use, and what a run folder keeps of it.
 */
#ifndef MODEL_CORE_MACHINE_H
#define MODEL_CORE_MACHINE_H

#include "model/core/device.h"

/* Bytes this process may still use: the smaller of the kernel's MemAvailable and what the control
 * group leaves. SIZE_MAX if neither is known. */
size_t memory_available(void);
/* The number after `key` in one of the kernel's files of "key number" lines (key "": the first
 * line that begins with a number), SIZE_MAX where there is none. */
size_t kernel_number(const char *path, const char *key);
/* "AMD EPYC 7B13": the CPU's name as the kernel tells it, "unknown" else. */
const char *machine_cpu_model(char *buf, size_t n);
/* CPU, level and BLAS in use, threads, cores, memory, kernel, host name, compiler and commit as a
 * JSON object on one line; `device` may be NULL. The caller frees. */
char *machine_json(const Device *device);

#endif
