/* cost.c -- the closed forms of cost.h. */
#include "parallel/plan/cost.h"

#include "model/core/check.h"
#include "model/kernels/ops.h"

#include <math.h>

/* ---- kernels --------------------------------------------------------------------------------- */

/* Returns the seconds that memory needs to move these bytes. */
static double moved(const Hardware *h, const CostTraits *t, double bytes)
{
    return bytes / (h->memory_bandwidth * h->memory_efficiency * t->memory);
}

/* Returns the seconds of the arithmetic of a matrix product. `edge` (product.edge of the machine
 * file) is added to each dimension: to m and n because some tiles are only partly filled, to k
 * because the pipeline of the kernel takes time to fill. */
static double multiplied(const Hardware *h, const CostTraits *t, DType dtype, int64_t m, int64_t n,
                         int64_t k)
{
    double edge = h->product.edge, peak = hardware_peak(h, dtype, t->tf32);
    CHECK(peak > 0, "products of %s", dtype_name(dtype));
    return 2 * ((double)m + edge) * ((double)n + edge) * ((double)k + edge) /
           (peak * h->product.most * h->product.sustained * t->product);
}

double cost_product(const Hardware *hardware, const CostTraits *traits, DType dtype, int64_t m,
                    int64_t n, int64_t k, int64_t bytes)
{
    return hardware->launch + fmax(multiplied(hardware, traits, dtype, m, n, k),
                                   moved(hardware, traits, (double)bytes));
}

/* Returns the seconds of attention that writes its scores to memory (CostTraits.materialised). A
 * score has `size` bytes, and dropout's mask has one byte per score.
 *
 * Forward: the product q k' writes the scores, softmax and dropout read and write them, and the
 * product with v reads them. Backward has four products: one writes the gradients of the scores,
 * and three read them. Dropout reads and writes these gradients, and so does softmax, which also
 * reads its results. */
static double materialised(const Hardware *h, const CostTraits *t, const GraphNode *node)
{
    enum { SOFTMAX = 1, DROPOUT = 1 };
    bool forward = node->code == OP_attention_forward;
    int products = forward ? 2 : 4, kernels = products + SOFTMAX + DROPOUT;
    double size = (double)dtype_size(node->dtype), queries = (double)node->n;
    double scores = (double)node->m * queries * queries;
    double by_products = scores * size * (forward ? 2 : 4),
           by_others = scores * ((forward ? 4 : 5) * size + 1);
    double arithmetic =
        products * (double)node->m * multiplied(h, t, node->dtype, node->n, node->n, node->k);
    return kernels * h->launch + fmax(arithmetic, moved(h, t, by_products)) +
           moved(h, t, by_others);
}

/* Returns the speed of attention with heads of this size relative to heads of 128. For each pair of
 * a query and a key, softmax is assumed to take as long as the products of `softmax` columns of a
 * head. With 18 columns, heads of 64 are 11 % slower than heads of 128, as in FlashAttention-2 on
 * an H100. */
static double head_share(double head_size)
{
    const double softmax = 18;
    return head_size / (head_size + softmax) * (128 + softmax) / 128;
}

static double attention(const Hardware *h, const CostTraits *t, const GraphNode *node)
{
    bool forward = node->code == OP_attention_forward;
    double share = forward ? h->attention_forward.share : h->attention_backward.share;
    double length = forward ? h->attention_forward.length : h->attention_backward.length;
    double queries = (double)node->n;
    if (t->materialised) return materialised(h, t, node);
    CHECK(h->peak[node->dtype] > 0, "attention in %s", dtype_name(node->dtype));
    double speed = h->peak[node->dtype] * share * t->attention * head_share((double)node->k) *
                   queries / (queries + length);
    return h->launch + fmax(node->flops / speed, moved(h, t, (double)node->bytes));
}

/* Returns how many of an op's bytes have to cross the link to the host, because they are in host
 * memory; 0 on a CPU, which has no such link. */
static int64_t of_host(const Hardware *h, const GraphNode *node)
{
    return h->cuda ? node->host_bytes : 0;
}

/* Returns the seconds that the link to the host needs to move these bytes, half of them each
 * way. */
static double linked(const Hardware *h, const CostTraits *t, double bytes)
{
    return bytes == 0 ? 0 : bytes / 2 / (h->host_bandwidth * t->host);
}

