/* device_survey.c -- finds out which devices there are, in a child process that ends at once. */
#include "model/core/check.h"
#include "model/core/child.h"
#include "model/core/clock.h"
#include "model/core/device.h"
#include "model/core/min_max.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_DEVICES = 64 };
/* Seconds that the child may take. The driver of several GPUs may need tens of seconds to start. */
static double limit = 120;

void device_survey_set_limit(double seconds)
{
    limit = seconds;
}

/* What the child sends to its parent. */
typedef struct {
    int backend; /* index of the choice among the linked backends; -1: none */
    int count;
    DeviceFacts facts[MOST_DEVICES]; /* facts of the first MOST_DEVICES devices */
} Found;

static Found look(const char *name)
{
    const Backend *choice = device_choice(name);
    Found found = {.backend = -1};
    for (int i = 0; choice && found.backend < 0; i++)
        if (backend_linked(i) == choice) found.backend = i;
    if (choice) found.count = choice->count ? choice->count() : 1;
    for (int i = 0; choice && choice->facts && i < found.count && i < MOST_DEVICES; i++)
        found.facts[i] = choice->facts(i);
    return found;
}

/* Ends the program because the child that looked for devices ended without an answer. */
static void fail_for_child(int status) __attribute__((noreturn));
static void fail_for_child(int status)
{
    if (WIFSIGNALED(status))
        fail(EXIT_UNAVAILABLE,
             "a device's driver has crashed: the process that looked for devices was killed by "
             "signal %d (%s); to go on without it write device \"cpu\"",
             WTERMSIG(status), strsignal(WTERMSIG(status)));
    fail(EXIT_UNAVAILABLE,
         "a device's driver has ended the process that looked for devices, with code %d; to go on "
         "without it write device \"cpu\"",
         WEXITSTATUS(status));
}

/* Receives the child's answer and returns the number of its bytes, as read does. Returns -1 if
 * there is no answer within `limit` seconds. Time in which this process is stopped does not
 * count. */
static ssize_t receive(int from, Found *found)
{
    const double period = 0.2;
    struct pollfd answer = {.fd = from, .events = POLLIN};
    double passed = 0;
    while (passed < limit) {
        double start = seconds_now(), wait = fmin(period, limit - passed);
        int ready = poll(&answer, 1, (int)ceil(1000 * wait));
        ssize_t n = ready > 0 ? read(from, found, sizeof *found) : -1;
        if (n >= 0) return n;
        passed += fmin(seconds_now() - start, wait);
    }
    return -1;
}

static Found look_in_child(const char *name)
{
    int ends[2], status = 0;
    Found found;
    Child child;
    ssize_t n;
    if (pipe2(ends, O_CLOEXEC) != 0)
        fail(EXIT_SYSTEM, "the program cannot look for devices: %s", strerror(errno));
    pid_t process = child_fork(&child);
    if (process < 0)
        fail(EXIT_SYSTEM, "the program cannot start a process that looks for devices: %s",
             strerror(errno));
    if (process == 0) {
        /* Even if a driver hangs in it, the child must not outlive its parent. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        Found seen = look(name);
        _exit(write(ends[1], &seen, sizeof seen) == (ssize_t)sizeof seen ? EXIT_OK : EXIT_SYSTEM);
    }
    close(ends[1]);
    n = receive(ends[0], &found);
    close(ends[0]);
    if (n < 0) {
        /* The child may be stuck in a driver, where signals do not reach it, so this process does
         * not wait for its end. */
        kill(process, SIGKILL);
        fail(EXIT_UNAVAILABLE,
             "a device's driver does not answer: the process that looked for devices has not ended "
             "within %g s; to go on without it write device \"cpu\"",
             limit);
    }
    bool ended = child_wait(&child, &status, 0) >= 0;
    int error = errno;
    if (n == (ssize_t)sizeof found) return found;
    if (!ended)
        fail(EXIT_SYSTEM,
             "the process that looked for devices has ended without an answer, and the system does "
             "not say how: %s",
             strerror(error));
    fail_for_child(status);
}

/* The results so far. A driver may take seconds to start, so each name is looked up only once.
 * Processes that are forked later inherit the results. */
static struct {
    pthread_mutex_t mutex;
    struct {
        char name[8];
        Found found;
    } answer[4];
    int n;
} known = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Returns whether the result that was found for the name `asked` also holds for `name`: the names
 * are equal, or "auto" has chosen the backend `name`. */
static bool answers(const char *asked, const Found *found, const char *name)
{
    const Backend *choice = found->backend < 0 ? NULL : backend_linked(found->backend);
    return strcmp(asked, name) == 0 || (choice != NULL && strcmp(choice->name, name) == 0);
}

static Found look_once(const char *name)
{
    enum { ROOM = sizeof known.answer / sizeof *known.answer };
    for (int i = 0; i < known.n; i++)
        if (answers(known.answer[i].name, &known.answer[i].found, name))
            return known.answer[i].found;
    Found found = look_in_child(name);
    if (known.n == ROOM || strlen(name) >= sizeof known.answer[0].name) return found;
    snprintf(known.answer[known.n].name, sizeof known.answer[0].name, "%s", name);
    known.answer[known.n++].found = found;
    return found;
}

static Found find(const char *name)
{
    Found found;
    /* If only one backend is linked, or the named one needs no library, no child is needed. */
    if (strcmp(name, "cpu") == 0 || backend_linked(1) == NULL) {
        found = look(name);
    } else {
        pthread_mutex_lock(&known.mutex);
        found = look_once(name);
        pthread_mutex_unlock(&known.mutex);
    }
    return found;
}

DeviceSurvey device_survey(const char *name)
{
    Found found = find(name);
    return (DeviceSurvey){.choice = found.backend < 0 ? NULL : backend_linked(found.backend),
                          .count = found.count};
}

DeviceFacts device_survey_facts(const char *name, int64_t ranks)
{
    Found found = find(name);
    int64_t devices = min_i64(min_i64(found.count, MOST_DEVICES), max_i64(ranks, 1));
    if (devices <= 0) return (DeviceFacts){0};
    DeviceFacts least = found.facts[0];
    for (int i = 1; i < devices; i++) {
        if (found.facts[i].capability < least.capability)
            least.capability = found.facts[i].capability;
        least.bytes = min_i64(least.bytes, found.facts[i].bytes);
        least.lacks_hopper |= found.facts[i].lacks_hopper;
    }
    /* Ranks are distributed over the devices in turn, so at most this many share one. */
    least.bytes /= max_i64((ranks + devices - 1) / devices, 1);
    return least;
}
