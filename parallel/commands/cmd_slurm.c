/* cmd_slurm.c -- `./train slurm`: prints a job script for SLURM that trains a config on several
 * machines, and continues after its time limit and after failures. */
#include "parallel/commands/cmd_slurm.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/min_max.h"
#include "model/core/shell_text.h"
#include "parallel/commands/cmd_config.h"
#include "parallel/commands/commands.h"
#include "parallel/run/run_path.h"

#include <stdlib.h>
#include <string.h>

/* The largest number of seconds that SLURM accepts for a signal is 65,535. */
enum { SIGNAL_MOST = 65535, TASKS_MOST = 1024 };
/* Cores of a task with a GPU: for its own thread, for those of NCCL that move data between
 * machines, for the two that watch the other ranks, and for the CUDA driver's. */
enum { GPU_CORES = 4 };

typedef struct {
    const char *config, *out, *time;
    ArgList set;
    int64_t nodes, gpus, tasks, cpus;
    bool verbose;
} SlurmArguments;

/* Returns the command line, quoted for a shell; the caller frees it. */
static char *command_line(const SlurmArguments *a)
{
    char *text, *config = shell_quoted_path(a->config);
    size_t bytes;
    FILE *to = text_stream(&text, &bytes);
    fprintf(to, "./train slurm %s --nodes %lld", config, (long long)a->nodes);
    if (a->gpus > 0) fprintf(to, " --gpus-per-node %lld", (long long)a->gpus);
    if (a->tasks > 0) fprintf(to, " --tasks-per-node %lld", (long long)a->tasks);
    if (a->cpus > 0) fprintf(to, " --cpus-per-task %lld", (long long)a->cpus);
    if (a->time != NULL) fprintf(to, " --time %s", a->time);
    for (int i = 0; i < a->set.count; i++) {
        char *value = shell_quoted(a->set.item[i]);
        fprintf(to, " --set %s", value);
        free(value);
    }
    if (a->out != NULL) {
        char *out = shell_quoted_path(a->out);
        fprintf(to, " --out %s", out);
        free(out);
    }
    fclose(to);
    free(config);
    return text;
}

/* Returns the name of the config or the run, with only characters that SLURM and a folder's name
 * allow; the caller frees it. */
static char *plain_name(const char *name)
{
    char *plain = text_format("%.100s", *name ? name : "run");
    for (char *p = plain; *p; p++) {
        bool good = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                    (*p >= '0' && *p <= '9') || *p == '_' || *p == '-' || (*p == '.' && p > plain);
        if (!good) *p = '_';
    }
    if (*plain == '-') *plain = '_';
    return plain;
}

/* Returns whether the job's ranks compute on GPUs. The config determines it, because this machine
 * may have no GPU. */
static bool on_gpus(const Config *config)
{
    return config->device != DEVICE_CPU;
}

/* Reads the config as the job's ranks will. Returns NULL and sets *code if it has errors. */
static const Config *read_config(const SlurmArguments *a, int64_t ranks, int *code)
{
    ConfigReport report;
    ConfigContext context = {.world = ranks};
    if (a->gpus > 0) context.on_cuda = context.own_gpus = on_gpus;
    const Config *c = cmd_config_read(a->config, a->set, &context, &report, code);
    cmd_config_report(&report, a->verbose);
    config_report_free(&report);
    if (c == NULL) return NULL;
    if ((c->device == DEVICE_CPU && a->gpus > 0) || (c->device == DEVICE_CUDA && a->gpus == 0)) {
        *code = error_print(EXIT_CONFIG, "%s: device: \"%s\", but the job has %s; %s", a->config,
                            a->gpus > 0 ? "cpu" : "cuda", a->gpus > 0 ? "GPUs" : "no GPUs",
                            a->gpus > 0 ? "leave out --gpus-per-node, or write \"auto\""
                                        : "say --gpus-per-node N");
        config_free(c);
        return NULL;
    }
    if (c->model.vocab_size > 0) return c;
    return config_settle(c, &(ConfigFacts){.vocab_size = config_likely_vocab(c)}, NULL, 0);
}

/* Checks that the options do not contradict each other; returns the exit code. */
static int check_arguments(const SlurmArguments *a, bool goes_on)
{
    int64_t seconds;
    if (strcmp(a->config, "-") == 0)
        return error_print(EXIT_USAGE,
                           "a job reads its config when it starts, so it must be a file");
    if (goes_on && !run_path_is_run(a->config))
        return error_print(EXIT_MISSING, "%s is not the folder of a run", a->config);
    if (goes_on && a->out != NULL)
        return error_print(EXIT_USAGE, "%s is a run and goes on in its own folder, without --out",
                           a->config);
    if (a->gpus > 0 && a->tasks > 0 && a->tasks != a->gpus)
        return error_print(EXIT_USAGE,
                           "--tasks-per-node %lld: a machine with %lld GPUs has a task for each; "
                           "leave it out",
                           (long long)a->tasks, (long long)a->gpus);
    if (a->time != NULL && !slurm_time_read(a->time, &seconds))
        return error_print(EXIT_USAGE,
                           "--time %s: write a limit as SLURM reads it: minutes, "
                           "hours:minutes:seconds or days-hours:minutes:seconds",
                           a->time);
    return EXIT_OK;
}

/* Sets how long before its limit the run is signalled to stop; returns the exit code. */
static int set_signal(SlurmJob *job, const Config *config)
{
    int64_t seconds;
    job->times = slurm_times(config, job->out);
    job->signal = slurm_signal_time(&job->times);
    if (job->signal > SIGNAL_MOST)
        return error_print(EXIT_USAGE,
                           "a save and a step take %lld s, but SLURM sends a signal at most %d s "
                           "before the limit: more writers (checkpoint.writers) save faster",
                           (long long)job->signal, SIGNAL_MOST);
    if (job->time == NULL || !slurm_time_read(job->time, &seconds) || seconds > job->signal)
        return EXIT_OK;
    return error_print(EXIT_USAGE,
                       "--time %s is too short: the run must be told to stop %lld s before, for a "
                       "save, a step and a minute",
                       job->time, (long long)job->signal);
}

