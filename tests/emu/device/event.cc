/* event.cc -- events: recorded points of streams that other streams and the host can wait for. An
 * event belongs to the device that was current at its creation, and can be recorded only on that
 * device's streams. Anybody may wait for it. */
#include "tests/emu/device/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ALIVE_EVENT = 0x45564e54 };

/* An event: the point of a stream at which it was most recently recorded. */
struct CUevent_st {
    int alive, device;
    bool timing;
    EmuPoint at;      /* stream NULL: never recorded */
    int64_t recorder; /* the thread that recorded it */
    int stamps;       /* number of time stamps still to be written to it */
    double seconds;
};

/* Protects all events, which any thread may record. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int64_t timed; /* number of records that write a time stamp */

int64_t emu_count_timed_records(void)
{
    pthread_mutex_lock(&lock);
    int64_t n = timed;
    pthread_mutex_unlock(&lock);
    return n;
}

static bool is_event(cudaEvent_t event)
{
    return event != NULL && event->alive == ALIVE_EVENT;
}

/* Writes the time to the event, and frees the event if it was destroyed meanwhile. */
static void stamp(void *context)
{
    cudaEvent_t event = *(cudaEvent_t *)context;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&lock);
    event->seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    bool last = --event->stamps == 0 && event->alive == 0;
    pthread_mutex_unlock(&lock);
    if (last) free(event);
}

/* Returns the point that was recorded last; stream NULL: none. */
static EmuPoint event_point(cudaEvent_t event, int64_t *recorder)
{
    pthread_mutex_lock(&lock);
    EmuPoint at = event->at;
    if (recorder != NULL) *recorder = event->recorder;
    pthread_mutex_unlock(&lock);
    return at;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    EMU_CALL();
    if (emu_stream_check(stream) != cudaSuccess || !is_event(event))
        return emu_error(cudaErrorInvalidResourceHandle);
    EmuPoint at = event_point(event, NULL);
    if (at.stream != NULL) emu_stream_wait_for(stream, at);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    EMU_CALL();
    emu_count_allocation();
    *event = (cudaEvent_t)calloc(1, sizeof **event);
    if (*event == NULL) return emu_error(cudaErrorMemoryAllocation);
    (*event)->alive = ALIVE_EVENT;
    (*event)->device = emu_current_device();
    (*event)->timing = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    EMU_CALL();
    if (!is_event(event)) return emu_error(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    event->alive = 0;
    bool last = event->stamps == 0;
    pthread_mutex_unlock(&lock);
    if (last) free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    EMU_CALL();
    if (!is_event(event) || emu_stream_check(stream) != cudaSuccess)
        return emu_error(cudaErrorInvalidResourceHandle);
    if (emu_stream_device(stream) != event->device)
        emu_die("an event of device %d recorded on a stream of device %d", event->device,
                emu_stream_device(stream));
    pthread_mutex_lock(&lock);
    event->stamps += event->timing;
    timed += event->timing;
    pthread_mutex_unlock(&lock);
    if (event->timing) emu_stream_do(stream, stamp, &event, sizeof event);
    EmuPoint now = emu_queue_now(emu_stream_of(stream));
    pthread_mutex_lock(&lock);
    event->at = now;
    event->recorder = emu_host_thread();
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* An event that was never recorded counts as complete. */
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    EMU_CALL();
    if (!is_event(event)) return emu_error(cudaErrorInvalidResourceHandle);
    EmuPoint at = event_point(event, NULL);
    if (at.stream != NULL) emu_queue_reach(at);
    emu_count_wait();
    return cudaSuccess;
}

/* With EMU_QUERY=block a query returns only when the event is complete, as when another thread has
 * the driver's lock while it waits for the device. */
static bool query_blocks(void)
{
    const char *word = getenv("EMU_QUERY");
    if (word != NULL && strcmp(word, "block") != 0) emu_die("EMU_QUERY is block, not \"%s\"", word);
    return word != NULL;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    EMU_CALL();
    if (!is_event(event)) return emu_error(cudaErrorInvalidResourceHandle);
    int64_t recorder;
    EmuPoint at = event_point(event, &recorder);
    bool blocks = query_blocks(), reached = at.stream == NULL || emu_queue_reached(at, recorder);
    while (blocks && !reached) {
        usleep(1000);
        reached = emu_queue_reached(at, recorder);
    }
    return reached ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    EMU_CALL();
    if (!is_event(start) || !is_event(end) || !start->timing || !end->timing ||
        !event_point(start, NULL).stream || !event_point(end, NULL).stream)
        return emu_error(cudaErrorInvalidResourceHandle);
    if (start->device != end->device)
        emu_die("the time from an event of device %d to one of device %d", start->device,
                end->device);
    pthread_mutex_lock(&lock);
    double from = start->seconds, to = end->seconds;
    pthread_mutex_unlock(&lock);
    if (from == 0 || to == 0) return emu_error(cudaErrorNotReady);
    *milliseconds = (float)((to - from) * 1e3);
    return cudaSuccess;
}
