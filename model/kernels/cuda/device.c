/* device.c -- the CUDA backend: finds the GPU, opens its streams, scratch and cuBLASLt, and
 * moves memory. Without a driver or a GPU it says so, and "auto" goes on to the CPU; a GPU that is
 * there and cannot be used is trouble, of which "auto" warns.
 *
 * Host memory of copies may be pageable: the driver then stages it, so that a source may be changed
 * as soon as the call returns; a page-locked source only once the stream is past the copy. */
#include "model/kernels/cuda/cuda.h"
#include "model/kernels/cuda/lt.h"

#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>

extern const OpTable cuda_table;
extern const Backend backend_cuda;

/* The oldest generation that the kernels are written for: bf16 and asynchronous copies. */
enum { CAPABILITY_LEAST = 8 };

void cuda_check(cudaError_t code, const char *call, const char *file, int line)
{
    if (code == cudaSuccess) return;
    bool full = code == cudaErrorMemoryAllocation;
    fail(full ? EXIT_NO_MEMORY : EXIT_SYSTEM, "%s:%d: %s: %s (%s)%s", file, line, call,
         cudaGetErrorString(code), cudaGetErrorName(code), full ? "; " MEMORY_ADVICE : "");
}

void *cuda_workspace(const Device *dev, size_t bytes)
{
    const CudaDevice *cuda = cuda_device(dev);
    CHECK(cuda_stream(dev) == cuda->stream[CUDA_COMPUTE],
          "an op that needs scratch runs on the compute stream alone");
    CHECK(bytes <= cuda->workspace_bytes, "%zu bytes of scratch; there are %zu", bytes,
          cuda->workspace_bytes);
    return cuda->workspace;
}

/* False with a sentence when there is no driver that this program can speak to. */
static bool driver_serves(cudaError_t code, bool *there, char *err, size_t n)
{
    int version = 0;
    if (code != cudaErrorInsufficientDriver) return true;
    if (cudaDriverGetVersion(&version) != cudaSuccess) cudaGetLastError();
    *there = version > 0;
    if (!*there) return error_set(err, n, "there is no NVIDIA driver here");
    return error_set(err, n,
                     "the NVIDIA driver here is made for CUDA %d.%d and this program for CUDA "
                     "%d.%d; update the driver, or build with an older toolkit",
                     version / 1000, version % 1000 / 10, CUDART_VERSION / 1000,
                     CUDART_VERSION % 1000 / 10);
}

/* False with a sentence when a GPU does not answer. */
static bool answers(cudaError_t code, char *err, size_t n)
{
    if (code == cudaSuccess) return true;
    cudaGetLastError();
    return error_set(err, n,
                     "the GPU cannot be used: %s (%s); nvidia-smi and the kernel's log may say why",
                     cudaGetErrorString(code), cudaGetErrorName(code));
}

/* The GPU for rank *index of this machine, whose number *index becomes. False with a sentence when
 * there is no GPU, or none that the kernels run on; *there tells the two apart. What is asked here
 * makes no context on the GPU. */
static bool find(CudaDevice *cuda, int *index, bool *there, char *err, size_t n)
{
    int count = 0;
    struct cudaDeviceProp properties;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) cudaGetLastError();
    if (!driver_serves(code, there, err, n)) return false;
    if (code == cudaErrorNoDevice || (code == cudaSuccess && count <= 0))
        return error_set(err, n, "the NVIDIA driver shows no GPU to this process");
    *there = true;
    if (!answers(code, err, n)) return false;
    *index %= count;
    if (!answers(cudaGetDeviceProperties(&properties, *index), err, n)) return false;
    snprintf(cuda->name, sizeof cuda->name, "%.127s", properties.name);
    cuda->major = properties.major;
    cuda->minor = properties.minor;
    cuda->multiprocessors = properties.multiProcessorCount;
    cuda->shared_bytes = properties.sharedMemPerBlockOptin;
    if (cuda->major < CAPABILITY_LEAST)
        return error_set(err, n, "%s has compute capability %d.%d; %d.0 is the least", cuda->name,
                         cuda->major, cuda->minor, CAPABILITY_LEAST);
    return true;
}

static bool device_cuda_usable(Device *device, char *err, size_t n)
{
    CudaDevice cuda;
    bool there = false;
    if (find(&cuda, &device->index, &there, err, n) && lt_find(err, n)) return true;
    if (there) snprintf(device->trouble, sizeof device->trouble, "%s", err);
    return false;
}

/* Every rank waits for what the communication streams do, so they go before the compute stream; the
 * sums inside a layer, which nothing can hide, go first. */
