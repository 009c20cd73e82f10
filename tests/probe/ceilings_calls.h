/* ceilings_calls.h -- part of ceilings.cu: measures the cost of submitting work to the device:
 * launches, graphs, events, and copies between host and device. Host times are from
 * CLOCK_MONOTONIC. */
#ifndef TESTS_PROBE_CEILINGS_CALLS_H
#define TESTS_PROBE_CEILINGS_CALLS_H

#include "tests/probe/probe.h"
#include <time.h>

/* So few calls that the launch queue (about a thousand entries) never fills up and blocks the
 * host. */
enum { CALLS = 400, CALL_ROUNDS = 15 };

static __global__ void empty_kernel()
{
}

struct Arguments {
    char bytes[1024];
};

static __global__ void arguments_kernel(const __grid_constant__ Arguments)
{
}

static double host_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Returns the median host time in seconds of one call of f, out of `calls` calls, without waiting
 * for the device. */
static double host_cost(void (*f)(void *, cudaStream_t), void *context, cudaStream_t stream,
                        int calls)
{
    double seconds[CALL_ROUNDS];
    for (int r = -1; r < CALL_ROUNDS; r++) {
        double from = host_seconds();
        for (int i = 0; i < calls; i++)
            f(context, stream);
        if (r >= 0) seconds[r] = (host_seconds() - from) / calls;
        CUDA_OK(cudaStreamSynchronize(stream));
    }
    qsort(seconds, CALL_ROUNDS, sizeof *seconds, probe_compare_doubles);
    return seconds[CALL_ROUNDS / 2];
}

static void call_launch(void *, cudaStream_t stream)
{
    empty_kernel<<<1, 32, 0, stream>>>();
}

static void call_launch_arguments(void *context, cudaStream_t stream)
{
    arguments_kernel<<<1, 32, 0, stream>>>(*(const Arguments *)context);
}

static void call_launch_wait(void *, cudaStream_t stream)
{
    empty_kernel<<<1, 32, 0, stream>>>();
    CUDA_OK(cudaStreamSynchronize(stream));
}

static void call_graph(void *context, cudaStream_t stream)
{
    CUDA_OK(cudaGraphLaunch((cudaGraphExec_t)context, stream));
}

