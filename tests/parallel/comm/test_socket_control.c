/* test_socket_control.c -- worlds of so many machines that control packets travel over a tree:
 * which ranks are connected with rank 0, and which rank is blamed if some are silent. How the
 * program ends is in test_socket_control_ends.c. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/comm/socket/hub.h"
#include "parallel/comm/socket/world.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/control_tree.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the tree -------------------------------------------------------------------------------- */

static int open_connections(const Comm *world)
{
    const SocketWorld *w = socket_group(world)->world;
    int n = w->service.relay.children, rank = world->rank;
    for (int i = 1; i < world->size; i++)
        n += w->links->star[rank > 0][i] >= 0;
    return n + (rank > 0 && w->service.relay.parent.fd >= 0);
}

static void stand(Comm *world, void *context)
{
    const int *most = context;
    control_tree_wait(world);
    comm_barrier(world);
    if (open_connections(world) > *most)
        rank_wrong(world, "rank %d has %d connections", world->rank, open_connections(world));
    comm_barrier(world);
}

static void expect_tree(int ranks, int machines, int fan_out)
{
    char wrong[512];
    /* The most connections of a rank: to the other ranks of its machine, to children on other
     * machines, and to its parent. */
    int most = (ranks + machines - 1) / machines - 1 + fan_out + 1;
    process_links_choose(LINKS_IPV4);
    process_machines_choose(machines);
    socket_tree_set_fan_out(fan_out);
    int code = process_ranks(ranks, 30, stand, &most, wrong, sizeof wrong);
    socket_tree_set_fan_out(0);
    if (code != 0 || wrong[0]) fail_msg("%d ranks: %d: %s", ranks, code, wrong);
}

static void test_rank_0_keeps_only_the_connections_of_its_children(void **state)
{
    (void)state;
    expect_tree(MACHINES, MACHINES, FAN_OUT);
    expect_tree(MORE, MACHINES, FAN_OUT);
    expect_tree(20, 10, 1);
    expect_tree(90, 70, TREE_FAN_OUT);
}

static void test_hundreds_of_ranks_form_a_tree_of_several_levels_within_20_s(void **state)
{
    double start = seconds_now();
    (void)state;
    expect_tree(getenv("TEST_SAMPLE") ? 80 : 500, getenv("TEST_SAMPLE") ? 80 : 500, 4);
    double seconds = seconds_now() - start;
    if (seconds > 20) fail_msg("%.1f s", seconds);
}

/* ---- who is to blame ------------------------------------------------------------------------- */

/* A hub whose tree is a chain: rank 1 is below rank 0, 2 below 1, and 3 below 2. */
static SocketHub *make_hub(SocketService *service)
{
    char err[256];
    static const int parents[] = {-1, 0, 1, 2};
    SocketLinks *links = socket_links_create(4, err, sizeof err);
    CHECK(links, "%s", err);
    links->joined = true;
    links->parent = must_alloc(sizeof parents);
    memcpy(links->parent, parents, sizeof parents);
    *service = (SocketService){.wake = -1, .nudge = -1};
    return socket_hub_create(service, links, 1);
}

/* For how many seconds each rank has been silent, and which rank must be named. If a rank is
 * stopped, rank 0 still hears the ranks above it. Nothing arrives from the ranks below it, which
 * may have been silent for longer. */
static const struct {
    double silent[4];
    const char *blamed;
} silences[] = {
    {{0, 0.9, 0.9, 2.6}, "error[86] rank 3: "}, {{0, 0.9, 1.7, 2.6}, "error[86] rank 2: "},
    {{0, 1.7, 2.0, 2.6}, "error[86] rank 1: "}, {{0, 2.6, 2.6, 0}, "error[86] rank 1: "},
    {{0, 0.3, 2.6, 2.4}, "error[86] rank 2: "},
};

static void be_silent(void *context)
{
    const double *silent = context;
    SocketService service;
    SocketHub *hub = make_hub(&service);
    for (int i = 1; i < 4; i++)
        hub->rank[i].silent = silent[i];
    socket_hub_judge_ended(hub, 0.01);
    _exit(EXIT_OK);
}

static void test_the_silent_rank_that_cuts_off_other_ranks_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof silences / sizeof *silences; i++) {
        char text[1024];
        double silent[4];
        memcpy(silent, silences[i].silent, sizeof silent);
        int code = child_run(be_silent, silent, text, sizeof text);
        if (code != EXIT_HANG || strncmp(text, silences[i].blamed, strlen(silences[i].blamed)) != 0)
            fail_msg("row %d: %d: %s", (int)i, code, text);
    }
}

/* Sets of ranks as bits. mute: they do not answer; left: they have left the world; known: those of
 * ranks 1 to 3 that may be blamed for a wait. */
