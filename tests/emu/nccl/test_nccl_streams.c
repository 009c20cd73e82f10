/* test_nccl_streams.c -- when calls of NCCL start, read and write, and in which order they add:
 * what the stand-in does to programs that lean on more than the library promises. */
#include "tests/emu/nccl/nccl_ranks.h"

enum { N = 8, LONG = 100 /* ms in which a call that waits for nobody has long returned */ };

static void all_reduce(Rank *r)
{
    OK(r->nccl->AllReduce(r->x, r->y, N, ncclFloat32, ncclSum, r->comm, r->stream));
}

/* N times the value to p, which is there when the stream has come to it. */
static void fill(Rank *r, float *p, float value, cudaStream_t stream)
{
    for (int i = 0; i < N; i++)
        r->host[i] = value;
    OK(cudaMemcpyAsync(p, r->host, N * sizeof *p, cudaMemcpyHostToDevice, stream));
}

/* The first of p's numbers, when the stream has come to it. */
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

/* The child's environment, then its world. */
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

/* ---- (iv) the first use waits for the peer's host -------------------------------------------- */

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

/* A second rank that comes late: the first returns from its call before, unless it is the first. */
static void late_peer(Rank *r, Use use)
{
    rank_open(r);
    if (!r->planted) rank_warm(r, r->comm, r->stream);
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
    late_peer(r, all_reduce);
}

static void late_to_gather(Rank *r)
{
    late_peer(r, use_gather);
}

static void late_to_message(Rank *r)
{
    late_peer(r, use_message);
}

static void the_first_use_waits_and_no_other(void **state)
{
    static const RankBody list[] = {late_to_reduce, late_to_gather, late_to_message};
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int first = 0; first < 2; first++)
            run_ends_with((Run){{"EMU_STREAMS=deferred"}, list[i], 2, first}, 0);
}

/* ---- (ii) nothing is buffered ---------------------------------------------------------------- */

/* A send of few bytes is over when its receive has come; planted, that waits for the send's end. */
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

static void a_send_waits_for_its_receive(void **state)
{
    (void)state;
    for (int planted = 0; planted < 2; planted++)
        run_ends_with((Run){{"EMU_STREAMS=deferred"}, late_receiver, 2, planted}, 0);
}

/* ---- (v) a group and its streams ------------------------------------------------------------- */

static void stop_until_mark(void *argument)
{
    wait_for_mark(argument);
}

/* What the first call of the group reads is written on the second one's stream, which stops before
 * that, and nothing orders the two but the group; planted, no group: the old value goes out. */
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

static void a_group_starts_when_all_its_streams_are_there(void **state)
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

/* While the peer is awaited the result is poison; planted, what is being sent is overwritten, which
 * shows or does not, as the call reads early or late. */
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
        while (seen == seen) /* no NaN */
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

static void buffers_belong_to_a_call_until_its_end(void **state)
{
    (void)state;
    for (int planted = 0; planted < 2; planted++) {
        run_ends_with((Run){{"EMU_STREAMS=deferred", "EMU_NCCL_READ=early"}, under_way, 2, planted},
                      0);
        run_ends_with((Run){{"EMU_STREAMS=deferred", "EMU_NCCL_READ=late"}, under_way, 2, planted},
                      0);
    }
}

/* ---- (ix) the order of sums ------------------------------------------------------------------ */

enum { RANKS = 4, BF16_ONE = 0x3f80, BF16_256 = 0x4380, BF16_260 = 0x4382 };

/* 256 + 1 + 1 + 1 in 16 bits, in some order, rounded at each hop: 256 stays 256 when it comes first
 * and single ones are added, and would be 260 if the sum were rounded once. */
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

/* Whoever expects one order's bits fails with some seed. */
static void sums_have_no_order(void **state)
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
        assert_null(strstr(text[s > 0], " 0 others")); /* rounded at hops */
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
        cmocka_unit_test(the_first_use_waits_and_no_other),
        cmocka_unit_test(a_send_waits_for_its_receive),
        cmocka_unit_test(a_group_starts_when_all_its_streams_are_there),
        cmocka_unit_test(buffers_belong_to_a_call_until_its_end),
        cmocka_unit_test(sums_have_no_order),
    };
    return cmocka_run_group_tests_name("when calls of NCCL read and write", tests, NULL, NULL);
}
