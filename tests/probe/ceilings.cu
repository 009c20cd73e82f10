/* ceilings.cu -- measures how fast this GPU can be: memory bandwidth by size, matrix products of
 * random data (ceilings_products.h), the cost of launches, graphs, events and host copies
 * (ceilings_calls.h), and the latency and size of L2 as seen by a chain of dependent loads. For a
 * copy or a read-modify-write, both the bytes read and the bytes written count. It takes about 30
 * seconds. */
#include "tests/probe/ceilings_calls.h"
#include "tests/probe/ceilings_products.h"
#include "tests/probe/probe.h"

/* A block of BLOCK threads moves PER_THREAD 16-byte vectors per thread: 16 KiB. */
enum { BLOCK = 256, PER_THREAD = 4, LINE = 128, CHASE_STEPS = 32768 };
static const size_t BLOCK_BYTES = (size_t)BLOCK * PER_THREAD * sizeof(uint4);

/* Two buffers of `bytes`; `word` receives a result that must not be optimised away. */
struct Buffers {
    uint4 *from, *to;
    uint32_t *word;
    size_t bytes, used;
};

static __device__ size_t first_vector()
{
    return (size_t)blockIdx.x * (BLOCK * PER_THREAD) + threadIdx.x;
}

static __global__ void fill_kernel(uint4 *x)
{
    size_t at = first_vector();
    for (int i = 0; i < PER_THREAD; i++, at += BLOCK) {
        uint32_t h = probe_hash((uint32_t)at);
        x[at] = make_uint4(h, h * 3, h * 5, h * 7);
    }
}

/* STREAM: use the cache hint for data that are used only once. */
template <bool STREAM>
static __global__ void __launch_bounds__(BLOCK) copy_kernel(const uint4 *from, uint4 *to)
{
    size_t at = first_vector();
    uint4 v[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
        v[i] = STREAM ? __ldcs(from + at + i * BLOCK) : from[at + i * BLOCK];
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
        if (STREAM)
            __stcs(to + at + i * BLOCK, v[i]);
        else
            to[at + i * BLOCK] = v[i];
}

static __global__ void __launch_bounds__(BLOCK)
    read_kernel(const uint4 *from, uint32_t *word, uint32_t key)
{
    size_t at = first_vector();
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        uint4 v = from[at + i * BLOCK];
        all ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (all == key) *word = all;
}

static __global__ void __launch_bounds__(BLOCK) write_kernel(uint4 *to, uint32_t value)
{
    size_t at = first_vector();
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
        to[at + i * BLOCK] = make_uint4(value, value, value, value);
}

static __global__ void __launch_bounds__(BLOCK) modify_kernel(uint4 *x)
{
    size_t at = first_vector();
    uint4 v[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
        v[i] = x[at + i * BLOCK];
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
        x[at + i * BLOCK] = make_uint4(v[i].x + 1, v[i].y + 1, v[i].z + 1, v[i].w + 1);
}

static unsigned blocks_of(size_t bytes)
{
    return (unsigned)(bytes / BLOCK_BYTES);
}

static void call_copy_kernel(void *context, cudaStream_t stream)
{
    Buffers *b = (Buffers *)context;
    copy_kernel<false><<<blocks_of(b->used), BLOCK, 0, stream>>>(b->from, b->to);
}

static void call_copy_streaming(void *context, cudaStream_t stream)
{
    Buffers *b = (Buffers *)context;
    copy_kernel<true><<<blocks_of(b->used), BLOCK, 0, stream>>>(b->from, b->to);
}

static void call_copy_engine(void *context, cudaStream_t stream)
{
    Buffers *b = (Buffers *)context;
    CUDA_OK(cudaMemcpyAsync(b->to, b->from, b->used, cudaMemcpyDeviceToDevice, stream));
}

static void call_read(void *context, cudaStream_t stream)
{
    Buffers *b = (Buffers *)context;
    read_kernel<<<blocks_of(b->used), BLOCK, 0, stream>>>(b->from, b->word, 0x5bd1e995u);
}

static void call_write(void *context, cudaStream_t stream)
{
    Buffers *b = (Buffers *)context;
    write_kernel<<<blocks_of(b->used), BLOCK, 0, stream>>>(b->to, 7);
}

static void call_modify(void *context, cudaStream_t stream)
{
    Buffers *b = (Buffers *)context;
    modify_kernel<<<blocks_of(b->used), BLOCK, 0, stream>>>(b->to);
}

static const struct {
    const char *name;
    void (*call)(void *, cudaStream_t);
    int passes; /* how often the buffer's bytes are counted: once per read and once per write */
} movements[] = {
    {"copy", call_copy_kernel, 2},
    {"copy_streaming", call_copy_streaming, 2},
    {"copy_memcpy", call_copy_engine, 2},
    {"read", call_read, 1},
    {"write", call_write, 1},
    {"read_modify_write", call_modify, 2},
};

/* Measures bandwidths from 1 MiB to 4 GiB, if the buffers are large enough. Calls follow each other
 * on the stream, so small sizes also measure the launches, and data that fit stay in L2. */
static void probe_bandwidth(Buffers *b, cudaStream_t stream)
{
    const size_t most = (size_t)4 << 30;
    fill_kernel<<<blocks_of(b->bytes), BLOCK, 0, stream>>>(b->from);
    CUDA_OK(cudaGetLastError());
    for (size_t m = 0; m < sizeof movements / sizeof *movements; m++)
        for (size_t bytes = (size_t)1 << 20; bytes <= most; bytes *= 4) {
            const char *name = probe_name("%s.%zuMiB", movements[m].name, bytes >> 20);
            size_t calls = ((size_t)8 << 30) / bytes;
            double seconds;
            if (bytes > b->bytes) {
                probe_word(name, "failed: not enough memory");
                continue;
            }
            b->used = bytes;
            calls = calls > 400 ? 400 : calls;
            seconds = probe_seconds(movements[m].call, b, stream, (int)calls, 7);
            CUDA_OK(cudaGetLastError());
            probe_number(name, (double)movements[m].passes * (double)bytes / seconds, "B/s");
        }
}

/* Writes a chain into the lines of a buffer: the first word of each line is the number of the next
 * line. */
static __global__ void chain_kernel(uint32_t *lines, const uint32_t *next, uint32_t n)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) lines[(size_t)i * (LINE / sizeof *lines)] = next[i];
}

