/* cost.h -- how long the nodes of a step's graph (graph.h) take on the hardware that a machine file
 * describes (hardware.h). Closed forms of one kernel, collective or message; replay.h puts them
 * together. All results are predictions in seconds. No result falls when a size grows.
 *
 *   product m x n x k    launch + 2 (m + e)(n + e)(k + e) / (sustained x most x peak), or its bytes
 *                        at memory speed if that takes longer; e is the hardware's product.edge
 *   attention            launch + flops / (peak x share x T / (T + length)), for heads of 128
 *   other ops, copies    launch + bytes / (memory_bandwidth x memory_efficiency); of an update of
 *                        states on the host, half their bytes / host_bandwidth if that takes longer
 *   collective           collective + hops x latency + bytes on the slowest link / its bandwidth,
 *                        the best of the algorithms and protocols that NCCL chooses from
 *   messages             collective + latency + bytes / bandwidth of the busier direction
 *
 * A group whose ranks are all on one node uses the link inside. In any other group each node sends
 * and receives over the network interfaces of all its ranks in the group: with as many interfaces
 * as devices, one per rank. */
#ifndef PARALLEL_PLAN_COST_H
#define PARALLEL_PLAN_COST_H

#include "configs/machine_file/hardware.h"
#include "model/core/graph.h"
#include "parallel/comm/comm.h"

/* How a prediction differs from that for this program on this hardware: for ranges, for "what if",
 * and in tests for other programs. Each factor multiplies a speed; 1 changes nothing. */
typedef struct {
    double product, attention, memory; /* products; attention; kernels that are bound by memory */
    double inside, between, host;      /* the bandwidths of these links */
    /* Attention computes all scores of a sequence, masked ones as well, and writes them to memory,
     * where softmax and dropout read and write them, as programs did before FlashAttention. */
    bool materialised;
    bool tf32; /* products in f32 round their factors (cuda.tf32) */
} CostTraits;

static const CostTraits COST_OWN = {
    .product = 1, .attention = 1, .memory = 1, .inside = 1, .between = 1, .host = 1};

/* Returns the seconds of a node of a rank that has this hardware (hardware_of_rank). Waits take
 * none: the replay makes them. */
double cost_of_node(const Hardware *hardware, const CostTraits *traits, const Graph *graph,
                    const GraphNode *node);
/* Returns the seconds of a collective on a tensor of `bytes` in all, as comm.h counts it. */
double cost_collective(const Hardware *hardware, const CostTraits *traits, CommVerb verb,
                       int64_t bytes, const GraphGroup *group);
/* Returns the share of the link's latency that a hop of a collective takes on few bytes. */
double cost_small_hop(const Hardware *hardware);
/* Returns the seconds in which a writer of a checkpoint receives `bytes` from other ranks, some of
 * them from other nodes if `between`. */
double cost_received(const Hardware *hardware, double bytes, bool between);
/* Returns the seconds in which a rank fills its snapshot of a save (snapshot.h) with `bytes`, of
 * which other ranks send it `received` (cost_received). On a CPU memory is read
 * and written. A GPU copies over the link to its host. What other ranks send is copied by them at
 * the same time. */
double cost_snapshot(const Hardware *hardware, double bytes, double received, bool between);
/* Returns the seconds of a product whose result has m rows and n columns, and whose depth is k. */
double cost_product(const Hardware *hardware, const CostTraits *traits, DType dtype, int64_t m,
                    int64_t n, int64_t k, int64_t bytes);

#endif
