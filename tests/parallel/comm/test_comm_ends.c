/* test_comm_ends.c -- checks the error message and exit code of the whole process when one thread
 * rank does not make the call that the others wait for. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "tests/support/device/late_device.h"
#include "tests/support/grid/rank_ends.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static const double CHAIN_TIMEOUT = 0.8;

static int64_t x[8], y[8];

static Tensor i64(int64_t n)
{
    return tensor_1d(x, I64, n);
}

/* Blocks the rank forever: it neither makes its call nor leaves the group. */
static void hang(void)
{
    for (;;)
        pause();
}

/* ---- a rank hangs ---------------------------------------------------------------------------- */

static void no_reduce(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    comm_all_reduce(world, NULL, i64(1), REDUCE_SUM);
    if (world->rank == 1) hang();
    comm_all_reduce(world, NULL, i64(5), REDUCE_SUM);
}

static void no_barrier_of_part(Comm *world, void *context)
{
    (void)context;
    /* The group consists of world ranks 1, 3 and 5. The message must use these numbers. */
    Comm odd = comm_split(world, "odd", world->rank % 2, world->rank);
    if (world->rank != 5) hang();
    comm_barrier(&odd);
}

static void many_hang(Comm *world, void *context)
{
    (void)context;
    if (world->rank != 0 && world->rank != 5) hang();
    comm_barrier(world);
}

static void no_send(Comm *world, void *context)
{
    (void)context;
    if (world->rank != 2) hang();
    comm_receive(world, NULL, tensor_1d(x, F32, 3), 0);
}

static void no_receive(Comm *world, void *context)
{
    (void)context;
    if (world->rank != 0) hang();
    comm_group_begin(world);
    comm_send(world, NULL, tensor_1d(x, BF16, 4), 1);
    comm_group_end(world);
}

static const RankEnd hangs[] = {
    {"all-reduce",
     no_reduce,
     2,
     EXIT_HANG,
     {"error[86] ", "group world, call 3, all-reduce of 5 i64 in host memory: ",
      "rank 0 has waited 0.4 s (parallel.timeout) for rank 1, which has not arrived"}},
    {"many",
     many_hang,
     8,
     EXIT_HANG,
     {"s (parallel.timeout) for ranks 1-4, 6, 7, which have not arrived"}},
    {"barrier of a split",
     no_barrier_of_part,
     6,
     EXIT_HANG,
     {"group odd, call 1, barrier: ",
      "rank 5 has waited 0.4 s (parallel.timeout) for ranks 1, 3, which have not arrived"}},
    {"receive",
     no_send,
     3,
     EXIT_HANG,
     {"group world, call 1, receive of 3 f32 in host memory from rank 0: ",
      "rank 2 has waited 0.4 s (parallel.timeout) for rank 0, which has not arrived"}},
    {"send",
     no_receive,
     2,
     EXIT_HANG,
     {"group world, call 1, send of 4 bf16 in host memory to rank 1: ",
      "rank 0 has waited 0.4 s (parallel.timeout) for rank 1, which has not arrived"}},
};

/* Rank 0 waits for rank 1, and rank 1 for rank 2. Later rank 2 waits for rank 3, which hangs: it is
 * the cause. */
static void a_chain(Comm *world, void *context)
{
    _Atomic double *waits_since = context;
    Comm pair = comm_split(world, "pair", world->rank / 2, 0);
    if (world->rank == 0) *waits_since = seconds_now();
    if (world->rank == 0) comm_receive(world, NULL, i64(1), 1);
    if (world->rank == 1) comm_send(world, NULL, i64(2), 2);
    if (world->rank == 3) hang();
    while (*waits_since == 0 || seconds_now() < *waits_since + CHAIN_TIMEOUT / 2)
        sched_yield();
    comm_all_reduce(&pair, NULL, i64(5), REDUCE_SUM);
}

/* Rank 0 waits first, for ranks 1 and 2. Later rank 1 waits too, but rank 2 is the cause. */
static void one_of_two_waits(Comm *world, void *context)
{
    _Atomic double *waits_since = context;
    Comm three = comm_split(world, "three", world->rank == 3, 0);
    Comm pair = comm_split(world, "pair", world->rank % 2, 0);
    if (world->rank == 0) *waits_since = seconds_now();
    if (world->rank == 0) comm_barrier(&three);
    if (world->rank != 1) hang();
    while (*waits_since == 0 || seconds_now() < *waits_since + CHAIN_TIMEOUT / 2)
        sched_yield();
    comm_barrier(&pair);
}

