/* test_recorder.c -- tests the recorder and the graph that it makes: the nodes of copies, events,
 * waits, collectives and messages that the tests issue on a counted device (device_counted.h), and
 * the comparison and the text of graphs. Ops are tested in tests/kernels/test_op_record.c. */
#include "model/core/device_counted.h"
#include "model/core/recorder.h"
#include "model/kernels/ops.h"
#include "parallel/comm/comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const GraphNames names = {op_name, comm_verb_name};
static const GraphGroup dp = {"dp", 4, 1, 2, 8}, pp = {"pp", 3, 1, 0, 16};

/* A counted device, its views on other streams, and the graph of the calls that they are given. */
typedef struct {
    Device dev, copy, comm, p2p, tp;
    Recorder recorder;
    Graph graph;
    Event event;
    RecordedCalls calls;
    Tensor x;
} Recorded;

static void open_recorded(Recorded *r, Place place)
{
    memset(r, 0, sizeof *r);
    device_counted_open(
        &r->dev, &(CountedFacts){.facts = {.capability = 90, .bytes = 1 << 30}, .place = place});
    recorder_attach(&r->recorder, &r->dev);
    r->copy = device_on(&r->dev, r->dev.copy);
    r->comm = device_on(&r->dev, r->dev.comm);
    r->p2p = device_on(&r->dev, r->dev.p2p);
    r->tp = device_on(&r->dev, r->dev.tp);
    r->x = tensor_2d(device_alloc(&r->dev, 1024, "x"), F32, 4, 8);
    recorder_start(&r->recorder, &r->graph);
}

static void close_recorded(Recorded *r)
{
    recorder_stop(&r->recorder);
    graph_free(&r->graph);
    device_close(&r->dev);
}

/* Returns the graph as text, one line a node: "stream: node; ". */
static const char *text_of(const Graph *g)
{
    static char text[4096];
    char node[256];
    int64_t at[GRAPH_STREAMS] = {0};
    size_t n = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < g->issued; i++) {
        int s = g->order[i];
        const GraphNode *next = &g->node[s][at[s]++];
        assert_int_equal(next->stream, s);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s: %s; ", graph_stream_name[s],
                              graph_describe(g, next, names, node, sizeof node));
    }
    return text;
}

static void test_nodes_are_on_their_streams_in_the_order_of_issue(void **state)
{
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    op_fill(&r.comm, r.x, 1);
    device_copy(&r.copy, r.x, r.x);
    recorder_action(&r.dev, 7);
    op_fill(&r.dev, r.x, 2);
    recorder_action(&r.dev, -1);
    op_fill(&r.tp, r.x, 3);
    op_fill(&r.p2p, r.x, 4);
    assert_string_equal(text_of(&r.graph), "comm: fill f32, 128 bytes; copy: copy f32, 256 bytes; "
                                           "compute: fill f32, 128 bytes; tp: fill f32, 128 bytes; "
                                           "p2p: fill f32, 128 bytes; ");
    assert_int_equal(r.graph.node[GRAPH_COMPUTE][0].action, 7);
    assert_int_equal(r.graph.node[GRAPH_TP][0].action, -1);
    close_recorded(&r);
}

static void test_a_wait_is_for_the_latest_record_of_its_event(void **state)
{
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    op_fill(&r.dev, r.x, 1);
    device_event_record(&r.dev, &r.event);
    op_fill(&r.dev, r.x, 1);
    device_event_wait(&r.comm, &r.event); /* waits for the first fill, not for the second */
    device_event_record(&r.dev, &r.event);
    device_event_wait(&r.comm, &r.event);
    device_event_record_timed(&r.comm, &r.event); /* after both waits */
    device_event_wait(&r.tp, &r.event);
    assert_string_equal(text_of(&r.graph), "compute: fill f32, 128 bytes; "
                                           "compute: fill f32, 128 bytes; "
                                           "comm: wait for compute 1; "
                                           "comm: wait for compute 2; tp: wait for comm 2; ");
    close_recorded(&r);
}

/* No node is added for a wait of a stream for itself, which runs in order anyway, or for a point
 * before the graph began. */
