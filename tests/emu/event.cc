/* event.cc -- events: points of streams that were recorded, for other streams and the host to wait
 * for. */
#include "tests/emu/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { ALIVE_EVENT = 0x45564e54 };

/* The point of a stream that was last recorded. */
struct CUevent_st {
    int alive;
    bool timing;
    EmuPoint at; /* stream NULL: not recorded yet */
    double seconds;
};

/* What is recorded, by whichever thread. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_event(cudaEvent_t event)
{
    return event != NULL && event->alive == ALIVE_EVENT;
}

static void stamp(void *context)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&lock);
    (*(cudaEvent_t *)context)->seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    pthread_mutex_unlock(&lock);
}

/* The point that was recorded last; stream NULL: none. */
static EmuPoint event_point(cudaEvent_t event)
{
    pthread_mutex_lock(&lock);
    EmuPoint at = event->at;
    pthread_mutex_unlock(&lock);
    return at;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    if (emu_stream_check(stream) != cudaSuccess || !is_event(event))
        return emu_error(cudaErrorInvalidResourceHandle);
    EmuPoint at = event_point(event);
    if (at.stream != NULL) emu_stream_wait_for(stream, at);
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
    EmuPoint at = event_point(event);
    if (at.stream != NULL && event->timing) emu_stream_reach(at, false);
    event->alive = 0;
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (!is_event(event) || emu_stream_check(stream) != cudaSuccess)
        return emu_error(cudaErrorInvalidResourceHandle);
    if (event->timing) emu_stream_do(stream, stamp, &event, sizeof event);
    EmuPoint now = emu_stream_now(stream);
    pthread_mutex_lock(&lock);
    event->at = now;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* An event that was never recorded has happened. */
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (!is_event(event)) return emu_error(cudaErrorInvalidResourceHandle);
    EmuPoint at = event_point(event);
    if (at.stream != NULL) emu_stream_reach(at, false);
    emu_count_wait();
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (!is_event(event)) return emu_error(cudaErrorInvalidResourceHandle);
    EmuPoint at = event_point(event);
    bool behind = at.stream != NULL && emu_stream_reach(at, true);
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
