/* late_device.h -- the late device, a CPU device that delays its work to reveal missing waits. Ops,
 * copies and waits are only queued. A stream works only as far as the host's wait, or another
 * stream's wait for its event, requires. Work that lacks a wait therefore gets the worst result
 * that a GPU could give: it reads a result that is not there yet, or a buffer that was overwritten
 * too early.
 *
 * The arithmetic is the CPU backend's. The late devices of several threads, ranks of one process,
 * share memory and events. A "burst" is all work that these devices queue between two calls. It can
 * be repeated from the same memory, in different orders and with a wait left out. */
#ifndef TESTS_SUPPORT_DEVICE_LATE_DEVICE_H
#define TESTS_SUPPORT_DEVICE_LATE_DEVICE_H

#include "model/core/device.h"

/* Opens a late device instead of a CPU device, with the same options and errors. */
bool late_device_open(Device *device, const DeviceOptions *options, char *err, size_t n);
/* While on, device_open opens late devices wherever a CPU device is requested (in programs that are
 * linked with --wrap=device_open). late_devices_opened returns how many devices device_open has
 * opened. */
void late_devices(bool on);
/* From now on opening a device fails for the rank with this index. */
void late_devices_refuse(int index);
int late_devices_opened(void);
/* From now on device_open never returns for the device with this index. */
void late_devices_hang(int index);
/* Counting from now, the opening-th call of device_open (from 1) takes this many seconds. */
void late_devices_delay(int opening, unsigned seconds);
/* From now on every device reports its own memory with 4 GiB free, except that the device with this
 * index reports only `available` bytes. */
void late_devices_memory(int index, size_t available);

/* ---- notes, and a simulated clock ------------------------------------------------------------ */

/* A piece of work, described for the test. */
enum { LATE_NOTES = 8 };
typedef struct {
    const char *name, *stream; /* for example "sum", "comm" */
    int rank;                  /* index of the device */
    const int64_t *note;       /* the numbers that the test has stored with it */
} LateSeen;
/* From now on `note` is called whenever work is queued, in the thread that queues it. It fills in
 * LATE_NOTES numbers, whose meaning the test defines. NULL: they are 0. */
void late_notes(void (*note)(int64_t *notes));
/* From now on time is simulated: a piece of work takes seconds(work) on its stream, a wait ends
 * when the awaited work has ended, and the time between two events is measured in these seconds.
 * `seconds` is called once for each piece of work, under a lock. NULL: the host's clock, which is
 * the default. All devices must be idle. Bursts are not timed. */
void late_clock(double (*seconds)(const LateSeen *work));

/* ---- bursts ---------------------------------------------------------------------------------- */

/* Starts a burst: nothing runs until late_burst_end, and waiting for a device ends the program. All
 * devices must be idle. No other thread may use one during this call or late_burst_end. */
void late_burst_begin(void);
/* Called inside a burst by the device's thread. The waits that are left out in turn are those of
 * its streams between the first and the second mark, except waits for work before the burst and
 * waits of a stream for itself. */
void late_mark(Device *device);

typedef struct {
    int streams, works; /* streams with work; pieces of work, without waits */
    int waits;          /* number of waits left out, one at a time */
    int red;            /* of these: without the wait the final memory differed ("red") */
    int covered;        /* without the wait, other waits still ensured the same order */
    int harmless;       /* the order was different, but the memory the same */
    /* Pieces of work of compute streams that need not wait for all earlier work of their own
     * device's comm stream; and where one of them is. */
    int overlapping;
    char overlap[256];
    int beside_tp, beside_p2p; /* the same for the streams of tensor-parallel sums and of pipeline
                                * messages */
    int copies; /* copies of the copy streams that need not wait for all earlier work of their
                 * device's compute stream */
    /* What was wrong although all waits were in place, or "": some order that the waits allow gives
     * another result or never ends. */
    char wrong[512];
} LateVerdict;

/* A wait that is left out. */
typedef struct {
    const char *verdict;        /* "red", "covered" or "harmless"; NULL before it is left out */
    const char *where;          /* the stream, the work before and after the wait, and the awaited
                                 * work */
    const char *stream, *other; /* the waiting stream and the awaited stream */
    bool peer;                  /* the awaited stream belongs to another device */
    const void *site; /* the place in the program that requested the wait: an address, only to be
                       * compared with others */
} LateWait;
/* Callbacks of late_burst_end. choose decides whether a marked wait is left out (NULL: each one
 * is). tell receives the verdict (may be NULL). */
typedef struct {
    bool (*choose)(void *context, const LateWait *wait);
    void (*tell)(void *context, const LateWait *wait);
    void *context;
} LateJury;

/* Ends the burst: repeats its work in many orders from the same initial memory, and compares all
 * memory of all devices, including page-locked host memory. First each stream in turn works as late
 * as the others allow. Then, for each marked wait, the wait is left out, and each stream whose work
 * is no longer ordered before other work works as late as possible; so everything that has lost its
 * order runs the other way round. The last repetition has all waits, so the memory ends with the
 * correct values. */
LateVerdict late_burst_end(const LateJury *jury);

#endif
