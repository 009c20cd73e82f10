/* memory.cc -- device memory: separate pages, surrounded by guards, filled with poison, and
 * inaccessible to host code.
 *
 * An allocation ends at a guard, except for slack from the 256-byte alignment. The bytes before and
 * after it are checked after every kernel. Fresh pages are a private view of a file of 0xff bytes,
 * and use no memory until they are written. While no kernel and no copy runs, the pages cannot be
 * accessed, so that host code that follows a device pointer crashes as it would on a GPU. Closing
 * them takes time proportional to the memory. Until CLOSED_BYTES have been closed, it is done after
 * each of the first CLOSINGS kernels and copies, and whenever the host has waited, because that is
 * when host code would read results; later only after every 16th wait, and less and less often the
 * more bytes have been closed. */
#include "tests/emu/device/emu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGNMENT = 256, FREED_KEPT = 64, CLOSINGS = 500 };

static const size_t POISON_FILE = 4 << 20; /* size of the file in bytes */
static const size_t CLOSED_BYTES = (size_t)2 << 30;

typedef struct {
    char *base, *map; /* the caller's pointer; the whole mapping with its guards */
    size_t bytes, map_bytes;
    int device;
    bool freed; /* kept, so that error messages can name it */
} Allocation;

static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static Allocation *table;
static int n_table, table_capacity, n_freed;
static size_t bytes_used[EMU_DEVICES_MOST];

static pthread_mutex_t door_lock = PTHREAD_MUTEX_INITIALIZER;
static int users, closings, waits;
static size_t closed_bytes; /* of all closings */
static bool closed;

