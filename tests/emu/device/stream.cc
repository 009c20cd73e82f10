/* stream.cc -- streams, each of which belongs to a device. EMU_STREAMS decides when their work is
 * done:
 *
 * - strict (the default): at once, in the calling thread. A device does everything in the host's
 *   order. A program that hangs in this mode launches its work in an order in which devices may
 *   wait for each other.
 * - deferred: only when somebody waits for it, each stream separately and only as far as the wait
 *   requires. Host code that reads or overwrites too early, and streams that lack a wait for each
 *   other, then see the worst result that a GPU could give.
 * - random: at each call, query or wait it is decided randomly which streams of that device work
 *   before they have to, and how far. A stream works for a while as early as possible, for a
 *   while only when somebody waits, and for a while in between. EMU_SEED, a number, starts each
 *   device's random numbers. The same calls in the same order give the same result, as long as
 *   one thread makes all calls of a device and no host function (a collective) waits for another
 *   thread.
 *
 * The mode may change while no work is pending. A query (cudaStreamQuery, cudaEventQuery) from a
 * thread that did not issue the work changes nothing, so a watchdog does not advance the program
 * that it observes. queue.cc does the work in the last two modes. */
#include "tests/emu/device/stream.h"

#include <stdlib.h>
#include <string.h>

static struct CUstream_st default_streams[EMU_DEVICES_MOST];

static __attribute__((constructor)) void open_default_streams(void)
{
    for (int i = 0; i < EMU_DEVICES_MOST; i++) {
        default_streams[i].alive = EMU_STREAM_ALIVE;
        default_streams[i].device = i;
        default_streams[i].blocking = true;
    }
}

EmuStreams emu_streams_mode(void)
{
    const char *word = getenv("EMU_STREAMS");
    if (word == NULL || strcmp(word, "strict") == 0) return EmuStreams::STRICT;
    if (strcmp(word, "deferred") == 0) return EmuStreams::DEFERRED;
    if (strcmp(word, "random") == 0) return EmuStreams::RANDOM;
    emu_die("EMU_STREAMS is strict, deferred or random, not \"%s\"", word);
}

cudaStream_t emu_default_stream(int device)
{
    return &default_streams[device];
}

static bool is_default(cudaStream_t stream)
{
    return stream == &default_streams[stream->device];
}

/* The default stream is that of the current device. */
cudaStream_t emu_stream_of(cudaStream_t stream)
{
    if ((uintptr_t)stream <= 2) return &default_streams[emu_current_device()];
    return stream->alive == EMU_STREAM_ALIVE ? stream : NULL;
}

cudaError_t emu_stream_check(cudaStream_t stream)
{
    return emu_stream_of(stream) ? cudaSuccess : emu_error(cudaErrorInvalidResourceHandle);
}

int emu_stream_device(cudaStream_t stream)
{
    cudaStream_t s = emu_stream_of(stream);
    return s != NULL ? s->device : -1;
}

/* ---- work ------------------------------------------------------------------------------------ */

/* Called before work is added to the stream: the default stream and the device's blocking streams
 * wait for each other. */
static void join_default(cudaStream_t stream)
{
    cudaStream_t standard = &default_streams[stream->device];
    if (!stream->blocking) return;
    if (stream != standard) emu_queue_join(stream, standard);
    for (cudaStream_t s = standard->next; stream == standard && s != NULL; s = s->next)
        if (s->blocking) emu_queue_join(stream, s);
}

static void stream_do(cudaStream_t name, void (*work)(void *), const void *context, size_t bytes,
                      bool host)
{
    cudaStream_t stream = emu_stream_of(name);
    if (stream == NULL) emu_die("work for a stream that does not exist (any more)");
    emu_driver_works();
    if (emu_streams_mode() == EmuStreams::STRICT) {
        if (work != NULL) emu_on_device(stream->device, work, (void *)context);
        return;
    }
    join_default(stream);
    emu_queue_add(stream, work, context, bytes, host);
}

void emu_stream_do(cudaStream_t stream, void (*work)(void *), void *context, size_t bytes)
{
    stream_do(stream, work, context, bytes, false);
}

void emu_stream_do_host(cudaStream_t stream, void (*work)(void *), const void *context,
                        size_t bytes)
{
    stream_do(stream, work, context, bytes, true);
}

void emu_stream_wait_for(cudaStream_t stream, EmuPoint to)
{
    stream_do(stream, NULL, &to, sizeof to, false);
}

void emu_stream_wait(cudaStream_t stream)
{
    emu_queue_reach(emu_queue_now(emu_stream_of(stream)));
}

void emu_streams_wait(int device)
{
    for (cudaStream_t s = &default_streams[device]; s != NULL; s = s->next)
        emu_queue_reach(emu_queue_now(s));
}

/* ---- streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    EMU_CALL();
    if (flags > cudaStreamNonBlocking || priority > 5) return emu_error(cudaErrorInvalidValue);
    cudaStream_t s = (cudaStream_t)calloc(1, sizeof *s);
    if (s == NULL) return emu_error(cudaErrorMemoryAllocation);
    s->alive = EMU_STREAM_ALIVE;
    s->device = emu_current_device();
    s->blocking = flags != cudaStreamNonBlocking;
    emu_queue_open(s);
    *stream = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    EMU_CALL();
    if (emu_stream_of(stream) == NULL || is_default(emu_stream_of(stream)))
        return emu_error(cudaErrorInvalidResourceHandle);
    emu_stream_wait(stream);
    stream->alive = 0;
    emu_queue_close(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    EMU_CALL();
    if (emu_stream_check(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
    emu_stream_wait(stream);
    emu_count_wait();
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    EMU_CALL();
    if (emu_stream_check(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
    cudaStream_t s = emu_stream_of(stream);
    return emu_queue_reached(emu_queue_now(s), s->asker) ? cudaSuccess : cudaErrorNotReady;
}

/* Waits for the current device's streams. */
cudaError_t cudaDeviceSynchronize(void)
{
    EMU_CALL();
    emu_streams_wait(emu_current_device());
    emu_count_wait();
    return cudaSuccess;
}

typedef struct {
    cudaHostFn_t function;
    void *data;
} HostCall;

static void call_host(void *context)
{
    const HostCall *call = (const HostCall *)context;
    call->function(call->data);
}

/* The function runs in the thread that waits for the stream, or in the stream's own thread. */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    EMU_CALL();
    HostCall call = {function, data};
    if (emu_stream_check(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
    stream_do(stream, call_host, &call, sizeof call, true);
    return cudaSuccess;
}