static void test_a_wait_with_nothing_to_wait_for_adds_no_node(void **state)
{
    Recorded r;
    Event never = {0}, empty = {0};
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    device_event_wait(&r.comm, &never);
    device_event_record(&r.dev, &empty);
    device_event_wait(&r.comm, &empty);
    op_fill(&r.dev, r.x, 1);
    device_event_record(&r.dev, &r.event);
    device_event_wait(&r.dev, &r.event);
    assert_string_equal(text_of(&r.graph), "compute: fill f32, 128 bytes; ");
    /* A second graph, after some work that nobody records. */
    recorder_stop(&r.recorder);
    op_fill(&r.dev, r.x, 1);
    Event between = {0};
    device_event_record(&r.dev, &between);
    graph_clear(&r.graph);
    recorder_start(&r.recorder, &r.graph);
    op_fill(&r.dev, r.x, 1);
    op_fill(&r.dev, r.x, 1);
    device_event_wait(&r.comm, &r.event);
    device_event_wait(&r.comm, &between);
    assert_string_equal(text_of(&r.graph), "compute: fill f32, 128 bytes; "
                                           "compute: fill f32, 128 bytes; ");
    device_event_record(&r.dev, &r.event);
    device_event_wait(&r.comm, &r.event);
    assert_int_equal(r.graph.n[GRAPH_COMM], 1);
    assert_int_equal(r.graph.node[GRAPH_COMM][0].wait_point, 2);
    close_recorded(&r);
}

/* Where calls are complete when they return there is one stream, so nothing waits. */
static void test_on_a_device_with_host_memory_all_nodes_are_on_one_stream(void **state)
{
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_HOST);
    op_fill(&r.comm, r.x, 1);
    device_event_record(&r.comm, &r.event);
    device_event_wait(&r.dev, &r.event);
    op_fill(&r.dev, r.x, 1);
    assert_string_equal(text_of(&r.graph),
                        "compute: fill f32, 128 bytes; compute: fill f32, 128 bytes; ");
    close_recorded(&r);
}

static void test_without_a_graph_nothing_is_recorded(void **state)
{
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    recorder_stop(&r.recorder);
    op_fill(&r.dev, r.x, 1);
    device_copy(&r.dev, r.x, r.x);
    recorder_collective(&r.calls, &r.dev, &dp, COMM_ALL_REDUCE, r.x);
    recorder_message(&r.calls, &r.dev, &pp, true, 2, r.x);
    assert_int_equal(r.graph.issued, 0);
    close_recorded(&r);
}

/* ---- communicators --------------------------------------------------------------------------- */

static void test_collectives_name_their_group_and_count_the_whole_tensor(void **state)
{
    static const GraphGroup other = {"dp", 4, 1, 3, 8};
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    recorder_collective(&r.calls, &r.comm, &dp, COMM_ALL_GATHER, r.x);
    recorder_collective(&r.calls, &r.comm, &other, COMM_ALL_REDUCE, r.x);
    recorder_collective(&r.calls, NULL, &dp, COMM_ALL_REDUCE, r.x); /* a host call */
    recorder_group_begin(&r.calls);
    recorder_collective(&r.calls, &r.comm, &dp, COMM_REDUCE_SCATTER, r.x);
    recorder_collective(&r.calls, &r.comm, &dp, COMM_REDUCE_SCATTER, r.x);
    recorder_group_end(&r.calls);
    recorder_collective(&r.calls, &r.comm, &dp, COMM_BROADCAST, r.x);
    assert_string_equal(
        text_of(&r.graph),
        "comm: all-gather dp f32, 128 bytes; comm: all-reduce dp f32, 128 bytes; "
        "comm: reduce-scatter dp f32, 128 bytes; comm: reduce-scatter dp f32, 128 bytes, joined; "
        "comm: broadcast dp f32, 128 bytes; ");
    assert_int_equal(r.graph.groups, 2);
    assert_int_equal(r.graph.node[GRAPH_COMM][0].group, 0);
    assert_int_equal(r.graph.node[GRAPH_COMM][1].group, 1);
    assert_int_equal(r.graph.node[GRAPH_COMM][4].group, 0);
    assert_int_equal(r.graph.group[1].first, 3);
    close_recorded(&r);
}

/* A wait that is issued between the messages of a group comes before their node, which is added
 * when the group ends. */
