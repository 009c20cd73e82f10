/* nccl_reserve.c -- device memory of NCCL's own, estimated for GPUs of one machine that NVLink
 * connects: NCCL tells nobody before it has it. Elsewhere it takes less: fewer channels over PCIe,
 * and the host's memory where GPUs cannot see each other.
 *
 * Read in NCCL's sources, 2.28.9, by file; nothing of it was measured. */
#include "parallel/comm/nccl.h"

#define MIB ((size_t)1 << 20)

/* One direction of one channel to one peer (transport/p2p.cc): the receiver has the buffers of all
 * three protocols, 0.5, 4.7 and 4 MiB (init.cc), the sender its counters; each rounded up to
 * CUDA_IPC_MIN. */
static const size_t connection = 10 * MIB + 2 * MIB;
/* Of rings and trees, for NVLink of Hopper's (graph/connect.cc, after search and doubling). A rank
 * has one neighbour on each side; of two ranks both are the same. */
static const int channels = 24;
/* Of messages: 2 a link of NVLink, of 18, as a power of two (graph/paths.cc); the first message to
 * a peer opens all of them (enqueue.cc). */
static const int message_channels = 32;
/* Multicast, of more than two ranks (transport/nvls.cc): channels, two directions, 8 steps of
 * 128 KiB, a part for each rank; and a page of credits. */
static const int multicast_channels = 24;
static const size_t multicast_part = 2 * MIB, multicast_credits = 2 * MIB;
/* Channels' and peers' tables, events, the queue of work. */
static const size_t tables = 8 * MIB;

size_t nccl_reserve(int ranks, bool messages)
{
    if (ranks <= 1) return 0;
    size_t neighbours = ranks > 2 ? 2 : 1, bytes = tables;
    bytes += (size_t)channels * neighbours * connection;
    if (ranks > 2)
        bytes += (size_t)multicast_channels * multicast_part * (size_t)ranks + multicast_credits;
    if (messages) bytes += (size_t)message_channels * neighbours * connection;
    return bytes;
}
