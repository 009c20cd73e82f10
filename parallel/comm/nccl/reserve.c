/* reserve.c -- device memory of NCCL's own, estimated for GPUs of one machine that NVLink
 * connects: NCCL gives no number before it has the memory. Elsewhere it takes less: fewer channels
 * over PCIe, and the host's memory where GPUs cannot see each other.
 *
 * Read in NCCL's sources, 2.28.9, by file; nothing of it was measured. */
#include "parallel/comm/nccl/nccl.h"

#include <stdlib.h>

#define MIB ((size_t)1 << 20)

/* Channels of rings and trees, for NVLink of Hopper's (graph/connect.cc, after search and
 * doubling), and as many of multicast; NCCL_MAX_CTAS, the user's, is the most of both. */
enum { CHANNELS = 24 };
/* Bytes of buffers (init.cc) for one direction of one channel to one peer: of the protocols LL and
 * LL128 together; of Simple, unless NCCL_BUFFSIZE says so. */
static const size_t low_latency = 5439488, simple = 4 * MIB;
/* What memory between GPUs is rounded up to (CUDA_IPC_MIN). */
static const size_t grain = 2 * MIB;
/* Of multicast, of more than two ranks (transport/nvls.cc): two directions, 8 steps of 128 KiB for
 * each channel and rank; and credits. */
static const size_t multicast_part = 2 * MIB, multicast_credits = 2 * MIB;
/* Channels' and peers' tables, events, the queue of work. */
static const size_t tables = 8 * MIB;

/* A positive number from the environment; `other` where there is none. */
static size_t setting(const char *name, size_t other)
{
    const char *word = getenv(name);
    long long value = word ? strtoll(word, NULL, 10) : 0;
    return value > 0 ? (size_t)value : other;
}

/* The receiver's buffers, and the sender's counters (transport/p2p.cc). */
static size_t connection(void)
{
    size_t buffers = low_latency + setting("NCCL_BUFFSIZE", simple);
    return (buffers + grain - 1) / grain * grain + grain;
}

/* The number of channels for messages is a power of two: with 18 links of NVLink and two channels a
 * link, the largest that NCCL allows (graph/paths.cc). The first message to a peer opens all
 * (enqueue.cc). */
static size_t message_channels(size_t channels)
{
    size_t power = 1;
    while (power < channels)
        power *= 2;
    return power;
}

static size_t most_channels(void)
{
    size_t channels = setting("NCCL_MAX_CTAS", CHANNELS);
    return channels < CHANNELS ? channels : CHANNELS;
}

int nccl_fewer_channels(void)
{
    enum { FEW = 8 };
    return most_channels() > FEW ? FEW : 0;
}

size_t nccl_reserve(int ranks, bool messages)
{
    if (ranks <= 1) return 0;
    size_t channels = most_channels();
    /* A rank has one on each side, for rings and trees as for messages; of two both are the same.
     */
    size_t neighbours = ranks > 2 ? 2 : 1, bytes = tables;
    bytes += channels * neighbours * connection();
    /* Two ranks exchange directly; NCCL multicasts from three on. */
    if (ranks > 2) bytes += channels * multicast_part * (size_t)ranks + multicast_credits;
    if (messages) bytes += message_channels(channels) * neighbours * connection();
    return bytes;
}
