/* cmd_bench_measure.c -- helpers that the benchmarks share: device timers, medians, and loops that
 * measure memory bandwidth. */
#include "model/kernels/ops.h"
#include "parallel/commands/cmd_bench.h"

#include <stdlib.h>
#include <string.h>

void stopwatch_start(Device *dev, Stopwatch *w)
{
    device_event_record_timed(dev, &w->from);
}

double stopwatch_stop(Device *dev, Stopwatch *w)
{
    device_event_record_timed(dev, &w->to);
    return device_event_seconds(dev, &w->from, &w->to);
}

void stopwatch_close(Device *dev, Stopwatch *w)
{
    device_event_destroy(dev, &w->from);
    device_event_destroy(dev, &w->to);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *x, int n)
{
    /* The median ignores the few calls that other load on the machine slows down. */
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

/* ---- memory bandwidth ------------------------------------------------------------------------ */

MemoryLoop memory_loop_open(Device *dev, int64_t n)
{
    MemoryLoop l = {.n = n, .tasks = 8 * pool_threads(dev->pool)};
    l.a = device_alloc(dev, 4 * (size_t)n * sizeof(float), "the memory loop");
    l.b = l.a + n;
    l.c = l.b + n;
    l.d = l.c + n;
    /* Write the memory first: pages that were never written all map to one shared page of zeros,
     * which would be read from the cache. */
    op_normal(dev, tensor_1d(l.a, F32, 4 * n), 1, &(Segment){.stream = 4}, 1.0);
    return l;
}

static void memory_loop_body(void *context, int64_t task, int worker)
{
    const MemoryLoop *l = context;
    int64_t first = pool_cut(l->n, l->tasks, 4096, task),
            last = pool_cut(l->n, l->tasks, 4096, task + 1);
    (void)worker;
    for (int64_t i = first; i < last; i++) {
        float d = l->d[i];
        l->a[i] = 0.999f * l->a[i] + d;
        l->b[i] = 0.999f * l->b[i] + d;
        l->c[i] = 0.999f * l->c[i] + d;
    }
}

void memory_loop_run(Device *dev, MemoryLoop *l)
{
    if (dev->backend->place == PLACE_HOST) {
        pool_run(dev->pool, l->tasks, memory_loop_body, l);
        return;
    }
    for (int half = 0; half < 7; half++) /* reads and writes n / 2 floats, seven times */
        device_copy(dev, tensor_1d(l->a, F32, l->n / 2), tensor_1d(l->c, F32, l->n / 2));
}

MemoryCopy memory_copy_open(Device *dev, int64_t bytes)
{
    MemoryCopy s = {.bytes = bytes};
    s.to = device_alloc(dev, 2 * (size_t)bytes, "the copied blocks");
    s.from = s.to + bytes;
    /* Pages that were never written would all map to one page of zeros. */
    op_fill(dev, tensor_1d(s.to, U8, 2 * bytes), 1);
    return s;
}

static void memory_copy_body(void *context, int64_t task, int worker)
{
    enum { LINE = 4096 };
    const MemoryCopy *s = context;
    int64_t at = pool_cut(s->bytes, s->tasks, LINE, task);
    int64_t end = pool_cut(s->bytes, s->tasks, LINE, task + 1);
    (void)worker;
    memcpy(s->to + at, s->from + at, (size_t)(end - at));
}

void memory_copy_run(Device *dev, MemoryCopy *s)
{
    if (dev->backend->place == PLACE_HOST) {
        s->tasks = pool_threads(dev->pool);
        pool_run(dev->pool, s->tasks, memory_copy_body, s);
    } else {
        device_copy(dev, tensor_1d(s->to, U8, s->bytes), tensor_1d(s->from, U8, s->bytes));
    }
}

void memory_copy_close(Device *dev, MemoryCopy *s)
{
    device_release(dev, s->to, 2 * (size_t)s->bytes);
}
