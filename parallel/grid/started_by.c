/* started_by.c -- the table of launchers, and the strict reading of their environment variables.
 * The variables are those that Open MPI 4.1, MPICH 4.0, SLURM 22.05 and torchrun set; the tests
 * contain recorded environments of each. */
#include "parallel/grid/started_by.h"

#include "model/core/check.h"
#include "model/core/hash.h"
#include "model/core/log.h"
#include "parallel/grid/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The largest accepted number of tasks and of machines; for ranks it is CONFIG_MAX_RANKS. */
enum { MOST_TASKS = 10000000 };

static const char *process_variable(const void *context, const char *name)
{
    (void)context;
    return getenv(name);
}

const Environment process_environment = {.get = process_variable};

/* Returns the value of a variable, or NULL. An empty one counts as not set: with `RANK= ...` a user
 * removes a variable in a shell. */
static const char *value_of(const Environment *environment, const char *name)
{
    const char *value = name ? environment->get(environment->context, name) : NULL;
    return value && *value ? value : NULL;
}

/* ---- the table ------------------------------------------------------------------------------- */

static bool open_mpi_holds(const Environment *environment)
{
    return value_of(environment, "OMPI_COMM_WORLD_SIZE") != NULL;
}

static bool pmi_holds(const Environment *environment)
{
    return value_of(environment, "PMI_SIZE") != NULL;
}

/* Steps that srun starts are numbered from 0. Numbers from 0xfffffff0 on denote something else: a
 * batch script, or the shell that salloc opens on a node of the job. These have a single task,
 * which does not show how many ranks there are. */
static bool slurm_holds(const Environment *environment)
{
    const char *step = value_of(environment, "SLURM_STEP_ID");
    return step != NULL && strtoull(step, NULL, 10) < 0xfffffff0;
}

/* Returns how many of torchrun's three variables are set. */
static int torchrun_names(const Environment *environment)
{
    return (value_of(environment, "RANK") != NULL) + (value_of(environment, "WORLD_SIZE") != NULL) +
           (value_of(environment, "MASTER_ADDR") != NULL);
}

/* Returns whether at least two of torchrun's variables are set. One alone may have another meaning,
 * because other programs use these names, too. */
static bool torchrun_holds(const Environment *environment)
{
    return torchrun_names(environment) >= 2;
}

/* Returns whether torchrun itself has started this process. Then it is the innermost launcher: srun
 * or mpirun may have started torchrun, and this process inherits their variables. */
static bool torchrun_is_innermost(const Environment *environment)
{
    return torchrun_holds(environment) && value_of(environment, "TORCHELASTIC_RUN_ID") != NULL;
}

enum { OPEN_MPI, PMI, SLURM, TORCHRUN, LAUNCHERS };

/* The launchers, in the order in which started_by_read tries them. */
static const Launcher launchers[LAUNCHERS] = {
    [OPEN_MPI] = {.name = "Open MPI",
                  .word = "openmpi",
                  .command = "mpirun",
                  .holds = open_mpi_holds,
                  .rank = "OMPI_COMM_WORLD_RANK",
                  .size = "OMPI_COMM_WORLD_SIZE",
                  .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
                  .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
                  .identity = {"OMPI_MCA_ess_base_jobid"},
                  .instead = "PMIX_NAMESPACE"},
    [PMI] = {.name = "PMI",
             .word = "pmi",
             .command = "mpiexec or srun",
             .holds = pmi_holds,
             .rank = "PMI_RANK",
             .size = "PMI_SIZE",
             .local_rank = "MPI_LOCALRANKID",
             .local_size = "MPI_LOCALNRANKS"},
    [SLURM] = {.name = "SLURM",
               .word = "slurm",
               .command = "srun",
               .holds = slurm_holds,
               .rank = "SLURM_PROCID",
               .size = "SLURM_STEP_NUM_TASKS",
               .local_rank = "SLURM_LOCALID",
               .local_sizes = "SLURM_STEP_TASKS_PER_NODE",
               .machine = "SLURM_NODEID",
               .other = "SLURM_STEP_ID",
               .identity = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
               .more = "SLURM_RESTART_COUNT",
               .nodes = "SLURM_STEP_NODELIST"},
    [TORCHRUN] = {.name = "torchrun",
                  .word = "torchrun",
                  .command = "torchrun",
                  .holds = torchrun_holds,
                  .rank = "RANK",
                  .size = "WORLD_SIZE",
                  .local_rank = "LOCAL_RANK",
                  .local_size = "LOCAL_WORLD_SIZE",
                  .other = "MASTER_ADDR",
                  .identity = {"MASTER_ADDR", "MASTER_PORT"},
                  .more = "TORCHELASTIC_RUN_ID"},
};

