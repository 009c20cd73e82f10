/* cublaslt_repeat.cu -- tests whether one algorithm gives the same bits every time, both alone and
 * while another kernel occupies some SMs; whether different algorithms give the same bits; and
 * whether a captured call replays with the same bits, with how many nodes and in what time. */
#include "tests/probe/cublaslt_gpt2.h"

enum { REPEATS = 10, REPLAYS = 10, OCCUPYING_BLOCKS = 60, OCCUPYING_NS = 300000 };

/* The bench, and buffers for comparing results. */
struct Repeat {
    struct Bench bench;
    cudaStream_t beside;
    void *reference, *first; /* D of this plan's first call; D of the first plan */
    unsigned *differing;     /* counter on the device */
};

static __global__ void count_differing(const uint32_t *a, const uint32_t *b, size_t n,
                                       unsigned *differing)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    unsigned mine = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        mine += a[i] != b[i];
    if (mine) atomicAdd(differing, mine);
}

/* Keeps its SMs busy for `ns` nanoseconds, by the device's clock. */
static __global__ void occupy(unsigned long long ns)
{
    unsigned long long from, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(from));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - from < ns);
}

static size_t d_bytes(const struct Product *p)
{
    return p->m * p->n * (p->out == CUDA_R_32F ? 4 : 2);
}

