/* guard.h -- a thread that ends the process when no other thread can. The others may be blocked in
 * a device driver, in a library, in a write to a disk or to a console that is not read, or may wait
 * for a lock whose owner is blocked there. The guard calls none of these: it reads counters and the
 * clock, takes no lock that other threads may hold for long, allocates nothing, and writes only its
 * error message, if that does not block. It runs while it has something to watch. */
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
    /* Returns 0 if the thread waits for nothing at the moment, else a number that changes whenever
     * there is progress. The guard's thread calls this function and the next one. They must take no
     * lock, and read only memory that stays valid until guard_remove returns. */
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

/* Begin and end watching. The caller keeps *watch until guard_remove has returned. Time in which
 * the process was stopped does not count. */
void guard_add(GuardWatch *watch);
void guard_remove(GuardWatch *watch);

/* Ends the process with `code` and without a message, unless it ends by itself within `seconds`
 * seconds. A second call changes only the code. If the system refuses to start the thread, SIGALRM
 * ends the process, and its parent sees this signal instead of the code. */
void guard_end_within(double seconds, int code);

#endif