/* Follows the chain from line *at for `steps` loads and stores the last line in *at. With L1, loads
 * go through the first-level cache; otherwise they go to L2. */
template <bool L1>
static __global__ void chase_kernel(const uint32_t *lines, uint32_t *at, int steps)
{
    uint32_t line = *at;
    for (int i = 0; i < steps; i++) {
        const uint32_t *place = lines + (size_t)line * (LINE / sizeof *lines);
        line = L1 ? __ldca(place) : __ldcg(place);
    }
    *at = line;
}

static void call_chase(void *context, cudaStream_t stream)
{
    Buffers *b = (Buffers *)context;
    chase_kernel<false><<<1, 1, 0, stream>>>((const uint32_t *)b->from, b->word, CHASE_STEPS);
}

static void call_chase_l1(void *context, cudaStream_t stream)
{
    Buffers *b = (Buffers *)context;
    chase_kernel<true><<<1, 1, 0, stream>>>((const uint32_t *)b->from, b->word, CHASE_STEPS);
}

/* Makes one random cycle through all n lines (Sattolo's shuffle), so that no prefetcher can predict
 * it. */
static void chain_shuffle(uint32_t *next, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        next[i] = i;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(((uint64_t)probe_hash(i) * i) >> 32), line = next[i];
        next[i] = next[j];
        next[j] = line;
    }
}

/* Returns the time per load in seconds for one footprint, all lines of which have just been read.
 * `next` and `device_next` have room for its lines. */
static double chase(Buffers *b, cudaStream_t stream, size_t footprint, bool l1, uint32_t *next,
                    uint32_t *device_next)
{
    uint32_t n = (uint32_t)(footprint / LINE);
    chain_shuffle(next, n);
    CUDA_OK(cudaMemcpyAsync(device_next, next, n * sizeof *next, cudaMemcpyHostToDevice, stream));
    chain_kernel<<<(n + 255) / 256, 256, 0, stream>>>((uint32_t *)b->from, device_next, n);
    b->used = footprint;
    call_read(b, stream);
    CUDA_OK(cudaGetLastError());
    /* Set the word to 0 after the read, because the read may write it. */
    CUDA_OK(cudaMemsetAsync(b->word, 0, sizeof *b->word, stream));
    return probe_seconds(l1 ? call_chase_l1 : call_chase, b, stream, 1, 4) / CHASE_STEPS;
}

/* Measures latencies for growing footprints. The largest footprint whose latency is still nearer to
 * that of L2 than to that of memory is the size of L2 that one SM sees. */