static double op_seconds(const Hardware *h, const CostTraits *t, const GraphNode *node)
{
    bool is_attention = node->code == OP_attention_forward || node->code == OP_attention_backward;
    if (is_attention && node->n > 0) return attention(h, t, node);
    if (node->flops > 0)
        return cost_product(h, t, node->dtype, node->m, node->n, node->k, node->bytes);
    return h->launch + fmax(moved(h, t, (double)(node->bytes - of_host(h, node))),
                            linked(h, t, (double)of_host(h, node)));
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* NCCL's protocols. `hop` (the time of a hop) and `bandwidth` are relative to those of the protocol
 * for large tensors ("Simple"), which the machine file gives. The other two send flags with the
 * data: a hop takes less time, but data get only a part of the bandwidth, 120 of 128 bytes (LL128)
 * or half (LL). The ratios of the hops are those of NCCL's own model (NVIDIA/nccl
 * src/graph/tuning.cc). */
static const struct {
    double hop, bandwidth;
} protocol[] = {{1, 1}, {0.56, 120.0 / 128}, {0.18, 0.5}};
enum { PROTOCOLS = sizeof protocol / sizeof *protocol };

double cost_small_hop(const Hardware *hardware)
{
    return hardware->cuda ? protocol[PROTOCOLS - 1].hop : 1;
}

/* The bandwidth of NCCL's tree algorithm relative to its ring algorithm, in NCCL's own model. A
 * tree moves about as many bytes as a ring. */
static const double TREE_SHARE = 0.9;

/* From Hopper on, the switches of a node do the additions (NVLS). An all-reduce of more than four
 * ranks then moves its tensor at SWITCH_SHARE times the link's bandwidth, for any number of ranks.
 * On 8 H200, an all-reduce reaches 480 GB/s of bus bandwidth, which is 274 GB/s of the tensor, and
 * an all-gather 363 GB/s. With 4 ranks, NVLS is no faster than a ring (stas00/ml-engineering,
 * network/README.md). */
enum { SWITCH_RANKS = 5, SWITCH_CAPABILITY = 90 };
static const double SWITCH_SHARE = 0.74;

/* How the ranks of a group are spread over the nodes. */
typedef struct {
    double ranks, nodes;
    double fewest; /* ranks of the group on the node that has the fewest of them */
} Spread;

static int64_t node_of(const Hardware *h, int64_t rank)
{
    return rank / h->devices_per_node;
}

/* Returns how many of the group's ranks, first + i x stride with 0 <= i < size, are on node
 * `node`. */
static int64_t ranks_on(const Hardware *h, const GraphGroup *g, int64_t node)
{
    int64_t stride = g->stride > 0 ? g->stride : 1;
    int64_t begin = node * h->devices_per_node - g->first, end = begin + h->devices_per_node;
    int64_t from = begin <= 0 ? 0 : (begin + stride - 1) / stride;
    int64_t to = end <= 0 ? 0 : (end + stride - 1) / stride;
    if (to > g->size) to = g->size;
    return to > from ? to - from : 0;
}

static Spread spread_of(const Hardware *h, const GraphGroup *g)
{
    int64_t stride = g->stride > 0 ? g->stride : 1, last = g->first + (g->size - 1) * stride;
    int64_t nodes =
        stride >= h->devices_per_node ? g->size : node_of(h, last) - node_of(h, g->first) + 1;
    Spread s = {.ranks = g->size, .nodes = (double)nodes, .fewest = 1};
    if (stride >= h->devices_per_node) return s;
    int64_t at_first = ranks_on(h, g, node_of(h, g->first)),
            at_last = ranks_on(h, g, node_of(h, last)), fewest = at_first;
    if (at_last < fewest) fewest = at_last;
    /* A node between the first and the last has at least devices_per_node / stride ranks of the
     * group. */
    if (nodes > 2 && h->devices_per_node / stride < fewest) fewest = h->devices_per_node / stride;
    s.fewest = (double)(fewest > 0 ? fewest : 1);
    return s;
}

/* Returns the bytes per second that `ranks` ranks of a node can exchange with other nodes: the
 * node's network interfaces are divided equally among its devices. */
static double between_bandwidth(const Hardware *h, const CostTraits *t, double ranks)
{
    return h->between.bandwidth * t->between * ranks * h->nics_per_node / h->devices_per_node;
}

/* Returns the seconds of a ring's hops. Each round has one hop fewer than the group has ranks. */
static double ring_hops(const Hardware *h, const Spread *s, int rounds)
{
    double outside = s->nodes - 1, within = s->ranks - 1 - outside;
    return rounds * (within * h->inside.latency + outside * h->between.latency);
}