/* Returns in how many 32-bit words D and `other` differ. */
static unsigned differing_words(struct Repeat *r, const struct Product *p, const void *other)
{
    unsigned n = 0;
    cudaStream_t stream = r->bench.stream;
    CUDA_OK(cudaMemsetAsync(r->differing, 0, sizeof *r->differing, stream));
    count_differing<<<1024, 256, 0, stream>>>((const uint32_t *)p->d, (const uint32_t *)other,
                                              d_bytes(p) / 4, r->differing);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaMemcpyAsync(&n, r->differing, sizeof n, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    return n;
}

/* Runs the product once and copies the result to `kept`. */
static cublasStatus_t call_and_keep(struct Repeat *r, const struct ProductPlans *plans, int plan,
                                    void *kept)
{
    const struct Product *p = &plans->product;
    cublasStatus_t status = product_call(plans, plan, r->bench.stream);
    CUDA_OK(cudaMemcpyAsync(kept, p->d, d_bytes(p), cudaMemcpyDeviceToDevice, r->bench.stream));
    CUDA_OK(cudaStreamSynchronize(r->bench.stream));
    return status;
}

/* Runs every plan REPEATS times, every second time while another kernel occupies some SMs. */
static void ask_repeats(struct Repeat *r, const struct ProductPlans *plans, const char *name)
{
    const struct Product *p = &plans->product;
    int steady = 0, run = 0, as_first = 0, split = 0, steady_split = 0;
    for (int plan = 0; plan < plans->n; plan++) {
        bool is_split = plan_number(plans, plan, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1;
        unsigned differing = 0;
        if (call_and_keep(r, plans, plan, r->reference) != CUBLAS_STATUS_SUCCESS) continue;
        if (run++ == 0)
            CUDA_OK(cudaMemcpyAsync(r->first, r->reference, d_bytes(p), cudaMemcpyDeviceToDevice,
                                    r->bench.stream));
        for (int repeat = 0; repeat < REPEATS; repeat++) {
            CUDA_OK(cudaMemsetAsync(p->d, 0xff, d_bytes(p), r->bench.stream));
            CUDA_OK(cudaStreamSynchronize(r->bench.stream));
            if (repeat % 2)
                occupy<<<OCCUPYING_BLOCKS, 1024, 0, r->beside>>>((unsigned long long)OCCUPYING_NS);
            product_call(plans, plan, r->bench.stream);
            differing += differing_words(r, p, r->reference) != 0;
        }
        as_first += differing_words(r, p, r->first) == 0;
        steady += differing == 0;
        split += is_split;
        steady_split += is_split && differing == 0;
    }
    probe_word(probe_name("%s.same_bits", name),
               probe_name("%d of %d plans over %d calls (split-K: %d of %d)", steady, run, REPEATS,
                          steady_split, split));
    probe_word(probe_name("%s.bits_of_first_plan", name),
               probe_name("%d of %d plans", as_first, run));
}

struct Replay {
    cudaGraphExec_t exec;
};

static void replay(void *context, cudaStream_t stream)
{
    CUDA_OK(cudaGraphLaunch(((struct Replay *)context)->exec, stream));
}

static void ask_graph(struct Repeat *r, const struct ProductPlans *plans, const char *name)
{
    const struct Product *p = &plans->product;
    cudaStream_t stream = r->bench.stream;
    char kernels[PRODUCT_TEXT];
    struct Replay graph_call = {NULL};
    size_t nodes = 0;
    int equal = 0;
    cublasStatus_t status = call_and_keep(r, plans, 0, r->reference);
    cudaGraph_t graph = status == CUBLAS_STATUS_SUCCESS ? product_capture(plans, 0, stream) : NULL;
    if (!graph || cudaGraphInstantiate(&graph_call.exec, graph, 0) != cudaSuccess) {
        probe_word(probe_name("%s.graph", name),
                   graph ? "failed: not instantiated" : "failed: not captured");
        cudaGetLastError();
        if (graph) cudaGraphDestroy(graph);
        return;
    }
    CUDA_OK(cudaGraphGetNodes(graph, NULL, &nodes));
    for (int i = 0; i < REPLAYS; i++) {
        CUDA_OK(cudaMemsetAsync(p->d, 0xff, d_bytes(p), stream));
        CUDA_OK(cudaGraphLaunch(graph_call.exec, stream));
        equal += differing_words(r, p, r->reference) == 0;
    }
    probe_word(
        probe_name("%s.graph", name),
        probe_name("%zu nodes, %d of %d replays have the call's bits", nodes, equal, REPLAYS));
    probe_word(probe_name("%s.graph.kernels", name), product_kernels(plans, 0, stream, kernels));
    probe_number(probe_name("%s.called", name), 1e6 * product_seconds(plans, 0, stream, 10, 5),
                 "us");
    probe_number(probe_name("%s.replayed", name),
                 1e6 * probe_seconds(replay, &graph_call, stream, 10, 5), "us");
    CUDA_OK(cudaGraphExecDestroy(graph_call.exec));
    CUDA_OK(cudaGraphDestroy(graph));
}

/* Tests one product under two masks of reduction schemes: the backend's, and all
 * schemes. */
static void ask_product(struct Repeat *r, struct Product p, const char *name)
{
    static const struct {
        const char *name;
        uint32_t mask;
    } masks[] = {{"backend", REDUCTIONS_OF_BACKEND},
                 {"any_reduction", CUBLASLT_REDUCTION_SCHEME_MASK}};
    static struct ProductPlans plans;
    char full[96];
    p = bench_product(&r->bench, p);
    for (int i = 0; i < 2; i++) {
        cublasStatus_t status;
        snprintf(full, sizeof full, "lt.repeat.%s.%s", name, masks[i].name);
        p.reductions = masks[i].mask;
        fill_random(r->bench.aux, p.m * p.n * 4, 4, r->bench.stream);
        status = product_open(&plans, &r->bench.lt, r->bench.handle, &p);
        if (status == CUBLAS_STATUS_SUCCESS) {
            ask_repeats(r, &plans, full);
            if (i == 0) ask_graph(r, &plans, full);
        } else {
            probe_word(full, probe_name("not supported (status %d)", (int)status));
        }
        product_close(&plans);
    }
}

int main(void)
{
    static const struct {
        const char *model, *linear;
        enum Way way;
        cublasLtEpilogue_t epilogue;
    } cases[] = {{"124M", "proj", WGRAD, CUBLASLT_EPILOGUE_DEFAULT},
                 {"124M", "up", WGRAD, CUBLASLT_EPILOGUE_DEFAULT},
                 {"1558M", "proj", WGRAD, CUBLASLT_EPILOGUE_DEFAULT},
                 {"124M", "proj", DGRAD, CUBLASLT_EPILOGUE_DEFAULT},
                 {"124M", "up", FORWARD, CUBLASLT_EPILOGUE_GELU_AUX_BIAS},
                 {"124M", "down", DGRAD, CUBLASLT_EPILOGUE_DGELU}};
    static struct Gpt2Product list[GPT2_PRODUCTS];
    struct Repeat r;
    probe_device();
    gpt2_products(list);
    memset(&r, 0, sizeof r);
    bench_open(&r.bench, list, GPT2_BLOCK_PRODUCTS, (size_t)128 << 20, false);
    CUDA_OK(cudaStreamCreateWithFlags(&r.beside, cudaStreamNonBlocking));
    CUDA_OK(cudaMalloc(&r.reference, r.bench.d_bytes));
    CUDA_OK(cudaMalloc(&r.first, r.bench.d_bytes));
    CUDA_OK(cudaMalloc((void **)&r.differing, sizeof *r.differing));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct Product p = gpt2_find(list, cases[i].model, cases[i].linear, cases[i].way);
        char name[64];
        p.epilogue = cases[i].epilogue;
        if (cases[i].way == WGRAD) p.out = CUDA_R_32F;
        snprintf(name, sizeof name, "%s.%s.%s", cases[i].model, cases[i].linear,
                 way_name(cases[i].way));
        ask_product(&r, p, name);
    }
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaFree(r.reference));
    CUDA_OK(cudaFree(r.first));
    CUDA_OK(cudaFree(r.differing));
    CUDA_OK(cudaStreamDestroy(r.beside));
    bench_close(&r.bench);
    return 0;
}
