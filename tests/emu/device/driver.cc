/* driver.cc -- what a real driver does besides the work that it is asked for. It may wait for the
 * work of other devices, it makes other threads wait for its lock, and it cannot be used in a
 * forked child.
 *
 * EMU_MEMORY_CALLS chooses what four calls wait for (cudaMalloc, cudaFree, cudaMallocHost,
 * cudaFreeHost), and what the loading of a kernel waits for:
 *
 * - own (the default): only for what the call itself needs
 * - wait: for all streams of all devices of this process, as between GPUs with peer access
 * - lock: for the same; until it is over, no other thread of the process can enqueue work
 *
 * A kernel is loaded on a device by cudaFuncGetAttributes or cudaFuncSetAttribute, else by its
 * first launch. A product of cuBLASLt loads its kernel at its first launch. Strict streams have no
 * work that a call could wait for.
 *
 * EMU_LOADS=before refuses to load a kernel or to page-lock host memory on a device that has an
 * NCCL communicator: on a real GPU this may wait for a call that waits for this host.
 *
 * EMU_JITTER, a number, delays hosts at random: before each of these calls for up to MEMORY_DELAY,
 * and now and then before work is enqueued for up to WORK_DELAY. It is the seed of the delays. */
#include "tests/emu/device/emu.h"

#include <atomic>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MEMORY_DELAY = 10000, WORK_DELAY = 4000, WORKS_PER_DELAY = 64 }; /* delays in microseconds */

/* ---- delays ---------------------------------------------------------------------------------- */

/* Returns the next random number of this thread, which depends on the seed and on its device. */
static uint64_t draw(uint64_t seed)
{
    static __thread uint64_t state;
    if (state == 0) state = (seed + 1) * 0x9e3779b97f4a7c15 + (uint64_t)emu_current_device();
    uint64_t x = state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* Delays this thread in one of `chance` cases, for less than `most` microseconds. */
static void delay(uint64_t chance, uint64_t most)
{
    const char *word = getenv("EMU_JITTER");
    if (word == NULL) return;
    char *end = NULL;
    uint64_t seed = strtoull(word, &end, 10);
    if (*word == 0 || *end != 0) emu_die("EMU_JITTER is a number, not \"%s\"", word);
    uint64_t x = draw(seed);
    if (x % chance != 0) return;
    struct timespec time = {0, (long)(x / chance % most) * 1000};
    nanosleep(&time, NULL);
}

/* ---- waits and the lock ---------------------------------------------------------------------- */

enum class MemoryCalls { OWN, WAIT, LOCK };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread bool holds;

static MemoryCalls memory_calls(void)
{
    const char *word = getenv("EMU_MEMORY_CALLS");
    if (word == NULL || strcmp(word, "own") == 0) return MemoryCalls::OWN;
    if (strcmp(word, "wait") == 0) return MemoryCalls::WAIT;
    if (strcmp(word, "lock") == 0) return MemoryCalls::LOCK;
    emu_die("EMU_MEMORY_CALLS is own, wait or lock, not \"%s\"", word);
}

void emu_driver_works(void)
{
    delay(WORKS_PER_DELAY, WORK_DELAY);
    if (holds || memory_calls() != MemoryCalls::LOCK) return;
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}

EmuDriverCall::EmuDriverCall()
{
    MemoryCalls how = memory_calls();
    delay(1, MEMORY_DELAY);
    mine = how == MemoryCalls::LOCK && !holds;
    if (mine) pthread_mutex_lock(&lock);
    if (mine) holds = true;
    for (int d = 0; d < EMU_DEVICES_MOST && how != MemoryCalls::OWN; d++)
        emu_streams_wait(d);
}

EmuDriverCall::~EmuDriverCall()
{
    if (mine) holds = false;
    if (mine) pthread_mutex_unlock(&lock);
}

/* ---- loaded kernels -------------------------------------------------------------------------- */

enum { LOADED_MOST = 1 << 15 };

/* A hash table of what has been loaded, and on which devices: one bit for each. */
static struct {
    uint64_t what;
    unsigned devices;
} loaded[LOADED_MOST];
static pthread_mutex_t loaded_lock = PTHREAD_MUTEX_INITIALIZER;

/* Marks `what` as loaded on the device. Returns whether it was loaded there before. */
static bool mark_loaded(uint64_t what, int device)
{
    uint64_t at = what * 0x9e3779b97f4a7c15 >> 49, tried = 0;
    pthread_mutex_lock(&loaded_lock);
    while (loaded[at].devices != 0 && loaded[at].what != what && tried++ < LOADED_MOST)
        at = (at + 1) % LOADED_MOST;
    if (tried > LOADED_MOST) emu_die("more than %d kernels", LOADED_MOST);
    bool before = (loaded[at].devices >> device & 1) != 0;
    loaded[at].what = what;
    loaded[at].devices |= 1u << device;
    pthread_mutex_unlock(&loaded_lock);
    return before;
}

static int communicators[EMU_DEVICES_MOST];

void emu_driver_connected(int device, int more)
{
    __atomic_fetch_add(&communicators[device], more, __ATOMIC_RELAXED);
}

/* Returns whether it is too late to load a kernel or to page-lock memory: EMU_LOADS is set, and the
 * device has a communicator. */
static bool is_late(int device)
{
    const char *when = getenv("EMU_LOADS");
    if (when == NULL) return false;
    if (strcmp(when, "before") != 0) emu_die("EMU_LOADS is before, not \"%s\"", when);
    return __atomic_load_n(&communicators[device], __ATOMIC_RELAXED) > 0;
}

bool emu_driver_load(uint64_t what)
{
    int device = emu_current_device();
    bool late = is_late(device);
    if (mark_loaded(what, device)) return false;
    if (late) emu_die("a kernel is loaded on device %d, which has an NCCL communicator", device);
    EmuDriverCall call;
    return true;
}

void emu_driver_page_locks(void)
{
    int device = emu_current_device();
    if (is_late(device))
        emu_die("host memory is page-locked on device %d, which has an NCCL communicator", device);
}

/* ---- processes ------------------------------------------------------------------------------- */

static std::atomic<bool> used, inherited;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void in_child(void)
{
    if (used) inherited = true;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* EMU_FORK=allow: children may use CUDA all the same, for tests that let a child die. */
bool emu_driver_refuses(void)
{
    if (!used) pthread_once(&once, watch_forks);
    if (!used) used = true;
    if (!inherited) return false;
    const char *word = getenv("EMU_FORK");
    return word == NULL || strcmp(word, "allow") != 0;
}
