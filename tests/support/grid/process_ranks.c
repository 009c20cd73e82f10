/* process_ranks.c -- see process_ranks.h. */
#include "tests/support/grid/process_ranks.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/log.h"
#include "parallel/comm/socket/socket.h"
#include "parallel/grid/launch.h"

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
    pid_t pid[LAUNCH_MAX_RANKS];
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

static const char *place_of(int rank, char text[16])
{
    text[0] = '\0';
    if (rank > 0) snprintf(text, 16, "dp %d", rank);
    return text;
}

static void rank_main(SocketLinks *links, int rank, double timeout, RankBody body, void *context)
{
    char place[16];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LONGEST);
    log_set_rank(rank, place_of(rank, place));
    ends_share(true);
    Comm world = socket_world_join(links, rank, timeout);
    while (!atomic_load(&shared->go))
        usleep(100);
    body(&world, context);
    comm_close(&world);
    fflush(NULL);
    _exit(0);
}

pid_t process_of_rank(int rank)
{
    return shared->pid[rank];
}

static int rank_of(int ranks, pid_t process)
{
    for (int i = 0; i < ranks; i++)
        if (shared->pid[i] == process) return i;
    return -1;
}

static void kill_ranks(int ranks, const bool *which)
{
    for (int i = 0; i < ranks; i++)
        if (which == NULL || which[i]) kill(shared->pid[i], SIGKILL);
}

/* Waits until all ranks have ended, and returns the code of the first that has failed. */
static int wait_for_all(SocketLinks *links, int ranks)
{
    int code = 0, left = ranks, status;
    double failed = 0;
    bool stopped[LAUNCH_MAX_RANKS] = {false}, without_0 = false;
    while (left > 0) {
        pid_t process = waitpid(-1, &status, WUNTRACED | WCONTINUED | (code ? WNOHANG : 0));
        int rank = rank_of(ranks, process);
        if (rank >= 0) stopped[rank] = WIFSTOPPED(status);
        if (rank >= 0 && !WIFSTOPPED(status) && !WIFCONTINUED(status)) {
            left--;
            socket_links_report_end(links, rank, status, false);
            if (code == 0 && status != 0) {
                code = WIFEXITED(status) ? WEXITSTATUS(status) : (int)EXIT_PEER_LOST;
                failed = seconds_now();
            }
            /* Without rank 0 there is no verdict. */
            without_0 = without_0 || (rank == 0 && WIFSIGNALED(status));
            if (WIFEXITED(status) && WEXITSTATUS(status) != code && !without_0)
                snprintf(shared->wrong, sizeof shared->wrong, "rank %d has ended with %d, not %d",
                         rank, WEXITSTATUS(status), code);
        }
        without_0 = without_0 || (code && stopped[0]);
        if (code) kill_ranks(ranks, seconds_now() > failed + AFTER_FAILURE ? NULL : stopped);
        if (rank < 0) usleep(1000);
    }
    return code;
}

int process_ranks(int ranks, double timeout, RankBody body, void *context, char *wrong, size_t n)
{
    char err[256], place[16];
    SocketLinks *links = socket_links_create(ranks, err, sizeof err);
    CHECK(links != NULL, "%s", err);
    for (int i = 0; i < ranks; i++)
        socket_links_name(links, i, place_of(i, place));
    shared = shared_memory(sizeof *shared);
    fflush(NULL);
    for (int i = 0; i < ranks; i++) {
        pid_t process = fork();
        CHECK(process >= 0, "rank %d is not forked", i);
        if (process == 0) rank_main(links, i, timeout, body, context);
        shared->pid[i] = process;
    }
    socket_links_release(links);
    atomic_store(&shared->go, true);
    int code = wait_for_all(links, ranks);
    socket_links_destroy(links);
    snprintf(wrong, n, "%s", shared->wrong);
    munmap(shared, sizeof *shared);
    shared = NULL;
    return code;
}
