/* launch.cc -- checks the parameters of launches, and stores the attributes of kernels. */
#include "tests/emu/device/emu.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SHARED_AT_FIRST = 48 << 10, GRID_YZ_MOST = 65535, BLOCK_Z_MOST = 64, KERNELS = 4096 };

/* ---- fatal errors ---------------------------------------------------------------------------- */

void emu_describe(char *buf, size_t n)
{
    const EmuThread *t = emu_thread;
    buf[0] = 0;
    if (t == NULL) return;
    const EmuLaunch *launch = t->block->launch;
    snprintf(buf, n,
             " (kernel %s launched at %s:%d, block (%u,%u,%u), thread (%u,%u,%u), %s %s:%d)",
             launch->kernel, launch->file, launch->line, t->block->index.x, t->block->index.y,
             t->block->index.z, t->index.x, t->index.y, t->index.z,
             t->place.line == launch->line ? "from" : "last at", t->place.file, t->place.line);
}

void emu_die(const char *format, ...)
{
    char sentence[1024], where[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    emu_describe(where, sizeof where);
    fprintf(stderr, "emu: %s%s\n", sentence, where);
    fflush(stderr);
    abort();
}

/* ---- launch bounds --------------------------------------------------------------------------- */

/* Addresses of the NOPs before functions with launch bounds, collected by the linker. */
extern "C" const unsigned char *const __start___patchable_function_entries[] __attribute__((weak));
extern "C" const unsigned char *const __stop___patchable_function_entries[] __attribute__((weak));

int emu_launch_bounds(const void *function)
{
    enum { NOP = 0x90 };
    const unsigned char *entry = (const unsigned char *)function, *nearest = NULL;
    for (const unsigned char *const *p = __start___patchable_function_entries;
         p < __stop___patchable_function_entries; p++)
        if (*p<entry && * p> nearest) nearest = *p;
    if (nearest == NULL || entry - nearest > EMU_MAX_THREADS) return 0;
    for (const unsigned char *p = nearest; p < entry; p++)
        if (*p != NOP) return 0;
    return (int)(entry - nearest);
}

/* ---- attributes ------------------------------------------------------------------------------ */

/* A kernel that has been launched or whose attributes were used. */
typedef struct {
    const void *function;
    size_t shared;
    bool launched;
    const char *name; /* of a kernel that was launched */
    int64_t launches;
} Kernel;

static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;
static Kernel kernels[KERNELS];
static int n_kernels;
static int64_t launches, blocks;

/* Returns the kernel's entry, and creates it if necessary. Called with the lock held. */
static Kernel *kernel_of(const void *function)
{
    for (int i = 0; i < n_kernels; i++)
        if (kernels[i].function == function) return &kernels[i];
    if (n_kernels == KERNELS) emu_die("more than %d kernels", KERNELS);
    kernels[n_kernels] = {function, SHARED_AT_FIRST, false, "", 0};
    return &kernels[n_kernels++];
}

static size_t shared_allowed(const void *function)
{
    pthread_mutex_lock(&kernels_lock);
    size_t shared = kernel_of(function)->shared;
    pthread_mutex_unlock(&kernels_lock);
    return shared;
}

static void note_launch(const EmuLaunch *launch)
{
    pthread_mutex_lock(&kernels_lock);
    Kernel *kernel = kernel_of(launch->function);
    kernel->launched = true;
    kernel->name = launch->kernel;
    kernel->launches++;
    launches++;
    blocks += (int64_t)launch->grid.x * launch->grid.y * launch->grid.z;
    pthread_mutex_unlock(&kernels_lock);
}

int64_t emu_count_kernels(void)
{
    int64_t n = 0;
    pthread_mutex_lock(&kernels_lock);
    for (int i = 0; i < n_kernels; i++)
        n += kernels[i].launched;
    pthread_mutex_unlock(&kernels_lock);
    return n;
}

int64_t emu_count_launches(void)
{
    pthread_mutex_lock(&kernels_lock);
    int64_t n = launches;
    pthread_mutex_unlock(&kernels_lock);
    return n;
}

int64_t emu_count_launches_of(const char *part)
{
    int64_t n = 0;
    pthread_mutex_lock(&kernels_lock);
    for (int i = 0; i < n_kernels; i++)
        if (strstr(kernels[i].name, part) != NULL) n += kernels[i].launches;
    pthread_mutex_unlock(&kernels_lock);
    return n;
}

int64_t emu_count_blocks(void)
{
    pthread_mutex_lock(&kernels_lock);
    int64_t n = blocks;
    pthread_mutex_unlock(&kernels_lock);
    return n;
}

int64_t emu_forget_kernels(void)
{
    pthread_mutex_lock(&kernels_lock);
    for (int i = 0; i < n_kernels; i++)
        kernels[i].launched = false;
    pthread_mutex_unlock(&kernels_lock);
    return 0;
}

/* Devices on which the program has loaded its kernels: one bit for each. */
static unsigned prepared;

/* Loads the kernel on the current device. Returns false if that is too late: the program loads all
 * its kernels when it opens a device, and this one was not among them. */
static bool load(const void *function)
{
    bool now = emu_driver_load((uint64_t)(uintptr_t)function);
    return !now || (__atomic_load_n(&prepared, __ATOMIC_RELAXED) >> emu_current_device() & 1) == 0;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *function)
{
    EMU_CALL();
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = emu_launch_bounds(function);
    emu_driver_load((uint64_t)(uintptr_t)function);
    __atomic_fetch_or(&prepared, 1u << emu_current_device(), __ATOMIC_RELAXED);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value)
{
    EMU_CALL();
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > EMU_SHARED_MOST)
        return emu_error(cudaErrorInvalidValue);
    if (!load(function)) emu_die("cudaFuncSetAttribute of a kernel that was not loaded before");
    pthread_mutex_lock(&kernels_lock);
    kernel_of(function)->shared = (size_t)value;
    pthread_mutex_unlock(&kernels_lock);
    return cudaSuccess;
}