/* ---- reading --------------------------------------------------------------------------------- */

/* The environment that is read, and where an error message is written. */
typedef struct {
    const Environment *environment;
    const Launcher *launcher;
    char *err;
    size_t n;
} Reader;

/* Reads decimal digits, and no sign or space, as a number up to MOST_TASKS. Returns the position
 * after them, or NULL. */
static const char *read_digits(const char *text, int *number)
{
    const char *at = text;
    for (*number = 0; *at >= '0' && *at <= '9'; at++) {
        *number = 10 * *number + (*at - '0');
        if (*number > MOST_TASKS) return NULL;
    }
    return at > text ? at : NULL;
}

/* Reads the variable `name` as a whole number. If it is not set, *number is not changed. */
static bool read_number(const Reader *r, const char *name, int *number)
{
    const char *value = value_of(r->environment, name), *rest;
    if (value == NULL) return true;
    rest = read_digits(value, number);
    if (rest != NULL && *rest == '\0') return true;
    return error_set(r->err, r->n,
                     "%s=%.80s is not a whole number from 0 to %d; unset it if %s has not started "
                     "this process",
                     name, value, MOST_TASKS, r->launcher->name);
}

static bool require(const Reader *r, const char *name)
{
    char there[256] = "";
    const Launcher *l = r->launcher;
    if (name == NULL || value_of(r->environment, name) != NULL) return true;
    started_by_variables(&(StartedBy){.launcher = l}, r->environment, there, sizeof there);
    return error_set(r->err, r->n,
                     "%s is not set, but %s says that %s has started this process; set it, too, or "
                     "unset the others",
                     name, there, l->name);
}

/* Checks that `name`, whose value is `number`, is below `bound`, whose value is `limit`. */
static bool check_below(const Reader *r, const char *name, int number, const char *bound, int limit)
{
    return number < limit || error_set(r->err, r->n, "%s=%d is not below %s=%d: ranks count from 0",
                                       name, number, bound, limit);
}

/* Reads the number of ranks of this machine from a list such as "2(x3),1": two on each of the first
 * three machines, one on the fourth. *size is not changed if the launcher has no such variable. */
static bool read_local_sizes(const Reader *r, int *size)
{
    const Launcher *l = r->launcher;
    int machine = -1;
    const char *list = value_of(r->environment, l->local_sizes), *at = list;
    if (!read_number(r, l->machine, &machine)) return false;
    if (list == NULL || machine < 0) return true;
    for (int first = 0, tasks, times; at != NULL && first <= MOST_TASKS; first += times) {
        times = 1;
        at = read_digits(at, &tasks);
        if (at && strncmp(at, "(x", 2) == 0) {
            at = read_digits(at + 2, &times);
            at = at && *at == ')' ? at + 1 : NULL;
        }
        if (at == NULL || (*at != ',' && *at != '\0')) break;
        if (machine < first + times) {
            *size = tasks;
            return true;
        }
        if (*at++ == '\0') break;
    }
    return error_set(r->err, r->n, "%s=%.200s does not say how many tasks %s=%d has",
                     l->local_sizes, list, l->machine, machine);
}