/* Returns the seconds of a tree's hops: once up and once down. The ranks of a node are a chain, and
 * the nodes are a binary tree. */
static double tree_hops(const Hardware *h, const Spread *s)
{
    double levels = ceil(log2(s->nodes)), chain = ceil(s->ranks / s->nodes) - 1;
    return 2 * (chain * h->inside.latency + levels * h->between.latency);
}

double cost_collective(const Hardware *hardware, const CostTraits *traits, CommVerb verb,
                       int64_t bytes, const GraphGroup *group)
{
    if (group->size <= 1) return 0;
    Spread s = spread_of(hardware, group);
    double bandwidth = hardware->inside.bandwidth * traits->inside, whole = (double)bytes;
    if (s.nodes > 1) bandwidth = fmin(bandwidth, between_bandwidth(hardware, traits, s.fewest));
    bool reduced = verb == COMM_ALL_REDUCE;
    double part = (s.ranks - 1) / s.ranks;
    double on_link = reduced ? 2 * part * whole : verb == COMM_BROADCAST ? whole : part * whole;
    double hops = ring_hops(hardware, &s, reduced ? 2 : 1), best = INFINITY;
    /* Transports other than NCCL have one protocol and no trees. */
    int protocols = hardware->cuda ? PROTOCOLS : 1;
    for (int p = 0; p < protocols; p++) {
        double speed = bandwidth * protocol[p].bandwidth, hop = protocol[p].hop;
        best = fmin(best, hop * hops + on_link / speed);
        if (hardware->cuda && reduced && s.nodes > 1)
            best = fmin(best, hop * tree_hops(hardware, &s) + 2 * whole / (TREE_SHARE * speed));
    }
    bool switched = hardware->cuda && reduced && s.nodes == 1 && s.ranks >= SWITCH_RANKS &&
                    hardware->device.capability >= SWITCH_CAPABILITY;
    if (switched) best = fmin(best, hops + whole / (SWITCH_SHARE * bandwidth));
    return hardware->collective + best;
}

/* ---- saves ----------------------------------------------------------------------------------- */

double cost_received(const Hardware *hardware, double bytes, bool between)
{
    double bandwidth = hardware->inside.bandwidth;
    if (between) bandwidth = fmin(bandwidth, between_bandwidth(hardware, &COST_OWN, 1));
    return bytes / bandwidth;
}

double cost_snapshot(const Hardware *hardware, double bytes, double received, bool between)
{
    double copied =
        hardware->cuda ? bytes / hardware->host_bandwidth : moved(hardware, &COST_OWN, 2 * bytes);
    return fmax(copied, cost_received(hardware, received, between));
}

/* ---- messages -------------------------------------------------------------------------------- */

static double message_seconds(const Hardware *h, const CostTraits *t, const GraphGroup *group,
                              const GraphMessage *message)
{
    int64_t own = group->first + group->rank * group->stride,
            other = group->first + message->peer * group->stride;
    bool within = node_of(h, own) == node_of(h, other);
    double bandwidth = within ? h->inside.bandwidth * t->inside
                              : fmin(h->inside.bandwidth * t->inside, between_bandwidth(h, t, 1));
    return (within ? h->inside.latency : h->between.latency) + (double)message->bytes / bandwidth;
}

/* Returns the seconds of a group of messages. Messages in opposite directions move at the same
 * time. */
static double messages(const Hardware *h, const CostTraits *t, const Graph *graph,
                       const GraphNode *node)
{
    double sent = 0, received = 0;
    for (int i = 0; i < node->messages; i++) {
        const GraphMessage *message = &graph->message[node->message + i];
        double seconds = message_seconds(h, t, &graph->group[node->group], message);
        *(message->send ? &sent : &received) += seconds;
    }
    return h->collective + fmax(sent, received);
}

double cost_of_node(const Hardware *hardware, const CostTraits *traits, const Graph *graph,
                    const GraphNode *node)
{
    switch (node->kind) {
    case NODE_OP: return op_seconds(hardware, traits, node);
    case NODE_COPY: return hardware->launch + moved(hardware, traits, (double)node->bytes);
    case NODE_COLLECTIVE: {
        double seconds = cost_collective(hardware, traits, (CommVerb)node->code, node->bytes,
                                         &graph->group[node->group]);
        /* Collectives that are started together are one kernel, so only the first one has the
         * overhead of its start. */
        return node->joined ? fmax(0, seconds - hardware->collective) : seconds;
    }
    case NODE_MESSAGES: return messages(hardware, traits, graph, node);
    default: return 0;
    }
}
