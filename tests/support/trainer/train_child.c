/* train_child.c -- runs the program in a child process. This file includes the program's main file
 * under other names, so the child needs no separate executable. See train_child.h. */
#include "tests/support/trainer/train_child.h"

#include "model/core/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void (*hook)(Run *run);

static void open_trainer_and_hook(Run *run)
{
    run_open_trainer(run);
    if (hook) hook(run);
}

int train_main(int argc, char **argv);
#define main             train_main
#define run_open_trainer open_trainer_and_hook
#include "train.c" /* NOLINT(bugprone-suspicious-include) */
#undef main
#undef run_open_trainer

enum { MAX_ARGUMENTS = 64, MAX_TEXT = 1 << 20 };

/* Opens a pseudo-terminal with so many columns; *slave is its other end. */
static int open_terminal(int columns, int *slave)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    CHECK(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0, "no pseudo-terminal (%d)",
          master);
    *slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    struct winsize size = {.ws_col = (unsigned short)columns, .ws_row = 50};
    CHECK(*slave >= 0 && ioctl(*slave, TIOCSWINSZ, &size) == 0, "no terminal of %d columns",
          columns);
    return master;
}

/* Runs in the child: sets up its streams and its folder, then runs the program. */
static _Noreturn void live(const ChildPlace *place, int out, const char *const *arguments)
{
    char *argv[MAX_ARGUMENTS + 2] = {"./train"};
    int argc = 1, in = place->columns ? out : open("/dev/null", O_RDONLY);
    while (arguments[argc - 1] && argc <= MAX_ARGUMENTS) {
        argv[argc] = (char *)(uintptr_t)arguments[argc - 1];
        argc++;
    }
    if (place->columns && (setsid() < 0 || ioctl(out, TIOCSCTTY, 0) != 0)) _exit(EXIT_SYSTEM);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(EXIT_SYSTEM);
    if (place->folder && chdir(place->folder) != 0) _exit(EXIT_SYSTEM);
    close(out);
    hook = place->opened;
    if (place->first) place->first();
    exit((place->program ? place->program : train_main)(argc, argv));
}

/* Reads everything except NULs until all writers have closed (a terminal then reports an error). */
static char *read_all(int fd)
{
    char *text = must_calloc(1, MAX_TEXT);
    size_t n = 0, kept = 0;
    ssize_t got = 1;
    while (n + 1 < MAX_TEXT && (got = read(fd, text + n, MAX_TEXT - 1 - n)) > 0)
        n += (size_t)got;
    for (size_t i = 0; i < n; i++)
        if (text[i] != '\0') text[kept++] = text[i];
    text[kept] = '\0';
    return text;
}

ChildResult train_in_child(const ChildPlace *place, const char *const *arguments)
{
    int end[2], status = 0;
    if (place->columns)
        end[0] = open_terminal(place->columns, &end[1]);
    else
        CHECK(pipe(end) == 0, "no pipe (%d)", place->columns);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0, "no child (%d)", (int)child);
    if (child == 0) {
        close(end[0]);
        live(place, end[1], arguments);
    }
    close(end[1]);
    ChildResult r = {.text = read_all(end[0])};
    CHECK(waitpid(child, &status, 0) == child, "child %d is lost", (int)child);
    close(end[0]);
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return r;
}

ChildResult train_config_in_child(const ChildPlace *place, const ChildRun *run)
{
    const char *arguments[MAX_ARGUMENTS + 1] = {run->config};
    const char *const *lists[] = {run->sets, run->more};
    char ranks[16];
    int n = 1;
    if (run->run) {
        arguments[n++] = "--out";
        arguments[n++] = run->run;
    }
    if (run->ranks > 0) {
        snprintf(ranks, sizeof ranks, "%d", run->ranks);
        arguments[n++] = "--ranks";
        arguments[n++] = ranks;
    }
    if (run->resume) {
        arguments[n++] = "--resume";
        arguments[n++] = run->resume;
    }
    if (run->dry) arguments[n++] = "--dry-run";
    for (int l = 0; l < 2; l++) {
        for (const char *const *set = lists[l]; set && *set; set++) {
            CHECK(n + 2 <= MAX_ARGUMENTS, "more than %d arguments", MAX_ARGUMENTS);
            arguments[n++] = "--set";
            arguments[n++] = *set;
        }
    }
    return train_in_child(place, arguments);
}
