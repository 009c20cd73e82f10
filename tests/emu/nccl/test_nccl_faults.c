/* test_nccl_faults.c -- the faults that EMU_NCCL_FAULT plants at a device's n-th call: each must
 * have its effect at that call and at no other, so that tests of programs can rely on it. */
#include "tests/emu/nccl/nccl_ranks.h"

enum {
    N = 8,
    LONG = 100 /* ms after which a call that waits for nobody has certainly returned */,
    PATIENCE = 30000
};

static void all_reduce(Rank *r)
{
    OK(r->nccl->AllReduce(r->x, r->y, N, ncclFloat32, ncclSum, r->comm, r->stream));
}

static void run_with(const char *fault, const char *streams, RankBody body, int code,
                     const char *words)
{
    char setting[128], text[4096];
    snprintf(setting, sizeof setting, "EMU_NCCL_FAULT=%s", fault);
    Violation one = {"x", fault, body, 2, words, {setting, streams}};
    ViolationRun run = {&one, false};
    int ended = child_run(violation_child, &run, text, sizeof text);
    if (ended != code || strstr(text, words) == NULL)
        fail_msg("%s: ended with %d: %s", fault, ended, text);
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Only the second all-reduce of device 1 fails, and it has no effect. */
static void second_fails(Rank *r)
{
    rank_open(r);
    all_reduce(r);
    rank_wait(r);
    if (r->rank == 1) {
        MUST(r->nccl->AllReduce(r->x, r->y, N, ncclFloat32, ncclSum, r->comm, r->stream) ==
             ncclInternalError);
        _exit(7);
    }
    rank_meet(r); /* never returns: rank 1 has ended the process */
}

static void *open_and_run(void *argument)
{
    Rank *r = argument;
    rank_open(r);
    all_reduce(r);
    rank_close(r);
    return NULL;
}

static void all_goes_well(Rank *r)
{
    open_and_run(r);
}

static void test_a_planted_error_is_returned_by_that_call_only(void **state)
{
    (void)state;
    run_with("1:AllReduce:2:error=3", NULL, second_fails, 7, "device 1, ncclAllReduce number 2");
    /* 2 inits and 1 earlier call: "any" counts all calls of the device */
    run_with("1:any:4:error=3", NULL, second_fails, 7, "device 1, ncclAllReduce number 4");
    run_with("1:AllReduce:2:error=3", NULL, all_goes_well, 0, "");
    run_with("3:AllReduce:1:error=3,0:AllGather:1:error=3", NULL, all_goes_well, 0, "");
    run_with("", NULL, all_goes_well, 0, "");
}

/* ---- wrong results --------------------------------------------------------------------------- */

/* Only the second all-reduce of device 1 has a wrong result, with the other sign. */
static void second_is_wrong(Rank *r)
{
    rank_open(r);
    for (int call = 1; call <= 3; call++) {
        float sign = r->rank == 1 && call == 2 ? -1 : 1;
        all_reduce(r);
        rank_wait(r);
        OK(cudaMemcpy(r->host, r->y, N * sizeof *r->y, cudaMemcpyDeviceToHost));
        for (int i = 0; i < N; i++)
            MUST(r->host[i] == sign * (float)(r->ranks * (r->ranks + 1)) / 2);
    }
    rank_close(r);
}

static void test_a_planted_wrong_result_has_the_opposite_sign(void **state)
{
    (void)state;
    run_with("1:AllReduce:2:wrong", NULL, second_is_wrong, 0, "ncclAllReduce number 2: wrong");
    run_with("1:AllReduce:3:wrong", NULL, second_is_wrong, 99, "");
    run_with("1:CommDestroy:1:wrong", NULL, all_goes_well, -SIGABRT, "has no result");
}

/* ---- asynchronous errors --------------------------------------------------------------------- */

static void asynchronous(Rank *r)
{
    rank_open(r);
    rank_warm(r, r->comm, r->stream);
    all_reduce(r);
    if (r->rank == 1) {
        ncclResult_t code = ncclSuccess;
        OK(r->nccl->CommGetAsyncError(r->comm, &code));
        MUST(code == ncclRemoteError);
        code = ncclRemoteError;
        OK(r->nccl->CommGetAsyncError(r->other, &code));
        MUST(code == ncclSuccess);
        MUST(cudaStreamQuery(r->stream) == cudaErrorNotReady);
        _exit(7);
    }
    rank_meet(r);
}

static void test_a_planted_asynchronous_error_is_reported_for_its_communicator(void **state)
{
    (void)state;
    run_with("1:AllReduce:2:async=6", "EMU_STREAMS=deferred", asynchronous, 7, "async");
}

/* ---- calls that never complete --------------------------------------------------------------- */

/* Ends the process with 8 if the mark is set in time, else with 7. With a planted fault it waits
 * only LONG, otherwise as long as needed. */
static void exit_by_mark(Rank *r)
{
    _exit(mark_comes(r->world, getenv("EMU_NCCL_FAULT") ? LONG : PATIENCE) ? 8 : 7);
}

/* Both hosts continue, but no stream does. */
static void call_never_completes(Rank *r)
{
    pthread_t waits;
    rank_open(r);
    rank_warm(r, r->comm, r->stream);
    if (getenv("GROUPED")) OK(r->nccl->GroupStart());
    all_reduce(r);
    if (getenv("GROUPED")) OK(r->nccl->GroupEnd());
    OK(pthread_create(&waits, NULL, wait_and_mark, r));
    rank_meet(r);
    exit_by_mark(r);
}

/* Starts the rank and returns when it reports that the fault is triggered, however long it takes to
 * reach that call. */
static void start_and_wait_for_fault(Rank *r)
{
    char text[256];
    pthread_t opens;
    int said[2], errors = dup(2);
    bool planted = getenv("EMU_NCCL_FAULT") != NULL;
    MUST(errors >= 0 && pipe(said) == 0);
    if (planted) MUST(dup2(said[1], 2) == 2);
    OK(pthread_create(&opens, NULL, open_and_run, r));
    if (!planted) return;
    ssize_t n = read(said[0], text, sizeof text);
    MUST(n > 0 && dup2(errors, 2) == 2 && write(2, text, (size_t)n) == n);
}

static void init_never_ends(Rank *r)
{
    if (r->rank == 0) {
        rank_open(r);
        atomic_store(&r->world->mark, 1);
    } else {
        start_and_wait_for_fault(r);
        exit_by_mark(r);
    }
}

static void test_a_call_with_a_planted_never_fault_does_not_complete(void **state)
{
    (void)state;
    run_with("1:AllReduce:2:never", "EMU_STREAMS=deferred", call_never_completes, 7, "never");
    run_with("", "EMU_STREAMS=deferred", call_never_completes, 8, "");
    setenv("GROUPED", "1", 1);
    run_with("0:GroupEnd:2:never", "EMU_STREAMS=deferred", call_never_completes, 7, "never");
    run_with("0:AllReduce:2:never", "EMU_STREAMS=deferred", call_never_completes, 7, "never");
    unsetenv("GROUPED");
    run_with("1:CommInitRankConfig:1:never", NULL, init_never_ends, 7, "never");
    run_with("1:CommInitRankConfig:2:never", NULL, init_never_ends, 7, "never");
    run_with("", NULL, init_never_ends, 8, "");
}

/* ---- the end of a peer ----------------------------------------------------------------------- */

/* The other rank must get the remote error, in its call or later, where its watchdog sees it. */
static void peer_vanishes(Rank *r)
{
    ncclResult_t code;
    rank_open(r);
    rank_warm(r, r->comm, r->stream);
    if (r->rank == 1) {
        all_reduce(r);
        _exit(8); /* not reached: the call with the planted fault does not return */
    }
    pthread_t waits;
    all_reduce(r);
    OK(pthread_create(&waits, NULL, wait_and_mark, r));
    do
        OK(r->nccl->CommGetAsyncError(r->comm, &code));
    while (code == ncclSuccess);
    MUST(code == ncclRemoteError);
    MUST(!mark_comes(r->world, LONG));
    _exit(7);
}

static void test_a_planted_kill_ends_the_process_and_vanish_is_a_remote_error(void **state)
{
    (void)state;
    run_with("1:AllReduce:2:kill", NULL, all_goes_well, 0, "");
    run_with("1:AllReduce:1:kill", NULL, all_goes_well, -SIGKILL, "kill");
    run_with("1:AllReduce:2:vanish", "EMU_STREAMS=deferred", peer_vanishes, 7, "vanish");
}

/* ---- the library itself ---------------------------------------------------------------------- */

static void an_old_version(Rank *r)
{
    int version = 0;
    OK(r->nccl->GetVersion(&version));
    _exit(version == 22304 ? 7 : 8);
}

static void function_missing(void *context)
{
    Nccl nccl;
    const char *missing = NULL;
    setenv("EMU_NCCL_FAULT", context, 1);
    bool loaded = nccl_load(&nccl, "libnccl.so.2", &missing);
    _exit(!loaded && missing && strcmp(missing, "ncclGroupEnd") == 0 ? 7 : loaded ? 8 : 9);
}

static void test_faults_can_change_the_version_or_remove_a_function(void **state)
{
    char text[256];
    (void)state;
    run_with("version=22304", NULL, an_old_version, 7, "");
    run_with("", NULL, an_old_version, 8, "");
    assert_int_equal(child_run(function_missing, "missing=ncclGroupEnd", text, sizeof text), 7);
    assert_int_equal(child_run(function_missing, "missing=ncclBcast", text, sizeof text), 8);
}

/* A setting that cannot be parsed must not be ignored. */
static void test_an_invalid_fault_setting_ends_the_program(void **state)
{
    static const char *const list[] = {"1",
                                       "1:AllReduce",
                                       "1:AllReduce:1",
                                       "1:AllReduce:1:sleep",
                                       "1:AllReduce:1:error",
                                       "1:AllReduce:1:error=x",
                                       "1:AllReduce:1:kill=3",
                                       "1:AllReduce:1:wrong=1",
                                       "version=",
                                       "version=3x"};
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        run_with(list[i], NULL, all_goes_well, -SIGABRT, "not of the form DEVICE:FUNCTION:N:KIND");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_planted_error_is_returned_by_that_call_only),
        cmocka_unit_test(test_a_planted_wrong_result_has_the_opposite_sign),
        cmocka_unit_test(test_a_planted_asynchronous_error_is_reported_for_its_communicator),
        cmocka_unit_test(test_a_call_with_a_planted_never_fault_does_not_complete),
        cmocka_unit_test(test_a_planted_kill_ends_the_process_and_vanish_is_a_remote_error),
        cmocka_unit_test(test_faults_can_change_the_version_or_remove_a_function),
        cmocka_unit_test(test_an_invalid_fault_setting_ends_the_program),
    };
    return cmocka_run_group_tests_name("planted faults of NCCL", tests, NULL, NULL);
}
