/* reserve.c -- estimates the device memory that NCCL takes for itself, for GPUs in one machine that
 * are connected by NVLink. NCCL does not report how much before it has allocated the memory. In
 * other machines it takes less: fewer channels over PCIe, and host memory if the GPUs cannot access
 * each other.
 *
 * The numbers come from NCCL's sources, version 2.28.9; the comments name the files. None of them
 * was measured. */
#include "parallel/comm/nccl/nccl.h"

#include <stdlib.h>

#define MIB ((size_t)1 << 20)

/* Number of channels on Hopper's NVLink: of rings and trees (graph/connect.cc, after search and
 * doubling), and of multicast (transport/nvls.cc). A limit on CTAs (max_ctas) limits both. */
enum { CHANNELS = 24, MULTICAST_CHANNELS = 16 };
/* Multicast works within a machine, where NVLink's switches connect at most MULTICAST_RANKS
 * GPUs. */
enum { MULTICAST_RANKS = 8 };
/* Bytes of buffers (init.cc) for one direction of one channel to one peer: for the protocols LL and
 * LL128 together, and for Simple unless NCCL_BUFFSIZE is set. */
static const size_t low_latency = 5439488, simple = 4 * MIB;
/* Allocations that are shared between GPUs are rounded up to this size (CUDA_IPC_MIN). */
static const size_t grain = 2 * MIB;
/* Bytes for multicast, which is used with more than two ranks (transport/nvls.cc): for each channel
 * and each rank of the machine, two directions of 8 steps of 128 KiB; and one allocation for
 * credits. */
static const size_t multicast_part = 2 * MIB, multicast_credits = 2 * MIB;
/* Bytes for tables of channels and peers, for events, and for the work queue. */
static const size_t tables = 8 * MIB;

/* Returns the value of the environment variable if it is a positive number, else `other`. */
static size_t setting(const char *name, size_t other)
{
    const char *word = getenv(name);
    long long value = word ? strtoll(word, NULL, 10) : 0;
    return value > 0 ? (size_t)value : other;
}

/* Returns the bytes of one connection: the receiver's buffers and the sender's counters
 * (transport/p2p.cc). */
static size_t connection(void)
{
    size_t buffers = low_latency + setting("NCCL_BUFFSIZE", simple);
    return (buffers + grain - 1) / grain * grain + grain;
}

/* Returns the number of channels for messages: `channels`, rounded up to a power of two. With 18
 * NVLink links and two channels per link this is the largest number that NCCL allows
 * (graph/paths.cc). The first message to a peer opens all of them (enqueue.cc). */
static size_t message_channels(size_t channels)
{
    size_t power = 1;
    while (power < channels)
        power *= 2;
    return power;
}

static size_t at_most(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Returns the number of channels that a communicator may have. Like NCCL, prefers the environment's
 * limit to that of the communicator (init.cc). */
static size_t channel_limit(int max_ctas)
{
    return setting("NCCL_MAX_CTAS", max_ctas > 0 ? (size_t)max_ctas : CHANNELS);
}

int nccl_fewer_channels(int max_ctas)
{
    enum { FEW = 8 };
    return channel_limit(max_ctas) > FEW ? FEW : 0;
}

/* Returns the number of other ranks that this rank sends messages to or receives messages from. */
static size_t correspondents(int rank, int ranks, NcclMessages messages)
{
    if (messages == NCCL_NO_MESSAGES) return 0;
    if (ranks == 2) return 1;
    return messages == NCCL_IN_LINE && (rank == 0 || rank == ranks - 1) ? 1 : 2;
}

size_t nccl_reserve(int rank, int ranks, NcclUse use)
{
    if (ranks <= 1) return 0;
    size_t limit = channel_limit(use.max_ctas), channels = at_most(limit, CHANNELS);
    /* In rings and trees a rank has a neighbour on each side. With two ranks both neighbours are
     * the same rank. */
    size_t neighbours = ranks > 2 ? 2 : 1, bytes = tables;
    bytes += channels * neighbours * connection();
    /* Two ranks exchange data directly. With three or more, NCCL uses multicast. */
    if (ranks > 2)
        bytes += at_most(limit, MULTICAST_CHANNELS) * multicast_part *
                     at_most((size_t)ranks, MULTICAST_RANKS) +
                 multicast_credits;
    bytes += message_channels(channels) * correspondents(rank, ranks, use.messages) * connection();
    return bytes;
}
