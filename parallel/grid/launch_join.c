/* launch_join.c -- ranks that a launcher (srun, mpirun, torchrun) has started: each process is one
 * rank. They find each other, create the world, and end with the same exit code. See launch.h. */
#include "parallel/grid/launch_join.h"

#include "model/core/log.h"
#include "model/core/machine.h"
#include "model/core/openblas.h"
#include "parallel/comm/socket/socket.h"
#include "parallel/grid/control.h"
#include "parallel/grid/gpus.h"
#include "parallel/grid/launch_decline.h"
#include "parallel/grid/launch_meeting.h"
#include "parallel/grid/machines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* This process, if it is one of several that a launcher has started. */
static struct {
    bool joined, met;
    StartedBy by;
    Comm world;                    /* after the rendezvous */
    char words[LAUNCH_WORD_BYTES]; /* of the command line; must be the same on all ranks */
} own;

bool launch_joined(void)
{
    return own.joined;
}

bool launch_leads(void)
{
    return !own.joined || own.by.rank == 0;
}

/* ---- before the ranks have met --------------------------------------------------------------- */

/* Makes the error messages of this rank contain its number and its machine. Messages of rank 0
 * contain neither. */
static void take_place(const StartedBy *by)
{
    char host[50] = "", place[64];
    if (by->rank == 0) return;
    gethostname(host, sizeof host - 1);
    snprintf(place, sizeof place, "on %s", host);
    log_set_rank(by->rank, place);
}

void launch_take_place(int argc, char **argv, bool command)
{
    char err[1024];
    StartedBy by;
    if (!started_by_read(&by, &process_environment, err, sizeof err) || by.size == 1) return;
    take_place(&by);
    launch_words(own.words, argc, argv, command);
    launch_decline_begin(&by, argc, argv);
}

/* Discards this rank's standard output: only rank 0 prints there, whatever the command. */
static void close_output(void)
{
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0)
        fail(EXIT_SYSTEM, "/dev/null cannot be opened: %s", strerror(errno));
    close(fd);
}

int64_t launch_count(int64_t given, int64_t otherwise, LaunchKind kind)
{
    char err[1024];
    StartedBy by;
    if (!started_by_read(&by, &process_environment, err, sizeof err)) fail(EXIT_USAGE, "%s", err);
    if (by.size == 1) {
        started_by_warn(&by);
        return given > 0 ? given : otherwise;
    }
    take_place(&by);
    if (!started_by_allows(&by, given, err, sizeof err)) fail(EXIT_USAGE, "%s", err);
    if (kind.threads)
        fail(EXIT_USAGE, "--no-processes: %s has started the ranks, as processes",
             by.launcher->name);
    own.by = by;
    own.joined = true;
    fflush(stdout);
    if (by.rank > 0) close_output();
    return by.size;
}

/* ---- meeting --------------------------------------------------------------------------------- */

/* Stores which ranks share a machine (machines_set), for the rest of the program. */
static void set_machines(const Meeting *meeting)
{
    MachineOfRank *of = must_calloc((size_t)meeting->size, sizeof *of);
    for (int i = 0; i < meeting->size; i++)
        of[i] =
            (MachineOfRank){.machine = meeting->member[i].machine, .host = meeting->member[i].host};
    machines_set(meeting->size, of);
    free(of);
}

/* Removes the secret from the environment, so that child processes and readers of this process's
 * memory do not see it. */
static void forget_secret(void)
{
    char *text = getenv("TRAIN_SECRET");
    if (text) explicit_bzero(text, strlen(text));
    unsetenv("TRAIN_SECRET");
}

/* Carries out the rendezvous with the other ranks, and connects to rank 0. Ends the program if that
 * fails. */
static void meet(Meeting *meeting, const Config *config)
{
    char err[2048];
    ExitCode code;
    LaunchMeeting at;
    *meeting = (Meeting){0};
    bool good = launch_meeting_open(&at, &own.by, &process_environment, config, own.words, &code,
                                    err, sizeof err);
    bool opened = good;
    if (good) good = meeting_hold(meeting, &at.options, &code, err, sizeof err);
    launch_meeting_close(&at);
    /* All ranks know an error that ends the rendezvous, so it need not be reported to them. The
     * exception is a wrong parallel.interface (EXIT_CONFIG), which only this rank knows. If this
     * rank cannot reach rank 0, neither can the first rank of its machine, so only that one prints
     * the error. */
    if (good || meeting->told || (opened && code != EXIT_CONFIG)) launch_decline_end();
    if (opened && code != EXIT_CONFIG) log_set_silent(own.by.rank > 0 && own.by.local_rank > 0);
    if (good) forget_secret();
    if (good) {
        set_machines(meeting);
        return;
    }
    if (meeting->told && own.by.rank > 0) exit((int)code); /* rank 0 prints the error */
    fail(code, "%s", err);
}

/* Returns whether ranks may have different values of this key: it only determines how a rank finds
 * the others. */
static bool is_own(const char *key)
{
    static const char *const own_key[] = {"parallel.rendezvous", "parallel.interface",
                                          "parallel.secret_file"};
    for (size_t i = 0; i < sizeof own_key / sizeof *own_key; i++)
        if (strcmp(key, own_key[i]) == 0) return true;
    return false;
}

