/* cmd_slurm.h -- what the files of `./train slurm` share: the job, the time that it needs to stop,
 * and the job script. */
#ifndef PARALLEL_COMMANDS_CMD_SLURM_H
#define PARALLEL_COMMANDS_CMD_SLURM_H

#include "configs/config.h"
#include "model/core/args.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The times that determine how long before its limit a job must be signalled to stop. */
typedef struct {
    double save, step; /* seconds */
    bool measured;     /* both were measured by the run in the job's folder; otherwise estimated */
    double bytes;      /* of a checkpoint; 0 if measured */
} SlurmTimes;

/* A job. Texts are not quoted yet. */
typedef struct {
    const char *command; /* the command line that created it, quoted for a shell */
    const char *config, *out;
    bool goes_on;         /* `config` is the folder of a run, which is also `out` */
    ArgList set;          /* the values of --set */
    const char *name;     /* shown by SLURM; letters, digits, '.', '_' and '-' */
    int64_t nodes, tasks; /* machines, and ranks of each machine */
    int64_t gpus, cpus;   /* GPUs of each machine, and cores of each task; 0: SLURM's default */
    const char *time;     /* the limit in SLURM's format; NULL: that of the partition */
    SlurmTimes times;
    int64_t signal; /* seconds before the limit at which the run must be signalled to stop */
} SlurmJob;

/* Reads from the run in the folder `out` how long its newest save and its newest steps took. If it
 * has not made both, estimates them: a checkpoint is written with 200 MB/s. */
SlurmTimes slurm_times(const Config *config, const char *out);
/* Returns how many seconds before its limit the run must be signalled to stop: a save, a step, and
 * a minute. */
int64_t slurm_signal_time(const SlurmTimes *times);
/* Reads a time limit in one of SLURM's forms: "minutes", "minutes:seconds",
 * "hours:minutes:seconds", "days-hours", "days-hours:minutes" and "days-hours:minutes:seconds".
 * Returns false if the text has none of these forms, or if the time is 0. */
bool slurm_time_read(const char *text, int64_t *seconds);

/* Prints the job script. */
void slurm_script_print(const SlurmJob *job, FILE *to);

#endif
