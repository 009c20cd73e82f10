/* test_nccl_streams.c -- when NCCL calls start, read and write, and in which order they add. The
 * emulated NCCL must break programs that rely on more than the real library promises. rank->planted
 * selects the second variant of a test. */
#include "tests/emu/nccl/nccl_ranks.h"

enum { N = 8, LONG = 100 /* ms after which a call that waits for nobody has certainly returned */ };

static void all_reduce(Rank *r)
{
    OK(r->nccl->AllReduce(r->x, r->y, N, ncclFloat32, ncclSum, r->comm, r->stream));
}

/* Enqueues N copies of the value to p on the stream. */
static void fill(Rank *r, float *p, float value, cudaStream_t stream)
{
    for (int i = 0; i < N; i++)
        r->host[i] = value;
    OK(cudaMemcpyAsync(p, r->host, N * sizeof *p, cudaMemcpyHostToDevice, stream));
}

/* Returns the first number at p, read in stream order. */
static float first_of(Rank *r, const float *p, cudaStream_t stream)
{
    float *to = r->host + WORLD_ROOM - 1;
    OK(cudaMemcpyAsync(to, p, sizeof *to, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    return *to;
}

static void wait_for_mark(World *world)
{
    while (!atomic_load(&world->mark))
        sched_yield();
}

/* The environment of a child process, and the world that it runs. */
typedef struct {
    const char *settings[4];
    RankBody body;
    int ranks;
    bool planted;
} Run;

static void run_ends_with(Run run, int expected)
{
    char text[4096];
    Violation as_one = {"", "", run.body, run.ranks, "", {0}};
    memcpy(as_one.settings, run.settings, sizeof run.settings);
    ViolationRun one = {&as_one, run.planted};
    int code = child_run(violation_child, &one, text, sizeof text);
    if (code != expected) fail_msg("ended with %d: %s", code, text);
}

/* ---- rule (iv): the first use waits for the peer's host -------------------------------------- */

typedef void (*Use)(Rank *r);

static void use_gather(Rank *r)
{
    OK(r->nccl->AllGather(r->x, r->y, N, ncclFloat32, r->comm, r->stream));
}

static void use_message(Rank *r)
{
    if (r->rank == 0)
        OK(r->nccl->Send(r->x, N, ncclFloat32, 1, r->comm, r->stream));
    else
        OK(r->nccl->Recv(r->y, N, ncclFloat32, 0, r->comm, r->stream));
}

static void warm_unless_planted(Rank *r)
{
    if (!r->planted) rank_warm(r, r->comm, r->stream);
}

/* Calls `before` and then `use`, which rank 1 calls late. If r->planted, rank 0's call of `use`
 * must wait for rank 1's; else it must return before that. */
static void late_peer(Rank *r, Use before, Use use)
{
    rank_open(r);
    before(r);
    if (r->rank == 0) {
        use(r);
        atomic_store(&r->world->mark, 1);
    } else {
        if (r->planted)
            MUST(!mark_comes(r->world, LONG));
        else
            wait_for_mark(r->world);
        use(r);
    }
    rank_close(r);
}

static void late_to_reduce(Rank *r)
{
    late_peer(r, warm_unless_planted, all_reduce);
}

static void late_to_gather(Rank *r)
{
    late_peer(r, warm_unless_planted, use_gather);
}

static void late_to_message(Rank *r)
{
    late_peer(r, warm_unless_planted, use_message);
}

static void test_only_the_first_use_of_an_operation_waits_for_the_peers_host(void **state)
{
    static const RankBody list[] = {late_to_reduce, late_to_gather, late_to_message};
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int first = 0; first < 2; first++)
            run_ends_with((Run){{"EMU_STREAMS=deferred"}, list[i], 2, first}, 0);
}

/* All operations have been used but the gather. If connections are made for each operation, its
 * first use waits for the late rank 1. If one ring serves all, it does not. */
static void gather_after_reduce(Rank *r)
{
    late_peer(r, all_reduce, use_gather);
}

static void test_one_connection_may_serve_all_collectives(void **state)
{
    (void)state;
    run_ends_with((Run){{"EMU_STREAMS=deferred"}, gather_after_reduce, 2, true}, 0);
    run_ends_with(
        (Run){{"EMU_STREAMS=deferred", "EMU_NCCL_CONNECT=ring"}, gather_after_reduce, 2, false}, 0);
}

/* ---- rule (ii): nothing is buffered ---------------------------------------------------------- */

/* Even a small send ends only when its receive has been called. If rank->planted, the receiver
 * makes its call late. */
static void late_receiver(Rank *r)
{
    pthread_t waits;
    rank_open(r);
    rank_warm(r, r->comm, r->stream);
    if (r->rank == 0) {
        use_message(r);
        OK(pthread_create(&waits, NULL, wait_and_mark, r));
        OK(pthread_join(waits, NULL));
    } else {
        if (r->planted) MUST(!mark_comes(r->world, LONG));
        use_message(r);
        wait_for_mark(r->world);
    }
    rank_close(r);
}

static void test_a_send_completes_only_after_its_receive_is_called(void **state)
{
    (void)state;
    for (int planted = 0; planted < 2; planted++)
        run_ends_with((Run){{"EMU_STREAMS=deferred"}, late_receiver, 2, planted}, 0);
}

static void use_broadcast(Rank *r)
{
    OK(r->nccl->Broadcast(r->x, r->y, N, ncclFloat32, 0, r->comm, r->stream));
}

/* The root, or the sender, makes its calls twice and does not wait for the receiver, which gets the
 * right numbers afterwards. */
static void early_leaver(Rank *r, Use use)
{
    rank_open(r);
    rank_warm(r, r->comm, r->stream);
    if (r->rank == 0) {
        use(r);
        use(r);
        OK(cudaStreamSynchronize(r->stream));
        atomic_store(&r->world->mark, 1);
    } else {
        wait_for_mark(r->world);
        use(r);
        use(r);
        MUST(first_of(r, r->y, r->stream) == 1);
    }
    all_reduce(r);
    MUST(first_of(r, r->y, r->stream) == 3);
    rank_close(r);
}

static void early_root(Rank *r)
{
    early_leaver(r, use_broadcast);
}

static void early_sender(Rank *r)
{
    early_leaver(r, use_message);
}

static void test_a_broadcast_root_or_sender_may_finish_before_the_receiver(void **state)
{
    (void)state;
    run_ends_with((Run){{"EMU_STREAMS=deferred", "EMU_NCCL_LEAVE=early"}, early_root, 2, 0}, 0);
    run_ends_with((Run){{"EMU_STREAMS=deferred", "EMU_NCCL_LEAVE=early"}, early_sender, 2, 0}, 0);
}

/* ---- rule (v): a group and its streams ------------------------------------------------------- */

static void stop_until_mark(void *argument)
{
    wait_for_mark(argument);
}

/* Once rank 0 has a communicator, its device waits for rank 1, and calls that allocate memory wait
 * for the devices. So rank 1 must have allocated all memory of the communicator by then. */
static void work_after_init(Rank *r)
{
    rank_open(r);
    rank_ids(r, 3);
    for (int i = 0; i < 3; i++) {
        ncclComm_t joined = rank_join(r, i, r->ranks, r->rank);
        if (r->rank == 0)
            OK(cudaLaunchHostFunc(r->side, stop_until_mark, r->world));
        else
            atomic_store(&r->world->mark, 1);
        rank_wait(r);
        rank_meet(r);
        atomic_store(&r->world->mark, 0);
        OK(r->nccl->CommDestroy(joined));
        rank_meet(r);
    }
    rank_close(r);
}

static void test_an_init_returns_only_after_all_ranks_have_allocated_memory(void **state)
{
    static const char *const seeds[] = {"EMU_JITTER=1", "EMU_JITTER=2", "EMU_JITTER=3"};
    (void)state;
    setenv("EMU_MEMORY_CALLS", "wait", 1);
    for (int i = 0; i < 3; i++)
        run_ends_with(
            (Run){
                {"EMU_STREAMS=deferred", "EMU_NCCL_RESERVE=4096", seeds[i]}, work_after_init, 2, 0},
            0);
    unsetenv("EMU_MEMORY_CALLS");
}

/* The first call of the group reads what the second call's stream writes, and that stream is
 * blocked before the write. Only the group orders the two. If rank->planted, there is no group and
 * the old value is sent. */
static void group_of_two_streams(Rank *r)
{
    rank_open(r);
    rank_warm(r, r->comm, r->stream);
    OK(cudaLaunchHostFunc(r->side, stop_until_mark, r->world));
    fill(r, r->x, 10, r->side);
    if (!r->planted) OK(r->nccl->GroupStart());
    all_reduce(r);
    if (r->planted) MUST(first_of(r, r->y, r->stream) == 3);
    if (r->planted) rank_meet(r);
    OK(r->nccl->AllReduce(r->x + N, r->y + N, N, ncclFloat32, ncclSum, r->comm, r->side));
    if (!r->planted) OK(r->nccl->GroupEnd());
    atomic_store(&r->world->mark, 1);
    MUST(first_of(r, r->y, r->stream) == (r->planted ? 3 : 20));
    rank_close(r);
}

static void test_a_group_starts_only_when_all_its_streams_have_reached_it(void **state)
{
    (void)state;
    for (int planted = 0; planted < 2; planted++)
        run_ends_with((Run){{"EMU_STREAMS=deferred"}, group_of_two_streams, 2, planted}, 0);
}

static void *wait_for_stream(void *argument)
{
    Rank *r = argument;
    OK(cudaSetDevice(r->rank));
    OK(cudaStreamSynchronize(r->stream));
    return NULL;
}

/* While a call waits for its peer, its output contains poison. If rank->planted, its input is
 * overwritten meanwhile, which changes the result only if the call reads late. */
static void under_way(Rank *r)
{
    const char *read = getenv("EMU_NCCL_READ");
    bool late = read && strcmp(read, "late") == 0;
    rank_open(r);
    rank_warm(r, r->comm, r->stream);
    if (r->rank == 0) {
        pthread_t waits;
        float seen = 0;
        all_reduce(r);
        OK(pthread_create(&waits, NULL, wait_for_stream, r));
        while (seen == seen) /* until it is a NaN */
            seen = first_of(r, r->y, r->side);
        if (r->planted) {
            fill(r, r->x, 10, r->side);
            OK(cudaStreamSynchronize(r->side));
        }
        atomic_store(&r->world->mark, 1);
        OK(pthread_join(waits, NULL));
    } else {
        wait_for_mark(r->world);
        all_reduce(r);
    }
    MUST(first_of(r, r->y, r->stream) == (r->planted && late ? 12 : 3));
    rank_close(r);
}

static void test_using_a_buffer_before_the_call_ends_gives_wrong_numbers(void **state)
{
    (void)state;
    for (int planted = 0; planted < 2; planted++) {
        run_ends_with((Run){{"EMU_STREAMS=deferred", "EMU_NCCL_READ=early"}, under_way, 2, planted},
                      0);
        run_ends_with((Run){{"EMU_STREAMS=deferred", "EMU_NCCL_READ=late"}, under_way, 2, planted},
                      0);
    }
}

/* ---- rule (ix): the order of sums ------------------------------------------------------------ */

enum { RANKS = 4, BF16_ONE = 0x3f80, BF16_256 = 0x4380, BF16_260 = 0x4382 };

/* Computes 256 + 1 + 1 + 1 in bf16, in some order, rounded at each hop. If 256 comes first and ones
 * are added to it, it stays 256. Rounded once, the sum would be 260. */
static void sum_in_16_bits(Rank *r)
{
    enum { COUNT = 64 };
    uint16_t host[COUNT], sum[COUNT], once = 0, more = 0;
    rank_open(r);
    for (int i = 0; i < COUNT; i++)
        host[i] = r->rank == 0 ? BF16_256 : BF16_ONE;
    OK(cudaMemcpy(r->x, host, sizeof host, cudaMemcpyHostToDevice));
    OK(r->nccl->AllReduce(r->x, r->y, COUNT, ncclBfloat16, ncclSum, r->comm, r->stream));
    OK(r->nccl->AllGather(r->y, r->y + 32, COUNT / RANKS, ncclBfloat16, r->comm, r->stream));
    OK(cudaStreamSynchronize(r->stream));
    OK(cudaMemcpy(sum, r->y, sizeof sum, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++)
        if (sum[i] == BF16_260)
            once++;
        else
            more++;
    if (r->rank == 0) fprintf(stderr, "%d of 260, %d others:", once, more);
    for (int i = 0; i < COUNT && r->rank == 0; i++)
        fprintf(stderr, " %04x", sum[i]);
    rank_meet(r); /* all ranks have the same sums */
    OK(r->nccl->Broadcast(r->y, r->x, COUNT, ncclBfloat16, 0, r->comm, r->stream));
    OK(cudaStreamSynchronize(r->stream));
    OK(cudaMemcpy(host, r->x, sizeof host, cudaMemcpyDeviceToHost));
    MUST(memcmp(host, sum, sizeof sum) == 0);
    rank_close(r);
}

/* A program that expects the bits of one order must fail with some seed. */
static void test_the_bits_of_a_sum_change_with_the_seed(void **state)
{
    enum { SEEDS = 6 };
    static const char *const seed[SEEDS] = {"EMU_NCCL_SEED=0", "EMU_NCCL_SEED=1",
                                            "EMU_NCCL_SEED=2", "EMU_NCCL_SEED=3",
                                            "EMU_NCCL_SEED=4", "EMU_NCCL_SEED=5"};
    char text[2][4096], again[4096];
    int different = 0;
    (void)state;
    for (int s = 0; s < SEEDS; s++) {
        Violation one = {"", "", sum_in_16_bits, RANKS, "", {seed[s]}};
        ViolationRun run = {&one, false};
        assert_int_equal(child_run(violation_child, &run, text[s > 0], sizeof text[0]), 0);
        assert_null(strstr(text[s > 0], " 0 others")); /* sums are rounded at each hop */
        different += s > 0 && strcmp(text[0], text[1]) != 0;
        if (s > 0) continue;
        assert_int_equal(child_run(violation_child, &run, again, sizeof again), 0);
        assert_string_equal(again, text[0]);
    }
    assert_int_not_equal(different, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_the_first_use_of_an_operation_waits_for_the_peers_host),
        cmocka_unit_test(test_one_connection_may_serve_all_collectives),
        cmocka_unit_test(test_a_broadcast_root_or_sender_may_finish_before_the_receiver),
        cmocka_unit_test(test_a_send_completes_only_after_its_receive_is_called),
        cmocka_unit_test(test_an_init_returns_only_after_all_ranks_have_allocated_memory),
        cmocka_unit_test(test_a_group_starts_only_when_all_its_streams_have_reached_it),
        cmocka_unit_test(test_using_a_buffer_before_the_call_ends_gives_wrong_numbers),
        cmocka_unit_test(test_the_bits_of_a_sum_change_with_the_seed),
    };
    return cmocka_run_group_tests_name("when calls of NCCL read and write", tests, NULL, NULL);
}
