/* test_replay.c -- replays hand-made graphs of steps, whose times and parts are computed by hand.
 */
#include "tests/support/plan/made_step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- one stage ------------------------------------------------------------------------------- */

static void test_ops_of_a_stream_run_one_after_another(void **state)
{
    (void)state;
    Step s = {.stages = 1};
    add_op(&s, 0, GRAPH_COMPUTE, OP_linear_forward, 100);
    add_op(&s, 0, GRAPH_COMPUTE, OP_linear_residual_forward, 10);
    add_op(&s, 0, GRAPH_COMPUTE, OP_attention_forward, 20);
    add_op(&s, 0, GRAPH_COMPUTE, OP_attention_backward, 22);
    add_op(&s, 0, GRAPH_COMPUTE, OP_linear_backward_input, 1000);
    add_op(&s, 0, GRAPH_COMPUTE, OP_linear_backward_weight, 2000);
    add_op(&s, 0, GRAPH_COMPUTE, OP_norm_forward, 5);
    add_op(&s, 0, GRAPH_COMPUTE, OP_loss, 7);
    add_op(&s, 0, GRAPH_COMPUTE, OP_sq_norm, 50);
    add_op(&s, 0, GRAPH_COMPUTE, OP_step_decide, 3);
    add_op(&s, 0, GRAPH_COMPUTE, OP_adamw, 500);
    add_op(&s, 0, GRAPH_COMPUTE, OP_sgd, 9);
    add_copy(&s, 0, GRAPH_COMPUTE, 70000);
    StepTime t = made_step_replay(&s);
    assert_micros(t.seconds, 73726);
    assert_micros(t.stage->products, 3110);
    assert_micros(t.stage->attention, 42);
    assert_micros(t.stage->memory_bound, 12);
    assert_micros(t.stage->optimizer, 562);
    assert_micros(t.stage->copies, 70000);
    assert_micros(t.stage->compute, 3726);
    step_time_free(&t);
    made_step_free(&s);
}

static void test_an_empty_step_takes_no_time(void **state)
{
    (void)state;
    Step s = {.stages = 2};
    StepTime t = made_step_replay(&s);
    assert_true(t.seconds == 0 && t.last == 0);
    step_time_free(&t);
    made_step_free(&s);
}

/* A sum of gradients that the backward pass hides, except for its last 30 microseconds. */
static void test_communication_is_exposed_only_while_compute_waits_for_it(void **state)
{
    (void)state;
    Step s = {.stages = 1};
    add_op(&s, 0, GRAPH_COMPUTE, OP_linear_backward_weight, 100);
    add_wait(&s, 0, GRAPH_COMM, GRAPH_COMPUTE);
    add_sum(&s, 0, GRAPH_COMM, "dp", 60);
    add_op(&s, 0, GRAPH_COMPUTE, OP_linear_backward_weight, 40);
    add_wait(&s, 0, GRAPH_COMM, GRAPH_COMPUTE);
    add_op(&s, 0, GRAPH_COMM, OP_add, 10);
    add_wait(&s, 0, GRAPH_COMPUTE, GRAPH_COMM);
    add_op(&s, 0, GRAPH_COMPUTE, OP_adamw, 5);
    StepTime t = made_step_replay(&s);
    assert_micros(t.seconds, 175);
    assert_micros(t.stage->exposed_dp, 30);
    assert_micros(t.stage->products, 140);
    step_time_free(&t);
    made_step_free(&s);
}

/* The compute stream waits for the tp stream, which waits for the comm stream, which waits for a
 * copy: the idle time is divided among these nodes by the time that each took. */
static void test_idle_time_is_divided_among_all_nodes_that_compute_waits_for(void **state)
{
    (void)state;
    Step s = {.stages = 1};
    add_copy(&s, 0, GRAPH_COPY, 100);
    add_wait(&s, 0, GRAPH_COMM, GRAPH_COPY);
    add_sum(&s, 0, GRAPH_COMM, "shard", 200);
    add_wait(&s, 0, GRAPH_TP, GRAPH_COMM);
    add_sum(&s, 0, GRAPH_TP, "tp", 400);
    add_op(&s, 0, GRAPH_COMPUTE, OP_norm_forward, 50);
    add_wait(&s, 0, GRAPH_COMPUTE, GRAPH_TP);
    add_sum(&s, 0, GRAPH_COMPUTE, "kv", 800);
    StepTime t = made_step_replay(&s);
    assert_micros(t.seconds, 1500);
    assert_micros(t.stage->memory_bound, 50);
    assert_micros(t.stage->copies, 50);
    assert_micros(t.stage->exposed_dp, 200);
    assert_micros(t.stage->exposed_tp, 1200);
    step_time_free(&t);
    made_step_free(&s);
}

