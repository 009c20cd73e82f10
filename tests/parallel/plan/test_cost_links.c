/* test_cost_links.c -- tests the costs of what crosses links: collectives and messages, which take
 * longer with more bytes or nodes and use the network interfaces of all ranks of a group, and
 * updates of optimizer states on the host. */
#include "parallel/plan/cost.h"

#include "model/kernels/ops.h"
#include "tests/support/plan/layouts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static double collective(const Hardware *h, const CostTraits *t, CommVerb verb, int64_t bytes,
                         int size, int64_t first, int64_t stride)
{
    GraphGroup group = {.name = "dp", .size = size, .first = first, .stride = stride};
    return cost_collective(h, t, verb, bytes, &group);
}

static void collectives_take_longer_with_more_bytes_and_with_more_nodes(void **state)
{
    (void)state;
    for (int i = 0; hardware_preset(i) != NULL; i++) {
        Hardware h = layout_machine(hardware_preset(i));
        for (int v = COMM_ALL_REDUCE; v <= COMM_BROADCAST; v++) {
            CommVerb verb = (CommVerb)v;
            int own = h.devices_per_node;
            for (int64_t stride = 1; stride <= 64; stride *= 2)
                for (int64_t bytes = 0; bytes < (int64_t)1 << 34; bytes = 2 * bytes + 1) {
                    double seconds = collective(&h, &COST_OWN, verb, bytes, 8, 0, stride);
                    assert_true(seconds >= h.collective);
                    assert_true(seconds <
                                collective(&h, &COST_OWN, verb, 2 * bytes + 1, 8, 0, stride));
                    assert_true(seconds <= collective(&h, &COST_OWN, verb, bytes, 64, 0, stride));
                }
            /* The same number of ranks takes longer if they are on two nodes. */
            assert_true(own == 1 || collective(&h, &COST_OWN, verb, 1 << 26, own, 0, 1) <
                                        collective(&h, &COST_OWN, verb, 1 << 26, own, own / 2, 1));
        }
        assert_true(collective(&h, &COST_OWN, COMM_ALL_REDUCE, 1 << 20, 1, 5, 1) == 0);
    }
}

/* ---- network interfaces ---------------------------------------------------------------------- */

enum { LARGE = 1 << 30 };

/* Returns the bytes per second that an all-gather moves over a link, leaving out the part of its
 * time that does not depend on the bytes. */
static double bus(const Hardware *h, const CostTraits *t, int size, int64_t first, int64_t stride)
{
    double longer = collective(h, t, COMM_ALL_GATHER, (int64_t)2 * LARGE, size, first, stride),
           shorter = collective(h, t, COMM_ALL_GATHER, LARGE, size, first, stride);
    return (size - 1.0) / size * LARGE / (longer - shorter);
}

static void is(double a, double b)
{
    if (!(fabs(a / b - 1) < 1e-6)) fail_msg("%g, not %g", a, b);
}

static void a_group_uses_the_network_interfaces_of_its_ranks_on_a_node(void **state)
{
    Hardware h = layout_machine("h100");
    double nic = h.between.bandwidth, all = h.inside.bandwidth;
    (void)state;
    is(bus(&h, &COST_OWN, 8, 0, 1), all);                            /* one node */
    is(bus(&h, &COST_OWN, 8, 8, 1), all);                            /* the second node */
    is(bus(&h, &COST_OWN, 64, 0, 1), 8 * nic < all ? 8 * nic : all); /* whole nodes */
    is(bus(&h, &COST_OWN, 32, 0, 2), 4 * nic); /* tp 2: four ranks on a node */
    is(bus(&h, &COST_OWN, 16, 1, 4), 2 * nic);
    is(bus(&h, &COST_OWN, 16, 3, 8), nic); /* tp 8: one */
    is(bus(&h, &COST_OWN, 16, 3, 32), nic);
    is(bus(&h, &COST_OWN, 2, 7, 1), nic);     /* two ranks on two nodes */
    is(bus(&h, &COST_OWN, 8, 5, 1), 3 * nic); /* three ranks and five */
    is(bus(&h, &COST_OWN, 12, 4, 1), 4 * nic);
    is(bus(&h, &COST_OWN, 6, 0, 3), 3 * nic); /* 0 3 6 | 9 12 15 */
    is(bus(&h, &COST_OWN, 5, 6, 3), nic);     /* 6 | 9 12 15 | 18 */
    is(bus(&h, &COST_OWN, 7, 0, 5), nic);     /* 0 5 | 10 15 | 20 | 25 30: one on the third */
    h.nics_per_node = 4;                      /* two devices share an interface */
    is(bus(&h, &COST_OWN, 16, 3, 8), nic / 2);
    is(bus(&h, &COST_OWN, 64, 0, 1), 4 * nic);
    h.nics_per_node = 1;
    is(bus(&h, &COST_OWN, 64, 0, 1), nic);
}

