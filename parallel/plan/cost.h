/* cost.h -- how long the nodes of a step's graph (graph.h) take on the hardware that a machine file
 * describes (hardware.h). The formulas are for a single kernel, collective or message; replay.h
 * combines these times into the time of a step. T is the length of the sequences, and hops is how
 * many hops follow one another; the other names are fields of Hardware or of the node. All results
 * are predictions in seconds. No result decreases when a size grows.
 *
 *   product m x n x k    launch + 2 (m + e)(n + e)(k + e) / (sustained x most x peak), or the time
 *                        to move its bytes, if that is longer; e is the hardware's product.edge
 *   attention            launch + flops / (peak x share x T / (T + length)), for heads of 128
 *   other ops, copies    launch + bytes / (memory_bandwidth x memory_efficiency); for an update of
 *                        states on the host, half their bytes / host_bandwidth if that takes longer
 *   collective           collective + hops x latency + bytes on the slowest link / its bandwidth,
 *                        the best of the algorithms and protocols that NCCL chooses from
 *   messages             collective + latency + bytes / bandwidth of the busier direction
 *
 * A group whose ranks are all on one node uses the links inside the node. In any other group, each
 * node sends and receives over a share of its network interfaces, which equals the share of its
 * devices that are in the group. */
#ifndef PARALLEL_PLAN_COST_H
#define PARALLEL_PLAN_COST_H

#include "configs/machine_file/hardware.h"
#include "model/core/graph.h"
#include "parallel/comm/comm.h"

/* Factors that multiply the speeds of this program on this hardware. They are used for ranges of
 * predictions, for "what if" questions and, in tests, to predict other programs. A factor of 1
 * changes nothing. */
typedef struct {
    /* speeds of products, of attention and of memory-bound kernels */
    double product, attention, memory;
    /* bandwidths of the links inside and between nodes, and to the host */
    double inside, between, host;
    /* true: attention computes all scores of a sequence, masked ones as well, and writes them to
     * memory, where softmax and dropout read and write them, as programs did before
     * FlashAttention. */
    bool materialised;
    bool tf32; /* true: products in f32 round their factors to TF32 (cuda.tf32) */
} CostTraits;

static const CostTraits COST_OWN = {
    .product = 1, .attention = 1, .memory = 1, .inside = 1, .between = 1, .host = 1};

/* Returns the seconds that a node takes on a rank with this hardware (hardware_of_rank); 0 for a
 * wait, because only the replay determines how long a wait takes. */
double cost_of_node(const Hardware *hardware, const CostTraits *traits, const Graph *graph,
                    const GraphNode *node);
/* Returns the seconds of a collective whose tensor has `bytes` bytes in total, counted as in
 * comm.h. */
double cost_collective(const Hardware *hardware, const CostTraits *traits, CommVerb verb,
                       int64_t bytes, const GraphGroup *group);
/* Returns the time of one hop of a collective of a small tensor, as a fraction of the link's
 * latency. */
double cost_small_hop(const Hardware *hardware);
/* Returns the seconds that a writer of a checkpoint needs to receive `bytes` bytes from other
 * ranks. `between`: some of those ranks are on other nodes. */
double cost_received(const Hardware *hardware, double bytes, bool between);
/* Returns the seconds that a rank needs to fill its snapshot of a save (snapshot.h) with `bytes`
 * bytes. Of these, `received` bytes come from other ranks (cost_received) while the rank copies. A
 * copy on a CPU reads and writes memory; a copy from a GPU crosses the link to the host. */
double cost_snapshot(const Hardware *hardware, double bytes, double received, bool between);
/* Returns the seconds of a matrix product. Its result has m rows and n columns, its depth is k, and
 * it moves `bytes` bytes. */
double cost_product(const Hardware *hardware, const CostTraits *traits, DType dtype, int64_t m,
                    int64_t n, int64_t k, int64_t bytes);

#endif