static void open_streams(Device *device, CudaDevice *cuda)
{
    int least, greatest;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    int between = (least + greatest) / 2;
    const int priority[CUDA_STREAMS] = {[CUDA_COMPUTE] = least,
                                        [CUDA_COPY] = least,
                                        [CUDA_COMM] = between,
                                        [CUDA_P2P] = between,
                                        [CUDA_TP] = greatest};
    Stream *const of_device[CUDA_STREAMS] = {[CUDA_COMPUTE] = &device->compute,
                                             [CUDA_COPY] = &device->copy,
                                             [CUDA_COMM] = &device->comm,
                                             [CUDA_P2P] = &device->p2p,
                                             [CUDA_TP] = &device->tp};
    for (int i = 0; i < CUDA_STREAMS; i++) {
        CUDA_CHECK(
            cudaStreamCreateWithPriority(&cuda->stream[i], cudaStreamNonBlocking, priority[i]));
        of_device[i]->impl = cuda->stream[i];
    }
}

/* The scratch of all ops. A GPU that has no room for it has none for any model; where it is shared,
 * each rank has its own. */
static void open_workspace(CudaDevice *cuda, size_t bytes, bool shared)
{
    size_t available = 0, total = 0;
    cuda->workspace_bytes = bytes > 0 ? bytes : CUDA_WORKSPACE;
    if (cudaMalloc(&cuda->workspace, cuda->workspace_bytes) == cudaSuccess) return;
    cudaGetLastError();
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    fail(
        EXIT_NO_MEMORY,
        "%s has %zu of %zu MiB free, and %zu MiB are needed before any model%s, choose another GPU "
        "by CUDA_VISIBLE_DEVICES, or set device to \"cpu\"",
        cuda->name, available >> 20, total >> 20, cuda->workspace_bytes >> 20,
        shared ? " by each rank that shares it: write fewer --ranks, wait for other programs that "
                 "hold its memory"
               : ": another program holds its memory; wait for it");
}

/* 0 where there is no driver either. */
static int device_cuda_count(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError(); /* or the next check would find it */
    return 0;
}

static bool device_cuda_open(Device *device, const DeviceOptions *options, char *err, size_t n)
{
    CudaDevice *cuda = must_calloc(1, sizeof *cuda);
    bool there = false;
    int ranks = options->local_ranks > 0 ? options->local_ranks : 1;
    if (!find(cuda, &device->index, &there, err, n) ||
        !answers(cudaSetDevice(device->index), err, n) ||
        (cuda->lt = lt_open(options->tf32, err, n)) == NULL) {
        if (there) snprintf(device->trouble, sizeof device->trouble, "%s", err);
        free(cuda);
        return false;
    }
    open_streams(device, cuda);
    open_workspace(cuda, options->scratch, ranks > device_cuda_count());
    int threads = options->threads > 0 ? options->threads : pool_allowed_cores() / ranks;
    device->backend = &backend_cuda;
    device->impl = cuda;
    device->ops = &cuda_table;
    device->pool = pool_create(threads > 0 ? threads : 1);
    return true;
}

static void device_cuda_synchronize(Device *device)
{
    CudaDevice *cuda = cuda_device(device);
    for (int i = 0; i < CUDA_STREAMS; i++)
        CUDA_CHECK(cudaStreamSynchronize(cuda->stream[i]));
}

static void device_cuda_close(Device *device)
{
    CudaDevice *cuda = cuda_device(device);
    device_cuda_synchronize(device);
    pool_destroy(device->pool);
    lt_close(cuda->lt);
    CUDA_CHECK(cudaFree(cuda->workspace));
    for (int i = 0; i < CUDA_STREAMS; i++)
        CUDA_CHECK(cudaStreamDestroy(cuda->stream[i]));
    free(cuda);
}

/* Zeroed before it returns, for every stream. */
static void *device_cuda_alloc(Device *device, size_t bytes)
{
    void *p = NULL;
    cudaError_t code = cudaMalloc(&p, bytes);
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* or the next check would find it */
        return NULL;
    }
    CUDA_CHECK(code);
    CUDA_CHECK(cudaMemsetAsync(p, 0, bytes, cuda_stream(device)));
    CUDA_CHECK(cudaStreamSynchronize(cuda_stream(device)));
    return p;
}

static void device_cuda_release(Device *device, void *p, size_t bytes)
{
    (void)bytes;
    device_cuda_synchronize(device);
    CUDA_CHECK(cudaFree(p));
}

/* The direction follows from the addresses, which are unique among host and devices. Rows that lie
 * farther apart than the runtime's largest pitch are copied one by one. */
static void device_cuda_copy(Device *device, Stream stream, Tensor dst, Tensor src)
{
    const size_t MOST_PITCH = INT32_MAX;
    (void)device;
    if (tensor_count(src) == 0) return;
    cudaStream_t on = (cudaStream_t)stream.impl;
    size_t size = dtype_size(src.dtype), row = (size_t)tensor_cols(src) * size;
    size_t from = (size_t)src.ld * size, to = (size_t)dst.ld * size;
    if (tensor_is_dense(dst) && tensor_is_dense(src))
        CUDA_CHECK(cudaMemcpyAsync(dst.data, src.data, tensor_bytes(src), cudaMemcpyDefault, on));
    else if (from <= MOST_PITCH && to <= MOST_PITCH)
        CUDA_CHECK(cudaMemcpy2DAsync(dst.data, to, src.data, from, row, (size_t)tensor_rows(src),
                                     cudaMemcpyDefault, on));
    else
        for (size_t i = 0; i < (size_t)tensor_rows(src); i++)
            CUDA_CHECK(cudaMemcpyAsync((char *)dst.data + i * to, (char *)src.data + i * from, row,
                                       cudaMemcpyDefault, on));
}

