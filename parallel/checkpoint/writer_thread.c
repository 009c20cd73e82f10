/* writer_thread.c -- starts and ends the thread that writes checkpoints, and gives it its jobs. See
 * writer_thread.h. */
#include "parallel/checkpoint/writer_thread.h"

#include "model/core/check.h"
#include "model/core/log.h"
#include "model/core/pool.h"

#include <stdio.h>

static void *body(void *context)
{
    WriterThread *w = context;
    log_set_rank(w->rank, w->place);
    pthread_mutex_lock(&w->mutex);
    while (!w->ends) {
        if (w->job == NULL) {
            pthread_cond_wait(&w->changed, &w->mutex);
            continue;
        }
        /* The mutex is free meanwhile, so that the rank can ask whether the job is done. */
        pthread_mutex_unlock(&w->mutex);
        w->job(w->context);
        pthread_mutex_lock(&w->mutex);
        w->job = NULL;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

void writer_thread_start(WriterThread *w)
{
    const char *place = log_place();
    *w = (WriterThread){.rank = log_rank()};
    snprintf(w->place, sizeof w->place, "%s", place ? place : "");
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    thread_start(&w->thread, body, w, "the thread that writes checkpoints");
}

void writer_thread_end(WriterThread *w)
{
    pthread_mutex_lock(&w->mutex);
    CHECK(w->job == NULL, "a checkpoint is still being written");
    w->ends = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
}

void writer_thread_give(WriterThread *w, void (*job)(void *context), void *context)
{
    pthread_mutex_lock(&w->mutex);
    CHECK(w->job == NULL, "two jobs for one thread");
    w->job = job;
    w->context = context;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

bool writer_thread_busy(WriterThread *w)
{
    pthread_mutex_lock(&w->mutex);
    bool busy = w->job != NULL;
    pthread_mutex_unlock(&w->mutex);
    return busy;
}

void writer_thread_wait(WriterThread *w)
{
    pthread_mutex_lock(&w->mutex);
    while (w->job != NULL)
        pthread_cond_wait(&w->changed, &w->mutex);
    pthread_mutex_unlock(&w->mutex);
}
