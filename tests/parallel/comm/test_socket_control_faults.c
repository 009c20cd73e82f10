/* test_socket_control_faults.c -- worlds whose control packets travel over a tree: cases that do
 * not exist with a star. Ranks that have left still forward the packets of others, no rank waits
 * forever if rank 0 is lost, and ranks fail while the tree is being connected. */
#include "model/core/check.h"
#include "parallel/comm/socket/hub.h"
#include "parallel/comm/socket/tree.h"
#include "tests/support/grid/control_tree.h"
#include "tests/support/grid/process_ends.h"
#include "tests/support/sleeping_threads.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static const double TIMEOUT = 1; /* seconds */

static void use_tree(void)
{
    process_links_choose(LINKS_IPV4);
    process_machines_choose(MACHINES);
    socket_tree_set_fan_out(FAN_OUT);
}

/* ---- ranks that have left -------------------------------------------------------------------- */

/* Sends rank 2 the signal `number` when all ranks but `last` have left. Rank 6 is below it, rank 3
 * is not. */
static void all_but_one_leave(Comm *world, int last, int number)
{
    control_tree_wait(world);
    comm_barrier(world);
    if (world->rank == 0 && fork() == 0) {
        usleep(300000);
        kill(process_of_rank(2), number);
        _exit(0);
    }
    if (world->rank == last) pause();
}

static void an_interior_is_killed_after_it_has_left(Comm *world, void *context)
{
    (void)context;
    all_but_one_leave(world, 6, SIGKILL);
}

static void an_interior_is_stopped_after_it_has_left(Comm *world, void *context)
{
    (void)context;
    all_but_one_leave(world, 6, SIGSTOP);
}

/* The ranks below rank 2 have left, too, and wait for rank 0's last packet (PACKET_FAREWELL). */
static void an_interior_is_stopped_after_all_below_have_left(Comm *world, void *context)
{
    (void)context;
    all_but_one_leave(world, 3, SIGSTOP);
}

static void test_a_rank_that_has_left_still_forwards_packets_of_others(void **state)
{
    static const ProcessEnd ends[] = {
        {"interior killed", an_interior_is_killed_after_it_has_left, RANKS, 0, 87, {SAYS_LOST(2)}},
        {"interior stopped",
         an_interior_is_stopped_after_it_has_left,
         RANKS,
         TIMEOUT,
         86,
         {SAYS_SILENT(2)}},
        {"interior stopped, and all below have left",
         an_interior_is_stopped_after_all_below_have_left,
         RANKS,
         TIMEOUT,
         86,
         {SAYS_SILENT(2)}},
    };
    (void)state;
    use_tree();
    socket_hub_set_last_wait(10);
    for (int i = 0; i < 3; i++)
        process_expect_end(&ends[i], 2.4);
    socket_tree_set_fan_out(0);
}

/* ---- without rank 0 -------------------------------------------------------------------------- */

/* Rank 0 is stopped. Ranks 1 and 2 compute. The ranks below them wait, and their error messages say
 * so. When the test kills rank 0 at the end, the messages of ranks 1 and 2 say that rank 0 has
 * ended. */
static void ranks_wait_below_those_that_compute(Comm *world, void *context)
{
    (void)context;
    control_tree_wait(world);
    comm_barrier(world);
    if (world->rank == 0) raise(SIGSTOP);
    if (world->rank <= 2) pause();
    comm_barrier(world);
}

/* Rank 0 is stopped, so no rank permits rank 1 to print its failure. Ranks 3 and 4, which are below
 * rank 1, end together with it. When the test kills rank 0 at the end, the messages of the other
 * ranks say that rank 0 has ended. */
static void an_interior_fails(Comm *world, void *context)
{
    (void)context;
    control_tree_wait(world);
    comm_barrier(world);
    if (world->rank == 0) raise(SIGSTOP);
    process_wait_until_stopped(process_of_rank(0));
    if (world->rank == 1) (fail)(EXIT_INPUT_OUTPUT, "the disk is full");
    pause();
}