static void a_circle(Comm *world, void *context)
{
    (void)context;
    comm_receive(world, NULL, i64(1), (world->rank + 1) % world->size);
}

static const RankEnd chain = {
    "a chain",
    a_chain,
    4,
    EXIT_HANG,
    {"group world, call 2, ",
     ", which has not arrived; rank 2 waits for rank 3 (group pair, call 1, all-reduce of 5 i64 in "
     "host memory)\n"}};

static const RankEnd one_of_two = {"one of two",
                                   one_of_two_waits,
                                   4,
                                   EXIT_HANG,
                                   {"group three, call 1, barrier: rank 0 has waited 0.8 s",
                                    " for ranks 1, 2, which have not arrived\n"}};

static const RankEnd circle = {"a circle",
                               a_circle,
                               3,
                               EXIT_HANG,
                               {"group world, call 1, receive of 1 i64 in host memory from rank ",
                                ", which has not arrived; they wait for each other\n"}};

/* ---- ranks that make different calls --------------------------------------------------------- */

static void other_verb(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 1)
        comm_barrier(world);
    else
        comm_all_reduce(world, NULL, i64(5), REDUCE_SUM);
}

static void other_size(Comm *world, void *context)
{
    (void)context;
    comm_all_reduce(world, NULL, i64(5 + world->rank / 2), REDUCE_SUM);
}

static void other_dtype(Comm *world, void *context)
{
    (void)context;
    comm_all_gather(world, NULL, tensor_1d(y, world->rank ? F32 : I32, 4),
                    tensor_1d(x, world->rank ? F32 : I32, 2));
}

static void other_op(Comm *world, void *context)
{
    (void)context;
    comm_all_reduce(world, NULL, i64(1), world->rank ? REDUCE_MAX : REDUCE_SUM);
}

static void other_root(Comm *world, void *context)
{
    (void)context;
    comm_broadcast(world, NULL, i64(3), world->rank);
}

/* Opens a device with streams. */
static Device opened(void)
{
    Device device;
    DeviceOptions options = {.threads = 1, .blas = BLAS_BUILTIN};
    char err[256];
    if (!late_device_open(&device, &options, err, sizeof err)) _exit(1);
    return device;
}

static void other_memory(Comm *world, void *context)
{
    (void)context;
    Device device = opened();
    comm_broadcast(world, world->rank ? &device : NULL, i64(3), 1);
}

static void other_split(Comm *world, void *context)
{
    (void)context;
    comm_split(world, world->rank ? "dp" : "tp", 0, 0);
}

static void other_message(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 0)
        comm_send(world, NULL, tensor_1d(x, F32, 4), 1);
    else
        comm_receive(world, NULL, tensor_1d(x, F32, 3), 0);
}

static void other_type_of_message(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 0)
        comm_send(world, NULL, tensor_1d(x, F16, 4), 1);
    else
        comm_receive(world, NULL, tensor_1d(x, BF16, 4), 0);
}

/* If rank 1 could receive on two streams, the sender would wait only for the second receive. */
static void two_streams(Comm *world, void *context)
{
    (void)context;
    Device dev = opened(), second = device_on(&dev, dev.comm), *on = &dev;
    Tensor t = tensor_1d(device_alloc(&dev, 2 * sizeof(float), "message"), F32, 2);
    t.place = PLACE_DEVICE;
    if (world->rank == 0) comm_group_begin(world);
    for (int i = 0; i < 2; i++, on = &second)
        if (world->rank == 0)
            comm_send(world, &dev, t, 1);
        else
            comm_receive(world, on, t, 0);
    if (world->rank == 0) comm_group_end(world);
}

static const RankEnd mismatches[] = {
    {"verb",
     other_verb,
     2,
     EXIT_BUG,
     {"call 2 of group world: rank 0 makes all-reduce of 5 i64 in host memory, rank 1 barrier"}},
    {"size",
     other_size,
     3,
     EXIT_BUG,
     {"call 1 of group world: rank 0 makes all-reduce of 5 i64 in host memory, rank 2 all-reduce "
      "of 6 "
      "i64 in host memory"}},
    {"dtype",
     other_dtype,
     2,
     EXIT_BUG,
     {"rank 0 makes all-gather of 4 i32 in host memory, rank 1 all-gather of 4 f32 in host "
      "memory"}},
    {"op",
     other_op,
     2,
     EXIT_BUG,
     {"rank 0 makes all-reduce of 1 i64 in host memory, rank 1 all-reduce (max) of 1 "
      "i64 in host memory"}},
    {"root",
     other_root,
     2,
     EXIT_BUG,
     {"rank 0 makes broadcast of 3 i64 in host memory from rank 0, rank 1 broadcast of 3 i64 in "
      "host memory from rank 1"}},
    {"split", other_split, 2, EXIT_BUG, {"rank 0 makes split into tp, rank 1 split into dp"}},
    {"message",
     other_message,
     2,
     EXIT_BUG,
     {"group world: rank 0 sends 4 f32 in host memory, rank 1 receives 3 f32 in host memory"}},
    {"type of a message",
     other_type_of_message,
     2,
     EXIT_BUG,
     {"group world: rank 0 sends 4 f16 in host memory, rank 1 receives 4 bf16 in host memory"}},
};

