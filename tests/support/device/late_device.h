/* late_device.h -- a device that puts off its work: ops, copies and waits are only noted, and a
 * stream runs as far as a wait of the host, or another stream that waits for its event, asks. So
 * on a CPU, too, work that forgets to wait for other work finds what it would find at worst on a
 * GPU: a result that is not there yet, or a buffer that is written anew before it was read.
 *
 * Its arithmetic is the CPU backend's. Several devices of several threads, ranks of one process,
 * see each other's memory and events. A burst of work of all of these devices can be noted as a
 * whole and then be done again and again from the same memory, in other orders and with a wait left
 * out. */
#ifndef TESTS_SUPPORT_DEVICE_LATE_DEVICE_H
#define TESTS_SUPPORT_DEVICE_LATE_DEVICE_H

#include "model/core/device.h"

/* Opens one in place of the CPU's, of the same options and errors. */
bool late_device_open(Device *device, const DeviceOptions *options, char *err, size_t n);
/* While on, device_open opens late devices wherever the CPU is asked for (in programs that are
 * linked with --wrap=device_open). Late_devices_opened: how many devices device_open has opened. */
void late_devices(bool on);
/* From here on no rank of this index gets a device. */
void late_devices_refuse(int index);
int late_devices_opened(void);
/* From here on device_open never returns for the device of that index. */
void late_devices_hang(int index);
/* The opening-th call of device_open from here on (from 1) takes so many seconds. */
void late_devices_delay(int opening, unsigned seconds);
/* From here on each device says that it has memory of its own with 4 GiB free, and the one of this
 * index only so many bytes. */
void late_devices_memory(int index, size_t available);

/* ---- notes and a clock ----------------------------------------------------------------------- */

/* A piece of work as it was asked for. */
enum { LATE_NOTES = 8 };
typedef struct {
    const char *name, *stream; /* "sum", "comm" */
    int rank;                  /* the device's index */
    const int64_t *note;       /* what the test has noted of it */
} LateSeen;
/* From here on `note` is called when work is asked for, by the thread that asks, to fill in
 * LATE_NOTES numbers, which the test gives their meaning. NULL: they are 0. */
void late_notes(void (*note)(int64_t *notes));
/* From here on a piece of work takes so many seconds of its stream, when it is done, and between
 * two events lie the seconds of the streams: what waits begins when what it waits for has ended.
 * `seconds` is called once for each piece, under a lock. NULL: the host's clock, as at first. All
 * devices must be idle. Bursts have no such clock. */
void late_clock(double (*seconds)(const LateSeen *work));

/* ---- bursts ---------------------------------------------------------------------------------- */

/* From here on nothing runs until late_burst_end: who waits for a device ends the program. All
 * devices must be idle, and no other thread may use one during either call. */
void late_burst_begin(void);
/* Inside a burst, by the thread of the device: the waits that are left out in turn are those of its
 * streams between the first and the second mark, but for waits for what was done before and of a
 * stream for itself. */
void late_mark(Device *device);

typedef struct {
    int streams, works; /* that had work; pieces of it, without waits */
    int waits;          /* that were left out, one at a time */
    int red;            /* of these: memory came out otherwise */
    int covered;        /* other waits keep up the same order of all work */
    int harmless;       /* the order was another, and the memory the same */
    /* Pieces of work of compute streams that need not wait for all that their own device's comm
     * stream was given before them; where one of them is. */
    int overlapping;
    char overlap[256];
    int beside_tp, beside_p2p; /* as many beside the streams of regions, and of stages */
    /* What went wrong with all waits in place, or "": some order that the waits allow comes to
     * another result, or to no end. */
    char wrong[512];
} LateVerdict;

/* A wait that is left out. */
typedef struct {
    const char *verdict;        /* "red", "covered", "harmless"; NULL before */
    const char *where;          /* between which works of which stream, for which */
    const char *stream, *other; /* the one that waits, the one that it waits for */
    bool peer;                  /* that is another device's */
    const void *site; /* where the program asked for it: an address that is the same for the same
                         place, and means nothing else */
} LateWait;
/* Who is asked whether a marked wait shall be left out (NULL: each is), and hears what came of it
 * (or NULL). */
typedef struct {
    bool (*choose)(void *context, const LateWait *wait);
    void (*tell)(void *context, const LateWait *wait);
    void *context;
} LateJury;

/* Does the burst in many orders from the memory as it is, and compares all memory of all
 * devices, page-locked memory of the host included: each stream in turn as late as the others let
 * it; then, for each marked wait, without it and with each stream of which work has lost its place
 * before other work as late as can be: so all that has lost its order runs the other way round.
 * Lastly with all waits, which leaves the memory as it should be. */
LateVerdict late_burst_end(const LateJury *jury);

#endif