static void half_the_bandwidth_makes_collectives_on_that_link_half_as_fast(void **state)
{
    Hardware h = layout_machine("a100");
    CostTraits half = COST_OWN;
    half.between = 0.5;
    (void)state;
    is(bus(&h, &half, 16, 0, 8), 0.5 * bus(&h, &COST_OWN, 16, 0, 8));
    is(bus(&h, &half, 64, 0, 1), 0.5 * bus(&h, &COST_OWN, 64, 0, 1));
    is(bus(&h, &half, 8, 0, 1), bus(&h, &COST_OWN, 8, 0, 1));
    half.inside = 0.5;
    is(bus(&h, &half, 8, 0, 1), 0.5 * bus(&h, &COST_OWN, 8, 0, 1));
}

static double exchange(const Hardware *h, int to, int from, int64_t bytes)
{
    GraphMessage message[2] = {{.peer = to, .send = true, .dtype = BF16, .bytes = bytes},
                               {.peer = from, .send = false, .dtype = BF16, .bytes = bytes}};
    int first = to < 0, n = (to >= 0) + (from >= 0);
    Graph graph = {.message = message + first, .n_messages = n, .groups = 1};
    graph.group[0] = (GraphGroup){.name = "pp", .size = 8, .rank = 1, .first = 4, .stride = 4};
    GraphNode node = {.kind = NODE_MESSAGES, .messages = n, .bytes = n * bytes};
    return cost_of_node(h, &COST_OWN, &graph, &node);
}

/* Ranks 1 and 2 of the group are on the same node, rank 0 is on the node before it. */
static void messages_use_the_link_to_their_peer(void **state)
{
    Hardware h = layout_machine("h100");
    (void)state;
    is(exchange(&h, 2, -1, LARGE), h.collective + h.inside.latency + LARGE / h.inside.bandwidth);
    is(exchange(&h, 0, -1, LARGE), h.collective + h.between.latency + LARGE / h.between.bandwidth);
    is(exchange(&h, -1, 0, LARGE), exchange(&h, 0, -1, LARGE));
    is(exchange(&h, 2, 0, LARGE), exchange(&h, -1, 0, LARGE)); /* both ways at once */
    is(exchange(&h, 0, 0, LARGE), exchange(&h, 0, -1, LARGE));
}

/* Collectives that are started together are one kernel. */
static void collectives_started_together_have_the_start_overhead_only_once(void **state)
{
    Hardware h = layout_machine("h100");
    Graph graph = {.groups = 1};
    GraphNode node = {.kind = NODE_COLLECTIVE, .code = COMM_ALL_GATHER, .bytes = 1 << 24};
    (void)state;
    graph.group[0] = (GraphGroup){.name = "shard", .size = 8, .stride = 1};
    double alone = cost_of_node(&h, &COST_OWN, &graph, &node);
    node.joined = true;
    is(cost_of_node(&h, &COST_OWN, &graph, &node), alone - h.collective);
}

/* ---- the link to the host -------------------------------------------------------------------- */

static double update(const Hardware *h, const CostTraits *t, int64_t bytes, int64_t host_bytes)
{
    GraphNode node = {
        .kind = NODE_OP, .code = OP_adamw, .dtype = BF16, .bytes = bytes, .host_bytes = host_bytes};
    return cost_of_node(h, t, NULL, &node);
}

/* Half of the bytes on the host cross the link each way, while the other bytes are moved in the
 * device's memory. */
static void updates_of_offloaded_states_use_the_host_link(void **state)
{
    CostTraits half = COST_OWN;
    half.host = 0.5;
    (void)state;
    for (int i = 0; hardware_preset(i) != NULL; i++) {
        Hardware h = layout_machine(hardware_preset(i));
        const int64_t bytes = 30 << 24, of_host = 24 << 24;
        double inside = update(&h, &COST_OWN, bytes, 0);
        if (!h.cuda) {
            is(update(&h, &COST_OWN, bytes, of_host), inside);
            continue;
        }
        is(update(&h, &COST_OWN, bytes, of_host), h.launch + 0.5 * of_host / h.host_bandwidth);
        is(update(&h, &half, bytes, of_host), h.launch + of_host / h.host_bandwidth);
        /* Few bytes cross the link in less time than the others take in the device's memory. */
        is(update(&h, &COST_OWN, bytes + 1000, 1000), inside);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_take_longer_with_more_bytes_and_with_more_nodes),
        cmocka_unit_test(a_group_uses_the_network_interfaces_of_its_ranks_on_a_node),
        cmocka_unit_test(half_the_bandwidth_makes_collectives_on_that_link_half_as_fast),
        cmocka_unit_test(messages_use_the_link_to_their_peer),
        cmocka_unit_test(collectives_started_together_have_the_start_overhead_only_once),
        cmocka_unit_test(updates_of_offloaded_states_use_the_host_link),
    };
    return cmocka_run_group_tests_name("costs of links", tests, NULL, NULL);
}