/* Returns whether the value of the key was given neither to this rank nor to rank 0, so that both
 * have derived it. `from`: the same differences seen from rank 0; there `derived` is about rank 0's
 * value. */
static bool is_computed(const ConfigDifference *difference, const ConfigDifference *from, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(from[i].key, difference->key) == 0 && !from[i].derived) return false;
    return difference->derived;
}

/* Writes to err the first key in which rank 0 and this rank differ, if the value was given on one
 * of them. Values that both have derived may depend on devices, which are compared later. Returns
 * whether there is no such key. */
static bool compare_configs(const Config *theirs, const Config *config, char *err, size_t n)
{
    char place[128];
    ConfigDifference *to, *from;
    int count = config_diff(theirs, config, &to), back = config_diff(config, theirs, &from), at = 0;
    while (at < count && (is_own(to[at].key) || is_computed(&to[at], from, back)))
        at++;
    if (at < count)
        error_set(err, n,
                  "ranks differ: rank 0 has %s %s, rank %d%s has %s; start all of them with the "
                  "same config and the same options",
                  to[at].key, to[at].was, own.by.rank,
                  machines_place(&own.world, own.by.rank, place, sizeof place), to[at].now);
    config_diff_free(to, count);
    config_diff_free(from, back);
    return at == count;
}

/* Ends the program if the config of a rank differs from rank 0's: it may have read a different
 * file, or have different options. */
static void require_same_config(const Config *config)
{
    char err[2048] = "";
    ConfigReport report;
    char *text = config_text(config), *first = control_share_text(&own.world, text);
    const Config *theirs = config_parse(&(ConfigContext){.stored = true}, "the config of rank 0",
                                        first, strlen(first), 0, NULL, &report);
    bool good = theirs != NULL ? compare_configs(theirs, config, err, sizeof err)
                               : error_set(err, sizeof err, "%s", report.error[0]);
    config_free(theirs);
    config_report_free(&report);
    free(first);
    free(text);
    if (!control_agree(&own.world, good, err, sizeof err))
        control_fail(&own.world, EXIT_CONFIG, "%s", err);
}

/* Makes this rank's messages contain its coordinates in the grid and its machine. */
static void name_place(GridPlace size)
{
    char place[64];
    grid_place_text(size, own.by.rank, place, sizeof place);
    size_t used = strlen(place);
    machines_place(&own.world, own.by.rank, place + used, sizeof place - used);
    log_set_rank(own.by.rank, place);
}

/* Frees the meeting without closing its descriptors, which the links have taken over. */
static void hand_over(Meeting *meeting)
{
    meeting->listener = -1;
    for (int i = 0; i < meeting->size; i++)
        meeting->control[i] = -1;
    meeting_free(meeting);
}

Comm *launch_join(const Config *config)
{
    Meeting meeting;
    char place[64];
    if (!own.joined) return NULL;
    GridPlace size = config_grid(config, own.by.size);
    raise_limit_of_open_files();
    /* These functions set environment variables, which is unsafe once there are other threads. */
    gpus_prepare_process(own.by.rank);
    openblas_prepare();
    launch_decline_config(config);
    meet(&meeting, config);
    SocketLinks *links = socket_links_join(own.by.size, own.by.rank, meeting.member, meeting.secret,
                                           meeting.listener, meeting.control);
    hand_over(&meeting);
    for (int r = 0; r < own.by.size; r++)
        socket_links_name(links, r, grid_place_text(size, r, place, sizeof place));
    ends_share(true);
    own.world = socket_world_join(links, own.by.rank, config->parallel.timeout);
    own.met = true;
    /* From here on only the first failure is printed, on whichever rank it occurs. */
    log_set_silent(false);
    name_place(size);
    require_same_config(config);
    return &own.world;
}

/* ---- working --------------------------------------------------------------------------------- */

/* Runs the body on rank 0 alone. The other ranks wait for it without a time limit. */
static int work_alone(LaunchBody body, void *context)
{
    int code = EXIT_OK;
    Comm patient = comm_split(&own.world, "patient", 0, own.by.rank);
    comm_wait_without_limit(&patient);
    if (own.by.rank == 0) {
        Comm world = comm_self("world");
        code = body(&world, context);
        comm_close(&world);
    }
    comm_barrier(&patient);
    comm_close(&patient);
    return code;
}

int launch_in_world(int ranks, const LaunchOptions *options, LaunchBody body, void *context)
{
    int code;
    CHECK(own.met && (ranks == 1 || ranks == own.by.size), "%d of %d ranks", ranks, own.by.size);
    if (ranks == 1) {
        code = work_alone(body, context);
    } else {
        name_place(options->size);
        code = body(&own.world, context);
    }
    if (own.by.rank == 0) log_set_rank(0, NULL);
    control_share(&own.world, &code, sizeof code);
    return code;
}

int launch_leave(int code)
{
    if (!own.met) return code;
    control_share(&own.world, &code, sizeof code);
    comm_close(&own.world);
    own.met = false;
    ends_share(false);
    return code;
}