/* The next forward pass waits for the update of a unit whose states are on the host, and the gather
 * of another unit waits for that unit's update. Only the wait of the compute stream counts. */
static void test_host_updates_are_exposed_only_while_compute_waits_for_them(void **state)
{
    (void)state;
    Step s = {.stages = 1};
    add_op(&s, 0, GRAPH_COMPUTE, OP_step_decide, 5);
    add_wait(&s, 0, GRAPH_UPDATE, GRAPH_COMPUTE);
    add_op(&s, 0, GRAPH_UPDATE, OP_adamw, 100);
    add_wait(&s, 0, GRAPH_COMPUTE, GRAPH_UPDATE);
    add_op(&s, 0, GRAPH_UPDATE, OP_adamw, 100);
    add_wait(&s, 0, GRAPH_COMM, GRAPH_UPDATE);
    add_sum(&s, 0, GRAPH_COMM, "dp", 20);
    add_op(&s, 0, GRAPH_COMPUTE, OP_linear_forward, 70);
    add_wait(&s, 0, GRAPH_COMPUTE, GRAPH_COMM);
    add_op(&s, 0, GRAPH_COMPUTE, OP_linear_forward, 70);
    StepTime t = made_step_replay(&s);
    assert_micros(t.seconds, 295);
    assert_micros(t.stage->products, 140);
    assert_micros(t.stage->optimizer, 5);
    assert_micros(t.stage->exposed_host, 130);
    assert_micros(t.stage->exposed_dp, 20);
    assert_true(made_step_parts(t.stage) == t.seconds);
    step_time_free(&t);
    made_step_free(&s);
}

/* The last gather of a step ends after the compute stream, so the step ends with the gather; but
 * computation of the next step may hide the gather. */
static void test_a_step_ends_when_its_last_stream_ends(void **state)
{
    (void)state;
    Step one = {.stages = 1}, two = {.stages = 1};
    for (int i = 0; i < 3; i++) {
        Step *s = i == 0 ? &one : &two;
        add_op(s, 0, GRAPH_COMPUTE, OP_linear_forward, 100);
        if (i == 2) add_wait(s, 0, GRAPH_COMPUTE, GRAPH_COMM); /* of the step before */
        add_op(s, 0, GRAPH_COMPUTE, OP_adamw, 10);
        add_wait(s, 0, GRAPH_COMM, GRAPH_COMPUTE);
        add_sum(s, 0, GRAPH_COMM, "dp", 130);
    }
    StepTime a = made_step_replay(&one), b = made_step_replay(&two),
             next = step_time_between(&a, &b);
    assert_micros(a.seconds, 240);
    assert_micros(a.stage->exposed_dp, 130);
    assert_micros(b.seconds, 380);
    assert_micros(next.seconds, 140);
    assert_micros(next.stage->products, 100);
    assert_micros(next.stage->optimizer, 10);
    assert_micros(next.stage->exposed_dp, 30);
    assert_true(made_step_parts(next.stage) == next.seconds);
    step_time_free(&a);
    step_time_free(&b);
    step_time_free(&next);
    made_step_free(&one);
    made_step_free(&two);
}