/* Returns the number of cores of each task. */
static int64_t cores(const SlurmArguments *a, const Config *config)
{
    if (a->cpus > 0) return a->cpus;
    return a->gpus > 0 ? max_i64(GPU_CORES, config->cpu.threads) : config->cpu.threads;
}

/* Prints the script of a job that has been checked; returns the exit code. */
static int print_job(const SlurmArguments *a, const Config *config, bool goes_on)
{
    char *run = goes_on ? path_trimmed(a->config) : NULL;
    char *name = plain_name(goes_on ? path_name(run) : config->name);
    char *out = goes_on  ? must_strdup(run)
                : a->out ? must_strdup(a->out)
                         : text_format("out/%s", name);
    char *command = command_line(a);
    SlurmJob job = {.command = command,
                    .config = a->config,
                    .out = out,
                    .goes_on = goes_on,
                    .set = a->set,
                    .name = name,
                    .nodes = a->nodes,
                    .tasks = a->gpus > 0 ? a->gpus : a->tasks,
                    .cpus = cores(a, config),
                    .gpus = a->gpus,
                    .time = a->time};
    int code = set_signal(&job, config);
    if (code == EXIT_OK) slurm_script_print(&job, stdout);
    free(command);
    free(out);
    free(name);
    free(run);
    return code;
}

static int run_slurm(const void *values)
{
    SlurmArguments a = *(const SlurmArguments *)values;
    bool goes_on = fs_is_folder(a.config);
    int code = check_arguments(&a, goes_on);
    if (code != EXIT_OK) return code;
    if (a.gpus == 0 && a.tasks == 0) a.tasks = 1;
    int64_t ranks = a.nodes * (a.gpus > 0 ? a.gpus : a.tasks);
    if (ranks > CONFIG_MAX_RANKS)
        return error_print(EXIT_USAGE,
                           "%lld tasks are more ranks than a run can have, which are %d",
                           (long long)ranks, CONFIG_MAX_RANKS);
    const Config *config = read_config(&a, ranks, &code);
    if (config == NULL) return code;
    if (a.gpus == 0 && a.cpus == 0 && config->cpu.threads == 0)
        code = error_print(EXIT_USAGE, "how many cores has a task? --cpus-per-task N says it; with "
                                       "--gpus-per-node N each task has a GPU");
    else
        code = print_job(&a, config, goes_on);
    config_free(config);
    return code;
}

static const ArgOption options[] = {
    {.name = "--nodes",
     .value = "N",
     .help = "machines",
     .kind = ARG_INTEGER,
     .required = true,
     .at = offsetof(SlurmArguments, nodes),
     .least = 1,
     .most = CONFIG_MAX_RANKS},
    {.name = "--gpus-per-node",
     .value = "N",
     .help = "GPUs of each machine; each is a task, which is a rank",
     .kind = ARG_INTEGER,
     .at = offsetof(SlurmArguments, gpus),
     .least = 1,
     .most = TASKS_MOST},
    {.name = "--tasks-per-node",
     .value = "N",
     .help = "tasks (ranks) of each machine on CPUs; default 1",
     .kind = ARG_INTEGER,
     .at = offsetof(SlurmArguments, tasks),
     .least = 1,
     .most = TASKS_MOST},
    {.name = "--cpus-per-task",
     .value = "N",
     .help = "cores of each task; default: cpu.threads, with a GPU\nat least 4",
     .kind = ARG_INTEGER,
     .at = offsetof(SlurmArguments, cpus),
     .least = 1,
     .most = TASKS_MOST},
    {.name = "--time",
     .value = "LIMIT",
     .help = "time limit of each start, such as 24:00:00; default:\nthat of the partition",
     .kind = ARG_NAME,
     .at = offsetof(SlurmArguments, time)},
    {.name = "--out",
     .value = "DIR",
     .help = "folder of the run, the same at each start; default:\nout/NAME-OF-CONFIG",
     .kind = ARG_NAME,
     .at = offsetof(SlurmArguments, out)},
    {.name = "--set",
     .value = "KEY=VALUE",
     .help = "override one key of the config; may be repeated",
     .kind = ARG_SETTINGS,
     .at = offsetof(SlurmArguments, set)},
    {.name = "--verbose",
     .help = "print routine notices, too",
     .kind = ARG_FLAG,
     .at = offsetof(SlurmArguments, verbose)},
};

const ArgCommand cmd_slurm = {
    .name = "slurm",
    .call = "./train slurm",
    .usage = "CONFIG --nodes N [options], or RUN --nodes N [options]",
    .summary = "print a job script for SLURM that trains on several machines",
    .about = "Prints a job script for sbatch that trains CONFIG, or goes on with the run in\n"
             "folder RUN. The job saves and stops before its time limit, and starts again;\n"
             "so it does after a failure that another start may mend. Submits nothing.",
    .notes = "./train slurm configs/demo.json --nodes 2 --cpus-per-task 8 > job.sbatch\n"
             "sbatch --partition=P --account=A job.sbatch\n\n"
             "Exit codes: 0, 64 (command line), 66 (something is missing), 78 (config).",
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 1,
              .most = 1,
              .at = offsetof(SlurmArguments, config),
              .missing =
                  "which config? ./train slurm configs/demo.json --nodes 2 --cpus-per-task 8",
              .plural = "configs"},
    .size = sizeof(SlurmArguments),
    .run = run_slurm,
};
