/* device_cpu.c -- the CPU backend: chooses the kernels' instruction set and the matrix product
 * library, starts the thread pool, and implements memory, copies and events. */
#include "model/core/device_cpu.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/openblas.h"

#include <cpuid.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern const struct OpTable cpu_table_baseline_f32, cpu_table_baseline_f64;
/* Weak symbols, because programs built with sanitizers contain only the baseline kernels. */
extern const struct OpTable cpu_table_v3_f32 __attribute__((weak)),
    cpu_table_v3_f64 __attribute__((weak));
extern const struct OpTable cpu_table_v4_f32 __attribute__((weak)),
    cpu_table_v4_f64 __attribute__((weak));
extern const Backend backend_cpu;

typedef struct {
    const char *name; /* name of the vector extension and the level */
    const struct OpTable *f32, *f64;
} LevelTables;

static const LevelTables levels[CPU_LEVEL_COUNT] = {
    [CPU_LEVEL_BASELINE] = {"sse2 (baseline)", &cpu_table_baseline_f32, &cpu_table_baseline_f64},
    [CPU_LEVEL_V3] = {"avx2 (v3)", &cpu_table_v3_f32, &cpu_table_v3_f64},
    [CPU_LEVEL_V4] = {"avx512 (v4)", &cpu_table_v4_f32, &cpu_table_v4_f64},
};

/* Returns the highest level that this CPU supports. */
static CpuLevel level_of_cpu(void)
{
    __builtin_cpu_init();
    unsigned a, b, c = 0, extended = 0, d;
    __get_cpuid(1, &a, &b, &c, &d);
    __get_cpuid(0x80000001u, &a, &b, &extended, &d);
    bool small = (c & bit_F16C) && (c & bit_MOVBE) && (extended & bit_LZCNT);
    bool v3 = small && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    return v4 ? CPU_LEVEL_V4 : v3 ? CPU_LEVEL_V3 : CPU_LEVEL_BASELINE;
}

static _Thread_local CpuLevel most_level = CPU_LEVEL_V4;

void cpu_level_set_most(CpuLevel most)
{
    most_level = most;
}

CpuLevel cpu_level_best(void)
{
    CpuLevel level = level_of_cpu();
    if (level > most_level) level = most_level;
    while (levels[level].f32 == NULL)
        level--;
    return level;
}

const char *cpu_level_text(CpuLevel level)
{
    return levels[level].name;
}

static void cpu_close(Device *device)
{
    CpuDevice *cpu = device->impl;
    pool_destroy(device->pool);
    if (cpu->library) dlclose(cpu->library);
    free(cpu);
}

/* Address space that a pool thread needs in addition to its workspace. */
#define STACK_OF_THREAD ((size_t)16 << 20)

/* Opens OpenBLAS, or falls back to the built-in products. Called after the thread pool has been
 * created, so that OpenBLAS is opened only if its memory still fits. Each of the `ranks` ranks may
 * call OpenBLAS from all of its threads at the same time. Returns false and sets err if the config
 * demands OpenBLAS and it cannot be used. */
static bool open_products(Device *device, CpuDevice *cpu, BlasChoice choice, int ranks, char *err,
                          size_t n)
{
    char why[256] = "";
    int threads = pool_threads(device->pool);
    size_t pools = (size_t)(ranks - 1) * (size_t)threads * (POOL_WORKSPACE + STACK_OF_THREAD);
    snprintf(cpu->blas_name, sizeof cpu->blas_name, "built-in products");
    if (choice == BLAS_BUILTIN) return true;
    if (openblas_open(cpu, ranks * threads, pools, why, sizeof why)) return true;
    snprintf(cpu->blas_name, sizeof cpu->blas_name, "built-in products");
    if (choice == BLAS_AUTO) {
        if (why[0])
            snprintf(device->lacking, sizeof device->lacking,
                     "%s: the built-in products serve, several times slower", why);
        return true;
    }
    if (why[0]) return error_set(err, n, "%s; write cpu.blas \"auto\" or \"builtin\"", why);
    return error_set(err, n,
                     "OpenBLAS was asked for but no libopenblas.so.0 with threads can be "
                     "loaded; install libopenblas0-pthread or choose the built-in products");
}