/* Every field of StageTime is a double, so the test sets them all as elements of an array. */
static void test_sums_of_step_times_include_every_field(void **state)
{
    enum { FIELDS = sizeof(StageTime) / sizeof(double) };
    double a[FIELDS], b[FIELDS];
    StageTime stage_a, stage_b;
    StepTime to = {.seconds = 1, .stage = &stage_a, .stages = 1, .last = 0},
             add = {.seconds = 10, .stage = &stage_b, .stages = 1, .last = 0};
    (void)state;
    for (int i = 0; i < FIELDS; i++) {
        a[i] = i;
        b[i] = 100 * (i + 1);
    }
    memcpy(&stage_a, a, sizeof a);
    memcpy(&stage_b, b, sizeof b);
    step_time_add(&to, &add, 3);
    memcpy(a, &stage_a, sizeof a);
    assert_true(to.seconds == 31);
    for (int i = 0; i < FIELDS; i++)
        if (a[i] != i + 300 * (i + 1)) fail_msg("field %d: %g", i, a[i]);
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* Stage 0 computes and sends; stage 1 receives, and then computes. */
static Step two_stages(int64_t forward, int64_t message)
{
    Step s = {.stages = 2};
    add_op(&s, 0, GRAPH_COMPUTE, OP_linear_forward, forward);
    add_wait(&s, 0, GRAPH_P2P, GRAPH_COMPUTE);
    add_messages(&s, 0, 1, -1, message);
    add_messages(&s, 1, -1, 0, message);
    add_wait(&s, 1, GRAPH_COMPUTE, GRAPH_P2P);
    add_op(&s, 1, GRAPH_COMPUTE, OP_linear_forward, 30);
    return s;
}

static void test_a_message_begins_when_both_sides_have_reached_it(void **state)
{
    (void)state;
    Step s = two_stages(100, 7);
    StepTime t = made_step_replay(&s);
    assert_micros(t.seconds, 137);
    assert_int_equal(t.last, 1);
    assert_micros(t.stage[0].seconds, 107);
    assert_micros(t.stage[1].bubble, 100);
    assert_micros(t.stage[1].exposed_pp, 7);
    assert_micros(t.stage[0].products, 100);
    assert_micros(t.stage[0].exposed_pp, 7); /* the message that stage 1 waits for, too */
    assert_micros(t.stage[0].bubble, 30);    /* then it waits for stage 1 */
    step_time_free(&t);
    made_step_free(&s);
}

/* Both the sender and the receiver can be late. */
static void test_a_message_begins_when_the_later_of_sender_and_receiver_arrives(void **state)
{
    (void)state;
    Step s = {.stages = 2};
    add_messages(&s, 0, 1, -1, 10);
    add_wait(&s, 0, GRAPH_COMPUTE, GRAPH_P2P);
    add_op(&s, 0, GRAPH_COMPUTE, OP_linear_forward, 1);
    add_op(&s, 1, GRAPH_COMPUTE, OP_linear_forward, 500);
    add_wait(&s, 1, GRAPH_P2P, GRAPH_COMPUTE);
    add_messages(&s, 1, -1, 0, 20);
    StepTime t = made_step_replay(&s);
    assert_micros(t.stage[0].seconds, 511);
    assert_micros(t.stage[1].seconds, 520);
    assert_micros(t.stage[0].bubble, 500);
    assert_micros(t.stage[0].exposed_pp, 10 + 9);
    step_time_free(&t);
    made_step_free(&s);
}

/* Messages with both neighbours that are sent as one group: the middle stage waits for the later of
 * its two neighbours, and the neighbours wait only for the middle stage. */
static void test_messages_sent_together_wait_for_all_peers(void **state)
{
    (void)state;
    Step s = {.stages = 3};
    int64_t work[3] = {100, 10, 400};
    for (int i = 0; i < 3; i++) {
        add_op(&s, i, GRAPH_COMPUTE, OP_linear_forward, work[i]);
        add_wait(&s, i, GRAPH_P2P, GRAPH_COMPUTE);
        add_messages(&s, i, i < 2 ? i + 1 : -1, i > 0 ? i - 1 : -1, 5);
    }
    StepTime t = made_step_replay(&s);
    assert_micros(t.stage[0].seconds, 105);
    assert_micros(t.stage[1].seconds, 405);
    assert_micros(t.stage[2].seconds, 405);
    step_time_free(&t);
    made_step_free(&s);
}

/* The k-th message that a rank sends to another is the k-th that the other receives from it,
 * whatever else they do in between. */
static void test_messages_are_matched_by_their_order(void **state)
{
    (void)state;
    Step s = {.stages = 2};
    for (int i = 0; i < 3; i++) {
        add_op(&s, 0, GRAPH_COMPUTE, OP_linear_forward, 100);
        add_wait(&s, 0, GRAPH_P2P, GRAPH_COMPUTE);
        add_messages(&s, 0, 1, -1, 1);
        add_messages(&s, 1, -1, 0, 1);
        add_wait(&s, 1, GRAPH_COMPUTE, GRAPH_P2P);
        add_op(&s, 1, GRAPH_COMPUTE, OP_linear_forward, 10);
    }
    StepTime t = made_step_replay(&s);
    assert_micros(t.seconds, 311);
    assert_micros(t.stage[1].bubble, 100 + 89 + 89);
    step_time_free(&t);
    made_step_free(&s);
}

/* A collective of all stages begins when the last one arrives; one of a group inside a stage does
 * not wait for the other stages. */
static void test_only_stages_of_the_same_group_wait_for_each_other(void **state)
{
    (void)state;
    Step s = {.stages = 3};
    int64_t work[3] = {100, 300, 200};
    for (int i = 0; i < 3; i++) {
        add_op(&s, i, GRAPH_COMPUTE, OP_linear_forward, work[i]);
        add_sum(&s, i, GRAPH_COMPUTE, "dp", 10);
        add_sum(&s, i, GRAPH_COMPUTE, "pp", 4);
        add_op(&s, i, GRAPH_COMPUTE, OP_adamw, 1);
    }
    StepTime t = made_step_replay(&s);
    assert_micros(t.seconds, 315);
    for (int i = 0; i < 3; i++) {
        assert_micros(t.stage[i].seconds, 315);
        assert_micros(t.stage[i].exposed_pp, 4);
    }
    /* Stages 0 and 2 wait for the sum of stage 1 at the end. */
    assert_micros(t.stage[0].exposed_dp, 20);
    assert_micros(t.stage[0].bubble, 190);
    assert_micros(t.stage[1].bubble, 0);
    assert_micros(t.stage[2].bubble, 90);
    step_time_free(&t);
    made_step_free(&s);
}

/* While another stage computes, its tensor-parallel sums are part of its computation. */
static void test_waiting_for_tensor_parallel_sums_of_another_stage_is_bubble(void **state)
{
    (void)state;
    Step s = {.stages = 2};
    add_op(&s, 0, GRAPH_COMPUTE, OP_linear_forward, 100);
    add_sum(&s, 0, GRAPH_COMPUTE, "tp", 20);
    add_wait(&s, 0, GRAPH_P2P, GRAPH_COMPUTE);
    add_messages(&s, 0, 1, -1, 3);
    add_messages(&s, 1, -1, 0, 3);
    add_wait(&s, 1, GRAPH_COMPUTE, GRAPH_P2P);
    StepTime t = made_step_replay(&s);
    assert_micros(t.stage[0].exposed_tp, 20);
    assert_micros(t.stage[1].bubble, 120);
    assert_micros(t.stage[1].exposed_pp, 3);
    step_time_free(&t);
    made_step_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops_of_a_stream_run_one_after_another),
        cmocka_unit_test(test_an_empty_step_takes_no_time),
        cmocka_unit_test(test_communication_is_exposed_only_while_compute_waits_for_it),
        cmocka_unit_test(test_idle_time_is_divided_among_all_nodes_that_compute_waits_for),
        cmocka_unit_test(test_host_updates_are_exposed_only_while_compute_waits_for_them),
        cmocka_unit_test(test_a_step_ends_when_its_last_stream_ends),
        cmocka_unit_test(test_sums_of_step_times_include_every_field),
        cmocka_unit_test(test_a_message_begins_when_both_sides_have_reached_it),
        cmocka_unit_test(test_a_message_begins_when_the_later_of_sender_and_receiver_arrives),
        cmocka_unit_test(test_messages_sent_together_wait_for_all_peers),
        cmocka_unit_test(test_messages_are_matched_by_their_order),
        cmocka_unit_test(test_only_stages_of_the_same_group_wait_for_each_other),
        cmocka_unit_test(test_waiting_for_tensor_parallel_sums_of_another_stage_is_bubble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
