/* stream.h -- what streams are inside the emulation: queues of work (queue.cc) that calls fill
 * (stream.cc), points of which are recorded by events (event.cc). */
#ifndef TESTS_EMU_DEVICE_STREAM_H
#define TESTS_EMU_DEVICE_STREAM_H

#include "tests/emu/device/emu.h"

enum { EMU_STREAM_ALIVE = 0x53545245 };

typedef struct EmuOp EmuOp; /* a piece of work */

/* How willing a stream is to go on before anybody waits for it, where that is left to chance. */
enum class EmuMood { UNKNOWN, LAZY, STEADY, EAGER };

struct CUstream_st {
    int alive, device;
    bool blocking; /* waits for the default stream, and it for this one */
    EmuOp *first, *last;
    int64_t issued, done; /* pieces of work; all below are numbers of those, from 1 on */
    int64_t last_host;    /* the last function of the host's */
    int64_t wanted;       /* how far a thread of its own is to do it, whoever waits */
    int64_t asker, asked; /* who issued last; how much that thread had issued when it asked last */
    EmuMood mood;
    bool runs;   /* `runner` is at its first piece of work */
    bool helped; /* it has a thread of its own */
    pthread_t runner;
    struct CUstream_st *next;          /* of the same device */
    struct CUstream_st *closed_before; /* streams are never freed, as points refer to them */
};

/* How far a stream has come: its point-th piece of work is done. */
typedef struct {
    cudaStream_t stream;
    int64_t point;
} EmuPoint;

/* ---- queue.cc -------------------------------------------------------------------------------- */

void emu_queue_open(cudaStream_t stream);  /* takes part from here on */
void emu_queue_close(cudaStream_t stream); /* which is done */
/* Puts work at the stream's end, with a copy of its context. NULL: waits for the EmuPoint that is
 * the context. `host`: a function of the host's, which may wait for somebody. */
void emu_queue_add(cudaStream_t stream, void (*work)(void *context), const void *context,
                   size_t bytes, bool host);
/* What the stream is asked for from here on is done after all that `other` was asked for. */
void emu_queue_join(cudaStream_t stream, cudaStream_t other);
/* All that the stream has been asked for so far. */
EmuPoint emu_queue_now(cudaStream_t stream);
/* Does the work up to there. */
void emu_queue_reach(EmuPoint to);
/* Whether it is done. The thread that asked for it last, number `asker`, helps it on. */
bool emu_queue_reached(EmuPoint to, int64_t asker);
/* The calling thread's number, from 1 on. */
int64_t emu_host_thread(void);
/* Does work(context) on behalf of the device, in the calling thread. */
void emu_on_device(int device, void (*work)(void *context), void *context);

/* ---- stream.cc ------------------------------------------------------------------------------- */

/* A device's default stream, from which `next` leads to its others. */
cudaStream_t emu_default_stream(int device);
/* The default streams have small numbers instead of addresses. NULL: no stream. */
cudaStream_t emu_stream_of(cudaStream_t stream);
/* What the stream is asked for from here on is done once that work is. */
void emu_stream_wait_for(cudaStream_t stream, EmuPoint to);

#endif
