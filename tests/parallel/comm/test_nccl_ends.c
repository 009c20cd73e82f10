/* test_nccl_ends.c -- how the program ends when an NCCL function fails: the error message, the exit
 * code and the rank that is named. Calls that take too long are in test_nccl_waits.c. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/comm/nccl/nccl.h"
#include "tests/support/grid/fake_nccl.h"
#include "tests/support/grid/rank_ends.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const double LIMIT = 60;

static void open_device(const Comm *world, Device *dev)
{
    char err[512] = "";
    DeviceOptions options = {.threads = 1, .local_ranks = world->size, .blas = BLAS_BUILTIN};
    if (!nccl_open(err, sizeof err) || !device_open(dev, "cpu", &options, err, sizeof err))
        _exit(error_print(EXIT_UNAVAILABLE, "%s", err));
}

/* Makes all kinds of calls that a training step may make. */
static void use_all(Comm *world, void *context)
{
    Device dev;
    float x[5] = {0};
    (void)context;
    log_set_rank(world->rank, world->rank == 1 ? "dp 1" : "dp 0");
    open_device(world, &dev);
    Comm all = comm_split(world, "dp", 0, world->rank);
    nccl_connect(&all, &dev, (NcclUse){NCCL_IN_RING, 0}, LIMIT);
    comm_all_reduce(&all, &dev, tensor_1d(x, F32, 5), REDUCE_SUM);
    comm_close(&all);
    device_close(&dev);
}

/* The expected exit code and message when the function fails on rank 1 of three. */
typedef struct {
    const char *function;
    NcclResult result;
    int code;
    const char *said[4];
} Failure;

#define SAYS "NCCL on rank 1 says: unhandled system error: Call to connect returned"
static const Failure failures[] = {
    {"CommInitRankConfig",
     NCCL_SYSTEM_ERROR,
     EXIT_SYSTEM,
     {"error[71] rank 1 dp 1", "group dp, call 0, connect", SAYS}},
    {"AllReduce",
     NCCL_SYSTEM_ERROR,
     EXIT_SYSTEM,
     {"error[71] rank 1 dp 1", "group dp, call 1, all-reduce of 3 f32 of ranks 0-2: ", SAYS}},
    {"ReduceScatter",
     NCCL_REMOTE_ERROR,
     EXIT_PEER_LOST,
     {"error[87] rank 1 dp 1", "call 3, reduce-scatter of 3 f32", "remote process exited"}},
    {"AllGather", NCCL_SYSTEM_ERROR, EXIT_SYSTEM, {"call 4, all-gather of 3 f32", SAYS}},
    {"Broadcast", NCCL_SYSTEM_ERROR, EXIT_SYSTEM, {"call 5, broadcast of 3 f32 from rank 0", SAYS}},
    {"GroupStart", NCCL_SYSTEM_ERROR, EXIT_SYSTEM, {"call 6, send of 1 f32 to rank 2", SAYS}},
    {"Send", NCCL_SYSTEM_ERROR, EXIT_SYSTEM, {"call 6, send of 1 f32 to rank 2", SAYS}},
    {"Recv", NCCL_SYSTEM_ERROR, EXIT_SYSTEM, {"call 6, send of 1 f32 to rank 2 and 1 more", SAYS}},
    {"GroupEnd",
     NCCL_SYSTEM_ERROR,
     EXIT_SYSTEM,
     {"call 6, send of 1 f32 to rank 2 and 1 more", SAYS}},
    {"CommDestroy", NCCL_SYSTEM_ERROR, EXIT_SYSTEM, {"group dp, call 9, disconnect", SAYS}},
};

static void test_a_failed_nccl_call_ends_all_ranks_with_nccls_error_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        const Failure *f = &failures[i];
        RankEnd end = {.name = f->function, .body = use_all, .ranks = 3, .code = f->code};
        memcpy(end.said, f->said, sizeof end.said);
        fake_nccl_use();
        fake_nccl.last_error = "\nCall to connect returned\nsecond line";
        fake_nccl.fails = f->function;
        fake_nccl.fails_on = 1;
        fake_nccl.result = f->result;
        rank_end_expect(&end, LIMIT, NULL);
    }
    fake_nccl_use();
    fake_nccl.fails = "GetUniqueId";
    fake_nccl.fails_on = 0;
    fake_nccl.result = NCCL_INVALID_USAGE;
    rank_end_expect(&(RankEnd){"id", use_all, 2, EXIT_SYSTEM, {"call 0, connect of ranks 0, 1: "}},
                    LIMIT, NULL);
}

