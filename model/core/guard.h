/* guard.h -- a thread that ends the process when no other thread can. The others may stand in a
 * device driver, in a library, in a write to a disk or to a console that nobody reads, or may wait
 * for a lock whose owner does. The guard calls none of these: it reads counters and the clock,
 * takes no lock of others, allocates nothing, and writes only its last sentence, if that does not
 * block. It runs while it has something to watch. */
#ifndef MODEL_CORE_GUARD_H
#define MODEL_CORE_GUARD_H

#include <stddef.h>
#include <stdint.h>

/* Something that must make progress, such as a call in which a rank waits for others. Another
 * thread holds its deadline; the guard ends the process (EXIT_HANG) if that thread does not. */
typedef struct GuardWatch {
    void *context;
    int rank;           /* the rank that waits */
    double timeout;     /* seconds; the guard grants GUARD_GRACE more */
    const char *holder; /* the thread that holds the deadline, for the message */
    /* Returns 0 if nothing is waited for at the moment, else a number that changes with each
     * progress. This function and the next one are called by the guard. They take no lock, and read
     * only memory that stays valid until guard_remove returns. */
    int64_t (*turn)(const void *context);
    /* Writes the call in which the rank waits to text[0..n), for example "group dp, call 7,
     * barrier". */
    void (*describe)(const void *context, char *text, size_t n);
    /* Of the guard: the next one, the turn at its last look, and how long it has been the same. */
    struct GuardWatch *next;
    int64_t seen;
    double stood;
} GuardWatch;

/* Seconds after `timeout` at which the guard ends the process. */
enum { GUARD_GRACE = 30 };
/* Replaces GUARD_GRACE, for tests. */
void guard_set_grace(double seconds);

/* Begins and ends the watch. The caller keeps *watch until guard_remove has returned. Time in which
 * the process was stopped does not count. */
void guard_add(GuardWatch *watch);
void guard_remove(GuardWatch *watch);

/* Ends the process with `code`, without a word, unless it ends by itself in the next `seconds`
 * seconds. A second call changes only the code. If the system refuses another thread, SIGALRM ends
 * it, and the process that waits for it sees this signal instead of the code. */
void guard_end_within(double seconds, int code);

#endif
