/* test_replay_any.c -- replays random graphs, large graphs, and graphs that deadlock. */
#include "tests/support/files/child.h"
#include "tests/support/plan/made_step.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* ---- any graph ---------------------------------------------------------------------------------
 */

/* Sets `to` to the same nodes as `from`, but issued in another, random order. Within each stream
 * the order stays the same. */
static void issue_otherwise(Graph *to, const Graph *from, uint64_t seed)
{
    int64_t next[GRAPH_STREAMS] = {0}, left = from->issued;
    *to = (Graph){0};
    for (int i = 0; i < from->groups; i++)
        graph_group(to, &from->group[i]);
    while (left > 0) {
        int stream = (int)made_step_draw(&seed, GRAPH_STREAMS);
        if (next[stream] == from->n[stream]) continue;
        GraphNode node = from->node[stream][next[stream]++];
        if (node.kind == NODE_MESSAGES)
            node.message = graph_add_messages(to, &from->message[node.message], node.messages);
        graph_add(to, &node);
        left--;
    }
}

static void test_the_order_in_which_nodes_are_issued_changes_no_time(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        int stages = 1 + (int)(seed % 5);
        Step a = made_step_random(stages, 30, seed), b = {.stages = stages};
        for (int i = 0; i < stages; i++)
            issue_otherwise(&b.graph[i], &a.graph[i], seed + 99);
        StepTime x = made_step_replay(&a), y = made_step_replay(&b);
        assert_true(x.seconds == y.seconds && x.seconds > 0);
        assert_memory_equal(x.stage, y.stage, (size_t)stages * sizeof *x.stage);
        step_time_free(&x);
        step_time_free(&y);
        made_step_free(&a);
        made_step_free(&b);
    }
}

/* `once` and `twice` return the seconds of a node. If all nodes of a step take twice as long, the
 * step and all its parts take exactly twice as long. */
static double once(void *context, int stage, const GraphNode *node)
{
    (void)context, (void)stage;
    return ldexp((double)node->bytes, -20);
}

static double twice(void *context, int stage, const GraphNode *node)
{
    return 2 * once(context, stage, node);
}

static void test_a_step_takes_exactly_twice_as_long_if_every_node_does(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        Step s = made_step_random(4, 30, seed);
        StepTime a = replay_step(s.graph, 4, once, NULL), b = replay_step(s.graph, 4, twice, NULL);
        assert_true(b.seconds == 2 * a.seconds);
        for (int i = 0; i < 4; i++)
            assert_true(b.stage[i].bubble == 2 * a.stage[i].bubble);
        step_time_free(&a);
        step_time_free(&b);
        made_step_free(&s);
    }
}

/* ---- deadlocks ---------------------------------------------------------------------------------
 */

/* Both stages send first. */
static void both_send_first(void *context)
{
    (void)context;
    Step s = {.stages = 2};
    for (int i = 0; i < 2; i++) {
        add_messages(&s, i, 1 - i, -1, 1);
        add_messages(&s, i, -1, 1 - i, 1);
    }
    made_step_replay(&s);
}

static void a_stage_does_not_arrive(void *context)
{
    (void)context;
    Step s = {.stages = 2};
    for (int i = 0; i < 2; i++)
        add_sum(&s, i, GRAPH_COMPUTE, "pp", 1);
    add_sum(&s, 0, GRAPH_COMPUTE, "pp", 1);
    add_wait(&s, 0, GRAPH_COMM, GRAPH_COMPUTE);
    made_step_replay(&s);
}

static void a_negative_cost(void *context)
{
    (void)context;
    Step s = {.stages = 1};
    add_op(&s, 0, GRAPH_COMPUTE, OP_fill, -1);
    made_step_replay(&s);
}

static void a_message_to_nobody(void *context)
{
    (void)context;
    Step s = {.stages = 2};
    add_messages(&s, 0, 5, -1, 1);
    made_step_replay(&s);
}

static void test_the_message_of_a_deadlock_says_which_stream_waits_for_what(void **state)
{
    (void)state;
    static const struct {
        ChildBody body;
        const char *said[3];
    } cases[] = {
        {both_send_first,
         {"the step never ends: the p2p stream of stage 0 waits for stage 1 to receive message 0",
          "the p2p stream of stage 1 waits for stage 0 to receive message 0", ""}},
        {a_stage_does_not_arrive,
         {"the compute stream of stage 0 waits for stage 1 in collective 1 of pp",
          "the comm stream of stage 0 waits for node 1 of its compute stream", ""}},
        {a_negative_cost, {"stage 0: op that takes -1e-06 seconds", "", ""}},
        {a_message_to_nobody, {"stage 0 has messages with rank 20, which is not replayed", "", ""}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[4096];
        assert_int_not_equal(child_run(cases[i].body, NULL, text, sizeof text), 0);
        for (int k = 0; k < 3; k++)
            if (strstr(text, cases[i].said[k]) == NULL)
                fail_msg("\"%s\" is not in \"%s\"", cases[i].said[k], text);
    }
}

/* ---- speed -------------------------------------------------------------------------------------
 */

/* A step of 16 stages and half a million nodes, as the plan of a large model has them, takes about
 * 0.04 s; with sanitizers several times that. */
static void test_half_a_million_nodes_are_replayed_in_less_than_two_seconds(void **state)
{
    (void)state;
    enum { STAGES = 16, ROUNDS = 1500 };
    Step s = made_step_random(STAGES, ROUNDS, 7);
    int64_t nodes = 0;
    for (int i = 0; i < STAGES; i++)
        nodes += s.graph[i].issued;
    clock_t begin = clock();
    StepTime t = made_step_replay(&s);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    print_message("%lld nodes in %.3f s\n", (long long)nodes, seconds);
    assert_true(nodes >= 500000);
    assert_true(seconds < 2);
    step_time_free(&t);
    made_step_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_order_in_which_nodes_are_issued_changes_no_time),
        cmocka_unit_test(test_a_step_takes_exactly_twice_as_long_if_every_node_does),
        cmocka_unit_test(test_the_message_of_a_deadlock_says_which_stream_waits_for_what),
        cmocka_unit_test(test_half_a_million_nodes_are_replayed_in_less_than_two_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
