/* device.c -- implements the CUDA backend's device: finds the GPU, opens its streams, scratch
 * memory and cuBLASLt, and allocates and copies memory. If there is no driver or GPU, device "auto"
 * falls back to the CPU silently. If there is a GPU that cannot be used, "auto" also prints a
 * warning.
 *
 * The host side of a copy may be pageable. The driver then stages the data, so the source may
 * change as soon as the call returns. A page-locked source may change only after the copy. */
#include "model/kernels/cuda/attention.h"
#include "model/kernels/cuda/cuda.h"
#include "model/kernels/cuda/lt.h"
#include "model/kernels/cuda/tensor_map.h"

#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>

extern const OpTable cuda_table;
extern const Backend backend_cuda;

/* Lowest compute capability (major version) that the kernels support: it introduced bf16 and
 * asynchronous copies. */
enum { CAPABILITY_LEAST = 8 };

void cuda_check(cudaError_t code, const char *call, const char *file, int line)
{
    if (code == cudaSuccess) return;
    bool full = code == cudaErrorMemoryAllocation;
    fail(full ? EXIT_NO_MEMORY : EXIT_SYSTEM, "%s:%d: %s: %s (%s)%s", file, line, call,
         cudaGetErrorString(code), cudaGetErrorName(code), full ? "; " MEMORY_ADVICE : "");
}

/* Returns false and sets err if there is no driver, or if the driver is too old for this program.
 * Then sets *there to whether there is a driver at all. */
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

/* Returns true if `code` is success. Otherwise `code` is the error of a GPU: sets err and returns
 * false. */
static bool answers(cudaError_t code, char *err, size_t n)
{
    if (code == cudaSuccess) return true;
    cudaGetLastError();
    return error_set(err, n,
                     "the GPU cannot be used: %s (%s); nvidia-smi and the kernel's log may say why",
                     cudaGetErrorString(code), cudaGetErrorName(code));
}

/* Finds the GPU for the rank that is number *index on this machine, stores its properties in cuda,
 * and sets *index to the number of the GPU. Returns false and sets err if there is no GPU or it
 * cannot be used; *there tells these two cases apart. None of these queries creates a CUDA context
 * on the GPU. */
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

/* Creates the streams with their priorities. Communication has priority over compute, because other
 * ranks wait for it. The stream that updates optimizer states in host memory has priority, too,
 * because its few blocks must run concurrently with the forward pass, which waits for them. The
 * tensor-parallel sums inside a layer have the highest priority, because little or no work can
 * overlap with them. */
static void open_streams(Device *device, CudaDevice *cuda)
{
    int least, greatest;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    int between = (least + greatest) / 2;
    const int priority[CUDA_STREAMS] = {
        [CUDA_COMPUTE] = least, [CUDA_COPY] = least,  [CUDA_COMM] = between,
        [CUDA_P2P] = between,   [CUDA_TP] = greatest, [CUDA_UPDATE] = between};
    Stream *const of_device[CUDA_STREAMS] = {
        [CUDA_COMPUTE] = &device->compute, [CUDA_COPY] = &device->copy,
        [CUDA_COMM] = &device->comm,       [CUDA_P2P] = &device->p2p,
        [CUDA_TP] = &device->tp,           [CUDA_UPDATE] = &device->update};
    for (int i = 0; i < CUDA_STREAMS; i++) {
        CUDA_CHECK(
            cudaStreamCreateWithPriority(&cuda->stream[i], cudaStreamNonBlocking, priority[i]));
        of_device[i]->impl = cuda->stream[i];
    }
}

/* Returns the number of GPUs; 0 also when there is no driver. */
static int device_cuda_count(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError(); /* clears the error, which the next check would report otherwise */
    return 0;
}

static DeviceFacts device_cuda_facts(int index)
{
    struct cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, index) == cudaSuccess)
        return (DeviceFacts){.capability = 10 * properties.major + properties.minor,
                             .bytes = (int64_t)properties.totalGlobalMem,
                             .lacks_hopper = !hopper_attention_built()};
    cudaGetLastError(); /* clears the error, which the next check would report otherwise */
    return (DeviceFacts){0};
}

/* Returns false and sets err if the device cannot be opened with the attention kernels for Hopper.
 */
static bool hopper_serves(const CudaDevice *cuda, char *err, size_t n)
{
    if (cuda->major != 9 || cuda->minor != 0)
        return error_set(err, n,
                         "cuda.attention: the hopper kernels need compute capability 9.0 (H100, "
                         "H200), and %s has %d.%d; write \"portable\"",
                         cuda->name, cuda->major, cuda->minor);
    if (!hopper_attention_built())
        return error_set(err, n,
                         "cuda.attention: this program is built without the hopper kernels; build "
                         "it with 90a in ARCH, or write \"portable\"");
    return true;
}

static bool device_cuda_open(Device *device, const DeviceOptions *options, char *err, size_t n)
{
    CudaDevice *cuda = must_calloc(1, sizeof *cuda);
    bool there = false;
    int ranks = options->local_ranks > 0 ? options->local_ranks : 1;
    if (!find(cuda, &device->index, &there, err, n) ||
        !answers(cudaSetDevice(device->index), err, n) ||
        (options->hopper_attention && !hopper_serves(cuda, err, n)) ||
        (cuda->lt = lt_open(options->tf32, err, n)) == NULL) {
        if (there) snprintf(device->trouble, sizeof device->trouble, "%s", err);
        free(cuda);
        return false;
    }
    cuda->hopper_attention = options->hopper_attention;
    device->attention_sums_biases = options->hopper_attention;
    cuda_load_kernels(cuda);
    tensor_map_find(cuda);
    open_streams(device, cuda);
    cuda_workspace_open(cuda, options->scratch, ranks > device_cuda_count());
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

/* Allocates memory and waits until it is zeroed, so every stream can use it. Returns NULL if there
 * is not enough memory. */
static void *device_cuda_alloc(Device *device, size_t bytes)
{
    void *p = NULL;
    cudaError_t code = cudaMalloc(&p, bytes);
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* clears the error, which the next check would report otherwise */
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

/* Copies src to dst on the stream. The runtime derives the direction from the addresses, which are
 * unique across the host and all devices. If the stride of a matrix exceeds the runtime's largest
 * pitch, its rows are copied one by one. */
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

/* Records the event on the stream; creates the CUDA event at its first recording. Only events that
 * a stopwatch reads have times. */
static void device_cuda_event_record(Device *device, Event *event, Stream stream)
{
    (void)device;
    cudaEvent_t made = (cudaEvent_t)event->impl;
    unsigned flags = event->timed ? cudaEventDefault : cudaEventDisableTiming;
    if (made == NULL) CUDA_CHECK(cudaEventCreateWithFlags(&made, flags));
    event->impl = made;
    CUDA_CHECK(cudaEventRecord(made, (cudaStream_t)stream.impl));
}

/* Makes the stream wait for the event. Does nothing if the event was never recorded. */
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
        cudaGetLastError(); /* clears the error, which the next check would report otherwise */
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
    cudaGetLastError(); /* clears the error, which the next check would report otherwise */
    return NULL;
}

static void device_cuda_host_release(Device *device, void *p)
{
    (void)device;
    CUDA_CHECK(cudaFreeHost(p));
}

/* Opens a named range for profilers. Without a profiler this costs one call through a function
 * pointer. */
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
    .facts = device_cuda_facts,
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
    .mark = cuda_mark,
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