static void probe_latency(Buffers *b, cudaStream_t stream)
{
    static const size_t mib[] = {1,  2,  4,  8,  12, 16, 20, 24, 28, 32,  36,
                                 40, 44, 48, 52, 56, 60, 64, 80, 96, 128, 256};
    enum { N = sizeof mib / sizeof *mib };
    double seconds[N];
    size_t seen = 0, lines = (mib[N - 1] << 20) / LINE;
    uint32_t *device_next, *next = (uint32_t *)malloc(lines * sizeof *next);
    if (!next) {
        probe_word("latency", "failed: no host memory");
        return;
    }
    CUDA_OK(cudaMalloc(&device_next, lines * sizeof *next));
    for (size_t kib = 16; kib <= 512; kib *= 2)
        probe_number(probe_name("latency.through_l1.%zuKiB", kib),
                     1e9 * chase(b, stream, kib << 10, true, next, device_next), "ns");
    for (size_t kib = 64; kib <= 512; kib *= 2)
        probe_number(probe_name("latency.%zuKiB", kib),
                     1e9 * chase(b, stream, kib << 10, false, next, device_next), "ns");
    for (int i = 0; i < N; i++) {
        seconds[i] = chase(b, stream, mib[i] << 20, false, next, device_next);
        probe_number(probe_name("latency.%zuMiB", mib[i]), 1e9 * seconds[i], "ns");
    }
    for (int i = 0; i < N; i++)
        if (2 * seconds[i] < seconds[0] + seconds[N - 1]) seen = mib[i];
    probe_number("latency.l2_size_seen", (double)seen, "MiB");
    CUDA_OK(cudaFree(device_next));
    free(next);
}

static double attribute(cudaDeviceAttr which)
{
    int value = 0;
    CUDA_OK(cudaDeviceGetAttribute(&value, which, 0));
    return value;
}

static void print_device(const cudaDeviceProp *device)
{
    int driver = 0, runtime = 0;
    CUDA_OK(cudaDriverGetVersion(&driver));
    CUDA_OK(cudaRuntimeGetVersion(&runtime));
    probe_word("device.name", device->name);
    probe_word("device.cuda.driver", probe_name("%d.%d", driver / 1000, driver % 1000 / 10));
    probe_word("device.cuda.runtime", probe_name("%d.%d", runtime / 1000, runtime % 1000 / 10));
    probe_word("device.capability", probe_name("%d.%d", device->major, device->minor));
    probe_number("device.processors", device->multiProcessorCount, "SM");
    probe_number("device.memory", (double)device->totalGlobalMem / 0x1p30, "GiB");
    probe_number("device.l2", device->l2CacheSize / 0x1p20, "MiB");
    probe_number("device.shared_per_block", (double)device->sharedMemPerBlockOptin / 0x1p10, "KiB");
    probe_number("device.clock", 1e-3 * attribute(cudaDevAttrClockRate), "MHz");
    probe_number("device.memory_clock", 1e-3 * attribute(cudaDevAttrMemoryClockRate), "MHz");
    probe_number("device.memory_bus", device->memoryBusWidth, "bit");
    probe_number("device.copy_engines", device->asyncEngineCount, "");
}

/* Allocates two buffers of 4 GiB each, or smaller ones if that much memory is not free. */
static void buffers_open(Buffers *b)
{
    for (b->bytes = (size_t)4 << 30; b->bytes > ((size_t)128 << 20); b->bytes /= 4) {
        b->from = b->to = nullptr;
        if (cudaMalloc(&b->from, b->bytes) == cudaSuccess &&
            cudaMalloc(&b->to, b->bytes) == cudaSuccess)
            break;
        cudaGetLastError();
        CUDA_OK(cudaFree(b->from));
        b->from = nullptr;
    }
    if (!b->from) {
        fprintf(stderr, "the GPU has not 512 MiB free\n");
        exit(PROBE_FAILED);
    }
    CUDA_OK(cudaMalloc(&b->word, sizeof *b->word));
}

int main()
{
    cudaDeviceProp device = probe_device();
    cudaStream_t stream;
    Buffers b = {};
    print_device(&device);
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    probe_launches(stream);
    probe_graph(stream, 1);
    probe_graph(stream, 100);
    probe_events(stream);
    probe_host_copies(stream);
    buffers_open(&b);
    probe_bandwidth(&b, stream);
    probe_latency(&b, stream);
    CUDA_OK(cudaFree(b.from));
    CUDA_OK(cudaFree(b.to));
    CUDA_OK(cudaFree(b.word));
    probe_products(stream);
    CUDA_OK(cudaStreamDestroy(stream));
    return 0;
}
