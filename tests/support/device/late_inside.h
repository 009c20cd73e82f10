/* late_inside.h -- what the files of the late device share. */
#ifndef TESTS_SUPPORT_DEVICE_LATE_INSIDE_H
#define TESTS_SUPPORT_DEVICE_LATE_INSIDE_H

#include "model/kernels/ops.h"
#include "tests/support/device/late_device.h"

#include <pthread.h>

enum {
    LATE_STREAMS = 5,
    LATE_COMPUTE = 0,
    LATE_COMM = 2,
    LATE_P2P = 3,
    LATE_TP = 4,
    LATE_KEPT = 4,
    LATE_MARKS = 2
};

typedef struct LateDevice LateDevice;
typedef struct LateStream LateStream;

/* A stream's point-th piece of work is done. */
typedef struct {
    LateStream *stream;
    int64_t point;
} LatePoint;

/* A piece of work, or, where `run` is NULL, a wait. */
typedef struct LateWork {
    const char *name;
    void (*run)(Device *cpu, const OpTable *table, void *arguments);
    bool wide; /* of the table for f64 */
    void *arguments, *kept[LATE_KEPT];
    LatePoint wait;
    const void *site; /* of a wait */
    int64_t note[LATE_NOTES];
    int64_t sent[LATE_STREAMS]; /* what its device's streams had been given when it was asked for */
} LateWork;

struct LateStream {
    LateDevice *device;
    const char *name;
    LateWork **work; /* every one that was asked for; NULL once it is done and no burst's */
    int64_t issued, done, capacity;
    double *ended; /* by late_clock: ended[i]: when the first i pieces of work were done */
    int64_t first; /* of the burst */
    int64_t mark[LATE_MARKS]; /* of the burst */
};

struct LateDevice {
    Device cpu; /* that computes */
    LateStream stream[LATE_STREAMS];
    int index, marks;
    bool closed;
    LateDevice *next;
};

/* Memory of a device, or page-locked. */
typedef struct {
    unsigned char *data, *before, *after; /* of a burst: as it began, as it should end */
    size_t bytes;
    bool host, copied; /* page-locked; copied to or from, as yet */
} LateMemory;

enum { LATE_MEMORIES = 4096 };
typedef struct {
    pthread_mutex_t mutex; /* held over all that follows, and while work is done */
    LateDevice *devices;   /* kept until all are closed: events may tell of any stream */
    LateMemory memory[LATE_MEMORIES];
    int memories;
    bool burst;
    void (*note)(int64_t *notes);
    double (*seconds)(const LateSeen *work);
} LateAll;
extern LateAll late_all;

extern const OpTable late_table_f32, late_table_f64;

/* A piece of work with a copy of its arguments, to be noted by late_issue on the compute stream of
 * a device or view; in between, *at, a pointer inside the arguments, may be made to point to a copy
 * of its `bytes` bytes (NULL stays). */
LateWork *late_work(LateWork work, const void *arguments, size_t bytes);
void late_keep(LateWork *work, void *at, size_t bytes);
void late_issue(Stream stream, LateWork *work);
/* Under the mutex: does the work, which is no wait. */
void late_do(const LateStream *stream, LateWork *work);
void late_free(LateWork *work);

/* Under the mutex. late_clock.c: the stream's next piece of work ends. */
void late_tick(LateStream *stream, const LateWork *work);
/* Seconds between two points of streams. */
double late_between(LatePoint from, LatePoint to);

#endif