/* Rank 3 fails. Rank 0 is stopped, and rank 3's parent, rank 1, is killed while rank 3 asks for
 * permission to print. Rank 10, which is below rank 3, ends together with it. */
static void one_fails_without_its_parent(Comm *world, void *context)
{
    (void)context;
    control_tree_wait(world);
    comm_barrier(world);
    if (world->rank == 0) raise(SIGSTOP);
    process_wait_until_stopped(process_of_rank(0));
    if (world->rank != 3) usleep(150000);
    if (world->rank == 1) raise(SIGKILL);
    if (world->rank == 3) (fail)(EXIT_INPUT_OUTPUT, "the disk is full");
    pause();
}

/* The test kills some ranks at the end, because rank 0 cannot end them. */
static void test_if_rank_0_is_lost_no_rank_waits_forever(void **state)
{
    static const ProcessEnd waits = {"waits", ranks_wait_below_those_that_compute,
                                     RANKS,   TIMEOUT,
                                     86,      {SAYS_WAITED(3), SAYS_WAITED(4), SAYS_WAITED(6)}},
                            claim = {"claim", an_interior_fails,
                                     RANKS,   0,
                                     74,      {"error[74] rank 1 dp 1: the disk is full\n"}},
                            parentless = {
                                "parentless", one_fails_without_its_parent,
                                MORE,         0,
                                87,           {"error[74] rank 3 dp 3: the disk is full\n"}};
    (void)state;
    use_tree();
    process_expect_errors(&waits, 6, 6);
    process_expect_code(3, EXIT_INPUT_OUTPUT);
    process_expect_code(4, EXIT_INPUT_OUTPUT);
    process_expect_errors(&claim, 6, 4);
    process_expect_code(3, EXIT_INPUT_OUTPUT);
    process_expect_code(10, EXIT_INPUT_OUTPUT);
    process_allow_code(EXIT_INPUT_OUTPUT); /* of rank 3 */
    process_expect_errors(&parentless, 6, 5);
    socket_tree_set_fan_out(0);
}

/* ---- while the tree is made ------------------------------------------------------------------ */

static void kill_1(int rank)
{
    if (rank == 1) raise(SIGKILL);
}

static void kill_6(int rank)
{
    if (rank == 6) raise(SIGKILL);
}

static void stop_1(int rank)
{
    if (rank == 1) raise(SIGSTOP);
}

static void stop_6(int rank)
{
    if (rank == 6) raise(SIGSTOP);
}

static void delay_some(int rank)
{
    usleep((useconds_t)(rank * 37 % 11 * 20000));
}

static void meet(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
}

static void test_faults_end_the_program_while_the_tree_is_built(void **state)
{
    static const struct {
        void (*before)(int rank);
        ProcessEnd end;
    } rows[] = {
        {kill_1, {"interior killed", meet, RANKS, TIMEOUT, 87, {SAYS_LOST(1)}}},
        {kill_6, {"leaf killed", meet, RANKS, TIMEOUT, 87, {SAYS_LOST(6)}}},
        {stop_1, {"interior stopped", meet, RANKS, TIMEOUT, 86, {SAYS_SILENT(1)}}},
        {stop_6, {"leaf stopped", meet, RANKS, TIMEOUT, 86, {SAYS_SILENT(6)}}},
        {delay_some, {"late", meet, MORE, TIMEOUT, 0, {NULL}}},
    };
    (void)state;
    use_tree();
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        process_before_choose(rows[i].before);
        process_expect_end(&rows[i].end, 1.5);
    }
    process_before_choose(NULL);
    socket_tree_set_fan_out(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_that_has_left_still_forwards_packets_of_others),
        cmocka_unit_test(test_if_rank_0_is_lost_no_rank_waits_forever),
        cmocka_unit_test(test_faults_end_the_program_while_the_tree_is_built),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
