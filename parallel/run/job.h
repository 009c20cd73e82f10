/* job.h -- the batch job in which a run was started: its number, restarts, machines and end, from
 * SLURM's environment variables. */
#ifndef PARALLEL_RUN_JOB_H
#define PARALLEL_RUN_JOB_H

#include "model/core/figures.h"
#include "parallel/grid/started_by.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char text[256]; /* "SLURM job 17, restart 2, on n[1-2]"; "" without a job */
    double end;     /* seconds_now() at the end of the job; 0: not known */
    double slack;   /* seconds before its end at which a save must be complete */
} BatchJob;

/* Reads SLURM_JOB_ID, SLURM_RESTART_COUNT, SLURM_JOB_NODELIST and SLURM_JOB_END_TIME, at the start
 * of a run. A value that SLURM cannot have set is left out of the text. If SLURM_JOB_END_TIME is
 * not a time, returns false and writes an error message. If it is in the past, the end counts as
 * unknown and *over is set: the job was extended, or the variable belongs to another job. */
bool job_read(BatchJob *job, const Environment *environment, bool *over, char *err, size_t n);

/* Returns after how many seconds a run must stop, so that it can still make a step and save before
 * its job ends; infinity if the end is not known. `save` and `step`: how many seconds a save and a
 * step take. */
double job_seconds(const BatchJob *job, double save, double step);
/* Returns how much of the job is left: "4 minutes", "90 seconds". */
Figure job_left(const BatchJob *job);

#endif
