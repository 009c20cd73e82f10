/* test_option_axes.c -- tests keys that affect communication, on the data, tensor and pipeline axis
 * and on pairs of axes. It checks not only that something changes, but by which factor, and that
 * the other axes do not change. It counts the collectives that rank 0 calls in two steps
 * (comms_logger). */
#include "model/core/check.h"
#include "tests/support/trainer/seen_wire.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 2, BATCH = 8, LAYERS = 4, ROWS = 16, WIDTH = 32, MOST_SETS = 22 };

/* Two ranks on one axis, or on each of two axes, with one sequence per micro-batch. */
typedef struct {
    int dp, tp, pp;
} Axes;
static const Axes axes[] = {{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 1}, {2, 1, 2}, {1, 2, 2}};
enum { AXES = sizeof axes / sizeof *axes };

/* Slow builds (TEST_SAMPLE) run every fifth case. */
static int every(void)
{
    return getenv("TEST_SAMPLE") ? 5 : 1;
}

static const char *const common[] = {
    "model.num_layers=4",     "train_batch_size=8",         "train_micro_batch_size_per_gpu=1",
    "train_steps=2",          "steps_per_print=2",          "eval.interval=0",
    "eval.sample_interval=0", "checkpoint.save_interval=0", "comms_logger.enabled=true"};

/* Runs `./train` on these axes with the --set values of both lists (each ends with NULL; either
 * list may be NULL). */
static void run_on(Seen *out, Axes a, const char *const *first, const char *const *second)
{
    const char *set[MOST_SETS];
    const char *const *const lists[] = {first, second};
    char tensor[32], stages[32];
    int n = 0;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        set[n++] = common[i];
    snprintf(tensor, sizeof tensor, "parallel.tensor=%d", a.tp);
    snprintf(stages, sizeof stages, "parallel.pipeline=%d", a.pp);
    set[n++] = tensor;
    set[n++] = stages;
    for (int l = 0; l < 2; l++)
        for (int i = 0; lists[l] != NULL && lists[l][i] != NULL; i++)
            set[n++] = lists[l][i];
    assert_true(n < MOST_SETS);
    set[n] = NULL;
    seen_run(out, "run", a.dp * a.tp * a.pp, set, NULL);
    if (out->code != EXIT_OK)
        fail_msg("dp %d tp %d pp %d ends with %d:\n%s", a.dp, a.tp, a.pp, out->code, out->console);
}
#define SETS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- counting collectives -------------------------------------------------------------------- */

static void assert_count(SeenCount is, SeenCount want)
{
    assert_int_equal(is.calls, want.calls);
    assert_int_equal(is.elements, want.elements);
}

/* Returns the rows of the communication table except those of one group. */
static char *rows_without(const Seen *seen, const char *group)
{
    char *rows = seen_rows(seen), *rest = rows, *kept = must_strdup("");
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (strncmp(line, group, strlen(group)) == 0) continue;
        char *more = text_format("%s%s\n", kept, line);
        free(kept);
        kept = more;
    }
    free(rows);
    return kept;
}

static void assert_same_rows_without(const Seen *a, const Seen *b, const char *group)
{
    char *x = rows_without(a, group), *y = rows_without(b, group);
    assert_string_equal(x, y);
    free(x);
    free(y);
}

/* Checks that both runs have bitwise equal losses and the same collectives. */
static void assert_nothing_differs(const Seen *a, const Seen *b)
{
    assert_true(seen_same_losses(a, b));
    assert_same_rows_without(a, b, "none");
}