static bool cpu_open(Device *device, const DeviceOptions *options, char *err, size_t n)
{
    CpuLevel best = cpu_level_best();
    CpuLevel level = options->level == CPU_LEVEL_AUTO ? best : options->level;
    CHECK(level > CPU_LEVEL_AUTO && level < CPU_LEVEL_COUNT, "CPU level %d", (int)options->level);
    if (levels[level].f32 == NULL)
        return error_set(
            err, n,
            "this program is built without kernels for %s, the best it has are for %s; "
            "write cpu.level \"auto\"",
            levels[level].name, levels[best].name);
    if (level > best)
        return error_set(err, n,
                         "this CPU lacks %s, the best it has is %s; write cpu.level \"auto\"",
                         levels[level].name, levels[best].name);
    int ranks = options->local_ranks > 0 ? options->local_ranks : 1;
    int threads = options->threads > 0 ? options->threads : pool_allowed_cores() / ranks;
    CpuDevice *cpu = must_calloc(1, sizeof *cpu);
    cpu->level = level;
    device->backend = &backend_cpu;
    device->impl = cpu;
    device->ops = levels[level].f32;
    device->ops_f64 = levels[level].f64;
    /* Only one rank at a time: between checking that OpenBLAS has enough memory and taking it, no
     * other rank may take that memory. */
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&opening);
    device->pool = pool_create(threads > 0 ? threads : 1);
    bool good = open_products(device, cpu, options->blas, ranks, err, n);
    pthread_mutex_unlock(&opening);
    if (!good) cpu_close(device);
    return good;
}

/* Large blocks are aligned to huge pages and request them. The optimizer and the matrix products
 * stream through hundreds of megabytes; with 4 KiB pages the TLB would miss all the time. */
#define HUGE_PAGE ((size_t)2 << 20)

static void *cpu_alloc(Device *device, size_t bytes)
{
    (void)device;
    /* Map one huge page more than requested, so that an aligned block fits inside, then unmap the
     * rest before and after it. */
    size_t slack = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : 0;
    if (bytes > SIZE_MAX - slack) return NULL;
    char *p = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (slack == 0) return p;
    size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    size_t page = 4096, after = (slack - before) / page * page;
    char *end = p + (bytes + slack + page - 1) / page * page;
    if (before) munmap(p, before);
    if (after) munmap(end - after, after);
    madvise(p + before, bytes, MADV_HUGEPAGE); /* only a hint: failure costs only speed */
    return p + before;
}

static void cpu_release(Device *device, void *p, size_t bytes)
{
    (void)device;
    munmap(p, bytes);
}

static void cpu_copy(Device *device, Stream stream, Tensor dst, Tensor src)
{
    (void)device;
    (void)stream;
    if (tensor_count(src) == 0) return; /* an empty tensor may have no address */
    if (tensor_is_dense(dst) && tensor_is_dense(src)) {
        memcpy(dst.data, src.data, tensor_bytes(src));
        return;
    }
    size_t row = (size_t)tensor_cols(src) * dtype_size(src.dtype);
    for (int64_t r = 0, rows = tensor_rows(src); r < rows; r++)
        memcpy(tensor_row(dst, r), tensor_row(src, r), row);
}

/* Every call has finished when it returns, so an event only records the time, and there is nothing
 * to wait for. */
static void cpu_event_record(Device *device, Event *event, Stream stream)
{
    (void)device;
    (void)stream;
    event->seconds = seconds_now();
}

static void cpu_event_wait(Device *device, Event *event, Stream stream)
{
    (void)device;
    (void)event;
    (void)stream;
}

static void cpu_event_nothing(Device *device, Event *event)
{
    (void)device;
    (void)event;
}

static bool cpu_event_reached(Device *device, Event *event)
{
    (void)device;
    (void)event;
    return true;
}

static double cpu_event_seconds(Device *device, Event *from, Event *to)
{
    (void)device;
    return to->seconds - from->seconds;
}

/* The memory is not zeroed, so that pages cost nothing until they are used: each trainer has
 * megabytes here for its checkpoints, and many trainers never save one. */
static void *cpu_host_alloc(Device *device, size_t bytes)
{
    (void)device;
    return malloc(bytes);
}

static void cpu_host_release(Device *device, void *p)
{
    (void)device;
    free(p);
}

static void cpu_synchronize(Device *device)
{
    (void)device;
}

static const char *cpu_describe(const Device *device, char *buf, size_t n)
{
    const CpuDevice *cpu = device->impl;
    int threads = pool_threads(device->pool);
    snprintf(buf, n, "cpu: %s, %s, %d thread%s", levels[cpu->level].name, cpu->blas_name, threads,
             threads == 1 ? "" : "s");
    return buf;
}

const Backend backend_cpu = {
    .name = "cpu",
    .place = PLACE_HOST,
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .copy = cpu_copy,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_reached = cpu_event_reached,
    .event_synchronize = cpu_event_nothing,
    .event_seconds = cpu_event_seconds,
    .event_destroy = cpu_event_nothing,
    .host_alloc = cpu_host_alloc,
    .host_release = cpu_host_release,
    .synchronize = cpu_synchronize,
    .describe = cpu_describe,
};
