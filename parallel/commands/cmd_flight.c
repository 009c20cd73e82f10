/* cmd_flight.c -- `./train flight RUN`: says from the flight recorders of a run's ranks who waits
 * for whom, where it begins, and the most probable cause. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "parallel/commands/commands.h"
#include "parallel/flight/print.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const char *run;
    bool json;
} Arguments;

static int flight(const void *values)
{
    const Arguments *a = values;
    char err[1024], *run = path_trimmed(a->run);
    bool missing;
    FlightReading reading;
    int code = EXIT_OK;
    if (!flight_reading_open(&reading, run, 0, &missing, err, sizeof err)) {
        free(run);
        return error_print(missing ? EXIT_MISSING : EXIT_DAMAGED, "%s", err);
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
             "console, device, computing or none), and which ranks wait in which call for\n"
             "which others. Exit 66 if there is no dump, 65 if a file is damaged; the other\n"
             "files are read all the same.",
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