/* ---- launches -------------------------------------------------------------------------------- */

static void refuse(const EmuLaunch *launch, const char *format, ...)
    __attribute__((noreturn, format(printf, 2, 3)));

static void refuse(const EmuLaunch *launch, const char *format, ...)
{
    char reason[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    emu_die("launch of %s at %s:%d, grid (%u,%u,%u), block (%u,%u,%u), %zu bytes shared: %s",
            launch->kernel, launch->file, launch->line, launch->grid.x, launch->grid.y,
            launch->grid.z, launch->block.x, launch->block.y, launch->block.z, launch->shared,
            reason);
}

void emu_launch_check(const EmuLaunch *launch)
{
    const dim3 *grid = &launch->grid, *block = &launch->block;
    if (emu_thread != NULL) refuse(launch, "kernels do not launch kernels");
    int stream = emu_stream_device(launch->stream);
    if (stream >= 0 && stream != launch->device)
        refuse(launch, "its stream is device %d's, and device %d is current", stream,
               launch->device);
    if (grid->x == 0 || grid->y == 0 || grid->z == 0) refuse(launch, "an empty grid");
    if (block->x == 0 || block->y == 0 || block->z == 0) refuse(launch, "an empty block");
    if (grid->x > 0x7fffffffu) refuse(launch, "grid.x is at most 2147483647");
    if (grid->y > GRID_YZ_MOST || grid->z > GRID_YZ_MOST)
        refuse(launch, "grid.y and grid.z are at most %d", GRID_YZ_MOST);
    if (block->z > BLOCK_Z_MOST) refuse(launch, "block.z is at most %d", BLOCK_Z_MOST);
    uint64_t threads = (uint64_t)block->x * block->y * block->z;
    if (block->x > EMU_MAX_THREADS || block->y > EMU_MAX_THREADS || threads > EMU_MAX_THREADS)
        refuse(launch, "a block has at most %d threads", EMU_MAX_THREADS);
    int bounds = emu_launch_bounds(launch->function);
    if (bounds == 0) refuse(launch, "the kernel says no __launch_bounds__");
    if (threads > (uint64_t)bounds)
        refuse(launch, "the kernel's __launch_bounds__ say %d threads", bounds);
    if (launch->shared > EMU_SHARED_MOST)
        refuse(launch, "a block has at most %d bytes of shared memory", EMU_SHARED_MOST);
    if (launch->shared > shared_allowed(launch->function))
        refuse(launch, "more than %zu bytes of shared memory need cudaFuncSetAttribute",
               shared_allowed(launch->function));
    if (!load(launch->function)) refuse(launch, "the kernel was not loaded before");
    note_launch(launch);
}

/* Ends the program if p is in memory of a device that the launch's device may not use. Returns
 * whether kernels of the launch's device may use p: whether it is in (or right past) device memory
 * or page-locked memory of the host. */
static bool reaches(const EmuLaunch *launch, const void *p)
{
    size_t bytes;
    int owner;
    if (!emu_memory_find(p, &bytes, &owner)) return emu_is_pinned(p);
    if (!emu_device_reaches(launch->device, owner))
        refuse(launch, "argument %p is memory of device %d, to which device %d was given no access",
               p, owner, launch->device);
    return true;
}

void emu_check_pointer(const EmuLaunch *launch, const void *p)
{
    if (p != NULL && !reaches(launch, p))
        refuse(launch, "argument %p is no pointer into device memory or page-locked memory", p);
}

/* Returns whether a word is the address of memory of this process. Programs, their heaps, stacks
 * and libraries are all above 2^46; sanitizers keep their tables below. */
static bool is_mapped(uint64_t word)
{
    char *page = (char *)(word & ~(uint64_t)(EMU_PAGE - 1));
    return word >> 46 == 1 && msync(page, EMU_PAGE, MS_ASYNC) == 0;
}

void emu_check_words(const EmuLaunch *launch, const void *words, size_t bytes)
{
    for (size_t at = 0; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, (const char *)words + at, sizeof word);
        const void *p = (const void *)(uintptr_t)word;
        if (is_mapped(word) && !reaches(launch, p))
            refuse(launch,
                   "byte %zu of an argument of %zu bytes holds %p, which is memory of the host, "
                   "but not page-locked",
                   at, bytes, p);
    }
}
