/* host_states.cu -- measures optimizer states in page-locked memory of the host: how long the
 * driver takes to lock it, how fast kernels read and write it by the number of their blocks, how
 * fast both copy engines together move as many bytes, and how much slower a matrix product becomes
 * beside such an update. The last two lines apply the rule: staged copies are worth building if 16
 * blocks reach less than 70 % of the engines' rate, or slow products down by more than 10 %.
 * If they reach that rate and the slowdown was not measured, the answer is "not measured". */
#include "tests/probe/cublaslt_gpt2.h"
#include "tests/probe/probe.h"

#include <time.h>

enum { BLOCKS = 16, THREADS = 256, PACKS = 4, ROUNDS = 5, STATES = 3 };
#define STATE_BYTES ((size_t)256 << 20)

typedef struct {
    float4 *state[STATES]; /* master and two moments, page-locked */
    float *weight;         /* in device memory */
    int blocks;
} Update;

/* Reads and writes the states once each, in packs of 16 bytes, as adamw_kernel does with a few more
 * operations. */
static __global__ void __launch_bounds__(THREADS, 4) update_kernel(Update u, size_t packs)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += step) {
        float4 p = u.state[0][i], m = u.state[1][i], v = u.state[2][i];
        m = make_float4(0.9f * m.x + p.x, 0.9f * m.y + p.y, 0.9f * m.z + p.z, 0.9f * m.w + p.w);
        v = make_float4(0.99f * v.x, 0.99f * v.y, 0.99f * v.z, 0.99f * v.w);
        p = make_float4(p.x - v.x, p.y - v.y, p.z - v.z, p.w - v.w);
        u.state[0][i] = p;
        u.state[1][i] = m;
        u.state[2][i] = v;
        u.weight[i % 4096] = p.x + m.x;
    }
}

static void update_run(void *context, cudaStream_t stream)
{
    const Update *u = (const Update *)context;
    update_kernel<<<u->blocks, THREADS, 0, stream>>>(*u, STATE_BYTES / sizeof(float4));
    CUDA_OK(cudaGetLastError());
}

/* Both directions at once, on a stream each; the second one waits for the first's beginning and the
 * first for the second's end, so that events on the first time both. */
typedef struct {
    char *host[2], *device[2];
    cudaStream_t other;
    cudaEvent_t begin, end;
} Engines;

static void engines_run(void *context, cudaStream_t stream)
{
    const Engines *e = (const Engines *)context;
    CUDA_OK(cudaEventRecord(e->begin, stream));
    CUDA_OK(cudaStreamWaitEvent(e->other, e->begin, 0));
    CUDA_OK(cudaMemcpyAsync(e->device[0], e->host[0], STATE_BYTES, cudaMemcpyHostToDevice, stream));
    CUDA_OK(
        cudaMemcpyAsync(e->host[1], e->device[1], STATE_BYTES, cudaMemcpyDeviceToHost, e->other));
    CUDA_OK(cudaEventRecord(e->end, e->other));
    CUDA_OK(cudaStreamWaitEvent(stream, e->end, 0));
}

/* Returns the seconds since some moment of the past. */
static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Locks the states' memory and prints how long a gigabyte takes. */
static void open_states(Update *u)
{
    double from = now_seconds();
    for (int i = 0; i < STATES; i++)
        CUDA_OK(cudaMallocHost((void **)&u->state[i], STATE_BYTES));
    probe_number("host_states.lock", (now_seconds() - from) / (STATES * STATE_BYTES / 1e9), "s/GB");
    for (int i = 0; i < STATES; i++)
        memset(u->state[i], 0, STATE_BYTES);
    CUDA_OK(cudaMalloc((void **)&u->weight, 4096 * sizeof *u->weight));
}

/* Returns the rate of direct access, in bytes a second each way. */
static double direct_rate(Update *u, int blocks, cudaStream_t stream)
{
    u->blocks = blocks;
    return STATES * STATE_BYTES / probe_seconds(update_run, u, stream, 1, ROUNDS);
}

