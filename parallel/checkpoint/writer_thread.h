/* writer_thread.h -- a thread of a rank that does file work while the rank trains: one job at a
 * time. Private to parallel/checkpoint. */
#ifndef PARALLEL_CHECKPOINT_WRITER_THREAD_H
#define PARALLEL_CHECKPOINT_WRITER_THREAD_H

#include <pthread.h>
#include <stdbool.h>

typedef struct {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* Protected by the mutex: the job that is waiting or running (NULL: none), and whether the
     * thread is to end. */
    void (*job)(void *context);
    void *context;
    bool ends;
    /* The rank that started the thread, and its coordinates, for the thread's error messages. */
    int rank;
    char place[64];
} WriterThread;

/* Starts the thread; ends the program if the system refuses it. */
void writer_thread_start(WriterThread *w);
/* Ends the thread, which must have no job. */
void writer_thread_end(WriterThread *w);
/* Gives the thread a job; it must have none. The job sees everything that the caller wrote to
 * memory before. */
void writer_thread_give(WriterThread *w, void (*job)(void *context), void *context);
/* Returns whether the thread has a job that is not finished. After false, the caller sees
 * everything that the job wrote to memory. */
bool writer_thread_busy(WriterThread *w);
/* Waits until the thread has no job. */
void writer_thread_wait(WriterThread *w);

#endif
