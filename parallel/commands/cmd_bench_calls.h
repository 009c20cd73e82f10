/* cmd_bench_calls.h -- the times of collectives and messages between ranks. */
#ifndef PARALLEL_COMMANDS_CMD_BENCH_CALLS_H
#define PARALLEL_COMMANDS_CMD_BENCH_CALLS_H

#include "parallel/comm/comm.h"
#include "parallel/commands/cmd_bench.h"
#include "parallel/grid/gpus.h"
#include "parallel/grid/launch.h"

/* How to measure the calls between ranks. `sizes`: how many of the CALL_SIZES sizes, from the
 * smallest, at least 1. */
typedef struct {
    int64_t ranks, repetitions, timeout, sizes;
    const char *device;
    LaunchKind kind;
} CallsWanted;

enum { CALL_SIZES = 5, SMALLEST_CALL = 1 << 10, LARGEST_CALL = 64 << 20 };

/* The calls that are measured. The numbers of the collectives are those of their CommVerb.
 * BOTH_WAYS: every rank sends to the next and receives from the previous rank, in one group.
 * ONE_WAY: every even rank sends to the next rank. */
enum { BOTH_WAYS = COMM_SEND, ONE_WAY, CALL_VERBS };

/* What rank 0 has measured. */
typedef struct {
    const CallsWanted *wanted;
    char device[160];
    char transport[32]; /* NCCL with its version, or "local": through shared memory */
    Gpus gpus;
    bool processes;                         /* the ranks are processes, not threads */
    double memory;                          /* bytes per second of all ranks together */
    double seconds[CALL_VERBS][CALL_SIZES]; /* median seconds of one call */
} CallsMeasured;

/* Returns the number of bytes of a call with size number `size`. */
static inline int64_t call_bytes(int size)
{
    return (int64_t)SMALLEST_CALL << (4 * size);
}

/* Starts the ranks and measures all calls of all sizes. Returns the exit code of the ranks. To be
 * called before the process opens a GPU, because ranks may be processes that use it. */
int calls_measure(const CallsWanted *wanted, CallsMeasured *out);

#endif
