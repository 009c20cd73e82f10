/* busy_ranks.c -- runs collectives of all ranks on three streams at once and checks the results. */
#include "tests/support/grid/busy_ranks.h"

#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/grid/gpus.h"
#include "tests/support/grid/thread_ranks.h"

#include <math.h>
#include <string.h>

/* Each rank has four numbers, which every round updates. The first is summed over all ranks on the
 * comm stream. The second and third are the sum and the maximum over a pair of ranks on the tp
 * stream. The fourth is sent to the next rank on the p2p stream. Then the compute stream combines
 * the four. */
enum { SUM_OF_ALL, SUM_OF_PAIR, MOST_OF_PAIR, FROM_BEFORE, NUMBERS };
enum { CARRIERS = 3, N = 1000, ROUNDS = 4 };

/* Computes the same round for all ranks in plain loops. */
static void plain_round(int ranks, float number[BUSY_MOST_RANKS][NUMBERS])
{
    float was[BUSY_MOST_RANKS][NUMBERS], all = 0;
    memcpy(was, number, sizeof was);
    for (int r = 0; r < ranks; r++)
        all += was[r][SUM_OF_ALL];
    for (int r = 0; r < ranks; r++) {
        const float *one = was[r / 2 * 2], *other = r / 2 * 2 + 1 < ranks ? one + NUMBERS : one;
        float pair = other == one ? one[SUM_OF_PAIR] : one[SUM_OF_PAIR] + other[SUM_OF_PAIR];
        float before = was[(r + ranks - 1) % ranks][FROM_BEFORE];
        number[r][SUM_OF_ALL] = all + pair;
        number[r][SUM_OF_PAIR] = pair + before;
        number[r][MOST_OF_PAIR] = fmaxf(one[MOST_OF_PAIR], other[MOST_OF_PAIR]) + all;
        number[r][FROM_BEFORE] = before + (float)(r + 1);
    }
}

typedef struct {
    Device *dev, carrier[CARRIERS]; /* the device's comm, tp and p2p streams */
    Comm all, pair, ring;
    Tensor number[NUMBERS], own, before;
    Event ready, done[CARRIERS];
} Busy;

static void busy_round(Busy *b)
{
    int next = (b->ring.rank + 1) % b->ring.size;
    device_event_record(b->dev, &b->ready);
    for (int i = 0; i < CARRIERS; i++)
        device_event_wait(&b->carrier[i], &b->ready);
    comm_all_reduce(&b->all, &b->carrier[0], b->number[SUM_OF_ALL], REDUCE_SUM);
    comm_all_reduce(&b->pair, &b->carrier[1], b->number[SUM_OF_PAIR], REDUCE_SUM);
    comm_group_begin(&b->ring);
    comm_send(&b->ring, &b->carrier[2], b->number[FROM_BEFORE], next);
    comm_receive(&b->ring, &b->carrier[2], b->before, (next + b->ring.size - 2) % b->ring.size);
    comm_group_end(&b->ring);
    comm_all_reduce(&b->pair, &b->carrier[1], b->number[MOST_OF_PAIR], REDUCE_MAX);
    for (int i = 0; i < CARRIERS; i++) {
        device_event_record(&b->carrier[i], &b->done[i]);
        device_event_wait(b->dev, &b->done[i]);
    }
    op_add(b->dev, b->number[MOST_OF_PAIR], b->number[MOST_OF_PAIR], b->number[SUM_OF_ALL]);
    op_add(b->dev, b->number[SUM_OF_ALL], b->number[SUM_OF_ALL], b->number[SUM_OF_PAIR]);
    op_add(b->dev, b->number[SUM_OF_PAIR], b->number[SUM_OF_PAIR], b->before);
    op_add(b->dev, b->number[FROM_BEFORE], b->before, b->own);
}

static void busy_check(const Busy *b, const Comm *world)
{
    float plain[BUSY_MOST_RANKS][NUMBERS], got[2];
    for (int r = 0; r < world->size; r++)
        for (int k = 0; k < NUMBERS; k++)
            plain[r][k] = (float)(r + 1);
    for (int round = 0; round < ROUNDS; round++)
        plain_round(world->size, plain);
    for (int k = 0; k < NUMBERS; k++)
        for (int64_t i = 0; i < N; i += N - 2) {
            device_copy(b->dev, tensor_1d(got, F32, 2), tensor_slice_rows(b->number[k], i, 2));
            device_synchronize(b->dev);
            if (got[0] != plain[world->rank][k] || got[1] != got[0])
                rank_wrong(world, "number %d of rank %d of %d is %g and %g, not %g", k, world->rank,
                           world->size, got[0], got[1], plain[world->rank][k]);
        }
}

/* The body of a rank. All ranks share one GPU; if there is a context, each rank has its own GPU,
 * and NCCL connects them. */
static void rank_busy(Comm *world, void *context)
{
    Device dev;
    char err[512];
    DeviceOptions options = {
        .threads = 1, .local_ranks = world->size, .index = context ? world->rank : 0};
    if (!device_open(&dev, "cuda", &options, err, sizeof err)) {
        rank_wrong(world, "%s", err);
        return;
    }
    Busy b = {
        .dev = &dev,
        .carrier = {device_on(&dev, dev.comm), device_on(&dev, dev.tp), device_on(&dev, dev.p2p)},
        .all = comm_split(world, "all", 0, world->rank),
        .pair = comm_split(world, "pair", world->rank / 2, world->rank),
        .ring = comm_split(world, "ring", 0, world->rank)};
    if (context && gpus_agree(world, &dev) == GPUS_EACH) {
        nccl_connect(&b.all, &dev, (NcclUse){0}, 60);
        nccl_connect(&b.pair, &dev, (NcclUse){0}, 60);
        nccl_connect(&b.ring, &dev, (NcclUse){NCCL_IN_RING, 0}, 60);
    }
    size_t bytes = (size_t)(NUMBERS + 2) * N * sizeof(float);
    float *memory = device_alloc(&dev, bytes, "numbers");
    for (int k = 0; k < NUMBERS + 2; k++) {
        Tensor x = tensor_1d(memory + (size_t)k * N, F32, N);
        *(k < NUMBERS ? &b.number[k] : k == NUMBERS ? &b.own : &b.before) = x;
        op_fill(&dev, x, world->rank + 1);
    }
    for (int round = 0; round < ROUNDS; round++)
        busy_round(&b);
    busy_check(&b, world);
    comm_barrier(world);
    comm_close(&b.all);
    comm_close(&b.pair);
    comm_close(&b.ring);
    device_event_destroy(&dev, &b.ready);
    for (int i = 0; i < CARRIERS; i++)
        device_event_destroy(&dev, &b.done[i]);
    device_release(&dev, memory, bytes);
    device_close(&dev);
}

void busy_ranks(int ranks, bool each)
{
    thread_ranks(ranks, 60, rank_busy, each ? &each : NULL);
}
