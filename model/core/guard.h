/* guard.h -- a thread that ends the process when no other thread can. The others may be blocked in
 * a device driver, in a library, in a write to a disk or to a console that is not read, or may wait
 * for a lock whose owner is blocked there. The guard avoids all of this: it reads counters and the
 * clock, takes no lock that other threads may hold for long, allocates nothing, and writes only its
 * error message, if that does not block. It runs while it has something to watch. */
#ifndef MODEL_CORE_GUARD_H
#define MODEL_CORE_GUARD_H

#include <stddef.h>
#include <stdint.h>

/* Something that must make progress, such as a call in which a rank waits for other ranks. Normally
 * another thread enforces the deadline (parallel.timeout). If that thread fails to, the guard ends
 * the process with EXIT_HANG. */
typedef struct GuardWatch {
    void *context;
    int rank;           /* the rank that waits */
    double timeout;     /* seconds; the guard grants GUARD_GRACE more */
    const char *holder; /* name of the thread that enforces the deadline, for the error message */
    /* Returns 0 if the rank waits for nothing at the moment, otherwise a number that changes
     * whenever there is progress. The guard's thread calls `turn` and `describe`, so both must take
     * no lock, and must read only memory that stays valid until guard_remove returns. */
    int64_t (*turn)(const void *context);
    /* Writes the call in which the rank waits to text[0..n), for example "group dp, call 7,
     * barrier". */
    void (*describe)(const void *context, char *text, size_t n);
    /* Used by the guard: the next watch in its list, the value of `turn` at the last check, and for
     * how many seconds this value has been the same. */
    struct GuardWatch *next;
    int64_t seen;
    double stood;
} GuardWatch;

/* Seconds after `timeout` at which the guard ends the process. */
enum { GUARD_GRACE = 30 };
/* Replaces GUARD_GRACE, for tests. */
void guard_set_grace(double seconds);

/* Begin and end watching. *watch must stay valid until guard_remove has returned. Time in which the
 * process was stopped (SIGSTOP) does not count as waiting. */
void guard_add(GuardWatch *watch);
void guard_remove(GuardWatch *watch);

/* Ends the process with `code` and without a message, unless it ends by itself within `seconds`
 * seconds. A second call changes only the code. If the system refuses to start the thread, SIGALRM
 * ends the process, and its parent sees this signal instead of the code. */
void guard_end_within(double seconds, int code);

#endif
