/* run_ranks.c -- starts the ranks of a run, makes them agree on errors, shares rank 0's folder, and
 * opens the logs. */
#include "parallel/run/run_ranks.h"

#include "model/core/log.h"
#include "parallel/grid/control.h"
#include "parallel/grid/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- starting -------------------------------------------------------------------------------- */

typedef struct {
    Run *run; /* indexed by rank; element 0 is not used. NULL: this process has a single rank */
    int (*rank)(Run *run);
    Run *opened;
} Ranks;

static int live(Comm *world, void *context)
{
    const Ranks *ranks = context;
    Run *run = world->rank == 0 || !ranks->run ? ranks->opened : &ranks->run[world->rank];
    run->world = world;
    run->lead = world->rank == 0;
    run_speak_for_all(run);
    int code = ranks->rank(run);
    /* The result of a run is its folder, so lost output only causes a warning. */
    if (run->lead && run->arguments.dry_run) return output_checked(code);
    run_check_console(run);
    return code;
}

int run_on_ranks(Run *run, int (*rank)(Run *run))
{
    /* Each rank starts with a copy of what rank 0 has opened so far. Folder and trainer follow
     * later, and every rank has its own. */
    int n = (int)run->arguments.ranks;
    Ranks ranks = {.rank = rank, .opened = run};
    if (!launch_joined()) ranks.run = must_calloc((size_t)n, sizeof *ranks.run);
    for (int i = 1; ranks.run && i < n; i++)
        ranks.run[i] = *run;
    LaunchOptions options = session_launch(run->config, n, run->arguments.kind);
    int code = launch_ranks(n, &options, live, &ranks);
    free(ranks.run);
    data_close(&run->data);
    config_free(run->config);
    run_arguments_free(&run->arguments);
    return code;
}

/* ---- agreeing -------------------------------------------------------------------------------- */

void run_require(const Run *run, bool good, ExitCode code, char *err, size_t n)
{
    if (!control_agree(run->world, good, err, n)) control_fail(run->world, code, "%s", err);
}

void run_share_folder(Run *run)
{
    struct {
        RunState state;
        int attempt;
    } chosen = {run->folder.state, run->folder.attempt};
    control_share(run->world, &chosen, sizeof chosen);
    char *path = control_share_text(run->world, run->folder.path);
    if (run->lead) {
        free(path);
        return;
    }
    run->folder = (RunFolder){
        .path = path, .state = chosen.state, .lock = FOLDER_LOCK_NONE, .attempt = chosen.attempt};
}

/* ---- messages and logs ----------------------------------------------------------------------- */

void run_take_place(const Run *run)
{
    char place[64];
    if (run->lead && run->world->size > 1)
        log_set_rank(0, grid_place_text(run->trainer.session.grid.size, 0, place, sizeof place));
}

void run_speak_for_all(const Run *run)
{
    if (run->lead) log_set_rank(0, NULL);
}

/* Sets the log file of this rank. If the rank has its own process, all threads of the process write
 * their messages to it; otherwise only the calling thread does. */
static void set_log(FILE *log)
{
    if (launch_parent() != 0 || launch_joined())
        log_set_process_file(log);
    else
        log_set_file(log);
}

void run_open_log(Run *run)
{
    char err[1024] = "";
    if (!run->arguments.log_ranks) return;
    char *folder = text_format("%s/logs", run->folder.path);
    char *path = text_format("%s/rank_%03d.log", folder, run->world->rank);
    bool good = !run->lead || fs_make_folders(&fs_system, folder, err, sizeof err);
    good = good && fs_not_linked(folder, err, sizeof err);
    run_require(run, good, EXIT_CANNOT_CREATE, err, sizeof err);
    int fd = fs_open_output(path, O_WRONLY | O_APPEND, err, sizeof err);
    run->output.log = fd >= 0 ? fdopen(fd, "a") : NULL;
    good = run->output.log != NULL;
    if (fd >= 0 && !good) error_set(err, sizeof err, "cannot open %s: %s", path, strerror(errno));
    run_require(run, good, EXIT_CANNOT_CREATE, err, sizeof err);
    set_log(run->output.log);
    free(path);
    free(folder);
}

void run_close_log(Run *run)
{
    FILE *log = run->output.log;
    if (log == NULL) return;
    set_log(NULL);
    /* In a rank's own process another thread may still write to the file, so it stays open. */
    if (launch_parent() != 0 || launch_joined())
        fflush(log);
    else
        fclose(log);
    run->output.log = NULL;
}
