/* process_ranks.c -- see process_ranks.h. */
#include "tests/support/grid/process_ranks.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/log.h"
#include "parallel/comm/socket/socket.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A rank that hangs is killed after so many seconds; all ranks are, so many after the first has
 * failed. */
enum { LONGEST = 60, AFTER_FAILURE = 5 };

typedef struct {
    atomic_int reported;
    atomic_bool go; /* all processes are known */
    char wrong[512];
} Shared;

static Shared *shared; /* in a rank's process: what it shares with the test */

void *shared_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "no shared memory of %zu bytes", bytes);
    return p;
}

bool ranks_are_processes(void)
{
    const char *kind = getenv("TEST_RANKS");
    return kind && strcmp(kind, "processes") == 0;
}

bool process_rank_wrong(const char *text)
{
    if (shared == NULL) return false;
    if (atomic_fetch_add(&shared->reported, 1) == 0)
        snprintf(shared->wrong, sizeof shared->wrong, "%s", text);
    return true;
}

static void rank_main(SocketLinks *links, int rank, double timeout, RankBody body, void *context)
{
    char place[16];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LONGEST);
    snprintf(place, sizeof place, "%s", "");
    log_set_rank(rank, place);
    ends_share(true);
    Comm world = socket_world_join(links, rank, timeout, place);
    while (!atomic_load(&shared->go))
        usleep(100);
    body(&world, context);
    comm_close(&world);
    fflush(NULL);
    _exit(0);
}

static int rank_of(const pid_t *pid, int ranks, pid_t ended)
{
    for (int i = 0; i < ranks; i++)
        if (pid[i] == ended) return i;
    return -1;
}

/* Waits until all ranks have ended, and returns the code of the first that has failed. */
static int wait_for_all(SocketLinks *links, const pid_t *pid, int ranks)
{
    int code = 0, left = ranks, status;
    double failed = 0;
    while (left > 0) {
        pid_t ended = waitpid(-1, &status, code ? WNOHANG : 0);
        int rank = rank_of(pid, ranks, ended);
        if (rank >= 0) {
            left--;
            socket_links_report_end(links, rank, status);
            bool alone = code == 0 && status != 0;
            if (alone) code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
            if (alone) failed = seconds_now();
        } else {
            usleep(1000);
        }
        for (int i = 0; code && seconds_now() > failed + AFTER_FAILURE && i < ranks; i++)
            kill(pid[i], SIGKILL);
    }
    return code;
}

int process_ranks(int ranks, double timeout, RankBody body, void *context, pid_t *pid, char *wrong,
                  size_t n)
{
    char err[256];
    pid_t own[COMM_MAX_RANKS];
    if (pid == NULL) pid = own;
    SocketLinks *links = socket_links_create(ranks, err, sizeof err);
    CHECK(links != NULL, "%s", err);
    shared = shared_memory(sizeof *shared);
    fflush(NULL);
    for (int i = 0; i < ranks; i++) {
        pid[i] = fork();
        CHECK(pid[i] >= 0, "rank %d is not forked", i);
        if (pid[i] == 0) rank_main(links, i, timeout, body, context);
    }
    socket_links_release(links);
    atomic_store(&shared->go, true);
    int code = wait_for_all(links, pid, ranks);
    socket_links_destroy(links);
    snprintf(wrong, n, "%s", shared->wrong);
    munmap(shared, sizeof *shared);
    shared = NULL;
    return code;
}
