/* waiting.c -- see waiting.h. A separate thread prints the message, because the caller is blocked
 * in a call that waits for another rank. */
#include "parallel/run/waiting.h"

#include "model/core/check.h"
#include "model/core/log.h"
#include "model/core/pool.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct Waiting {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    bool over;
    int rank;
    char place[64], what[256];
};

static double delay = 10; /* seconds */

void waiting_set_delay(double seconds)
{
    delay = seconds;
}

static void *speak_later(void *context)
{
    Waiting *w = context;
    struct timespec at;
    int result = 0;
    clock_gettime(CLOCK_MONOTONIC, &at);
    double seconds = (double)at.tv_sec + 1e-9 * (double)at.tv_nsec + delay;
    at.tv_sec = (time_t)seconds;
    at.tv_nsec = (long)(1e9 * (seconds - floor(seconds)));
    log_set_rank(w->rank, w->place);
    pthread_mutex_lock(&w->mutex);
    while (!w->over && result != ETIMEDOUT)
        result = pthread_cond_timedwait(&w->ended, &w->mutex, &at);
    bool speaks = !w->over;
    pthread_mutex_unlock(&w->mutex);
    if (speaks) log_message(LOG_ERROR, "waiting for %s", w->what);
    return NULL;
}

Waiting *waiting_begin(const char *what)
{
    Waiting *w = must_calloc(1, sizeof *w);
    pthread_condattr_t clock;
    w->rank = log_rank();
    snprintf(w->place, sizeof w->place, "%s", log_place());
    snprintf(w->what, sizeof w->what, "%s", what);
    pthread_mutex_init(&w->mutex, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&w->ended, &clock);
    pthread_condattr_destroy(&clock);
    thread_start(&w->thread, speak_later, w, "a message about waiting");
    return w;
}

void waiting_end(Waiting *w)
{
    if (w == NULL) return;
    pthread_mutex_lock(&w->mutex);
    w->over = true;
    pthread_cond_signal(&w->ended);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->ended);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}