/* Reads the local rank and the local size, which only some launchers provide. */
static bool read_local(const Reader *r, StartedBy *s)
{
    const Launcher *l = r->launcher;
    s->local_rank = -1;
    s->local_size = 0;
    if (!read_number(r, l->local_rank, &s->local_rank) ||
        !read_number(r, l->local_size, &s->local_size) || !read_local_sizes(r, &s->local_size))
        return false;
    const char *local_size = l->local_sizes ? l->local_sizes : l->local_size;
    if (s->local_size > s->size)
        return error_set(r->err, r->n, "%s: %d ranks of one machine are more than %s=%d",
                         local_size, s->local_size, l->size, s->size);
    if (!check_below(r, l->local_rank, s->local_rank, l->size, s->size)) return false;
    return s->local_size == 0 ||
           check_below(r, l->local_rank, s->local_rank, local_size, s->local_size);
}

/* Reads the variables of the reader's launcher. */
static bool read_launcher(const Reader *r, StartedBy *s)
{
    const Launcher *l = r->launcher;
    *s = (StartedBy){.launcher = l, .named_by = l};
    if (!require(r, l->size) || !require(r, l->rank) || !require(r, l->other) ||
        !read_number(r, l->size, &s->size) || !read_number(r, l->rank, &s->rank))
        return false;
    if (s->size == 0) return error_set(r->err, r->n, "%s=0: a run has at least one rank", l->size);
    if (s->size > CONFIG_MAX_RANKS)
        return error_set(r->err, r->n, "%s=%d: a run has no more than %d ranks", l->size, s->size,
                         CONFIG_MAX_RANKS);
    return check_below(r, l->rank, s->rank, l->size, s->size) && read_local(r, s);
}

/* srun --mpi=pmi2 sets PMI's rank and size, but the local rank, the job and the step only in
 * SLURM's variables. SLURM's variables describe this process if they have the same rank and size.
 * If they describe a daemon of mpiexec instead, their rank or size differs from PMI's, or mpiexec
 * has set the local rank itself (then s->local_rank is known). */
static void add_local_of_slurm(StartedBy *s, const Environment *environment)
{
    char err[256];
    StartedBy step;
    const Reader reader = {environment, &launchers[SLURM], err, sizeof err};
    if (s->local_rank >= 0 || !slurm_holds(environment) || !read_launcher(&reader, &step) ||
        step.rank != s->rank || step.size != s->size)
        return;
    s->local_rank = step.local_rank;
    s->local_size = step.local_size;
    s->named_by = step.launcher;
}

/* If all of torchrun's variables are set within another launcher's step, checks that they contain
 * the same rank and size as that launcher's. Otherwise several processes, each with its own RANK,
 * might consider themselves the same task. */
static bool check_torchrun_agrees(const Reader *r, const StartedBy *s)
{
    int rank = -1, size = -1;
    const Launcher *l = s->launcher, *other = r->launcher;
    if (l == other || torchrun_names(r->environment) < 3) return true;
    if (!read_number(r, other->rank, &rank) || !read_number(r, other->size, &size)) return false;
    return (rank == s->rank && size == s->size) ||
           error_set(r->err, r->n,
                     "%s=%d, %s=%d contradict %s=%d, %s=%d; unset those that are not of this "
                     "process",
                     other->rank, rank, other->size, size, l->rank, s->rank, l->size, s->size);
}

bool started_by_read(StartedBy *s, const Environment *environment, char *err, size_t n)
{
    *s = (StartedBy){.size = 1, .local_rank = -1};
    for (int i = torchrun_is_innermost(environment) ? TORCHRUN : 0; i < LAUNCHERS; i++) {
        if (!launchers[i].holds(environment)) continue;
        const Reader reader = {environment, &launchers[i], err, n};
        const Reader torchrun = {environment, &launchers[TORCHRUN], err, n};
        if (!read_launcher(&reader, s) || !check_torchrun_agrees(&torchrun, s)) return false;
        if (i == PMI) add_local_of_slurm(s, environment);
        return true;
    }
    const Reader reader = {environment, &launchers[SLURM], err, n};
    int tasks = 0;
    s->unknown_size = value_of(environment, "PMIX_RANK") != NULL;
    if (value_of(environment, "SLURM_JOB_ID") == NULL) return true;
    if (!read_number(&reader, "SLURM_NTASKS", &tasks)) return false;
    s->idle_tasks = tasks > 1 ? tasks : 0;
    return true;
}

