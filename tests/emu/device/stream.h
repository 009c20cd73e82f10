/* stream.h -- internal structure of streams in the emulation: queues of work (queue.cc), filled by
 * CUDA calls (stream.cc). Events record points in them (event.cc). */
#ifndef TESTS_EMU_DEVICE_STREAM_H
#define TESTS_EMU_DEVICE_STREAM_H

#include "tests/emu/device/emu.h"

enum { EMU_STREAM_ALIVE = 0x53545245 };

typedef struct EmuOp EmuOp; /* a piece of work */

/* How early a random stream does its work before anybody waits for it. */
enum class EmuMood { UNKNOWN, LAZY, STEADY, EAGER };

struct CUstream_st {
    int alive, device;
    bool blocking; /* waits for the default stream, and is waited for by it */
    EmuOp *first, *last;
    int64_t issued, done; /* pieces of work issued and done; the fields below also count pieces of
                           * work, from 1 */
    int64_t last_host;    /* number of its last host function */
    int64_t wanted;       /* its own thread should do the work up to here, whether or not anybody
                           * waits */
    int64_t asker, asked; /* thread that issued last; how much that thread had issued at its last
                           * query */
    EmuMood mood;
    bool runs;   /* `runner` is doing its first piece of work */
    bool helped; /* it has a thread of its own */
    pthread_t runner;
    struct CUstream_st *next;          /* next stream of the same device */
    struct CUstream_st *closed_before; /* streams are never freed, because points refer to them */
};

/* A stream's progress: its point-th piece of work is complete. */
typedef struct {
    cudaStream_t stream;
    int64_t point;
} EmuPoint;

/* ---- queue.cc -------------------------------------------------------------------------------- */

void emu_queue_open(cudaStream_t stream);  /* adds the stream to its device's list */
void emu_queue_close(cudaStream_t stream); /* removes it; its work must be complete */
/* Appends work to the stream, with a copy of its context. work NULL: wait for the EmuPoint in the
 * context. `host`: a host function, which may wait for other threads. */
void emu_queue_add(cudaStream_t stream, void (*work)(void *context), const void *context,
                   size_t bytes, bool host);
/* Makes all later work of the stream wait for all work of `other` so far. */
void emu_queue_join(cudaStream_t stream, cudaStream_t other);
/* Returns the point after all work issued to the stream so far. */
EmuPoint emu_queue_now(cudaStream_t stream);
/* Completes the work up to that point. */
void emu_queue_reach(EmuPoint to);
/* Returns whether all work up to the point `to` has been done. If the calling thread, `asker`,
 * issued the work, the query also advances the stream. */
bool emu_queue_reached(EmuPoint to, int64_t asker);
/* Returns the calling thread's number, from 1. */
int64_t emu_host_thread(void);
/* Runs work(context) in the calling thread with that device as the current one. */
void emu_on_device(int device, void (*work)(void *context), void *context);

/* ---- stream.cc ------------------------------------------------------------------------------- */

/* Returns a device's default stream. Its `next` leads to the device's other streams. */
cudaStream_t emu_default_stream(int device);
/* Returns the stream's structure; CUDA's default streams are small numbers instead of addresses.
 * NULL: no such stream. */
cudaStream_t emu_stream_of(cudaStream_t stream);
/* Makes all later work of the stream wait for that point. */
void emu_stream_wait_for(cudaStream_t stream, EmuPoint to);

#endif