static void free_both(Seen *a, Seen *b)
{
    seen_free(a);
    seen_free(b);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* With two data-parallel ranks, "sum" doubles the gradient, so half the learning rate gives bitwise
 * the same steps. Tensor and pipeline ranks share one gradient, which "sum" does not change. */
static void gradient_sum_scales_by_the_number_of_data_parallel_ranks_only(void **state)
{
    (void)state;
    static const char *const more[][3] = {
        {"zero_optimization.stage=0"},
        {"zero_optimization.stage=1"},
        {"zero_optimization.stage=2", "zero_optimization.overlap_comm=true"}};
    static const char *const sgd[] = {"optimizer={\"type\": \"SGD\", \"params\": {\"lr\": 0.25}}",
                                      "gradient_clipping=0", "optimizer.params.weight_decay=0",
                                      NULL};
    for (int i = 0; i < 3 * AXES; i += every()) {
        Axes a = axes[i % AXES];
        Seen mean, sum;
        const char *const *own = more[i / AXES];
        const char *lr = a.dp == 2 ? "optimizer.params.lr=0.125" : "optimizer.params.lr=0.25";
        run_on(&mean, a, sgd, own);
        run_on(&sum, a, sgd, SETS(own[0], "gradient_allreduce_op=sum", lr, own[1]));
        assert_nothing_differs(&mean, &sum);
        free_both(&mean, &sum);
    }
}

static void prescale_and_predivide_keys_change_nothing_on_any_axis(void **state)
{
    (void)state;
    for (int i = 0; i < AXES; i += every()) {
        Seen plain, scaled;
        run_on(&plain, axes[i], SETS("gradient_allreduce_op=sum"), NULL);
        run_on(&scaled, axes[i], SETS("gradient_allreduce_op=sum"),
               SETS("prescale_gradients=true", "gradient_predivide_factor=2"));
        assert_nothing_differs(&plain, &scaled);
        assert_string_equal(plain.plan, scaled.plan);
        free_both(&plain, &scaled);
    }
}

/* Data-parallel ranks exchange gradients in another type, with the same number of calls and
 * elements. Sums over tensor-parallel ranks and over the stages of a tied table keep the
 * accumulation type. */
static void communication_data_type_changes_data_parallel_sums_only(void **state)
{
    (void)state;
    for (int i = 0; i < AXES; i += every()) {
        Seen kept, bf16;
        run_on(&kept, axes[i], NULL, NULL);
        run_on(&bf16, axes[i], SETS("communication_data_type=bf16"), NULL);
        SeenCount wire = seen_count(&bf16, "shard all-reduce bf16");
        assert_count(wire, seen_count(&kept, "shard all-reduce f32"));
        assert_int_equal(wire.calls > 0, axes[i].dp > 1);
        assert_same_rows_without(&kept, &bf16, "shard");
        assert_int_equal(seen_same_losses(&kept, &bf16), axes[i].dp == 1);
        if (axes[i].dp == 1) assert_string_equal(kept.plan, bf16.plan);
        free_both(&kept, &bf16);
    }
}

/* With a single data-parallel rank, no key of ZeRO shards, gathers or delays anything. */
static void zero_keys_change_nothing_with_one_data_parallel_rank(void **state)
{
    (void)state;
    static const char *const zero[] = {
        "{\"stage\": 1, \"overlap_comm\": true}",
        "{\"stage\": 2, \"reduce_scatter\": false, \"reduce_bucket_size\": 0}",
        "{\"stage\": 3, \"stage3_param_persistence_threshold\": 0, \"allgather_bucket_size\": 0}",
        "{\"stage\": 3, \"stage3_max_reuse_distance\": 0, \"stage3_prefetch_bucket_size\": 0}"};
    for (int i = 0; i < AXES; i += every()) {
        if (axes[i].dp > 1) continue;
        Seen plain;
        run_on(&plain, axes[i], NULL, NULL);
        for (size_t k = 0; k < sizeof zero / sizeof *zero; k++) {
            Seen other;
            char *set = text_format("zero_optimization=%s", zero[k]);
            run_on(&other, axes[i], SETS(set), NULL);
            assert_nothing_differs(&plain, &other);
            assert_int_equal(seen_count(&other, "shard all-gather f32").calls, 0);
            seen_free(&other);
            free(set);
        }
        seen_free(&plain);
    }
}

/* At stage 1, each gradient is reduce-scattered once per step where stage 0 all-reduces it, and the
 * updated weights are gathered after every step and once at the start. Without reduce_scatter,
 * gradients are all-reduced as at stage 0. Stage 2 reduces every micro-batch. With one pipeline
 * stage, the tied table is an exception: it is used first and last, so it is reduced once per
 * step. */
static void each_zero_stage_calls_the_collectives_its_sharding_needs(void **state)
{
    (void)state;
    for (int i = 0; i < AXES; i += every()) {
        if (axes[i].dp == 1) continue;
        Seen zero0, zero1, plain, zero2;
        run_on(&zero0, axes[i], NULL, NULL);
        run_on(&zero1, axes[i], SETS("zero_optimization.stage=1"), NULL);
        run_on(&plain, axes[i], SETS("zero_optimization.stage=1"),
               SETS("zero_optimization.reduce_scatter=false"));
        run_on(&zero2, axes[i], SETS("zero_optimization.stage=2"), NULL);
        SeenCount sums = seen_count(&zero0, "shard all-reduce f32"),
                  gathers = seen_count(&zero1, "shard all-gather f32"),
                  scattered = seen_count(&zero2, "shard reduce-scatter f32");
        int64_t micros = BATCH / axes[i].dp, tied = axes[i].pp == 1;
        assert_count(seen_count(&zero1, "shard reduce-scatter f32"), sums);
        assert_count(seen_count(&plain, "shard all-reduce f32"), sums);
        assert_count(seen_count(&plain, "shard reduce-scatter f32"), (SeenCount){0});
        assert_count(seen_count(&plain, "shard all-gather f32"), gathers);
        assert_count(gathers, (SeenCount){sums.calls / STEPS * (STEPS + 1),
                                          sums.elements / STEPS * (STEPS + 1)});
        assert_int_equal(scattered.calls, (sums.calls - tied * STEPS) * micros + tied * STEPS);
        assert_true(seen_same_losses(&zero0, &zero1) && seen_same_losses(&zero0, &plain));
        /* The two pipeline stages that share a tied table add up their shards of it. */
        SeenCount tie = seen_count(&zero0, "tie all-reduce f32");
        assert_count(seen_count(&zero1, "tie all-reduce f32"),
                     (SeenCount){tie.calls, tie.elements / axes[i].dp});
        assert_int_equal(tie.calls > 0, axes[i].pp > 1);
        assert_same_rows_without(&zero1, &zero2, "shard");
        free_both(&zero0, &zero1);
        free_both(&plain, &zero2);
    }
}

/* Overlap changes when data are sent, not which data. */
static void overlap_comm_changes_neither_losses_nor_collectives(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * AXES; i += every()) {
        Axes a = axes[i % AXES];
        char stage[40];
        Seen at_once, beside;
        if (a.dp == 1) continue;
        snprintf(stage, sizeof stage, "zero_optimization.stage=%d", i / AXES);
        run_on(&at_once, a, SETS(stage, "zero_optimization.overlap_comm=false"), NULL);
        run_on(&beside, a, SETS(stage, "zero_optimization.overlap_comm=true"), NULL);
        assert_nothing_differs(&at_once, &beside);
        free_both(&at_once, &beside);
    }
}