static double engines_rate(const Update *u, cudaStream_t stream)
{
    Engines e = {{(char *)u->state[0], (char *)u->state[1]}, {NULL, NULL}, NULL, NULL, NULL};
    CUDA_OK(cudaStreamCreateWithFlags(&e.other, cudaStreamNonBlocking));
    CUDA_OK(cudaEventCreateWithFlags(&e.begin, cudaEventDisableTiming));
    CUDA_OK(cudaEventCreateWithFlags(&e.end, cudaEventDisableTiming));
    for (int i = 0; i < 2; i++)
        CUDA_OK(cudaMalloc((void **)&e.device[i], STATE_BYTES));
    double rate = STATE_BYTES / probe_seconds(engines_run, &e, stream, 1, ROUNDS);
    for (int i = 0; i < 2; i++)
        CUDA_OK(cudaFree(e.device[i]));
    CUDA_OK(cudaEventDestroy(e.begin));
    CUDA_OK(cudaEventDestroy(e.end));
    CUDA_OK(cudaStreamDestroy(e.other));
    return rate;
}

/* Returns how much longer a product of the list takes beside updates by BLOCKS blocks, as a
 * fraction of its time alone. */
static double product_slowed(Update *u, struct Bench *bench, struct Product p, cudaStream_t beside)
{
    struct ProductPlans plans;
    double alone = -1, with = -1;
    if (product_open(&plans, &bench->lt, bench->handle, &p) == CUBLAS_STATUS_SUCCESS) {
        alone = product_seconds(&plans, 0, bench->stream, 20, ROUNDS);
        u->blocks = BLOCKS;
        for (int i = 0; i < 8; i++) /* longer than the rounds of products */
            update_run(u, beside);
        with = product_seconds(&plans, 0, bench->stream, 20, ROUNDS);
        bool covered = cudaStreamQuery(beside) == cudaErrorNotReady;
        cudaGetLastError(); /* "not ready" is an answer, not an error */
        if (!covered) with = -1;
        CUDA_OK(cudaStreamSynchronize(beside));
    }
    product_close(&plans);
    return alone > 0 && with > 0 ? with / alone - 1 : -1;
}

int main(void)
{
    static struct Gpt2Product list[GPT2_PRODUCTS];
    static struct Bench bench;
    const int blocks[] = {4, 8, BLOCKS, 32, 64, 132};
    double rate, direct = 0;
    cudaStream_t beside;
    Update u;
    probe_device();
    gpt2_products(list);
    bench_open(&bench, list, GPT2_BLOCK_PRODUCTS, (size_t)128 << 20, false);
    CUDA_OK(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
    open_states(&u);
    double engines = engines_rate(&u, bench.stream);
    probe_number("host_states.engines", engines / 1e9, "GB/s each way");
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        rate = direct_rate(&u, blocks[i], bench.stream);
        if (blocks[i] == BLOCKS) direct = rate;
        probe_number(probe_name("host_states.direct.%d", blocks[i]), rate / 1e9, "GB/s each way");
    }
    struct Product p = bench_product(&bench, gpt2_find(list, "124M", "up", FORWARD));
    double slowed = product_slowed(&u, &bench, p, beside);
    if (slowed < 0)
        probe_word("host_states.product_slowed", "not measured");
    else
        probe_number("host_states.product_slowed", 100 * slowed, "%");
    probe_number("host_states.direct_of_engines", 100 * direct / engines, "%");
    probe_word("host_states.staged_copies", direct < 0.7 * engines || slowed > 0.1
                                                ? "worth building"
                                            : slowed < 0 ? "not measured"
                                                         : "not needed");
    for (int i = 0; i < STATES; i++)
        CUDA_OK(cudaFreeHost(u.state[i]));
    CUDA_OK(cudaFree(u.weight));
    CUDA_OK(cudaStreamDestroy(beside));
    bench_close(&bench);
    return 0;
}