/* NCCL has one code for all CUDA errors, so its text decides. */
static void test_out_of_gpu_memory_is_distinguished_from_other_nccl_errors(void **state)
{
    static const struct {
        NcclResult result;
        const char *last_error, *fewer; /* fewer: value of NCCL_MAX_CTAS */
        RankEnd end;
    } rows[] = {
        {NCCL_UNHANDLED_CUDA_ERROR,
         "Failed to CUDA malloc 7 bytes",
         NULL,
         {"malloc",
          use_all,
          2,
          EXIT_NO_MEMORY,
          {"error[90] rank 1 dp 1: group dp, call 1, all-reduce", "malloc 7 bytes; free some of ",
           "GPU's memory, or set NCCL_MAX_CTAS=8 in the environment\n"}}},
        {NCCL_UNHANDLED_CUDA_ERROR,
         "Failed to CUDA calloc async 7 bytes\nand a second line",
         "8",
         {"calloc",
          use_all,
          2,
          EXIT_NO_MEMORY,
          {"calloc async 7 bytes; free some of the GPU's memory\n"}}},
        {NCCL_UNHANDLED_CUDA_ERROR,
         "Cuda failure 2 'out of memory'",
         "8",
         {"words",
          use_all,
          2,
          EXIT_NO_MEMORY,
          {"'out of memory'; free some of the GPU's memory\n"}}},
        {NCCL_UNHANDLED_CUDA_ERROR,
         "Cuda failure 700 'an illegal memory access was encountered'",
         NULL,
         {"CUDA", use_all, 2, EXIT_SYSTEM, {"access was encountered'\n"}}},
        {NCCL_SYSTEM_ERROR,
         "proxy: out of memory",
         NULL,
         {"host", use_all, 2, EXIT_SYSTEM, {"out of memory\n"}}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fake_nccl_use();
        fake_nccl.last_error = rows[i].last_error;
        fake_nccl.fails = "AllReduce";
        fake_nccl.fails_on = 1;
        fake_nccl.result = rows[i].result;
        if (rows[i].fewer) setenv("NCCL_MAX_CTAS", rows[i].fewer, 1);
        rank_end_expect(&rows[i].end, LIMIT, NULL);
        unsetenv("NCCL_MAX_CTAS");
    }
}

static void end_badly(void)
{
    _exit(1);
}

/* Fails as in a process with a single rank. Other threads, of NCCL and of the thread pool, are
 * still running, so the program must leave by _exit. If it called exit, the exit handler end_badly
 * would change the exit code. */
static void fail_alone(Comm *world, void *context)
{
    comm_barrier(world);
    if (world->rank == 0) {
        ends_share(false);
        atexit(end_badly);
    }
    comm_barrier(world);
    use_all(world, context);
}

static void test_a_failure_in_a_process_of_one_rank_runs_no_exit_handlers(void **state)
{
    (void)state;
    fake_nccl_use();
    fake_nccl.fails = "AllReduce";
    fake_nccl.fails_on = 1;
    fake_nccl.result = NCCL_SYSTEM_ERROR;
    rank_end_expect(&(RankEnd){"alone", fail_alone, 2, EXIT_SYSTEM, {"NCCL on rank 1 says: "}},
                    LIMIT, NULL);
}

/* NCCL would delay the call until the other communicator's group ends. */
static void mix_groups(Comm *world, void *context)
{
    Device dev;
    float x[2] = {0};
    (void)context;
    open_device(world, &dev);
    Comm one = comm_split(world, "one", 0, world->rank),
         two = comm_split(world, "two", 0, world->rank);
    nccl_connect(&one, &dev, (NcclUse){0}, LIMIT);
    nccl_connect(&two, &dev, (NcclUse){0}, LIMIT);
    comm_group_begin(&one);
    comm_all_reduce(&one, &dev, tensor_1d(x, F32, 1), REDUCE_SUM);
    comm_group_end(&one);
    comm_all_reduce(&two, &dev, tensor_1d(x, F32, 1), REDUCE_SUM);
    comm_group_begin(&one);
    comm_all_reduce(&one, &dev, tensor_1d(x, F32, 1), REDUCE_SUM);
    comm_all_reduce(&two, &dev, tensor_1d(x, F32, 1), REDUCE_SUM);
}

static void test_a_call_inside_another_communicators_group_is_refused(void **state)
{
    (void)state;
    fake_nccl_use();
    rank_end_expect(
        &(RankEnd){"a stray", mix_groups, 2, EXIT_BUG, {"all-reduce of two inside a group of one"}},
        LIMIT, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_failed_nccl_call_ends_all_ranks_with_nccls_error_text),
        cmocka_unit_test(test_out_of_gpu_memory_is_distinguished_from_other_nccl_errors),
        cmocka_unit_test(test_a_failure_in_a_process_of_one_rank_runs_no_exit_handlers),
        cmocka_unit_test(test_a_call_inside_another_communicators_group_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