static void test_the_messages_of_a_group_of_calls_become_one_node_when_it_ends(void **state)
{
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    op_fill(&r.dev, r.x, 1);
    device_event_record(&r.dev, &r.event);
    recorder_group_begin(&r.calls);
    recorder_message(&r.calls, &r.p2p, &pp, true, 2, r.x);
    device_event_wait(&r.p2p, &r.event);
    recorder_message(&r.calls, &r.p2p, &pp, false, 0, tensor_slice_rows(r.x, 0, 1));
    recorder_group_end(&r.calls);
    recorder_message(&r.calls, &r.p2p, &pp, false, 2, r.x); /* no group: a node of its own */
    recorder_group_begin(&r.calls);
    recorder_group_end(&r.calls); /* a group without calls on a device adds no node */
    assert_string_equal(text_of(&r.graph),
                        "compute: fill f32, 128 bytes; p2p: wait for compute 1; "
                        "p2p: messages pp to 2 128 bytes f32 from 0 32 bytes f32; "
                        "p2p: messages pp from 2 128 bytes f32; ");
    assert_int_equal(r.graph.node[GRAPH_P2P][1].bytes, 160);
    close_recorded(&r);
}

/* The copies, sums and waits by which a transport carries out a call are hidden (recorder_hide). */
static void test_the_work_by_which_a_transport_carries_out_a_call_is_not_recorded(void **state)
{
    Recorded r;
    Event own = {0};
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    recorder_hide(NULL);
    recorder_show(NULL);
    recorder_collective(&r.calls, &r.comm, &dp, COMM_ALL_REDUCE, r.x);
    recorder_hide(r.comm.recorder);
    device_copy(&r.comm, r.x, r.x);
    op_fill(&r.comm, r.x, 0);
    device_event_record(&r.comm, &own);
    device_event_wait(&r.dev, &own);
    recorder_show(r.comm.recorder);
    device_event_record(&r.comm, &r.event);
    device_event_wait(&r.dev, &r.event);
    assert_string_equal(text_of(&r.graph),
                        "comm: all-reduce dp f32, 128 bytes; compute: wait for comm 1; ");
    close_recorded(&r);
}

/* ---- comparison ------------------------------------------------------------------------------ */

static void issue_something(Recorded *r)
{
    op_fill(&r->dev, r->x, 1);
    device_event_record(&r->dev, &r->event);
    device_event_wait(&r->comm, &r->event);
    recorder_collective(&r->calls, &r->comm, &dp, COMM_ALL_GATHER, r->x);
    recorder_group_begin(&r->calls);
    recorder_message(&r->calls, &r->p2p, &pp, true, 2, r->x);
    recorder_message(&r->calls, &r->p2p, &pp, false, 0, r->x);
    recorder_group_end(&r->calls);
}

static void expect_difference(const Graph *a, const Graph *b, const char *what, const char *says)
{
    char why[512] = "";
    if (graph_equal(b, a, names, why, sizeof why) || graph_equal(a, b, names, why, sizeof why))
        fail_msg("graphs with another %s are equal", what);
    if (strstr(why, says) == NULL) fail_msg("another %s: %s", what, why);
}