static size_t pages(size_t bytes)
{
    return (bytes + EMU_PAGE - 1) & ~(size_t)(EMU_PAGE - 1);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static int poison_file(void)
{
    static int file = -1;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (file < 0) {
        file = memfd_create("emu-poison", 0);
        if (file < 0 || ftruncate(file, POISON_FILE) != 0) emu_die("no file for poisoned memory");
        void *p = mmap(NULL, POISON_FILE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (p == MAP_FAILED) emu_die("no memory for poisoned pages");
        memset(p, EMU_POISON, POISON_FILE);
        munmap(p, POISON_FILE);
    }
    pthread_mutex_unlock(&lock);
    return file;
}

/* Maps `bytes` (whole pages) of poison between two guards. Returns NULL if there is no memory. */
static char *map_guarded(size_t bytes)
{
    int file = poison_file();
    char *map = (char *)mmap(NULL, bytes + 2 * EMU_GUARD, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return NULL;
    for (size_t at = 0; at < bytes; at += POISON_FILE) {
        size_t part = bytes - at < POISON_FILE ? bytes - at : POISON_FILE;
        if (mmap(map + EMU_GUARD + at, part, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED) {
            munmap(map, bytes + 2 * EMU_GUARD);
            return NULL;
        }
    }
    return map;
}

/* Sets the protection of all live allocations to `how` (PROT_...). Returns the number of their
 * bytes. */
static size_t table_protect(int how)
{
    size_t sum = 0;
    pthread_rwlock_rdlock(&table_lock);
    for (int i = 0; i < n_table; i++) {
        size_t bytes = table[i].map_bytes - 2 * EMU_GUARD;
        if (table[i].freed) continue;
        mprotect(table[i].map + EMU_GUARD, bytes, how);
        sum += bytes;
    }
    pthread_rwlock_unlock(&table_lock);
    return sum;
}

void emu_memory_open(void)
{
    pthread_mutex_lock(&door_lock);
    if (users++ == 0 && closed) {
        table_protect(PROT_READ | PROT_WRITE);
        closed = false;
    }
    pthread_mutex_unlock(&door_lock);
}

static void close_now(void)
{
    if (users == 0 && !closed) {
        closed_bytes += table_protect(PROT_NONE);
        closed = true;
    }
}

void emu_memory_close(void)
{
    pthread_mutex_lock(&door_lock);
    users--;
    if (closings < CLOSINGS && closed_bytes < CLOSED_BYTES) {
        closings++;
        close_now();
    }
    pthread_mutex_unlock(&door_lock);
}

void emu_memory_host_waits(void)
{
    pthread_mutex_lock(&door_lock);
    waits++;
    size_t often = closed_bytes / CLOSED_BYTES;
    if (often == 0 || waits % (16 << (often < 10 ? often - 1 : 9)) == 0) close_now();
    pthread_mutex_unlock(&door_lock);
}

/* ---- pins ------------------------------------------------------------------------------------ */

/* Memory that a library outside the program is using. */
typedef struct {
    const char *p;
    char what[256];
} Pin;

static pthread_mutex_t pins_lock = PTHREAD_MUTEX_INITIALIZER;
static Pin *pins;
static int n_pins, pins_capacity;

void emu_memory_pin(const void *p, const char *what)
{
    EmuRange range;
    if (!emu_memory_range(p, &range)) emu_die("%s: %p is not in device memory", what, p);
    pthread_mutex_lock(&pins_lock);
    if (n_pins == pins_capacity) {
        pins_capacity = pins_capacity ? 2 * pins_capacity : 16;
        pins = (Pin *)realloc(pins, (size_t)pins_capacity * sizeof *pins);
        if (pins == NULL) emu_die("no memory for the list of pins");
    }
    Pin *pin = &pins[n_pins++];
    pin->p = (const char *)p;
    snprintf(pin->what, sizeof pin->what, "%s", what);
    pthread_mutex_unlock(&pins_lock);
}

/* Removes the latest pin of that address. */
void emu_memory_unpin(const void *p)
{
    pthread_mutex_lock(&pins_lock);
    int i = n_pins - 1;
    while (i >= 0 && pins[i].p != p)
        i--;
    if (i < 0) emu_die("%p is not pinned", p);
    memmove(pins + i, pins + i + 1, (size_t)(--n_pins - i) * sizeof *pins);
    pthread_mutex_unlock(&pins_lock);
}

static void die_if_pinned(const EmuRange *range)
{
    pthread_mutex_lock(&pins_lock);
    for (int i = 0; i < n_pins; i++)
        if (pins[i].p >= range->base && pins[i].p < range->base + range->bytes)
            emu_die("cudaFree of %zu bytes of device %d's memory, of which byte %zd is in use: %s",
                    range->bytes, range->device, pins[i].p - range->base, pins[i].what);
    pthread_mutex_unlock(&pins_lock);
}

/* ---- allocations ----------------------------------------------------------------------------- */

static void table_add(Allocation allocation)
{
    if (n_table == table_capacity) {
        table_capacity = table_capacity ? 2 * table_capacity : 64;
        table = (Allocation *)realloc(table, (size_t)table_capacity * sizeof *table);
        if (table == NULL) emu_die("no memory for the table of allocations");
    }
    table[n_table++] = allocation;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    EMU_CALL();
    emu_faults_install();
    emu_count_allocation();
    *p = NULL;
    if (bytes == 0) return cudaSuccess;
    EmuDriverCall call;
    int device = emu_current_device();
    size_t inside = pages((bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1));
    pthread_rwlock_wrlock(&table_lock);
    bool fits =
        bytes <= emu_memory_of(device) && bytes_used[device] + bytes <= emu_memory_of(device);
    if (fits) bytes_used[device] += bytes;
    pthread_rwlock_unlock(&table_lock);
    emu_memory_open();
    char *map = fits ? map_guarded(inside) : NULL;
    if (fits && map == NULL) emu_die("no memory for %zu bytes of device %d's", bytes, device);
    if (map != NULL) {
        char *end = map + EMU_GUARD + inside;
        Allocation a = {end - ((bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1)),
                        map,
                        bytes,
                        inside + 2 * EMU_GUARD,
                        device,
                        false};
        pthread_rwlock_wrlock(&table_lock);
        table_add(a);
        pthread_rwlock_unlock(&table_lock);
        *p = a.base;
    }
    emu_memory_close();
    return *p != NULL ? cudaSuccess : emu_error(cudaErrorMemoryAllocation);
}

/* Frees the pages. The addresses stay reserved for a while, so that a use after the free is
 * noticed. */
static void allocation_retire(int i)
{
    bytes_used[table[i].device] -= table[i].bytes;
    table[i].freed = true;
    mmap(table[i].map, table[i].map_bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (n_freed < FREED_KEPT) {
        n_freed++;
        return;
    }
    int oldest = 0;
    while (!table[oldest].freed)
        oldest++;
    munmap(table[oldest].map, table[oldest].map_bytes);
    memmove(table + oldest, table + oldest + 1, (size_t)(n_table - oldest - 1) * sizeof *table);
    n_table--;
}

/* Works whichever device is current, and waits for the streams of the memory's device. */
cudaError_t cudaFree(void *p)
{
    EMU_CALL();
    EmuRange range;
    emu_count_allocation();
    if (p == NULL) return cudaSuccess;
    if (!emu_memory_range(p, &range) || range.base != p) return emu_error(cudaErrorInvalidValue);
    die_if_pinned(&range);
    EmuDriverCall call;
    emu_streams_wait(range.device);
    pthread_rwlock_wrlock(&table_lock);
    int i = 0;
    while (i < n_table && (table[i].freed || table[i].base != p))
        i++;
    bool found = i < n_table;
    if (found) allocation_retire(i);
    pthread_rwlock_unlock(&table_lock);
    return found ? cudaSuccess : emu_error(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    EMU_CALL();
    int device = emu_current_device();
    *total = emu_memory_of(device);
    pthread_rwlock_rdlock(&table_lock);
    *available = *total - bytes_used[device];
    pthread_rwlock_unlock(&table_lock);
    return cudaSuccess;
}

/* ---- queries --------------------------------------------------------------------------------- */

bool emu_memory_range(const void *p, EmuRange *range)
{
    const char *at = (const char *)p;
    bool found = false;
    pthread_rwlock_rdlock(&table_lock);
    for (int i = 0; i < n_table && !found; i++) {
        const Allocation *a = &table[i];
        if (a->freed || at < a->base || at >= a->base + a->bytes) continue;
        *range = {a->base, a->bytes, a->device};
        found = true;
    }
    pthread_rwlock_unlock(&table_lock);
    return found;
}

bool emu_memory_find(const void *p, size_t *bytes, int *device)
{
    const char *at = (const char *)p;
    bool found = false;
    pthread_rwlock_rdlock(&table_lock);
    for (int i = 0; i < n_table && !found; i++) {
        const Allocation *a = &table[i];
        if (a->freed || at < a->base || at > a->base + a->bytes) continue;
        *bytes = (size_t)(a->base + a->bytes - at);
        *device = a->device;
        found = true;
    }
    pthread_rwlock_unlock(&table_lock);
    return found;
}

void emu_check_device(const void *p, size_t bytes, const char *what)
{
    size_t left = 0;
    int owner = 0, device = emu_thread ? emu_thread->block->launch->device : emu_current_device();
    if (!emu_memory_find(p, &left, &owner) || left < bytes)
        emu_die("%s: %zu bytes at %p are not all in device memory", what, bytes, p);
    if (!emu_device_reaches(device, owner))
        emu_die("%s: memory of device %d, to which device %d was given no access", what, owner,
                device);
}

/* Returns the first of n bytes that is not poison, or NULL. */
static const char *unpoisoned(const char *p, size_t n)
{
    if (n == 0 || ((unsigned char)*p == EMU_POISON && memcmp(p, p + 1, n - 1) == 0)) return NULL;
    while ((unsigned char)*p == EMU_POISON)
        p++;
    return p;
}

void emu_memory_check(const EmuLaunch *launch)
{
    pthread_rwlock_rdlock(&table_lock);
    for (int i = 0; i < n_table; i++) {
        const Allocation *a = &table[i];
        const char *start = a->map + EMU_GUARD, *end = a->map + a->map_bytes - EMU_GUARD;
        if (a->freed) continue;
        const char *before = unpoisoned(start, (size_t)(a->base - start));
        const char *past = unpoisoned(a->base + a->bytes, (size_t)(end - a->base) - a->bytes);
        if (before != NULL || past != NULL)
            emu_die("kernel %s (launched at %s:%d) wrote %zd bytes %s an allocation of %zu bytes",
                    launch->kernel, launch->file, launch->line,
                    before ? a->base - before : past - a->base - (ptrdiff_t)a->bytes,
                    before ? "before" : "past", a->bytes);
    }
    pthread_rwlock_unlock(&table_lock);
}

bool emu_memory_beside(const void *p)
{
    bool beside = false;
    pthread_rwlock_rdlock(&table_lock);
    for (int i = 0; i < n_table && !beside; i++) {
        const Allocation *a = &table[i];
        const char *at = (const char *)p;
        bool inside = !a->freed && at >= a->base && at < a->base + a->bytes;
        beside = at >= a->map && at < a->map + a->map_bytes && !inside;
    }
    pthread_rwlock_unlock(&table_lock);
    return beside;
}

/* Takes no lock, because the calling thread has just crashed. */
bool emu_memory_describe(const void *p, char *buf, size_t n)
{
    const char *at = (const char *)p;
    for (int i = 0; i < n_table; i++) {
        const Allocation *a = &table[i];
        if (at < a->map || at >= a->map + a->map_bytes) continue;
        if (a->freed)
            snprintf(buf, n, "device memory of %zu bytes that was freed", a->bytes);
        else if (at < a->base)
            snprintf(buf, n, "%zd bytes before device memory of %zu bytes", a->base - at, a->bytes);
        else if (at >= a->base + a->bytes)
            snprintf(buf, n, "%zd bytes past device memory of %zu bytes",
                     at - a->base - (ptrdiff_t)a->bytes, a->bytes);
        else
            snprintf(buf, n, "device memory (byte %zd of %zu)", at - a->base, a->bytes);
        return true;
    }
    return false;
}