static void test_ranks_below_a_rank_that_does_not_answer_are_not_blamed(void **state)
{
    static const struct {
        unsigned mute, left, known;
    } rows[] = {{0, 0, 7 << 1},           {1 << 3, 0, 7 << 1},      {1 << 2, 0, 7 << 1},
                {3 << 2, 0, 3 << 1},      {7 << 1, 0, 1 << 1},      {5 << 1, 0, 3 << 1},
                {3 << 2, 1 << 2, 7 << 1}, {7 << 1, 1 << 1, 3 << 1}, {7 << 1, 3 << 1, 7 << 1}};
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        SocketService service;
        SocketHub *hub = make_hub(&service);
        int who[] = {1, 2, 3};
        BlameWait wait = {.who = who, .n = 3};
        unsigned known = 0;
        hub->late_question = 5;
        for (int i = 1; i < 4; i++) {
            hub->rank[i].asked = rows[r].mute >> i & 1 ? 4 : 5;
            hub->rank[i].left = rows[r].left >> i & 1;
        }
        assert_true(socket_hub_leave_out_cut_off(hub, &wait));
        for (int i = 0; i < wait.n; i++)
            known |= 1u << who[i];
        if (known != rows[r].known) fail_msg("row %d: %x", (int)r, known);
        SocketLinks *links = hub->links;
        socket_hub_destroy(hub);
        socket_links_destroy(links);
    }
}

/* What rank 3, the child of rank 2 in the same tree, does. `quiet` and `silent`: seconds since it
 * has heard rank 2 and rank 0. `suspect`: the rank above rank 2 that is silent, according to rank
 * 2; -1: none. `code`: the expected exit code. The timeout is 10 s. */
typedef struct {
    double quiet, silent;
    int suspect, code;
} Above;

static void look_above(void *context)
{
    const Above *above = context;
    SocketService service;
    SocketHub *hub = make_hub(&service);
    service.links = hub->links;
    service.rank = 3;
    service.timeout = 10;
    service.silent = above->silent;
    service.relay = (SocketRelay){
        .parent = {.fd = -1}, .up = UP_TREE, .quiet = above->quiet, .suspect = above->suspect};
    socket_above_watch(&service);
    _exit(EXIT_OK);
}

static void test_ranks_below_a_silent_rank_end_2_or_3_s_after_the_timeout(void **state)
{
    static const Above rows[] = {{11.9, 12.8, -1, EXIT_OK}, {12.0, 12.0, -1, EXIT_HANG},
                                 {0.4, 12.9, 1, EXIT_OK},   {0.4, 13.0, 1, EXIT_HANG},
                                 {0.4, 20.0, -1, EXIT_OK},  {0.4, 20.0, 0, EXIT_OK}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[1024];
        Above above = rows[i];
        int code = child_run(look_above, &above, text, sizeof text);
        if (code != above.code || text[0]) fail_msg("row %d: %d: %s", (int)i, code, text);
    }
}

/* ---- many ranks ------------------------------------------------------------------------------ */

/* Links without any socket: rank 2 is below 1, and all others below 0. */
static SocketLinks *made_up_links(int ranks)
{
    SocketLinks *links = must_calloc(1, sizeof *links);
    *links = (SocketLinks){.ranks = ranks, .joined = true, .launcher = {-1, -1}};
    int **fds[] = {&links->star[0], &links->star[1], &links->listener};
    for (int k = 0; k < 3; k++) {
        *fds[k] = must_alloc((size_t)ranks * sizeof **fds[k]);
        for (int i = 0; i < ranks; i++)
            (*fds[k])[i] = -1;
    }
    links->place = must_calloc((size_t)ranks, sizeof *links->place);
    links->parent = must_calloc((size_t)ranks, sizeof *links->parent);
    links->parent[0] = -1;
    links->parent[2] = 1;
    return links;
}

/* All other ranks wait for rank 2 at a meeting, and rank 1, the parent of rank 2, does not answer.
 * If rank 0 looked at all members for each rank that waits, this would take seconds. */
static void test_rank_0_quickly_checks_many_waits_for_a_rank_that_is_cut_off(void **state)
{
    enum { MANY = 16384 };
    const double timeout = 1;
    SocketService service = {.wake = -1, .nudge = -1};
    SocketLinks *links = made_up_links(MANY);
    SocketHub *hub = socket_hub_create(&service, links, timeout);
    SocketHubGroup *world = socket_hub_group(hub, 0);
    (void)state;
    for (int i = 0; i < MANY; i++) {
        world->meetings[i] = i != 2;
        if (i != 2)
            hub->rank[i].wait = (SocketWait){.waits = 1, .meets = 1, .meeting = 1, .wait = 1};
    }
    assert_true(socket_hub_judge(hub, 1.5 * timeout)); /* rank 0 asks for reports */
    for (int i = 0; i < MANY; i++) {
        hub->rank[i].silent = 0;
        if (i != 1 && i != 2) hub->rank[i].asked = hub->late_question;
    }
    clock_t begun = clock();
    assert_false(socket_hub_judge(hub, 0.9 * timeout));
    double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
    if (seconds > 0.3) fail_msg("%.2f s", seconds);
    assert_int_equal(atomic_load(&hub->claimed), -1);
    for (int i = 0; i < MANY; i++)
        if (i != 1 && i != 2) assert_true(hub->rank[i].patience > 0 && hub->rank[i].patience < 0.5);
    socket_hub_destroy(hub);
    socket_links_destroy(links);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_0_keeps_only_the_connections_of_its_children),
        cmocka_unit_test(test_the_silent_rank_that_cuts_off_other_ranks_is_named),
        cmocka_unit_test(test_ranks_below_a_rank_that_does_not_answer_are_not_blamed),
        cmocka_unit_test(test_ranks_below_a_silent_rank_end_2_or_3_s_after_the_timeout),
        cmocka_unit_test(test_rank_0_quickly_checks_many_waits_for_a_rank_that_is_cut_off),
        cmocka_unit_test(test_hundreds_of_ranks_form_a_tree_of_several_levels_within_20_s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
