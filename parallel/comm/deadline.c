/* deadline.c -- sleeps with a time limit, and the error messages for ranks that wait too long. */
#include "parallel/comm/deadline.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Buffer size of a list of ranks with their machines. */
enum { BLAMED_BYTES = RANK_LIST_BYTES + RANK_HOSTS_BYTES + 8 };
/* Only NCCL's own log can explain why a call does not end although all ranks have arrived at it. */
static const char details[] = "run with NCCL_DEBUG=INFO for details";

double deadline_passed(double start, double seconds)
{
    const double late = 0.05;
    return fmin(seconds_now() - start, seconds + late);
}

double deadline_sleep(pthread_cond_t *condition, pthread_mutex_t *mutex, double seconds)
{
    double start = seconds_now(), end = start + seconds;
    struct timespec until = {.tv_sec = (time_t)end};
    until.tv_nsec = (long)((end - (double)until.tv_sec) * 1e9);
    pthread_cond_timedwait(condition, mutex, &until);
    return deadline_passed(start, seconds);
}

/* ---- error messages -------------------------------------------------------------------------- */

/* Messages name the machines of the ranks that cause the wait, and no others, as "(on HOST)" or
 * "(on HOST; ...". The job script of `./train slurm` finds the machine there and starts the job
 * again without it. */

/* Writes, for example, "ranks 2, 3 (on n2)". */
static const char *blamed_text(const BlameWait *wait, const int *rank, int ranks,
                               char text[BLAMED_BYTES])
{
    char hosts[RANK_HOSTS_BYTES];
    rank_list(rank, ranks, text, RANK_LIST_BYTES);
    size_t used = strlen(text);
    if (*rank_hosts(&wait->hosts, rank, ranks, hosts, sizeof hosts))
        snprintf(text + used, BLAMED_BYTES - used, " (%s)", hosts);
    return text;
}

/* Writes, for example, "; rank 2 waits for rank 3 (group tp, call 7, all-reduce of 64 f32)". */
static const char *cause_text(const BlameWait *wait, const Blame *blame, char *text, size_t n)
{
    char host[RANK_HOSTS_BYTES];
    text[0] = '\0';
    switch (blame->kind) {
    case BLAME_THEMSELVES: break;
    case BLAME_RANK:
        rank_hosts(&wait->hosts, &blame->rank, 1, host, sizeof host);
        snprintf(text, n, "; rank %d waits for %srank %d (%s%s%s)", blame->by,
                 blame->device ? "the GPU of " : "", blame->rank, host, *host ? "; " : "",
                 blame->call);
        break;
    case BLAME_CALL:
        snprintf(text, n, "; rank %d stands in %s, to which all have come; %s", blame->by,
                 blame->call, details);
        break;
    case BLAME_CIRCLE: snprintf(text, n, "; they wait for each other"); break;
    }
    return text;
}

void deadline_end_waiting(const BlameWait *wait, double timeout, const Blame *blame)
{
    char list[BLAMED_BYTES], cause[512];
    const char *have = wait->n > 1 ? "have" : "has";
    if (wait->lack != BLAME_NOTHING && blame->kind == BLAME_THEMSELVES)
        blamed_text(wait, wait->who, wait->n, list);
    else
        rank_list(wait->who, wait->n, list, sizeof list);
    switch (wait->lack) {
    case BLAME_HOSTS:
        fail(EXIT_HANG,
             "%s: rank %d has waited %g s (parallel.timeout) for %s, which %s not arrived%s",
             wait->call, wait->rank, timeout, list, have,
             cause_text(wait, blame, cause, sizeof cause));
    case BLAME_DEVICES:
        fail(EXIT_HANG,
             "%s: rank %d has waited %g s (parallel.timeout); all its ranks have called it, but "
             "the GPU%s of %s %s not come to it%s",
             wait->call, wait->rank, timeout, wait->n > 1 ? "s" : "", list, have,
             cause_text(wait, blame, cause, sizeof cause));
    case BLAME_NOTHING: break;
    }
    fail(EXIT_HANG,
         "%s: rank %d has waited %g s (parallel.timeout); %s and their GPUs have all come to it, "
         "and it does not end; %s",
         wait->call, wait->rank, timeout, list, details);
}

void deadline_end_lost(const BlameWait *wait)
{
    char list[BLAMED_BYTES];
    fail(EXIT_PEER_LOST, "%s: rank %d waits for %s, which %s left the group", wait->call,
         wait->rank, blamed_text(wait, wait->who, wait->n, list), wait->n > 1 ? "have" : "has");
}

/* ---- transports that enforce their own deadlines --------------------------------------------- */

/* Largest number of such transports in the process. */
enum { MOST_HOLDERS = 4 };
static struct {
    pthread_mutex_t mutex;
    DeadlineHolder holds[MOST_HOLDERS];
    atomic_int n;
} holders = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void deadline_add_holder(DeadlineHolder holds)
{
    bool known = false;
    pthread_mutex_lock(&holders.mutex);
    for (int i = 0; i < holders.n; i++)
        known = known || holders.holds[i] == holds;
    if (!known) {
        CHECK(holders.n < MOST_HOLDERS, "more than %d transports hold deadlines", MOST_HOLDERS);
        holders.holds[holders.n] = holds;
        atomic_fetch_add(&holders.n, 1);
    }
    pthread_mutex_unlock(&holders.mutex);
}

bool deadline_held_elsewhere(const int *rank, int n)
{
    /* Do not lock the mutex, because a transport may take seconds to reply. This is safe, because
     * entries are never removed from the list. */
    for (int i = 0; i < atomic_load(&holders.n); i++)
        if (holders.holds[i](rank, n)) return true;
    return false;
}
