/* stream.cc -- streams and events. Work is done when it is asked for; with EMU_STREAMS=deferred
 * only when somebody has to wait for it, each stream by itself and no further than the wait
 * reaches. Then host code that looks or overwrites too early, and streams that forget to wait for
 * each other, see what they would see at worst on a GPU.
 *
 * Deferred work is done by the thread that waits for it, whichever thread asked for it: one stream
 * has one thread at a time, others wait for that one. No lock is held over a piece of work, so work
 * of two streams may wait for each other where two threads run them. */
#include "tests/emu/emu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALIVE_STREAM = 0x53545245, ALIVE_EVENT = 0x45564e54 };

/* How far a stream has come: its point-th piece of work is done. */
typedef struct {
    cudaStream_t stream;
    int64_t point;
} Point;

/* A piece of work with its context behind it. */
typedef struct Op {
    void (*work)(void *context); /* NULL: waits for the Point that is its context */
    struct Op *next;
    bool host; /* a function of the host's, which may wait for somebody */
    alignas(16) unsigned char context[];
} Op;

struct CUstream_st {
    int alive;
    bool blocking; /* waits for the default stream, and it for this one */
    Op *first, *last;
    int64_t issued, done;
    bool runs; /* `runner` is at its first piece of work */
    pthread_t runner;
    struct CUstream_st *next; /* in the list of all, which are never freed */
};

/* The point of a stream that was last recorded. */
struct CUevent_st {
    int alive;
    bool timing;
    Point at; /* stream NULL: not recorded yet */
    double seconds;
};

/* All that changes in streams and events; `moved` is told of all that streams have done. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static struct CUstream_st default_stream = {.alive = ALIVE_STREAM};
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

static bool advance(Point to, bool asks);

/* The stream's first piece of work, under the lock, which is open while it is done. False when
 * somebody who only asks would have to wait for it. */
static bool do_first(cudaStream_t stream, bool asks)
{
    Op *op = stream->first;
    bool done = true;
    if (asks && op->host) return false;
    stream->runs = true;
    stream->runner = pthread_self();
    if (op->work == NULL) {
        done = advance(*(const Point *)op->context, asks);
    } else {
        pthread_mutex_unlock(&lock);
        op->work(op->context);
        pthread_mutex_lock(&lock);
    }
    stream->runs = false;
    if (done) {
        stream->first = op->next;
        if (op->next == NULL) stream->last = NULL;
        stream->done++;
        free(op);
    }
    pthread_cond_broadcast(&moved);
    return done;
}

/* Does what the stream was asked for, up to the point; under the lock. Somebody who only asks how
 * far it is must not be held up by the host's functions, nor by who is at work on a stream: the
 * rest is left to who waits, and the answer is false. */
static bool advance(Point to, bool asks)
{
    cudaStream_t stream = to.stream;
    while (stream->done < to.point) {
        if (!stream->runs) {
            if (!do_first(stream, asks)) return false;
        } else if (asks) {
            return false;
        } else if (pthread_equal(stream->runner, pthread_self())) {
            emu_die("a stream's work waits for work behind it");
        } else {
            pthread_cond_wait(&moved, &lock);
        }
    }
    return true;
}

/* Runs a stream up to a point, -1: all that was asked; whether there was anything left to do. */
static bool catch_up(cudaStream_t stream, int64_t point, bool asks)
{
    pthread_mutex_lock(&lock);
    if (point < 0) point = stream->issued;
    bool behind = stream->done < point;
    advance({stream, point}, asks);
    pthread_mutex_unlock(&lock);
    return behind;
}

static void catch_up_all(bool blocking_only)
{
    pthread_mutex_lock(&lock);
    for (cudaStream_t s = all_streams; s != NULL; s = s->next)
        if (s->blocking || !blocking_only) advance({s, s->issued}, false);
    pthread_mutex_unlock(&lock);
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
    pthread_mutex_lock(&lock);
    if (stream->last != NULL)
        stream->last->next = op;
    else
        stream->first = op;
    stream->last = op;
    stream->issued++;
    pthread_mutex_unlock(&lock);
}

/* Before work is given to the stream: the default stream and those that block wait for each other.
 */
static void join_default(cudaStream_t stream)
{
    if (stream == &default_stream) catch_up_all(true);
    if (stream->blocking) catch_up(&default_stream, -1, false);
}

static void stream_do(cudaStream_t name, void (*work)(void *), void *context, size_t bytes,
                      bool host)
{
    cudaStream_t stream = stream_of(name);
    if (stream == NULL) emu_die("work for a stream that does not exist (any more)");
    if (!deferred()) {
        if (work != NULL) work(context);
        return;
    }
    join_default(stream);
    append(stream, work, context, bytes, host);
}

void emu_stream_do(cudaStream_t stream, void (*work)(void *), void *context, size_t bytes)
{
    stream_do(stream, work, context, bytes, false);
}

void emu_stream_wait(cudaStream_t stream)
{
    catch_up(stream_of(stream), -1, false);
}

void emu_streams_wait(void)
{
    catch_up_all(false);
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

static void stamp(void *context)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&lock);
    (*(cudaEvent_t *)context)->seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    pthread_mutex_unlock(&lock);
}

/* The point that was recorded last; stream NULL: none. */
static Point event_point(cudaEvent_t event)
{
    pthread_mutex_lock(&lock);
    Point at = event->at;
    pthread_mutex_unlock(&lock);
    return at;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    if (stream_of(stream) == NULL || !is_event(event))
        return emu_error(cudaErrorInvalidResourceHandle);
    Point at = event_point(event);
    if (at.stream != NULL) stream_do(stream, NULL, &at, sizeof at, false);
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
    Point at = event_point(event);
    if (at.stream != NULL && event->timing) catch_up(at.stream, at.point, false);
    event->alive = 0;
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (!is_event(event) || stream_of(stream) == NULL)
        return emu_error(cudaErrorInvalidResourceHandle);
    if (event->timing) emu_stream_do(stream, stamp, &event, sizeof event);
    pthread_mutex_lock(&lock);
    event->at = {stream_of(stream), stream_of(stream)->issued};
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* An event that was never recorded has happened. */
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (!is_event(event)) return emu_error(cudaErrorInvalidResourceHandle);
    Point at = event_point(event);
    if (at.stream != NULL) catch_up(at.stream, at.point, false);
    emu_count_wait();
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (!is_event(event)) return emu_error(cudaErrorInvalidResourceHandle);
    Point at = event_point(event);
    bool behind = at.stream != NULL && catch_up(at.stream, at.point, true);
    return behind ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    if (!is_event(start) || !is_event(end) || !start->timing || !end->timing ||
        !event_point(start).stream || !event_point(end).stream)
        return emu_error(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    double from = start->seconds, to = end->seconds;
    pthread_mutex_unlock(&lock);
    if (from == 0 || to == 0) return emu_error(cudaErrorNotReady);
    *milliseconds = (float)((to - from) * 1e3);
    return cudaSuccess;
}