/* An event is made when it is first recorded. */
static void device_cuda_event_record(Device *device, Event *event, Stream stream)
{
    (void)device;
    cudaEvent_t made = (cudaEvent_t)event->impl;
    if (made == NULL) CUDA_CHECK(cudaEventCreateWithFlags(&made, cudaEventDefault));
    event->impl = made;
    CUDA_CHECK(cudaEventRecord(made, (cudaStream_t)stream.impl));
}

/* An event that was never recorded holds up nobody. */
static void device_cuda_event_wait(Device *device, Event *event, Stream stream)
{
    (void)device;
    if (event->impl)
        CUDA_CHECK(cudaStreamWaitEvent((cudaStream_t)stream.impl, (cudaEvent_t)event->impl, 0));
}

static bool device_cuda_event_reached(Device *device, Event *event)
{
    (void)device;
    if (event->impl == NULL) return true;
    cudaError_t code = cudaEventQuery((cudaEvent_t)event->impl);
    if (code == cudaErrorNotReady)
        cudaGetLastError(); /* or the next check would find it */
    else
        CUDA_CHECK(code);
    return code == cudaSuccess;
}

static void device_cuda_event_synchronize(Device *device, Event *event)
{
    (void)device;
    CUDA_CHECK(cudaEventSynchronize((cudaEvent_t)event->impl));
}

static double device_cuda_event_seconds(Device *device, Event *from, Event *to)
{
    float milliseconds = 0;
    (void)device;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, (cudaEvent_t)from->impl, (cudaEvent_t)to->impl));
    return 1e-3 * (double)milliseconds;
}

static void device_cuda_event_destroy(Device *device, Event *event)
{
    (void)device;
    if (event->impl) CUDA_CHECK(cudaEventDestroy((cudaEvent_t)event->impl));
}

static void *device_cuda_host_alloc(Device *device, size_t bytes)
{
    void *p = NULL;
    (void)device;
    if (cudaMallocHost(&p, bytes) == cudaSuccess) return p;
    cudaGetLastError(); /* or the next check would find it */
    return NULL;
}

static void device_cuda_host_release(Device *device, void *p)
{
    (void)device;
    CUDA_CHECK(cudaFreeHost(p));
}

/* Ranges cost a call through a null pointer where no profiler listens. */
static void device_cuda_range_begin(const char *name)
{
    nvtxRangePushA(name);
}

static void device_cuda_range_end(void)
{
    nvtxRangePop();
}

static void device_cuda_memory(Device *device, size_t *available, size_t *total)
{
    (void)device;
    CUDA_CHECK(cudaMemGetInfo(available, total));
}

static const char *device_cuda_bus_id(int index, char *buf, size_t n)
{
    CUDA_CHECK(cudaDeviceGetPCIBusId(buf, (int)n, index));
    return buf;
}

static bool device_cuda_sees(int index, int peer)
{
    int can = 0;
    CUDA_CHECK(cudaDeviceCanAccessPeer(&can, index, peer));
    return can != 0;
}

static void device_cuda_enter(const Device *device)
{
    CUDA_CHECK(cudaSetDevice(device->index));
}

static int64_t device_cuda_plans(const Device *device)
{
    return cuda_device(device)->lt->n_plans;
}

static const char *device_cuda_describe(const Device *device, char *buf, size_t n)
{
    const CudaDevice *cuda = cuda_device(device);
    char version[32];
    snprintf(buf, n, "cuda: %s (sm_%d%d), cuBLASLt %s", cuda->name, cuda->major, cuda->minor,
             lt_version(cuda->lt, version, sizeof version));
    return buf;
}

const Backend backend_cuda = {
    .name = "cuda",
    .place = PLACE_DEVICE,
    .usable = device_cuda_usable,
    .count = device_cuda_count,
    .open = device_cuda_open,
    .close = device_cuda_close,
    .alloc = device_cuda_alloc,
    .release = device_cuda_release,
    .copy = device_cuda_copy,
    .event_record = device_cuda_event_record,
    .event_wait = device_cuda_event_wait,
    .event_reached = device_cuda_event_reached,
    .event_synchronize = device_cuda_event_synchronize,
    .event_seconds = device_cuda_event_seconds,
    .event_destroy = device_cuda_event_destroy,
    .range_begin = device_cuda_range_begin,
    .range_end = device_cuda_range_end,
    .host_alloc = device_cuda_host_alloc,
    .host_release = device_cuda_host_release,
    .synchronize = device_cuda_synchronize,
    .memory = device_cuda_memory,
    .plans = device_cuda_plans,
    .describe = device_cuda_describe,
    .bus_id = device_cuda_bus_id,
    .sees = device_cuda_sees,
    .enter = device_cuda_enter,
};
