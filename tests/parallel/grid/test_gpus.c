/* test_gpus.c -- tests which GPU each rank gets, on devices that pretend to be GPUs: all ranks
 * share one, each rank has its own, or an error message ends the program. */
#include "model/core/check.h"
#include "parallel/grid/gpus.h"
#include "tests/support/grid/fake_nccl.h"
#include "tests/support/grid/made_up_machines.h"
#include "tests/support/grid/rank_ends.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

/* The GPUs of a machine. count: how many it has. twice: the index of a GPU that is the same device
 * as GPU 0. use: what gpus_agree must return. */
typedef struct {
    int count, twice;
    Gpus use;
} Machine;

static Machine machine;

static int count_gpus(void)
{
    return machine.count;
}

static const char *bus_id(int index, char *buf, size_t n)
{
    index %= machine.count;
    snprintf(buf, n, "0000:%02x:00.0", index == machine.twice ? 0 : index);
    return buf;
}

static Backend gpu_backend(void)
{
    return (Backend){.name = "gpu", .place = PLACE_DEVICE, .count = count_gpus, .bus_id = bus_id};
}

static void agree(Comm *world, void *context)
{
    Backend backend = gpu_backend();
    if (context) backend.place = PLACE_HOST;
    Device dev = {.backend = &backend, .index = world->rank};
    Gpus use = gpus_agree(world, &dev);
    if (use != machine.use) rank_wrong(world, "%d, not %d", (int)use, (int)machine.use);
}

static void test_ranks_share_one_gpu_or_have_one_each(void **state)
{
    static const Machine machines[] = {
        {1, -1, GPUS_ONE}, {4, -1, GPUS_EACH}, {8, 7, GPUS_EACH}, {0, -1, GPUS_NONE}};
    int cpu;
    (void)state;
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        machine = machines[i];
        fake_nccl_use();
        thread_ranks(4, 60, agree, NULL);
    }
    machine = (Machine){4, -1, GPUS_NONE};
    thread_ranks(4, 60, agree, &cpu);
    thread_ranks(1, 60, agree, NULL);
}

static void test_too_few_gpus_or_two_ranks_with_the_same_gpu_are_refused(void **state)
{
    (void)state;
    fake_nccl_use();
    machine = (Machine){3, -1, GPUS_NONE};
    rank_end_expect(
        &(RankEnd){"three for four",
                   agree,
                   4,
                   EXIT_CONFIG,
                   {"error[78] 4 ranks cannot be shared out to 3 GPUs",
                    "write --ranks 3 or less, or name one GPU in CUDA_VISIBLE_DEVICES\n"}},
        60, NULL);
    machine = (Machine){4, 2, GPUS_EACH};
    RankEnd twice = {
        "one twice",
        agree,
        4,
        EXIT_CONFIG,
        {"error[78] ranks 0 and 2 have the same GPU, 0000:00:00.0", "CUDA_VISIBLE_DEVICES"}};
    rank_end_expect(&twice, 60, NULL);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "0", 1);
    rank_end_expect(&twice, 60, NULL);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    thread_ranks(4, 60, agree, NULL);
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    machine.twice = -1;
    fake_nccl_use();
    fake_nccl.version = 21805;
    rank_end_expect(&(RankEnd){"an old library",
                               agree,
                               4,
                               EXIT_UNAVAILABLE,
                               {"error[69] NCCL here is 2.18.5", "install NCCL 2.28.9 or newer",
                                "or set CUDA_VISIBLE_DEVICES to one GPU"}},
                    60, NULL);
    fake_nccl_use();
    fake_nccl.fails = "GetVersion";
    fake_nccl.result = NCCL_SYSTEM_ERROR;
    rank_end_expect(&(RankEnd){"a library that fails at once",
                               agree,
                               4,
                               EXIT_UNAVAILABLE,
                               {"error[69] NCCL (", "does not say its version: unhandled system"}},
                    60, NULL);
}

/* ---- ranks that are processes ---------------------------------------------------------------- */

/* context: the value of NCCL_HOSTID on all ranks; "rank 0 alone" is set only on rank 0. */
static void agree_with_hosts(Comm *world, void *context)
{
    const char *host = context;
    if (strcmp(host, "rank 0 alone") != 0 || world->rank == 0) setenv("NCCL_HOSTID", host, 1);
    gpus_prepare_process(world->rank);
    agree(world, NULL);
}