/* With `full` recomputation, every block needs one more all-reduce between tensor-parallel ranks.
 * No other axis has more calls, and no policy changes any bit. */
static void full_recompute_adds_one_tensor_all_reduce_per_block(void **state)
{
    (void)state;
    for (int i = 0; i < AXES; i += every()) {
        Axes a = axes[i];
        Seen none, selective, full;
        run_on(&none, a, NULL, NULL);
        run_on(&selective, a, SETS("activation_checkpointing.policy=selective"), NULL);
        run_on(&full, a, SETS("activation_checkpointing.policy=full"), NULL);
        assert_nothing_differs(&none, &selective);
        assert_true(seen_same_losses(&none, &full));
        assert_same_rows_without(&none, &full, "tp");
        SeenCount sums = seen_count(&none, "tp all-reduce f32");
        int64_t more = a.tp == 1 ? 0 : (int64_t)LAYERS / a.pp * (BATCH / a.dp) * STEPS;
        sums.calls += more;
        sums.elements += more * ROWS * WIDTH;
        assert_count(seen_count(&full, "tp all-reduce f32"), sums);
        assert_string_not_equal(none.plan, selective.plan);
        assert_string_not_equal(selective.plan, full.plan);
        free_both(&none, &selective);
        seen_free(&full);
    }
}

/* Expected counts are computed from the borders of tensor-parallel regions, for a whole model or
 * for its first stage (embedding and half of the blocks). A message between stages holds one rank's
 * rows. */
