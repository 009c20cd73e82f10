/* copy.cc -- pinned memory and copies. Each end of a copy must be where its kind says, and device
 * memory must be accessible to the stream's device. As in CUDA, a stream accepts copies when its
 * device is not current. */
#include "tests/emu/device/emu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An allocation of page-locked host memory. */
typedef struct {
    char *base;
    size_t bytes;
} Pinned;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Pinned *pinned;
static int n_pinned, pinned_capacity;

/* Returns how many bytes the driver page-locks in all: EMU_LOCKED MiB, otherwise any number. */
static size_t locked_most(void)
{
    const char *word = getenv("EMU_LOCKED");
    char *end = NULL;
    if (word == NULL) return SIZE_MAX;
    size_t most = strtoull(word, &end, 10);
    if (*word == 0 || *end != 0) emu_die("EMU_LOCKED is a number of MiB, not \"%s\"", word);
    return most << 20;
}

static bool pinned_add(void *p, size_t bytes)
{
    size_t most = locked_most(), locked = bytes;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_pinned; i++)
        locked += pinned[i].bytes;
    bool room = locked <= most;
    if (room && n_pinned == pinned_capacity) {
        pinned_capacity = pinned_capacity ? 2 * pinned_capacity : 64;
        pinned = (Pinned *)realloc(pinned, (size_t)pinned_capacity * sizeof *pinned);
        if (pinned == NULL) emu_die("no memory for the list of page-locked memory");
    }
    if (room) pinned[n_pinned++] = {(char *)p, bytes};
    pthread_mutex_unlock(&lock);
    return room;
}

static bool pinned_remove(void *p)
{
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < n_pinned && pinned[i].base != p)
        i++;
    bool found = i < n_pinned;
    if (found) pinned[i] = pinned[--n_pinned];
    pthread_mutex_unlock(&lock);
    return found;
}

static bool is_pinned(const void *p, size_t bytes)
{
    const char *at = (const char *)p;
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_pinned && !found; i++)
        found = at >= pinned[i].base && at + bytes <= pinned[i].base + pinned[i].bytes;
    pthread_mutex_unlock(&lock);
    return found;
}

bool emu_is_pinned(const void *p)
{
    return is_pinned(p, 0);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    EMU_CALL();
    emu_driver_page_locks();
    EmuDriverCall call;
    emu_count_allocation();
    *p = aligned_alloc(EMU_PAGE, (bytes + EMU_PAGE - 1) & ~(size_t)(EMU_PAGE - 1));
    if (*p == NULL) return emu_error(cudaErrorMemoryAllocation);
    memset(*p, EMU_POISON, bytes);
    if (pinned_add(*p, bytes)) return cudaSuccess;
    free(*p);
    *p = NULL;
    return emu_error(cudaErrorMemoryAllocation);
}

