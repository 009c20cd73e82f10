/* queue.cc -- does the work of deferred and random streams. The thread that waits for a piece of
 * work does it, whichever thread issued it. Only one thread at a time works on a stream; others
 * wait for it. No lock is held during a piece of work.
 *
 * Kernels and copies wait for nobody. A host function may wait for a host function of a peer, on
 * any stream or in another process. While one runs, every stream with a pending host function has
 * its own thread, which does the stream's work up to that function, as a GPU would. So these
 * functions meet, whatever the order in which the ranks wait for their streams. A stream also gets
 * a thread if its owner queries it again and again, and if no work was done anywhere for a while:
 * the host may be waiting for a thread that waits for that stream. */
#include "tests/emu/device/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PATIENCE = 400 }; /* milliseconds */

/* A piece of work, followed by its context. */
struct EmuOp {
    void (*work)(void *context); /* NULL: waits for the EmuPoint in the context */
    struct EmuOp *next;
    bool host;
    alignas(128) unsigned char context[];
};

/* Protects all streams. `moved` is signalled whenever a stream has completed work. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static int host_functions;    /* number of host functions running */
static int others;            /* number of other pieces of work running */
static int64_t changes;       /* pieces of work issued plus pieces completed */
static bool somebody_watches; /* the thread that looks for stalled streams exists */
static __thread int64_t issued_here;
static cudaStream_t last_closed;

int64_t emu_host_thread(void)
{
    static int64_t threads;
    static __thread int64_t number;
    if (number == 0) number = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
    return number;
}

/* ---- work ------------------------------------------------------------------------------------ */

static bool advance(EmuPoint to, bool asks);
static void help_streams(void);

void emu_on_device(int device, void (*work)(void *), void *context)
{
    int before = emu_current_device();
    if (before == device) {
        work(context);
        return;
    }
    emu_set_current_device(device);
    work(context);
    emu_set_current_device(before);
}

/* Does the stream's first piece of work. Called with the lock held, which is released during the
 * work. Returns false if the work would block a thread that only queries. */
static bool do_first(cudaStream_t stream, bool asks)
{
    EmuOp *op = stream->first;
    bool done = true;
    if (asks && op->host) return false;
    stream->runs = true;
    stream->runner = pthread_self();
    if (op->work == NULL) {
        done = advance(*(const EmuPoint *)op->context, asks);
    } else {
        *(op->host ? &host_functions : &others) += 1;
        if (op->host) help_streams();
        pthread_mutex_unlock(&lock);
        emu_on_device(stream->device, op->work, op->context);
        pthread_mutex_lock(&lock);
        *(op->host ? &host_functions : &others) -= 1;
    }
    stream->runs = false;
    if (done) {
        stream->first = op->next;
        if (op->next == NULL) stream->last = NULL;
        stream->done++;
        changes++;
        free(op);
    }
    pthread_cond_broadcast(&moved);
    return done;
}

/* Does the stream's work up to the point. Called with the lock held. A thread that only queries
 * (`asks`) must not be blocked by host functions or by another thread working on the stream: then
 * the rest is left to others, and the result is false. */
static bool advance(EmuPoint to, bool asks)
{
    cudaStream_t stream = to.stream;
    while (stream->done < to.point) {
        if (!stream->runs) {
            if (!do_first(stream, asks)) return false;
        } else if (asks) {
            return false;
        } else if (pthread_equal(stream->runner, pthread_self())) {
            emu_die("a stream's work waits for later work of its own");
        } else {
            pthread_cond_wait(&moved, &lock);
        }
    }
    return true;
}

/* ---- threads for streams --------------------------------------------------------------------- */

static bool wants_help(const struct CUstream_st *s)
{
    return s->done < s->wanted || (host_functions > 0 && s->done < s->last_host);
}

static void *help_stream(void *context)
{
    cudaStream_t stream = (cudaStream_t)context;
    pthread_mutex_lock(&lock);
    while (wants_help(stream))
        if (stream->runs)
            pthread_cond_wait(&moved, &lock);
        else
            do_first(stream, false);
    stream->helped = false;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void start_thread(void *(*body)(void *), void *context)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, context) != 0) emu_die("no thread for a stream");
    pthread_detach(thread);
}

/* Starts a thread for the stream if it needs one. Called with the lock held. */
static void help(cudaStream_t stream)
{
    if (stream->helped || !wants_help(stream)) return;
    start_thread(help_stream, stream);
    stream->helped = true;
}

static void help_streams(void)
{
    for (int device = 0; device < EMU_DEVICES_MOST; device++)
        for (cudaStream_t s = emu_default_stream(device); s != NULL; s = s->next)
            help(s);
}

/* Makes the stream work up to the point on its own thread. */
static void send_on(cudaStream_t stream, int64_t point)
{
    if (stream->wanted < point) stream->wanted = point;
    help(stream);
}

/* Returns whether any stream has pending host functions. If `really`, makes those streams work on
 * their own threads. */
static bool send_all_on(bool really)
{
    bool any = false;
    for (int device = 0; device < EMU_DEVICES_MOST; device++) {
        for (cudaStream_t s = emu_default_stream(device); s != NULL; s = s->next) {
            if (s->done >= s->last_host) continue;
            any = true;
            if (really) send_on(s, s->last_host);
        }
    }
    return any;
}

/* Runs while host functions are pending: makes their streams work if nothing has changed for a
 * while. */
