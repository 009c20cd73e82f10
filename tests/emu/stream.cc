/* stream.cc -- streams and events. Work is done when it is asked for; with EMU_STREAMS=deferred
 * only when somebody has to wait for it, each stream by itself and no further than the wait
 * reaches. Then host code that looks or overwrites too early, and streams that forget to wait for
 * each other, see what they would see at worst on a GPU. */
#include "tests/emu/emu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALIVE_STREAM = 0x53545245, ALIVE_EVENT = 0x45564e54 };

/* A piece of work with its context behind it. */
typedef struct Op {
    void (*work)(void *context);
    struct Op *next;
    bool host; /* a function of the host's, which may wait for somebody */
    alignas(16) unsigned char context[];
} Op;

struct CUstream_st {
    int alive;
    bool blocking; /* waits for the default stream, and it for this one */
    Op *first, *last;
    int64_t issued, done;
    struct CUstream_st *next; /* in the list of all, which are never freed */
};

/* The point of a stream that was last recorded. */
struct CUevent_st {
    int alive;
    bool timing;
    cudaStream_t stream; /* NULL: not recorded yet */
    int64_t point;
    double seconds;
};

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct CUstream_st default_stream = {ALIVE_STREAM, false, NULL, NULL, 0, 0, NULL};
static cudaStream_t all_streams = &default_stream;

static bool deferred(void)
{
    const char *word = getenv("EMU_STREAMS");
    return word != NULL && strcmp(word, "deferred") == 0;
}

/* The default streams have small numbers instead of addresses. NULL: no stream. */
static cudaStream_t stream_of(cudaStream_t stream)
{
    if ((uintptr_t)stream <= 2) return &default_stream;
    return stream->alive == ALIVE_STREAM ? stream : NULL;
}

static bool is_event(cudaEvent_t event)
{
    return event != NULL && event->alive == ALIVE_EVENT;
}

cudaError_t emu_stream_check(cudaStream_t stream)
{
    return stream_of(stream) ? cudaSuccess : emu_error(cudaErrorInvalidResourceHandle);
}

/* ---- work ------------------------------------------------------------------------------------ */

/* Does what the stream was asked for, up to its point-th piece; somebody who only asks how far it
 * is must not be held up by the host's functions: they are left to who waits. */
static void run_until(cudaStream_t stream, int64_t point, bool asks)
{
    while (stream->done < point && !(asks && stream->first->host)) {
        Op *op = stream->first;
        stream->first = op->next;
        if (op->next == NULL) stream->last = NULL;
        op->work(op->context);
        stream->done++;
        free(op);
    }
}

static void run_all(bool blocking_only)
{
    for (cudaStream_t s = all_streams; s != NULL; s = s->next)
        if (s->blocking || !blocking_only) run_until(s, s->issued, false);
}

static void append(cudaStream_t stream, void (*work)(void *), const void *context, size_t bytes,
                   bool host)
{
    Op *op = (Op *)malloc(sizeof *op + bytes);
    if (op == NULL) emu_die("no memory for a stream's work");
    op->work = work;
    op->next = NULL;
    op->host = host;
    memcpy(op->context, context, bytes);
    if (stream->last != NULL)
        stream->last->next = op;
    else
        stream->first = op;
    stream->last = op;
    stream->issued++;
}

static void stream_do(cudaStream_t name, void (*work)(void *), void *context, size_t bytes,
                      bool host)
{
    cudaStream_t stream = stream_of(name);
    if (stream == NULL) emu_die("work for a stream that does not exist (any more)");
    if (!deferred()) {
        work(context);
        return;
    }
    pthread_mutex_lock(&lock);
    if (stream == &default_stream) run_all(true);
    if (stream->blocking) run_until(&default_stream, default_stream.issued, false);
    append(stream, work, context, bytes, host);
    pthread_mutex_unlock(&lock);
}

void emu_stream_do(cudaStream_t stream, void (*work)(void *), void *context, size_t bytes)
{
    stream_do(stream, work, context, bytes, false);
}

