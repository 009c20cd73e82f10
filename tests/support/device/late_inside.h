/* late_inside.h -- internal types and functions of the late device, which delays its work to reveal
 * missing waits (late_device.h). */
#ifndef TESTS_SUPPORT_DEVICE_LATE_INSIDE_H
#define TESTS_SUPPORT_DEVICE_LATE_INSIDE_H

#include "model/kernels/ops.h"
#include "tests/support/device/late_device.h"

#include <pthread.h>

enum {
    LATE_STREAMS = 6,
    LATE_COMPUTE = 0,
    LATE_COPY = 1,
    LATE_COMM = 2,
    LATE_P2P = 3,
    LATE_TP = 4,
    LATE_UPDATE = 5,
    LATE_KEPT = 4,
    LATE_MARKS = 2
};

typedef struct LateDevice LateDevice;
typedef struct LateStream LateStream;

/* A stream's progress: its point-th piece of work is complete. */
typedef struct {
    LateStream *stream;
    int64_t point;
} LatePoint;

/* A piece of work or, if `run` is NULL, a wait. */
typedef struct LateWork {
    const char *name;
    void (*run)(Device *cpu, const OpTable *table, void *arguments);
    bool wide; /* uses the ops table for f64 */
    void *arguments, *kept[LATE_KEPT];
    LatePoint wait;
    const void *site; /* for a wait: where the program requested it */
    int64_t note[LATE_NOTES];
    int64_t sent[LATE_STREAMS]; /* how much work each stream of its device had when it was queued */
} LateWork;

struct LateStream {
    LateDevice *device;
    const char *name;
    LateWork **work; /* all work ever queued; an entry is NULL once it is done, except in a burst */
    int64_t issued, done, capacity;
    double *ended; /* for late_clock: ended[i] is when the first i pieces of work were done */
    int64_t first; /* first work of the burst */
    int64_t mark[LATE_MARKS]; /* marks of the burst */
};

struct LateDevice {
    Device cpu; /* the CPU device that computes */
    LateStream stream[LATE_STREAMS];
    int index, marks;
    bool closed;
    LateDevice *next;
};

/* Device memory or page-locked host memory. */
typedef struct {
    unsigned char *data, *before, *after; /* for a burst: the contents at its beginning, and as they
                                           * should be at its end */
    size_t bytes;
    bool host, used; /* page-locked; a copy or an op has used it */
} LateMemory;

enum { LATE_MEMORIES = 4096 };
typedef struct {
    pthread_mutex_t mutex; /* protects everything below; also held while work is done */
    LateDevice *devices;   /* kept until all are closed, because events may refer to any stream */
    LateMemory memory[LATE_MEMORIES];
    int memories;
    bool burst;
    void (*note)(int64_t *notes);
    double (*seconds)(const LateSeen *work);
} LateAll;
extern LateAll late_all;

extern const OpTable late_table_f32, late_table_f64;

/* late_work makes a piece of work with a copy of its arguments. late_keep then copies the `bytes`
 * bytes that *at, a pointer in these arguments, points to, and makes it point to the copy (NULL
 * stays). late_issue queues the work on the compute stream of a device or view. */
LateWork *late_work(LateWork work, const void *arguments, size_t bytes);
void late_keep(LateWork *work, void *at, size_t bytes);
void late_issue(Stream stream, LateWork *work);
/* Does a piece of work that is not a wait. Called with the mutex held. */
void late_do(const LateStream *stream, LateWork *work);
void late_free(LateWork *work);

/* late_memory.c: adds memory of a late device to the list and returns it; removes it. */
void *late_remember(void *p, size_t bytes, bool host);
void late_forget(const void *p);
/* Marks page-locked memory as used if one of the words is an address in it: as the argument of an
 * op that reads or writes it there. */
void late_touch(const void *words, size_t bytes);
/* Returns whether the address is in such memory, and marks that memory as used in a copy. */
bool late_is_remembered(const void *p);

/* late_clock.c: computes when the stream's next piece of work ends. Called with the mutex held. */
void late_tick(LateStream *stream, const LateWork *work);
/* Returns the seconds between two points of streams. */
double late_between(LatePoint from, LatePoint to);

#endif