static void test_graphs_are_unequal_if_any_field_differs(void **state)
{
    Recorded r, other;
    char why[512];
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    open_recorded(&other, PLACE_DEVICE);
    issue_something(&r);
    issue_something(&other);
    recorder_message(&r.calls, &r.p2p, &pp, true, 0, r.x);
    recorder_message(&other.calls, &other.p2p, &pp, true, 0, other.x);
    Graph *a = &r.graph, *b = &other.graph;
    assert_true(graph_equal(a, b, names, why, sizeof why));
    GraphNode *op = &b->node[GRAPH_COMPUTE][0], *wait = &b->node[GRAPH_COMM][0],
              *gather = &b->node[GRAPH_COMM][1], *messages = &b->node[GRAPH_P2P][0];
#define WITH(field, value, says)                                                                   \
    do {                                                                                           \
        __typeof__(field) before = field;                                                          \
        field = (value);                                                                           \
        expect_difference(a, b, #field, says);                                                     \
        field = before;                                                                            \
    } while (0)
    WITH(op->kind, NODE_COPY, "compute 0: fill f32");
    WITH(op->code, OP_copy, "compute 0: fill f32, 128 bytes (action -1), and copy f32");
    WITH(op->dtype, BF16, "compute 0");
    WITH(op->m, 1, "compute 0");
    WITH(op->n, 1, "compute 0");
    WITH(op->k, 1, "compute 0");
    WITH(op->flops, 1, "compute 0");
    WITH(op->bytes, 1, "and fill f32, 1 bytes");
    WITH(op->action, 3, "(action -1), and fill f32, 128 bytes (action 3)");
    WITH(wait->wait_stream, GRAPH_TP, "comm 0: wait for compute 1 (action -1), and wait for tp 1");
    WITH(wait->wait_point, 2, "and wait for compute 2");
    WITH(gather->joined, true, "comm 1");
    WITH(gather->group, 1, "all-gather dp f32, 128 bytes (action -1), and all-gather pp");
    WITH(gather->group, -1, "comm 1");
    WITH(op->group, 0, "compute 0");
    WITH(b->group[0].stride, 9, "comm 1");
    WITH(b->group[0].first, 9, "comm 1");
    WITH(b->group[0].size, 9, "comm 1");
    WITH(b->group[0].rank, 9, "comm 1");
    WITH(b->group[0].name[0], 'z', "and all-gather zp");
    WITH(messages->messages, 1, "p2p 0: messages pp to 2");
    WITH(messages->message, 1, "p2p 0");
    WITH(b->message[1].peer, 1, "from 1");
    WITH(b->message[1].send, true, "to 0");
    WITH(b->message[0].bytes, 1, "to 2 1 bytes");
    WITH(b->message[0].dtype, F16, "bytes f16");
    WITH(b->n[GRAPH_COMM], 1, "comm has 2 nodes, and 1");
    WITH(b->order[0], GRAPH_COMM, "node 0 in the order of issue is on compute, and on comm");
#undef WITH
    assert_true(graph_equal(a, b, names, why, sizeof why));
    close_recorded(&other);
    close_recorded(&r);
}

static void test_a_graph_is_printed_in_the_order_of_issue(void **state)
{
    Recorded r;
    char text[1024] = "";
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    issue_something(&r);
    FILE *to = fmemopen(text, sizeof text, "w");
    assert_non_null(to);
    graph_print(to, &r.graph, (GraphNames){0});
    fclose(to);
    assert_string_equal(
        text, "compute      0  action   -1  0 f32, 128 bytes\n"
              "comm         0  action   -1  wait for compute 1\n"
              "comm         1  action   -1  2 dp f32, 128 bytes\n"
              "p2p          0  action   -1  messages pp to 2 128 bytes f32 from 0 128 bytes f32\n");
    close_recorded(&r);
}

/* Adds more nodes and messages than the arrays have room for at first, in a new graph and in a
 * cleared one. */
static void test_graphs_grow_and_can_be_reused(void **state)
{
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 1000; i++)
            issue_something(&r);
        assert_int_equal(r.graph.issued, 4000);
        assert_int_equal(r.graph.n[GRAPH_COMM], 2000);
        assert_int_equal(r.graph.n_messages, 2000);
        assert_int_equal(r.graph.node[GRAPH_COMM][1998].wait_point, 1000);
        assert_int_equal(r.graph.node[GRAPH_P2P][999].message, 1998);
        assert_int_equal(r.graph.groups, 2);
        recorder_stop(&r.recorder);
        graph_clear(&r.graph);
        assert_int_equal(r.graph.groups, 0);
        recorder_start(&r.recorder, &r.graph);
    }
    close_recorded(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nodes_are_on_their_streams_in_the_order_of_issue),
        cmocka_unit_test(test_a_wait_is_for_the_latest_record_of_its_event),
        cmocka_unit_test(test_a_wait_with_nothing_to_wait_for_adds_no_node),
        cmocka_unit_test(test_on_a_device_with_host_memory_all_nodes_are_on_one_stream),
        cmocka_unit_test(test_without_a_graph_nothing_is_recorded),
        cmocka_unit_test(test_collectives_name_their_group_and_count_the_whole_tensor),
        cmocka_unit_test(test_the_messages_of_a_group_of_calls_become_one_node_when_it_ends),
        cmocka_unit_test(test_the_work_by_which_a_transport_carries_out_a_call_is_not_recorded),
        cmocka_unit_test(test_graphs_are_unequal_if_any_field_differs),
        cmocka_unit_test(test_a_graph_is_printed_in_the_order_of_issue),
        cmocka_unit_test(test_graphs_grow_and_can_be_reused),
    };
    return cmocka_run_group_tests_name("recorder", tests, NULL, NULL);
}