/* Only ranks that are threads can share devices with streams. */
static const RankEnd mismatches_of_streams[] = {
    {"memory",
     other_memory,
     2,
     EXIT_BUG,
     {"rank 0 makes broadcast of 3 i64 in host memory from rank 1, rank 1 broadcast of 3 i64 from "
      "rank 1"}},
    {"streams",
     two_streams,
     2,
     EXIT_BUG,
     {"group world: rank 1 receives on two streams what rank 0 sends in one group"}},
};

/* ---- invalid calls --------------------------------------------------------------------------- */

static void impossible_call(Comm *world, void *context)
{
    int64_t number = *(const int64_t *)context;
    switch (number) {
    case 0:
        comm_group_begin(world);
        comm_send(world, NULL, i64(1), world->rank);
        break;
    case 1: comm_send(world, NULL, i64(1), 2); break;
    case 2:
        comm_group_begin(world);
        comm_group_begin(world);
        break;
    case 3:
        comm_group_begin(world);
        comm_send(world, NULL, i64(1), 1 - world->rank);
        comm_barrier(world);
        break;
    case 4: comm_reduce_scatter(world, NULL, i64(2), tensor_1d(y, I64, 5)); break;
    case 5: comm_all_gather(world, NULL, i64(6), tensor_1d(x + 1, I64, 3)); break;
    default: comm_broadcast(world, NULL, tensor_slice_cols(tensor_2d(x, I64, 2, 4), 0, 2), 0);
    }
}

static const char *const impossible[] = {"a message of rank ",
                                         "rank 2 of a group of 2",
                                         "group_begin inside a group of 0 messages",
                                         "barrier in a group of 1 messages",
                                         "a part of 2 elements of 5 over 2 ranks",
                                         "of 2 lies 8 bytes behind the whole",
                                         "broadcast of a strided tensor of 2 columns"};

/* ---- the tests ------------------------------------------------------------------------------- */

#define COUNT(rows) ((int)(sizeof(rows) / sizeof *(rows)))

static void test_a_rank_that_hangs_is_named_at_the_deadline_of_its_peers(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(hangs); i++)
        rank_end_expect(&hangs[i], 0.4, NULL);
}

/* If the rank that has not arrived is itself waiting, the message must also name the rank that
 * causes the wait. */
static void test_the_message_names_the_rank_that_causes_a_chain_of_waits(void **state)
{
    (void)state;
    rank_end_expect(&chain, CHAIN_TIMEOUT, shared_memory(sizeof(double)));
    rank_end_expect(&one_of_two, CHAIN_TIMEOUT, shared_memory(sizeof(double)));
    rank_end_expect(&circle, 0.4, NULL);
}

static void test_two_ranks_whose_calls_differ_end_the_program_with_both_calls_shown(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(mismatches); i++)
        rank_end_expect(&mismatches[i], 0, NULL);
    for (int i = 0; i < COUNT(mismatches_of_streams) && !ranks_are_processes(); i++)
        rank_end_expect(&mismatches_of_streams[i], 0, NULL);
}

static void test_an_invalid_call_ends_the_program_and_shows_its_arguments(void **state)
{
    (void)state;
    for (int64_t i = 0; i < COUNT(impossible); i++) {
        RankEnd end = {"impossible", impossible_call, 2, EXIT_BUG, {impossible[i]}};
        rank_end_expect(&end, 0, &i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_that_hangs_is_named_at_the_deadline_of_its_peers),
        cmocka_unit_test(test_the_message_names_the_rank_that_causes_a_chain_of_waits),
        cmocka_unit_test(test_two_ranks_whose_calls_differ_end_the_program_with_both_calls_shown),
        cmocka_unit_test(test_an_invalid_call_ends_the_program_and_shows_its_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
