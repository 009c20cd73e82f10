/* stream.cc -- streams; events stand in event.cc. Work is done when it is asked for; with
 * EMU_STREAMS=deferred only when somebody has to wait for it, each stream by itself and no further
 * than the wait reaches. Then host code that looks or overwrites too early, and streams that forget
 * to wait for each other, see what they would see at worst on a GPU.
 *
 * Deferred work is done by the thread that waits for it, whichever thread asked for it: one stream
 * has one thread at a time, others wait for that one. No lock is held over a piece of work. Kernels
 * and copies wait for nobody; a function of the host's may, for a peer's on any stream. As long as
 * one runs, every stream that has work has a thread of its own that does it, as on a GPU: in
 * whatever order the ranks wait for their streams, those functions meet. */
#include "tests/emu/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ALIVE_STREAM = 0x53545245 };

/* A piece of work with its context behind it. */
typedef struct Op {
    void (*work)(void *context); /* NULL: waits for the EmuPoint that is its context */
    struct Op *next;
    bool host; /* a function of the host's, which may wait for somebody */
    alignas(16) unsigned char context[];
} Op;

struct CUstream_st {
    int alive, device;
    bool blocking; /* waits for the default stream, and it for this one */
    Op *first, *last;
    int64_t issued, done;
    bool runs;   /* `runner` is at its first piece of work */
    bool helped; /* it has a thread of its own, while functions of the host's run */
    pthread_t runner;
    struct CUstream_st *next; /* in the list of all, which are never freed */
};

/* All that changes in streams; `moved` is told of all that streams have done. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static int host_functions; /* that are running */
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

int emu_stream_device(cudaStream_t stream)
{
    if (stream_of(stream) == &default_stream) return emu_current_device();
    int device = -1;
    pthread_mutex_lock(&lock);
    for (cudaStream_t s = all_streams; s != NULL; s = s->next)
        if (s == stream && s->alive == ALIVE_STREAM) device = s->device;
    pthread_mutex_unlock(&lock);
    return device;
}

cudaError_t emu_stream_check(cudaStream_t stream)
{
    return stream_of(stream) ? cudaSuccess : emu_error(cudaErrorInvalidResourceHandle);
}

/* ---- work ------------------------------------------------------------------------------------ */

static bool advance(EmuPoint to, bool asks);
static void help_streams(void);

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
        done = advance(*(const EmuPoint *)op->context, asks);
    } else {
        host_functions += op->host;
        if (op->host) help_streams();
        pthread_mutex_unlock(&lock);
        op->work(op->context);
        pthread_mutex_lock(&lock);
        host_functions -= op->host;
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
static bool advance(EmuPoint to, bool asks)
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

/* Does a stream's work as long as functions of the host's run somewhere. */
static void *help_stream(void *context)
{
    cudaStream_t stream = (cudaStream_t)context;
    pthread_mutex_lock(&lock);
    while (host_functions > 0 && stream->done < stream->issued)
        if (stream->runs)
            pthread_cond_wait(&moved, &lock);
        else
            do_first(stream, false);
    stream->helped = false;
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* A thread for each stream that has work; under the lock. */
static void help_streams(void)
{
    for (cudaStream_t s = all_streams; s != NULL; s = s->next) {
        pthread_t thread;
        if (s->runs || s->helped || s->done == s->issued) continue;
        if (pthread_create(&thread, NULL, help_stream, s) != 0) emu_die("no thread for a stream");
        pthread_detach(thread);
        s->helped = true;
    }
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
    if (host_functions > 0) help_streams();
    pthread_mutex_unlock(&lock);
}

/* Before work is given to the stream: the default stream and those that block wait for each other.
 */
static void join_default(cudaStream_t stream)
{
    if (stream == &default_stream) catch_up_all(true);
    if (stream->blocking) catch_up(&default_stream, -1, false);
}

static void stream_do(cudaStream_t name, void (*work)(void *), const void *context, size_t bytes,
                      bool host)
{
    cudaStream_t stream = stream_of(name);
    if (stream == NULL) emu_die("work for a stream that does not exist (any more)");
    if (!deferred()) {
        if (work != NULL) work((void *)context);
        return;
    }
    join_default(stream);
    append(stream, work, context, bytes, host);
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

void emu_stream_wait(cudaStream_t stream)
{
    catch_up(stream_of(stream), -1, false);
}

void emu_streams_wait(void)
{
    catch_up_all(false);
}

EmuPoint emu_stream_now(cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    EmuPoint now = {stream_of(stream), stream_of(stream)->issued};
    pthread_mutex_unlock(&lock);
    return now;
}

bool emu_stream_reach(EmuPoint to, bool asks)
{
    return catch_up(to.stream, to.point, asks);
}

void emu_stream_wait_for(cudaStream_t stream, EmuPoint to)
{
    stream_do(stream, NULL, &to, sizeof to, false);
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
    s->device = emu_current_device();
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

/* In the thread of who waits for the stream, or one of its own. */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    HostCall call = {function, data};
    if (emu_stream_check(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
    stream_do(stream, call_host, &call, sizeof call, true);
    return cudaSuccess;
}
