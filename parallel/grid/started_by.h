/* started_by.h -- determines which launcher has started this process as one of several ranks.
 * Launchers such as mpirun, srun and torchrun pass the rank to a process in environment variables.
 */
#ifndef PARALLEL_GRID_STARTED_BY_H
#define PARALLEL_GRID_STARTED_BY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where variables are looked up: `get` returns the value of a variable, or NULL. */
typedef struct {
    const char *(*get)(const void *context, const char *name);
    const void *context;
} Environment;

/* The environment of this process. */
extern const Environment process_environment;

/* A launcher: a row of the table in started_by.c. */
typedef struct Launcher {
    const char *name;    /* for messages: "Open MPI" */
    const char *word;    /* the name in started_by_meeting: "openmpi" */
    const char *command; /* what a user types before ./train: "mpirun" */
    /* Returns whether the variables of this launcher are set in the environment. */
    bool (*holds)(const Environment *environment);
    /* The names of the variables for the rank and the number of ranks, among all ranks and among
     * the ranks of this machine (local); NULL if the launcher has no such variable. */
    const char *rank, *size, *local_rank, *local_size;
    /* The numbers of ranks of all machines, such as "2(x3),1", and the position of this machine in
     * that list. */
    const char *local_sizes, *machine;
    const char *other; /* one more variable that must be set */
    /* The variables that together identify one start of these ranks. `instead`: used if one of them
     * is not set. `more`: added if it is set. */
    const char *identity[2], *instead, *more;
    const char *nodes; /* the machines, as a list such as "n[1-2]" */
} Launcher;

/* Room for a name of started_by_meeting. */
enum { STARTED_BY_NAME = 160 };

typedef struct {
    const Launcher *launcher;   /* NULL: none, a single rank */
    int rank, size;             /* 0 and 1 without a launcher */
    int local_rank, local_size; /* -1 and 0: not known */
    const Launcher *named_by;   /* whose variables identify the start; NULL without a launcher */
    /* The number of tasks of a SLURM job if this process is in the job but not a task that srun has
     * started; otherwise 0. */
    int idle_tasks;
    /* true: PMIX_RANK is set, so some launcher counts this process as a rank, but no variable gives
     * the number of ranks. */
    bool unknown_size;
} StartedBy;

/* Finds the launcher and reads its variables. Of the launchers below, the first one whose variables
 * are set is chosen:
 *
 *     Open MPI   OMPI_COMM_WORLD_SIZE
 *     PMI        PMI_SIZE: MPICH's mpiexec, srun --mpi=pmi2
 *     SLURM      SLURM_STEP_ID, of a step that srun has started
 *     torchrun   two of RANK, WORLD_SIZE and MASTER_ADDR
 *
 * So SLURM's variables are ignored under mpirun: mpirun starts its daemons by srun, and these
 * variables describe a daemon. With TORCHELASTIC_RUN_ID torchrun comes first, for the same reason:
 * srun and mpirun may start torchrun. PMIX_RANK is not in the table because it does not give a
 * size. Returns false and writes an error message that names a variable and its value if one is
 * missing, is not a whole number, or contradicts another one. Reads only `environment`. */
bool started_by_read(StartedBy *s, const Environment *environment, char *err, size_t n);

/* Writes the variables that determined the result, such as "RANK=1, WORLD_SIZE=4", and returns buf.
 */
const char *started_by_variables(const StartedBy *s, const Environment *environment, char *buf,
                                 size_t n);

/* Writes a name that is the same on all ranks of this start and different for other starts:
 * "slurm-7-0" is step 0 of job 7, "torchrun-n1-29400" a start by torchrun on machine n1. Returns
 * false and writes "" if the launcher sets no variable that identifies the start, which is true of
 * MPICH's mpiexec. */
bool started_by_meeting(const StartedBy *s, const Environment *environment,
                        char name[STARTED_BY_NAME]);

/* Returns the list of machines on which the ranks run, as the launcher writes it, or NULL. */
const char *started_by_nodes(const StartedBy *s, const Environment *environment);

/* Returns whether a process that was started in this way may use `ranks` ranks (0: no number was
 * given, and the launcher decides it). Otherwise writes an error message. If a launcher has started
 * several processes, these already are the ranks, so no number may be given. If no number is given,
 * no tasks of a SLURM job may be idle. */
bool started_by_allows(const StartedBy *s, int64_t ranks, char *err, size_t n);

/* Reads this process's environment, and ends the program (EXIT_USAGE) with the error message of
 * started_by_read or started_by_allows if one of them returns false. */
void started_by_require(int64_t ranks);
/* Warns if some launcher counts this process as a rank but does not give the number of ranks. */
void started_by_warn(const StartedBy *s);

#endif