static void *watch(void *)
{
    struct timespec patience = {PATIENCE / 1000, PATIENCE % 1000 * 1000000L};
    int64_t before = -1;
    pthread_mutex_lock(&lock);
    while (send_all_on(changes == before && others == 0)) {
        before = changes;
        pthread_mutex_unlock(&lock);
        nanosleep(&patience, NULL);
        pthread_mutex_lock(&lock);
    }
    somebody_watches = false;
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- random streams -------------------------------------------------------------------------- */

/* A device's random numbers: the seed and the state. */
typedef struct {
    uint64_t seed, state;
    bool started;
} Chance;

static Chance chances[EMU_DEVICES_MOST];

/* Returns the device's random numbers. Restarts them if EMU_SEED has changed. */
static Chance *chance_of(int device)
{
    Chance *chance = &chances[device];
    const char *word = getenv("EMU_SEED");
    char *end = NULL;
    uint64_t seed = word != NULL ? strtoull(word, &end, 10) : 0;
    if (word != NULL && (*word == 0 || *end != 0))
        emu_die("EMU_SEED is a number, not \"%s\"", word);
    if (chance->started && chance->seed == seed) return chance;
    *chance = {seed, (seed + 1) * 0x9e3779b97f4a7c15 + (uint64_t)device, true};
    for (cudaStream_t s = emu_default_stream(device); s != NULL; s = s->next)
        s->mood = EmuMood::UNKNOWN;
    return chance;
}

/* Returns the next random number below n. */
static uint64_t draw(Chance *chance, uint64_t n)
{
    uint64_t x = chance->state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return (x ^ x >> 31) % n;
}

/* Returns how much of its remaining work the stream does now. */
static int64_t drawn_length(Chance *chance, cudaStream_t stream, int64_t left)
{
    enum { MOODS = 3, STEPS_IN_A_MOOD = 64 };
    if (stream->mood == EmuMood::UNKNOWN || draw(chance, STEPS_IN_A_MOOD) == 0)
        stream->mood = (EmuMood)(1 + draw(chance, MOODS));
    if (stream->mood == EmuMood::LAZY) return 0;
    if (stream->mood == EmuMood::EAGER) return left;
    return draw(chance, 2) ? (int64_t)draw(chance, (uint64_t)left + 1) : 0;
}

/* Decides randomly which of the device's streams work, and how far. Called with the lock held. */
static void go_on_by_chance(int device)
{
    Chance *chance = chance_of(device);
    for (cudaStream_t s = emu_default_stream(device); s != NULL; s = s->next) {
        int64_t left = s->issued - s->done;
        if (left == 0) continue;
        EmuPoint to = {s, s->issued - left + drawn_length(chance, s, left)};
        if (!advance(to, true)) send_on(s, to.point);
    }
}

/* ---- called by streams and events ------------------------------------------------------------ */

void emu_queue_open(cudaStream_t stream)
{
    cudaStream_t first = emu_default_stream(stream->device);
    pthread_mutex_lock(&lock);
    stream->next = first->next;
    first->next = stream;
    pthread_mutex_unlock(&lock);
}

/* The stream's `next` is kept for threads that are walking along the list. */
void emu_queue_close(cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    for (cudaStream_t s = emu_default_stream(stream->device); s != NULL; s = s->next)
        if (s->next == stream) s->next = stream->next;
    stream->closed_before = last_closed;
    last_closed = stream;
    pthread_mutex_unlock(&lock);
}

void emu_queue_add(cudaStream_t stream, void (*work)(void *), const void *context, size_t bytes,
                   bool host)
{
    const size_t line = alignof(EmuOp); /* of the context: it may be a launch's with tensor maps */
    EmuOp *op = (EmuOp *)aligned_alloc(line, (sizeof *op + bytes + line - 1) & ~(line - 1));
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
    stream->asker = emu_host_thread();
    issued_here++;
    changes++;
    if (host) {
        stream->last_host = stream->issued;
        if (!somebody_watches) start_thread(watch, NULL);
        somebody_watches = true;
    }
    if (host_functions > 0) help(stream);
    if (emu_streams_mode() == EmuStreams::RANDOM) go_on_by_chance(stream->device);
    pthread_mutex_unlock(&lock);
}

void emu_queue_join(cudaStream_t stream, cudaStream_t other)
{
    EmuPoint now = emu_queue_now(other);
    if (now.point > 0) emu_queue_add(stream, NULL, &now, sizeof now, false);
}

EmuPoint emu_queue_now(cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    EmuPoint now = {stream, stream->issued};
    pthread_mutex_unlock(&lock);
    return now;
}

void emu_queue_reach(EmuPoint to)
{
    pthread_mutex_lock(&lock);
    if (emu_streams_mode() == EmuStreams::RANDOM) go_on_by_chance(to.stream->device);
    advance(to, false);
    pthread_mutex_unlock(&lock);
}

bool emu_queue_reached(EmuPoint to, int64_t asker)
{
    cudaStream_t stream = to.stream;
    pthread_mutex_lock(&lock);
    bool reached = stream->done >= to.point;
    if (asker == emu_host_thread() && !reached) {
        if (emu_streams_mode() == EmuStreams::RANDOM) {
            go_on_by_chance(stream->device);
            reached = stream->done >= to.point;
        } else if (!advance(to, true) && stream->asked == issued_here) {
            send_on(stream, to.point);
        }
        stream->asked = issued_here;
    }
    pthread_mutex_unlock(&lock);
    return reached;
}
