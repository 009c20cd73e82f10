/* cmd_flight.c -- `./train flight RUN`: analyses the flight records of a run's ranks: prints which
 * ranks wait for which, where the chain of waits begins, and the most probable cause. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/fs.h"
#include "model/core/shell_text.h"
#include "parallel/commands/commands.h"
#include "parallel/flight/print.h"
#include "parallel/run/run_path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *run;
    bool json;
} Arguments;

/* If `path` is RUN/flight or a checkpoint of RUN, returns the run folder RUN, which the caller
 * frees; otherwise NULL. */
static char *run_around(const char *path)
{
    static const char part[] = "/flight";
    bool checkpoint;
    char *run = run_path_of(path, &checkpoint);
    size_t n = strlen(run), cut = sizeof part - 1;
    bool dumps = !checkpoint && n > cut && strcmp(run + n - cut, part) == 0;
    if (dumps) run[n - cut] = '\0';
    if ((checkpoint || dumps) && run_path_is_run(run)) return run;
    free(run);
    return NULL;
}

/* Prints why there are no flight records: `err` if `path` is a run folder, otherwise that it is not
 * one. Returns the exit code. */
static int refuse(const char *path, const char *err)
{
    static const char give[] = "give the folder of a run, such as out/demo";
    if (run_path_is_run(path) || run_path_has(path, "flight"))
        return error_print(EXIT_MISSING, "%s", err);
    if (access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return error_print(EXIT_MISSING, "there is no folder %s: %s", path, give);
    if (!fs_is_folder(path)) return error_print(EXIT_MISSING, "%s is no folder: %s", path, give);
    char *run = run_around(path);
    if (run == NULL)
        return error_print(EXIT_MISSING, "%s is a folder without config.json, so it is no run: %s",
                           path, give);
    char *quoted = shell_quoted_path(run);
    error_print(EXIT_MISSING, "%s is a part of a run: ./train flight %s", path, quoted);
    free(quoted);
    free(run);
    return EXIT_MISSING;
}

static int flight(const void *values)
{
    const Arguments *a = values;
    char err[1024], *run = path_trimmed(a->run);
    bool missing;
    FlightReading reading;
    int code = EXIT_OK;
    if (!flight_reading_open(&reading, run, 0, &missing, err, sizeof err)) {
        code = missing ? refuse(run, err) : error_print(EXIT_DAMAGED, "%s", err);
        free(run);
        return code;
    }
    for (int i = 0; i < reading.files.damaged.count; i++)
        code = error_print(EXIT_DAMAGED, "%s", reading.files.damaged.item[i]);
    if (a->json)
        flight_print_json(stdout, &reading);
    else
        flight_print(stdout, &reading);
    flight_reading_close(&reading);
    free(run);
    return code;
}

static const ArgOption options[] = {
    {.name = "--json",
     .help = "print the analysis as JSON, with an object for each rank",
     .kind = ARG_FLAG,
     .at = offsetof(Arguments, json)},
};

const ArgCommand cmd_flight = {
    .name = "flight",
    .call = "./train flight",
    .usage = "RUN [--json]",
    .summary = "who waits for whom in a run that hangs, and the probable cause",
    .about = "Each rank of a training keeps its last 4096 ops, copies, collectives,\n"
             "messages and waits. They are written to RUN/flight when a rank waits beyond\n"
             "parallel.timeout or is lost, and, without stopping anything, on SIGUSR2 (kill\n"
             "-USR2 PID). This command reads the newest dump and prints where a hang\n"
             "begins, the most probable cause (rank stopped, other collective, data, disk,\n"
             "console, device, computing, none or unknown), and which ranks wait in which\n"
             "call for which others. Exit 66 if there is no dump, 65 if a file is damaged;\n"
             "the other files are read all the same.",
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 1,
              .most = 1,
              .at = offsetof(Arguments, run),
              .missing = "which run? ./train flight out/demo",
              .plural = "runs"},
    .size = sizeof(Arguments),
    .run = flight,
};