static void test_processes_may_share_a_gpu_if_nccl_takes_them_for_different_hosts(void **state)
{
    static const Machine machines[] = {{1, -1, GPUS_EACH}, {2, -1, GPUS_EACH}, {4, 2, GPUS_EACH}};
    RankEnd one = {"one GPU",
                   agree_with_hosts,
                   3,
                   EXIT_CONFIG,
                   {"error[78] ranks 0 and 1 are processes with the same GPU, 0000:00:00.0, where",
                    "leave out --processes, write --ranks 1, or set device \"cpu\" (NCCL_HOSTID"}};
    (void)state;
    setenv("TEST_RANKS", "processes", 1);
    fake_nccl_use();
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        machine = machines[i];
        thread_ranks(4, 60, agree_with_hosts, "each");
    }
    machine = (Machine){1, -1, GPUS_EACH};
    rank_end_expect(&one, 60, "here");
    one.said[0] = "error[78] ranks 1 and 2 are processes with the same GPU, 0000:00:00.0, where";
    rank_end_expect(&one, 60, "rank 0 alone");
    machine = (Machine){4, 2, GPUS_EACH};
    RankEnd twice = {
        "one twice", agree_with_hosts, 3, EXIT_CONFIG, {"error[78] ranks 0 and 2 have the same"}};
    rank_end_expect(&twice, 60, "here");
    machine.count = 2;
    twice.said[0] = "error[78] 3 ranks cannot be shared out to 2 GPUs";
    rank_end_expect(&twice, 60, "here");
    unsetenv("TEST_RANKS");
}

static int two_gpus(void)
{
    return 2;
}

/* ---- ranks that a launcher has started ------------------------------------------------------- */

/* What the ranks of two machines see. `each`: every rank sees only a GPU of its own, as number
 * 0. */
typedef struct {
    const char *map;
    bool each;
    int count, twice;
} Job;

static const Job *job;

static int count_own(void)
{
    return job->each ? 1 : job->count;
}

static const char *bus_own(int index, char *buf, size_t n)
{
    /* If `each`, the launcher shows a different GPU to each rank. */
    int gpu = job->each ? index : index % job->count;
    snprintf(buf, n, "0000:%02x:00.0", gpu == job->twice ? 0 : gpu);
    return buf;
}

static void agree_joined(Comm *world, void *context)
{
    Backend backend = {.name = "gpu", .place = PLACE_DEVICE, .count = count_own, .bus_id = bus_own};
    (void)context;
    if (job->count < 0)
        backend = (Backend){.name = "gpu", .place = PLACE_DEVICE, .count = two_gpus};
    Device dev = {.backend = &backend, .index = machines_of(world).local_rank};
    Gpus use = gpus_agree(world, &dev);
    if (use != GPUS_EACH) rank_wrong(world, "%d, not one each", (int)use);
}

static void test_the_gpus_of_a_machine_are_compared_with_its_own_ranks(void **state)
{
    static const Job good[] = {{"aabb", false, 2, -1},
                               {"abab", false, 4, -1},
                               {"aabb", true, 1, -1},
                               {"abcd", true, 1, -1},
                               {"abcd", false, 1, -1}};
    (void)state;
    fake_nccl_use();
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        job = &good[i];
        made_up_machines(job->map);
        thread_ranks(4, 60, agree_joined, NULL);
    }
    machines_forget();
}

static void test_ranks_with_the_same_gpu_of_a_machine_are_refused(void **state)
{
    static const struct {
        Job job;
        const char *said;
    } bad[] = {{{"abbb", false, 2, -1},
                "ranks 1 and 3 on host-b have the same GPU, 0000:00:00.0; start as"},
               {{"aabb", false, 1, -1},
                "ranks 0 and 1 on host-a have the same GPU, 0000:00:00.0; start as"},
               {{"aaaa", true, 1, 3},
                "ranks 0 and 3 have the same GPU, 0000:00:00.0; start as many ranks"},
               {{"abbb", false, -1, -1},
                "3 ranks on host-b cannot be shared out to 2 GPUs; start as many"}};
    (void)state;
    fake_nccl_use();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        job = &bad[i].job;
        made_up_machines(job->map);
        rank_end_expect(&(RankEnd){job->map,
                                   agree_joined,
                                   4,
                                   EXIT_CONFIG,
                                   {bad[i].said, "give each its own (srun --gpus-per-task=1)"}},
                        60, NULL);
        setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
        thread_ranks(4, 60, agree_joined, NULL);
        unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    }
    machines_forget();
}

static DeviceSurvey seen(const Backend *backend)
{
    bool counted = backend && backend->count;
    return (DeviceSurvey){.choice = backend, .count = counted ? backend->count() : 1};
}

/* The kinds of ranks that a command line may ask for. */
static const LaunchKind any, processes = {.processes = true}, threads = {.threads = true};

static bool are_processes(int gpus, int ranks, LaunchKind kind)
{
    const Backend backend = gpu_backend();
    machine.count = gpus;
    return gpus_prepare(seen(&backend), ranks, kind);
}

