/* interruptible.c -- implements interruptible.h. A blocked signal that arrives stays pending, which
 * sigpending tells, so this needs no signal handler and no global variable. */
#include "model/weights/interruptible.h"

#include "model/core/check.h"

#include <signal.h>
#include <stdlib.h>

static const int taken[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_TAKEN = sizeof taken / sizeof *taken };

typedef struct {
    WeightSource base; /* must come first: a WeightSource is this struct */
    WeightSource *inner;
    sigset_t held, usual;
} Interruptible;

static bool has_come(const Interruptible *s)
{
    sigset_t pending;
    sigpending(&pending);
    for (int i = 0; i < N_TAKEN; i++)
        if (sigismember(&s->held, taken[i]) == 1 && sigismember(&pending, taken[i]) == 1)
            return true;
    return false;
}

static bool read_inner(WeightSource *source, int index, int64_t first, int64_t rows, void *out,
                       char *err, size_t n)
{
    Interruptible *s = (Interruptible *)source;
    if (has_come(s))
        return error_set(err, n, "a signal has ended this; what was written is removed");
    bool good = s->inner->read(s->inner, index, first, rows, out, err, n);
    source->damaged = s->inner->damaged;
    return good;
}

static void close_inner(WeightSource *source)
{
    Interruptible *s = (Interruptible *)source;
    sigset_t usual = s->usual;
    s->inner->close(s->inner);
    free(s);
    pthread_sigmask(SIG_SETMASK, &usual, NULL);
}

WeightSource *interruptible_source(WeightSource *inner)
{
    Interruptible *s = must_calloc(1, sizeof *s);
    s->base = (WeightSource){.tensor = inner->tensor,
                             .n_tensors = inner->n_tensors,
                             .read = read_inner,
                             .close = close_inner};
    s->inner = inner;
    sigemptyset(&s->held);
    for (int i = 0; i < N_TAKEN; i++) {
        struct sigaction was;
        sigaction(taken[i], NULL, &was);
        if (was.sa_handler != SIG_IGN) sigaddset(&s->held, taken[i]);
    }
    pthread_sigmask(SIG_BLOCK, &s->held, &s->usual);
    return &s->base;
}
