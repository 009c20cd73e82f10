/* started_by.h -- which launcher has started this process as one of several ranks. Launchers such
 * as mpirun, srun and torchrun tell a process its rank in environment variables. */
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
    /* Whether the environment is this launcher's. */
    bool (*holds)(const Environment *environment);
    /* The names of variables; NULL if the launcher has none. Ranks of this machine are local. */
    const char *rank, *size, *local_rank, *local_size;
    /* The numbers of ranks of all machines, as "2(x3),1", and the place of this machine in it. */
    const char *local_sizes, *machine;
    const char *other; /* one more variable that must be there */
    /* The variables that together name one start of these ranks. `instead`: where one of them is
     * not there. `more`: it need not be there. */
    const char *identity[2], *instead, *more;
    const char *nodes; /* the machines, as a list such as "n[1-2]" */
} Launcher;

/* Room for a name of started_by_meeting. */
enum { STARTED_BY_NAME = 160 };

typedef struct {
    const Launcher *launcher;   /* NULL: none, a single rank */
    int rank, size;             /* 0 and 1 without a launcher */
    int local_rank, local_size; /* -1 and 0: the launcher does not say */
    const Launcher *named_by;   /* whose variables name the start; NULL without a launcher */
    /* The number of tasks of a SLURM job if this process is in the job but not a task that srun has
     * started; otherwise 0. */
    int idle_tasks;
    /* PMIX_RANK is set, so some launcher counts this process as a rank, but no variable tells how
     * many there are. */
    bool unknown_size;
} StartedBy;

/* Finds the launcher and reads what it says. The first of these rows holds whose variables are set:
 *
 *     Open MPI   OMPI_COMM_WORLD_SIZE
 *     PMI        PMI_SIZE: MPICH's mpiexec, srun --mpi=pmi2
 *     SLURM      SLURM_STEP_ID, of a step that srun has started
 *     torchrun   two of RANK, WORLD_SIZE and MASTER_ADDR
 *
 * So SLURM's variables are ignored under mpirun, which starts its daemons by srun: they are those
 * of a daemon. With TORCHELASTIC_RUN_ID torchrun comes first, for the same reason: srun and mpirun
 * may start torchrun. PMIX_RANK tells no size and is no row. Returns false and writes an error
 * message that names a variable and its value if one is missing, is not a whole number, or
 * contradicts another one. Reads only `environment`. */
bool started_by_read(StartedBy *s, const Environment *environment, char *err, size_t n);

/* Writes the variables that led to the result, as "RANK=1, WORLD_SIZE=4", and returns buf. */
const char *started_by_variables(const StartedBy *s, const Environment *environment, char *buf,
                                 size_t n);

/* Writes what all ranks of this start have in common and other starts have not: "slurm-7-0" is
 * step 0 of job 7, "torchrun-n1-29400" a start by torchrun on machine n1.
 * Returns false and writes "" if the launcher does not tell: MPICH's mpiexec has no such number. */
bool started_by_meeting(const StartedBy *s, const Environment *environment,
                        char name[STARTED_BY_NAME]);

/* Returns the list of machines on which the ranks run, as the launcher writes it, or NULL. */
const char *started_by_nodes(const StartedBy *s, const Environment *environment);

/* Returns whether a process that was started in this way may work on `ranks` ranks; 0: their number
 * was not given, and the launcher decides it. Otherwise writes an error message. Processes that a
 * launcher has started are the ranks already, if they are several. If no number is given, the tasks
 * of a SLURM job must not be idle. */
bool started_by_allows(const StartedBy *s, int64_t ranks, char *err, size_t n);

/* Reads this process's environment, and ends the program (EXIT_USAGE) with the error message of
 * started_by_read or started_by_allows if one of them returns false. */
void started_by_require(int64_t ranks);
/* Warns if some launcher counts this process as a rank but does not tell how many there are. */
void started_by_warn(const StartedBy *s);

#endif