static void sequence_parallel_ranks_gather_and_scatter_rows(void **state)
{
    (void)state;
    for (int i = 0; i < AXES; i += every()) {
        Axes a = axes[i];
        if (a.tp == 1) continue;
        Seen whole, rows;
        run_on(&whole, a, NULL, NULL);
        run_on(&rows, a, SETS("parallel.sequence_parallel=true"), NULL);
        int64_t passes = (int64_t)(BATCH / a.dp) * STEPS, blocks = LAYERS / a.pp,
                ends = a.pp == 1 ? 2 : 1, each = (int64_t)ROWS * WIDTH;
        assert_int_equal(seen_count(&whole, "tp all-reduce f32").elements,
                         passes * ((4 * blocks + ends) * each + (a.pp == 1 ? 3 * ROWS : 0)));
        assert_count(
            seen_count(&rows, "tp reduce-scatter f32"),
            (SeenCount){passes * (4 * blocks + ends), passes * (4 * blocks + ends) * each});
        assert_count(
            seen_count(&rows, "tp all-gather f32"),
            (SeenCount){passes * (6 * blocks + ends), passes * (6 * blocks + ends) * each});
        assert_int_equal(2 * seen_count(&rows, "pp send f32").elements,
                         seen_count(&whole, "pp send f32").elements);
        assert_count(seen_count(&rows, "shard all-reduce f32"),
                     seen_count(&whole, "shard all-reduce f32"));
        free_both(&whole, &rows);
    }
}

/* The first stage sends each micro-batch once per layer range, and receives one gradient for each
 * of these messages. With a second range, it also receives the last stage's output of the first
 * range and sends that output's gradient. */
static void stages_send_each_micro_batch_once_per_layer_range(void **state)
{
    (void)state;
    static const char *const ways[] = {"parallel.schedule=gpipe", "parallel.pipeline_split=[2, 2]",
                                       "pipeline.partition=uniform", "parallel.pipeline_chunks=2"};
    for (int i = 0; i < AXES; i += every()) {
        Axes a = axes[i];
        if (a.pp == 1) continue;
        Seen plain;
        int64_t micros = (int64_t)(BATCH / a.dp) * STEPS;
        run_on(&plain, a, SETS("parallel.pipeline_split=[2, 2]"), NULL);
        assert_count(seen_count(&plain, "pp send f32"), (SeenCount){micros, micros * ROWS * WIDTH});
        for (int w = 0; w < 4; w++) {
            Seen other;
            run_on(&other, a, SETS(ways[w], w == 0 ? "parallel.pipeline_split=[2, 2]" : NULL),
                   NULL);
            int64_t messages = w == 3 ? 3 * micros : micros;
            assert_count(seen_count(&other, "pp send f32"),
                         (SeenCount){messages, messages * ROWS * WIDTH});
            assert_count(seen_count(&other, "pp receive f32"), seen_count(&other, "pp send f32"));
            if (w < 2) assert_nothing_differs(&plain, &other);
            seen_free(&other);
        }
        seen_free(&plain);
    }
}

/* The number of weight files is the number of writers, on any axis. */
static void checkpoint_writers_sets_the_number_of_weight_files(void **state)
{
    (void)state;
    for (int i = 0; i < AXES; i += every()) {
        Seen seen;
        int files = 0, ranks = axes[i].dp * axes[i].tp * axes[i].pp;
        char set[40];
        snprintf(set, sizeof set, "checkpoint.writers=%d", ranks);
        run_on(&seen, axes[i], SETS(set), NULL);
        for (const char *at = seen.files; (at = strstr(at, "model-")) != NULL; at++)
            files++;
        assert_int_equal(files, ranks);
        seen_free(&seen);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_sum_scales_by_the_number_of_data_parallel_ranks_only),
        cmocka_unit_test(prescale_and_predivide_keys_change_nothing_on_any_axis),
        cmocka_unit_test(communication_data_type_changes_data_parallel_sums_only),
        cmocka_unit_test(zero_keys_change_nothing_with_one_data_parallel_rank),
        cmocka_unit_test(each_zero_stage_calls_the_collectives_its_sharding_needs),
        cmocka_unit_test(overlap_comm_changes_neither_losses_nor_collectives),
        cmocka_unit_test(full_recompute_adds_one_tensor_all_reduce_per_block),
        cmocka_unit_test(sequence_parallel_ranks_gather_and_scatter_rows),
        cmocka_unit_test(stages_send_each_micro_batch_once_per_layer_range),
        cmocka_unit_test(checkpoint_writers_sets_the_number_of_weight_files),
    };
    return cmocka_run_group_tests(tests, seen_folder_setup, leave_scratch);
}