/* Runs a stream up to a point, -1: all that was asked; whether there was anything left to do. */
static bool catch_up(cudaStream_t stream, int64_t point, bool asks)
{
    pthread_mutex_lock(&lock);
    if (point < 0) point = stream->issued;
    bool behind = stream->done < point;
    run_until(stream, point, asks);
    pthread_mutex_unlock(&lock);
    return behind;
}

void emu_stream_wait(cudaStream_t stream)
{
    catch_up(stream_of(stream), -1, false);
}

void emu_streams_wait(void)
{
    pthread_mutex_lock(&lock);
    run_all(false);
    pthread_mutex_unlock(&lock);
}

bool emu_streams_deferred(void)
{
    return deferred();
}

/* ---- streams --------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    if (flags > cudaStreamNonBlocking || priority > 5) return emu_error(cudaErrorInvalidValue);
    cudaStream_t s = (cudaStream_t)calloc(1, sizeof *s);
    if (s == NULL) return emu_error(cudaErrorMemoryAllocation);
    s->alive = ALIVE_STREAM;
    s->blocking = flags != cudaStreamNonBlocking;
    pthread_mutex_lock(&lock);
    s->next = all_streams;
    all_streams = s;
    pthread_mutex_unlock(&lock);
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
    if (stream_of(stream) == NULL || stream_of(stream) == &default_stream)
        return emu_error(cudaErrorInvalidResourceHandle);
    catch_up(stream, -1, false);
    stream->alive = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (emu_stream_check(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
    catch_up(stream_of(stream), -1, false);
    emu_count_wait();
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    if (emu_stream_check(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
    return catch_up(stream_of(stream), -1, true) ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    emu_streams_wait();
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

/* In the thread of who waits for the stream. */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    HostCall call = {function, data};
    if (emu_stream_check(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
    stream_do(stream, call_host, &call, sizeof call, true);
    return cudaSuccess;
}

/* ---- events ---------------------------------------------------------------------------------- */

typedef struct {
    cudaStream_t stream;
    int64_t point;
} Point;

static void wait_for_point(void *context)
{
    const Point *p = (const Point *)context;
    catch_up(p->stream, p->point, false);
}

static void stamp(void *context)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    (*(cudaEvent_t *)context)->seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    if (stream_of(stream) == NULL || !is_event(event))
        return emu_error(cudaErrorInvalidResourceHandle);
    Point point = {event->stream, event->point};
    if (event->stream != NULL) emu_stream_do(stream, wait_for_point, &point, sizeof point);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    emu_count_allocation();
    *event = (cudaEvent_t)calloc(1, sizeof **event);
    if (*event == NULL) return emu_error(cudaErrorMemoryAllocation);
    (*event)->alive = ALIVE_EVENT;
    (*event)->timing = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (!is_event(event)) return emu_error(cudaErrorInvalidResourceHandle);
    if (event->stream != NULL && event->timing) catch_up(event->stream, event->point, false);
    event->alive = 0;
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (!is_event(event) || stream_of(stream) == NULL)
        return emu_error(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    if (event->timing) emu_stream_do(stream, stamp, &event, sizeof event);
    event->stream = stream_of(stream);
    event->point = event->stream->issued;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* An event that was never recorded has happened. */
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (!is_event(event)) return emu_error(cudaErrorInvalidResourceHandle);
    if (event->stream != NULL) catch_up(event->stream, event->point, false);
    emu_count_wait();
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (!is_event(event)) return emu_error(cudaErrorInvalidResourceHandle);
    bool behind = event->stream != NULL && catch_up(event->stream, event->point, true);
    return behind ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    if (!is_event(start) || !is_event(end) || !start->timing || !end->timing || !start->stream ||
        !end->stream)
        return emu_error(cudaErrorInvalidResourceHandle);
    if (start->seconds == 0 || end->seconds == 0) return emu_error(cudaErrorNotReady);
    *milliseconds = (float)((end->seconds - start->seconds) * 1e3);
    return cudaSuccess;
}