/* Waits for the current device's streams first. */
cudaError_t cudaFreeHost(void *p)
{
    EMU_CALL();
    emu_count_allocation();
    if (p == NULL) return cudaSuccess;
    EmuDriverCall call;
    emu_streams_wait(emu_current_device());
    if (!pinned_remove(p)) return emu_error(cudaErrorInvalidValue);
    free(p);
    return cudaSuccess;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Prints the reason, because CUDA's code says only that an argument is invalid. */
static cudaError_t refuse(const char *call, const char *why, const void *p, size_t bytes)
{
    fprintf(stderr, "emu: %s: %s: %zu bytes at %p\n", call, why, bytes, p);
    return emu_error(cudaErrorInvalidValue);
}

/* Returns where the bytes are: 1 in device memory, 0 in host memory, -1 if they extend past an
 * allocation or are in freed device memory. */
static int place_of(const void *p, size_t bytes)
{
    size_t left;
    int device;
    if (emu_memory_find(p, &left, &device) && left > 0) return left >= bytes ? 1 : -1;
    return emu_memory_beside(p) ? -1 : 0;
}

static cudaError_t check_kind(const char *call, const void *dst, size_t dst_bytes, const void *src,
                              size_t src_bytes, cudaMemcpyKind kind)
{
    int to = place_of(dst, dst_bytes), from = place_of(src, src_bytes);
    if (to < 0) return refuse(call, "the target is not whole device memory", dst, dst_bytes);
    if (from < 0) return refuse(call, "the source is not whole device memory", src, src_bytes);
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return emu_error(cudaErrorInvalidMemcpyDirection);
    if (kind == cudaMemcpyDefault) return cudaSuccess;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (to != to_device)
        return refuse(call, "the target is not where the kind says", dst, dst_bytes);
    if (from != from_device)
        return refuse(call, "the source is not where the kind says", src, src_bytes);
    return cudaSuccess;
}

/* Ends the program if p is memory of another device that the stream's device may not use. */
static void check_reach(const char *call, const void *p, cudaStream_t stream)
{
    size_t left;
    int owner, device = emu_stream_device(stream);
    if (!emu_memory_find(p, &left, &owner) || emu_device_reaches(device, owner)) return;
    emu_die("%s on a stream of device %d: %p is memory of device %d, to which device %d was given "
            "no access",
            call, device, p, owner, device);
}

/* A copy of `height` rows. `staged` is a private copy of the source, to be freed; NULL if there is
 * none. */
typedef struct {
    char *dst;
    const char *src;
    size_t dst_pitch, src_pitch, width, height;
    char *staged;
} Rows;

static void rows_copy(void *context)
{
    Rows *r = (Rows *)context;
    emu_memory_open();
    for (size_t row = 0; row < r->height; row++)
        memmove(r->dst + row * r->dst_pitch, r->src + row * r->src_pitch, r->width);
    emu_memory_close();
    free(r->staged);
}

/* The driver reads a pageable source, and has written a pageable destination, before the call
 * returns; a copy from host memory to host memory has ended then. Pinned and device memory may
 * change until the stream has done the copy. */
static cudaError_t rows_issue(Rows rows, cudaStream_t stream)
{
    bool lag = emu_streams_mode() != EmuStreams::STRICT;
    size_t dst_bytes = rows.dst_pitch * (rows.height - 1) + rows.width;
    size_t src_bytes = rows.src_pitch * (rows.height - 1) + rows.width;
    bool to_host = place_of(rows.dst, dst_bytes) == 0,
         from_host = place_of(rows.src, src_bytes) == 0;
    bool to_pageable = to_host && !is_pinned(rows.dst, dst_bytes);
    bool from_pageable = from_host && !is_pinned(rows.src, src_bytes);
    if (lag && from_pageable) {
        rows.staged = (char *)malloc(src_bytes);
        if (rows.staged == NULL) return emu_error(cudaErrorMemoryAllocation);
        rows.src = (const char *)memcpy(rows.staged, rows.src, src_bytes);
    }
    if (lag && to_host && !from_host && !to_pageable)
        for (size_t row = 0; row < rows.height; row++)
            memset(rows.dst + row * rows.dst_pitch, EMU_POISON, rows.width);
    emu_stream_do(stream, rows_copy, &rows, sizeof rows);
    if (to_pageable || (to_host && from_host)) emu_stream_wait(stream);
    if (to_pageable || from_pageable || (to_host && from_host)) emu_count_wait();
    return cudaSuccess;
}

static cudaError_t copy(const char *call, Rows rows, cudaMemcpyKind kind, cudaStream_t stream)
{
    if (emu_stream_check(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
    if (rows.width == 0 || rows.height == 0) return cudaSuccess;
    if (rows.dst_pitch < rows.width || rows.src_pitch < rows.width)
        return refuse(call, "the pitch is less than the width", rows.dst, rows.width);
    cudaError_t code = check_kind(call, rows.dst, rows.dst_pitch * (rows.height - 1) + rows.width,
                                  rows.src, rows.src_pitch * (rows.height - 1) + rows.width, kind);
    if (code != cudaSuccess) return code;
    check_reach(call, rows.dst, stream);
    check_reach(call, rows.src, stream);
    return rows_issue(rows, stream);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind)
{
    EMU_CALL();
    Rows rows = {(char *)dst, (const char *)src, bytes, bytes, bytes, 1, NULL};
    cudaError_t code = copy("cudaMemcpy", rows, kind, NULL);
    emu_stream_wait(NULL);
    emu_count_wait();
    return code;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    EMU_CALL();
    Rows rows = {(char *)dst, (const char *)src, bytes, bytes, bytes, 1, NULL};
    return copy("cudaMemcpyAsync", rows, kind, stream);
}

/* cudaDevAttrMaxPitch of all GPUs so far. */
static const size_t MOST_PITCH = 2147483647;

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    EMU_CALL();
    if (dst_pitch > MOST_PITCH || src_pitch > MOST_PITCH)
        return refuse("cudaMemcpy2DAsync", "a pitch above 2147483647 bytes", dst, width);
    Rows rows = {(char *)dst, (const char *)src, dst_pitch, src_pitch, width, height, NULL};
    return copy("cudaMemcpy2DAsync", rows, kind, stream);
}

typedef struct {
    void *p;
    int value;
    size_t bytes;
} Fill;

static void fill(void *context)
{
    const Fill *f = (const Fill *)context;
    emu_memory_open();
    memset(f->p, f->value, f->bytes);
    emu_memory_close();
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    EMU_CALL();
    Fill f = {p, value, bytes};
    if (emu_stream_check(stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    if (place_of(p, bytes) != 1) return refuse("cudaMemset", "not whole device memory", p, bytes);
    check_reach("cudaMemset", p, stream);
    emu_stream_do(stream, fill, &f, sizeof f);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    EMU_CALL();
    return cudaMemsetAsync(p, value, bytes, NULL);
}