static void test_ranks_are_processes_where_each_has_a_gpu(void **state)
{
    const Backend cpu = {.name = "cpu", .place = PLACE_HOST};
    (void)state;
    assert_true(are_processes(4, 4, any));
    assert_true(are_processes(8, 2, any));
    assert_false(are_processes(1, 4, any));
    assert_false(are_processes(3, 4, any)); /* this number of GPUs will be refused */
    assert_false(are_processes(8, 1, any));
    assert_false(gpus_prepare(seen(NULL), 4, any));
    assert_false(gpus_prepare(seen(&cpu), 4, any));
    assert_true(gpus_prepare(seen(&cpu), 4, processes));
    assert_true(are_processes(1, 4, processes));
    assert_false(are_processes(4, 1, processes));
    assert_false(are_processes(4, 4, threads));
}

/* A process that a launcher has started cannot share a GPU. Its machine may have fewer ranks than
 * the whole run, so fewer GPUs than ranks are no error here. */
static void test_gpus_each_is_true_for_a_launchers_ranks_if_there_is_any_gpu(void **state)
{
    const Backend backend = gpu_backend(), cpu = {.name = "cpu", .place = PLACE_HOST};
    (void)state;
    machine.count = 1;
    assert_false(gpus_each(seen(&backend), 8));
    setenv("OMPI_COMM_WORLD_SIZE", "8", 1);
    setenv("OMPI_COMM_WORLD_RANK", "3", 1);
    assert_true(gpus_each(seen(&backend), 8));
    assert_false(gpus_each(seen(&backend), 1));
    assert_false(gpus_each(seen(&cpu), 8));
    machine.count = 0;
    assert_false(gpus_each(seen(&backend), 8));
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_RANK");
}

static bool has_environment(void)
{
    bool has = getenv("NCCL_RAS_ENABLE") != NULL;
    unsetenv("NCCL_RAS_ENABLE");
    return has;
}

/* NCCL's environment variables must be set before other threads start. */
static void test_nccls_environment_is_set_before_ranks_have_threads(void **state)
{
    (void)state;
    has_environment();
    are_processes(4, 4, threads);
    assert_true(has_environment());
    are_processes(1, 4, threads);
    are_processes(4, 4, any); /* each process sets its own */
    assert_false(has_environment());
    gpus_prepare_process(2);
    assert_true(has_environment());
}

static rlim_t file_limit(void)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit.rlim_cur;
}

/* Threads with a GPU each may open as many files as the machine allows; processes raise their own
 * limit in launch_processes. */
static void test_the_file_limit_is_raised_for_ranks_with_a_gpu_each(void **state)
{
    (void)state;
    Backend backend = gpu_backend();
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(limit.rlim_max > 400);
    limit.rlim_cur = 400;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    fake_nccl_use();
    machine = (Machine){1, -1, GPUS_ONE};
    gpus_prepare(seen(&backend), 4, threads);
    assert_int_equal(file_limit(), 400);
    machine = (Machine){4, -1, GPUS_EACH};
    gpus_prepare(seen(NULL), 4, threads);
    gpus_prepare(seen(&backend), 1, threads);
    assert_int_equal(file_limit(), 400);
    gpus_prepare(seen(&backend), 4, threads);
    assert_true(file_limit() == limit.rlim_max);
}

/* The CUDA driver reads this variable. A value that the user has set is kept, and a single rank
 * does not set it. */
static void test_several_ranks_ask_the_driver_for_more_queues(void **state)
{
    static const char name[] = "CUDA_DEVICE_MAX_CONNECTIONS";
    (void)state;
    unsetenv(name);
    gpus_prepare_driver(1);
    assert_null(getenv(name));
    gpus_prepare_driver(2);
    assert_string_equal(getenv(name), "32");
    setenv(name, "8", 1);
    gpus_prepare_driver(8);
    assert_string_equal(getenv(name), "8");
    unsetenv(name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_share_one_gpu_or_have_one_each),
        cmocka_unit_test(test_too_few_gpus_or_two_ranks_with_the_same_gpu_are_refused),
        cmocka_unit_test(test_processes_may_share_a_gpu_if_nccl_takes_them_for_different_hosts),
        cmocka_unit_test(test_the_gpus_of_a_machine_are_compared_with_its_own_ranks),
        cmocka_unit_test(test_ranks_with_the_same_gpu_of_a_machine_are_refused),
        cmocka_unit_test(test_gpus_each_is_true_for_a_launchers_ranks_if_there_is_any_gpu),
        cmocka_unit_test(test_ranks_are_processes_where_each_has_a_gpu),
        cmocka_unit_test(test_nccls_environment_is_set_before_ranks_have_threads),
        cmocka_unit_test(test_the_file_limit_is_raised_for_ranks_with_a_gpu_each),
        cmocka_unit_test(test_several_ranks_ask_the_driver_for_more_queues),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