const char *started_by_variables(const StartedBy *s, const Environment *environment, char *buf,
                                 size_t n)
{
    static const Launcher job = {.rank = "SLURM_JOB_ID", .size = "SLURM_NTASKS"};
    const Launcher *l = s->launcher ? s->launcher : &job;
    const char *const names[] = {l->other,      l->rank,        l->size,   l->local_rank,
                                 l->local_size, l->local_sizes, l->machine};
    size_t used = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof *names && used < n; i++) {
        const char *value = value_of(environment, names[i]);
        if (value == NULL) continue;
        used +=
            (size_t)snprintf(buf + used, n - used, "%s%s=%.80s", used ? ", " : "", names[i], value);
    }
    return buf;
}

/* ---- the start ------------------------------------------------------------------------------- */

/* Appends the values of the variables that identify this start of the ranks. Returns whether they
 * are set. */
static bool append_identity(FILE *to, const Launcher *l, const Environment *environment)
{
    const char *value;
    bool whole = l->identity[0] != NULL;
    for (int i = 0; i < (int)(sizeof l->identity / sizeof *l->identity); i++)
        whole = whole && (!l->identity[i] || value_of(environment, l->identity[i]));
    for (int i = 0; whole && i < (int)(sizeof l->identity / sizeof *l->identity); i++)
        if (l->identity[i]) fprintf(to, "-%s", value_of(environment, l->identity[i]));
    if (!whole && (value = value_of(environment, l->instead)) != NULL) {
        fprintf(to, "-%s", value);
        whole = true;
    }
    if (whole && (value = value_of(environment, l->more)) != NULL) fprintf(to, "-%s", value);
    return whole;
}

bool started_by_meeting(const StartedBy *s, const Environment *environment,
                        char name[STARTED_BY_NAME])
{
    enum { HASH = 17 }; /* the bytes of '-' and 16 hexadecimal digits */
    const Launcher *l = s->named_by;
    char *text;
    size_t bytes;
    name[0] = '\0';
    if (l == NULL) return false;
    FILE *to = text_stream(&text, &bytes);
    fputs(l->word, to);
    bool named = append_identity(to, l, environment);
    fclose(to);
    if (named && bytes < STARTED_BY_NAME) {
        memcpy(name, text, bytes + 1);
    } else if (named) {
        uint64_t hash = hash_bytes(0, text, (int64_t)bytes);
        snprintf(name, STARTED_BY_NAME, "%.*s-%016llx", STARTED_BY_NAME - 1 - HASH, text,
                 (unsigned long long)hash);
    }
    free(text);
    return named;
}

const char *started_by_nodes(const StartedBy *s, const Environment *environment)
{
    return s->named_by ? value_of(environment, s->named_by->nodes) : NULL;
}

/* ---- what may be started --------------------------------------------------------------------- */

bool started_by_allows(const StartedBy *s, int64_t ranks, char *err, size_t n)
{
    const Launcher *l = s->launcher;
    if (s->size > 1 && ranks > 0)
        return error_set(err, n,
                         "%s has started %d processes (%s=%d), and each is a rank: leave out "
                         "--ranks %lld, or start ./train once, without %s",
                         l->name, s->size, l->size, s->size, (long long)ranks, l->command);
    if (ranks == 0 && s->idle_tasks > 0)
        return error_set(err, n,
                         "this job has %d tasks (SLURM_NTASKS=%d), but ./train was started as a "
                         "single process: put srun before ./train, or --ranks N after it",
                         s->idle_tasks, s->idle_tasks);
    return true;
}

void started_by_require(int64_t ranks)
{
    char err[1024];
    StartedBy s;
    if (!started_by_read(&s, &process_environment, err, sizeof err) ||
        !started_by_allows(&s, ranks, err, sizeof err))
        fail(EXIT_USAGE, "%s", err);
}

void started_by_warn(const StartedBy *s)
{
    if (s->unknown_size)
        log_warning("PMIX_RANK=%.80s is set, but no variable tells how many ranks a launcher has "
                    "started: this process works alone",
                    value_of(&process_environment, "PMIX_RANK"));
}
