/* machine.h -- facts about this machine: available memory, open files, and a description of
 * hardware and software for the run folder. */
#ifndef MODEL_CORE_MACHINE_H
#define MODEL_CORE_MACHINE_H

#include "model/core/device.h"

/* Returns how many bytes this process may still use: the smaller of the kernel's MemAvailable and
 * what its control groups still allow, such as those of a batch job. SIZE_MAX if neither is
 * known. */
size_t memory_available(void);
/* Returns whether this process's control groups allow less than the kernel's MemAvailable. */
bool memory_is_limited(void);
/* Returns how many bytes of memory are still allowed by the control groups (cgroups) that the file
 * `groups`, such as /proc/self/cgroup, lists. Their folders are below `root`; those of cgroup
 * version 1 are below root/memory. Returns SIZE_MAX if there is no limit. */
size_t memory_group_left(const char *groups, const char *root);
/* Reads a kernel file with lines of the form "key number" and returns the number after `key`. If
 * key is "", returns the number at the start of the first line that begins with a number. Returns
 * SIZE_MAX if there is no such number. */
size_t kernel_number(const char *path, const char *key);
/* Writes the CPU's name as the kernel reports it, such as "AMD EPYC 7B13", or "unknown", to buf and
 * returns buf. */
const char *machine_cpu_model(char *buf, size_t n);
/* Raises the limit of open files, for this process and its children, to the maximum that the system
 * allows. A failure is not reported here; opening a file then fails. */
void raise_limit_of_open_files(void);
/* Returns a JSON object on one line with CPU, level and BLAS in use, threads, cores, memory,
 * kernel, host name, compiler and commit. `device` may be NULL. The caller frees. */
char *machine_json(const Device *device);

#endif