static void call_graph_wait(void *context, cudaStream_t stream)
{
    CUDA_OK(cudaGraphLaunch((cudaGraphExec_t)context, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
}

static void call_record(void *context, cudaStream_t stream)
{
    CUDA_OK(cudaEventRecord((cudaEvent_t)context, stream));
}

static void call_wait(void *context, cudaStream_t stream)
{
    CUDA_OK(cudaStreamWaitEvent(stream, (cudaEvent_t)context, 0));
}

static void call_query(void *context, cudaStream_t)
{
    CUDA_OK(cudaEventQuery((cudaEvent_t)context));
}

static void probe_launches(cudaStream_t stream)
{
    Arguments arguments = {};
    probe_number("launch.host", 1e6 * host_cost(call_launch, nullptr, stream, CALLS), "us");
    probe_number("launch.host.1KiB_of_arguments",
                 1e6 * host_cost(call_launch_arguments, &arguments, stream, CALLS), "us");
    probe_number("launch.back_to_back",
                 1e6 * probe_seconds(call_launch, nullptr, stream, CALLS, CALL_ROUNDS), "us");
    probe_number("launch.and_wait", 1e6 * host_cost(call_launch_wait, nullptr, stream, 100), "us");
    CUDA_OK(cudaGetLastError());
}

/* Measures a graph of n empty kernels that run one after the other. */
static void probe_graph(cudaStream_t stream, int n)
{
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    double from;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n; i++)
        empty_kernel<<<1, 32, 0, stream>>>();
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    from = host_seconds();
    CUDA_OK(cudaGraphInstantiate(&ready, graph, 0));
    probe_number(probe_name("graph.%d_kernels.instantiate", n), 1e6 * (host_seconds() - from),
                 "us");
    probe_number(probe_name("graph.%d_kernels.launch.host", n),
                 1e6 * host_cost(call_graph, ready, stream, 50), "us");
    probe_number(probe_name("graph.%d_kernels.back_to_back", n),
                 1e6 * probe_seconds(call_graph, ready, stream, 50, CALL_ROUNDS), "us");
    probe_number(probe_name("graph.%d_kernels.launch.and_wait", n),
                 1e6 * host_cost(call_graph_wait, ready, stream, 50), "us");
    CUDA_OK(cudaGraphExecDestroy(ready));
    CUDA_OK(cudaGraphDestroy(graph));
}

/* Measures how long the device takes when a kernel on one stream waits for one on the other, back
 * and forth. Returns seconds per hand-over, including the kernel's own launch. */
static double event_handover(cudaStream_t one, cudaStream_t other, cudaEvent_t event)
{
    cudaStream_t streams[2] = {one, other};
    double seconds[CALL_ROUNDS];
    for (int r = -1; r < CALL_ROUNDS; r++) {
        float ms = 0;
        cudaEvent_t from, to;
        CUDA_OK(cudaEventCreate(&from));
        CUDA_OK(cudaEventCreate(&to));
        CUDA_OK(cudaEventRecord(from, one));
        for (int i = 0; i < 200; i++) {
            empty_kernel<<<1, 32, 0, streams[i % 2]>>>();
            CUDA_OK(cudaEventRecord(event, streams[i % 2]));
            CUDA_OK(cudaStreamWaitEvent(streams[(i + 1) % 2], event, 0));
        }
        CUDA_OK(cudaEventRecord(to, one));
        CUDA_OK(cudaEventSynchronize(to));
        CUDA_OK(cudaEventElapsedTime(&ms, from, to));
        if (r >= 0) seconds[r] = 1e-3 * (double)ms / 200;
        CUDA_OK(cudaEventDestroy(from));
        CUDA_OK(cudaEventDestroy(to));
    }
    qsort(seconds, CALL_ROUNDS, sizeof *seconds, probe_compare_doubles);
    return seconds[CALL_ROUNDS / 2];
}

static void probe_events(cudaStream_t stream)
{
    cudaStream_t other;
    cudaEvent_t timed, plain;
    CUDA_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CUDA_OK(cudaEventCreate(&timed));
    CUDA_OK(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
    probe_number("event.record.host", 1e6 * host_cost(call_record, plain, stream, CALLS), "us");
    probe_number("event.record.timed.host", 1e6 * host_cost(call_record, timed, stream, CALLS),
                 "us");
    probe_number("event.record.device",
                 1e6 * probe_seconds(call_record, plain, stream, CALLS, CALL_ROUNDS), "us");
    probe_number("event.wait.host", 1e6 * host_cost(call_wait, plain, stream, CALLS), "us");
    probe_number("event.query.host", 1e6 * host_cost(call_query, plain, stream, CALLS), "us");
    probe_number("event.handover.two_streams", 1e6 * event_handover(stream, other, plain), "us");
    CUDA_OK(cudaEventDestroy(timed));
    CUDA_OK(cudaEventDestroy(plain));
    CUDA_OK(cudaStreamDestroy(other));
}

struct HostCopy {
    void *to;
    const void *from;
    size_t bytes;
    cudaMemcpyKind kind;
};

static void call_copy(void *context, cudaStream_t stream)
{
    HostCopy *c = (HostCopy *)context;
    CUDA_OK(cudaMemcpyAsync(c->to, c->from, c->bytes, c->kind, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
}

/* Measures copies of one size in both directions, from one kind of host memory, waiting for each
 * copy. */
static void probe_host_copy(cudaStream_t stream, const char *kind, char *host, char *device,
                            size_t bytes)
{
    HostCopy up = {device, host, bytes, cudaMemcpyHostToDevice};
    HostCopy down = {host, device, bytes, cudaMemcpyDeviceToHost};
    int calls = bytes > ((size_t)16 << 20) ? 1 : 10;
    probe_number(probe_name("host_to_device.%s.%zuKiB", kind, bytes >> 10),
                 (double)bytes / host_cost(call_copy, &up, stream, calls), "B/s");
    probe_number(probe_name("device_to_host.%s.%zuKiB", kind, bytes >> 10),
                 (double)bytes / host_cost(call_copy, &down, stream, calls), "B/s");
}

/* Measures copies in both directions at the same time, from and to different halves of pinned
 * memory. */
static void probe_duplex(char *host, char *device, size_t bytes)
{
    cudaStream_t up, down;
    double from, least = 0;
    CUDA_OK(cudaStreamCreateWithFlags(&up, cudaStreamNonBlocking));
    CUDA_OK(cudaStreamCreateWithFlags(&down, cudaStreamNonBlocking));
    for (int r = 0; r < 5; r++) {
        from = host_seconds();
        CUDA_OK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, up));
        CUDA_OK(cudaMemcpyAsync(host + bytes, device + bytes, bytes, cudaMemcpyDeviceToHost, down));
        CUDA_OK(cudaStreamSynchronize(up));
        CUDA_OK(cudaStreamSynchronize(down));
        from = host_seconds() - from;
        if (r == 0 || from < least) least = from;
    }
    probe_number("host_and_device.pinned.both_ways", 2 * (double)bytes / least, "B/s");
    CUDA_OK(cudaStreamDestroy(up));
    CUDA_OK(cudaStreamDestroy(down));
}

static void probe_host_copies(cudaStream_t stream)
{
    const size_t most = (size_t)256 << 20;
    char *device, *pinned, *pageable = (char *)malloc(most);
    double from;
    CUDA_OK(cudaMalloc(&device, most));
    from = host_seconds();
    CUDA_OK(cudaMallocHost(&pinned, most));
    probe_number("pinned.allocate.256MiB", 1e3 * (host_seconds() - from), "ms");
    memset(pinned, 1, most);
    for (size_t bytes = (size_t)64 << 10; bytes <= most; bytes *= 16)
        probe_host_copy(stream, "pinned", pinned, device, bytes);
    probe_duplex(pinned, device, most / 2);
    if (pageable) {
        memset(pageable, 1, most);
        for (size_t bytes = (size_t)64 << 10; bytes <= most; bytes *= 16)
            probe_host_copy(stream, "pageable", pageable, device, bytes);
    } else {
        probe_word("host_to_device.pageable", "failed: no host memory");
    }
    free(pageable);
    CUDA_OK(cudaFreeHost(pinned));
    CUDA_OK(cudaFree(device));
}

#endif
