/* test_optim.c -- compares learning rates with DeepSpeed's own values and the loss scaler with
 * recorded sequences, and checks the table of optimizers against the names in the config. */
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/step_constants.h"

#include "model/core/check.h"
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

/* ---- learning rates -------------------------------------------------------------------------- */

/* Checks the learning rates from update `k` on; `want` lists them with six digits. */
static void check_rates(const char *name, const Config *config, int64_t k, const char *want)
{
    char *copy = must_strdup(want), *rest = copy, got[32], *word;
    for (; (word = strsep(&rest, " ")) != NULL; k++) {
        snprintf(got, sizeof got, "%.6g", lr_schedule(config, k));
        if (strcmp(got, word) != 0) fail_msg("%s, update %d: %s, want %s", name, (int)k, got, word);
    }
    free(copy);
}

/* Returns a config with this scheduler and DeepSpeed's defaults for all its keys, as the option
 * table sets them. */
static Config schedule_config(SchedulerType type)
{
    Config c = {.train_steps = 100};
    c.optimizer.params.lr = 1e-3;
    c.scheduler.type = type;
    c.scheduler.params.warmup_max_lr = -1.0;
    c.scheduler.params.warmup_num_steps = 1000;
    c.scheduler.params.warmup_type = WARMUP_LOG;
    c.scheduler.params.cos_min_ratio = 1e-4;
    c.scheduler.params.cycle_second_step_size = -1;
    c.scheduler.params.cycle_second_stair_count = -1;
    return c;
}

static void test_warmup_lr_matches_deepspeed(void **state)
{
    (void)state;
    Config c = schedule_config(SCHEDULER_WARMUP_LR);
    c.scheduler.params.warmup_num_steps = 10;
    check_rates("WarmupLR log", &c, 0,
                "0 0 0.00030103 0.000477121 0.00060206 0.00069897 0.000778151 0.000845098 "
                "0.00090309 0.000954243 0.001 0.001 0.001");
    c.scheduler.params.warmup_type = WARMUP_LINEAR;
    c.scheduler.params.warmup_min_lr = 1e-4;
    check_rates("WarmupLR linear", &c, 0,
                "0.0001 0.0001 0.00019 0.00028 0.00037 0.00046 0.00055 0.00064 0.00073 0.00082 "
                "0.00091 0.001 0.001");
    c = schedule_config(SCHEDULER_WARMUP_LR);
    c.scheduler.params.warmup_num_steps = 1;
    check_rates("WarmupLR of one step", &c, 0, "0 0 0.001 0.001");
    c.scheduler.params.warmup_max_lr = 0.5;
    check_rates("WarmupLR with its own maximum", &c, 0, "0 0 0.5 0.5");
}

static void test_warmup_decay_lr_matches_deepspeed(void **state)
{
    (void)state;
    Config c = schedule_config(SCHEDULER_WARMUP_DECAY_LR);
    c.scheduler.params.warmup_num_steps = 5;
    c.scheduler.params.total_num_steps = 20;
    c.scheduler.params.warmup_type = WARMUP_LINEAR;
    check_rates("WarmupDecayLR", &c, 0,
                "0 0 0.0002 0.0004 0.0006 0.0008 0.001 0.000933333 0.000866667 0.0008");
    check_rates("WarmupDecayLR", &c, 19, "0.000133333 6.66667e-05 0 0");
}

static void test_warmup_cosine_lr_matches_deepspeed(void **state)
{
    (void)state;
    Config c = schedule_config(SCHEDULER_WARMUP_COSINE_LR);
    c.scheduler.params.warmup_num_steps = 5;
    c.scheduler.params.total_num_steps = 20;
    c.scheduler.params.warmup_type = WARMUP_LINEAR;
    c.scheduler.params.cos_min_ratio = 0.1;
    check_rates("WarmupCosineLR", &c, 0,
                "0 0 0.0002 0.0004 0.0006 0.0008 0.000990166 0.000961095 0.000914058 0.000851109 "
                "0.000775");
    check_rates("WarmupCosineLR", &c, 19, "0.000109834 0.0001 0.0001");
    c.scheduler.params.warmup_min_ratio = 0.2;
    c.scheduler.params.warmup_type = WARMUP_LOG;
    check_rates("WarmupCosineLR log", &c, 0,
                "0 0.0002 0.000544541 0.000746085 0.000889082 0.001 0.000990166");
}

static void test_lr_range_test_matches_deepspeed(void **state)
{
    (void)state;
    Config c = schedule_config(SCHEDULER_LR_RANGE_TEST);
    c.scheduler.params.lr_range_test_min_lr = 1e-4;
    c.scheduler.params.lr_range_test_step_size = 2;
    c.scheduler.params.lr_range_test_step_rate = 1.0;
    check_rates("LRRangeTest", &c, 0, "0.0001 0.00015 0.0002 0.00025");
    c.scheduler.params.lr_range_test_staircase = true;
    check_rates("LRRangeTest in stairs", &c, 0, "0.0001 0.0001 0.0002 0.0002");
}

static void test_one_cycle_matches_deepspeed(void **state)
{
    (void)state;
    Config c = schedule_config(SCHEDULER_ONE_CYCLE);
    c.scheduler.params.cycle_min_lr = 1e-4;
    c.scheduler.params.cycle_max_lr = 1e-3;
    c.scheduler.params.cycle_first_step_size = 4;
    check_rates("OneCycle without decay", &c, 4, "0.001 0.000775 0.00055 0.000325 0.0001 0.0001");
    c.scheduler.params.decay_step_size = 2;
    c.scheduler.params.decay_lr_rate = 0.5;
    check_rates("OneCycle", &c, 0,
                "0.0001 0.000325 0.00055 0.000775 0.001 0.000775 0.00055 0.000325 0.0001 8e-05 "
                "6.66667e-05");
    c.scheduler.params.cycle_second_step_size = 2;
    check_rates("OneCycle 4 + 2", &c, 3, "0.000775 0.001 0.00055 0.0001 8e-05");
    c.scheduler.params.cycle_second_step_size = -1;
    c.scheduler.params.cycle_first_stair_count = 2;
    check_rates("OneCycle in stairs", &c, 0,
                "0.0001 0.0001 0.00055 0.00055 0.001 0.00055 0.00055 0.0001 0.0001");
}

static void test_constant_and_wsd_give_the_expected_learning_rates(void **state)
{
    (void)state;
    Config c = schedule_config(SCHEDULER_CONSTANT);
    check_rates("Constant", &c, 0, "0.001 0.001");
    check_rates("Constant", &c, 1000000, "0.001");
    c = schedule_config(SCHEDULER_WSD);
    c.scheduler.params.warmup_num_steps = 4;
    c.scheduler.params.decay_num_steps = 4;
    c.scheduler.params.min_lr_ratio = 0.2;
    c.scheduler.params.total_num_steps = 12;
    check_rates("WSD linear", &c, 0, "0.00025 0.0005 0.00075 0.001 0.001");
    check_rates("WSD linear", &c, 7, "0.001 0.001 0.0008 0.0006 0.0004 0.0002 0.0002");
    c.scheduler.params.decay_type = DECAY_COSINE;
    check_rates("WSD cosine", &c, 8, "0.001 0.000882843 0.0006 0.000317157 0.0002");
    c.scheduler.params.decay_type = DECAY_SQRT;
    check_rates("WSD sqrt", &c, 8, "0.001 0.0006 0.000434315 0.00030718 0.0002");
    c.scheduler.params.total_num_steps = 0;
    check_rates("WSD to train_steps", &c, 95, "0.001 0.001 0.0006");
    double table[7];
    lr_schedule_fill(&c, table, 7);
    for (int i = 0; i < 7; i++)
        assert_true(table[i] == lr_schedule(&c, i));
}

/* ---- step constants and loss scaler ---------------------------------------------------------- */

static Device open_device(void)
{
    Device dev;
    char err[256];
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    if (!device_open(&dev, "cpu", &options, err, sizeof err)) fail_msg("%s", err);
    return dev;
}

static Config fp16_config(int power, int window, int hysteresis, bool consecutive)
{
    Config c = schedule_config(SCHEDULER_WARMUP_LR);
    c.train_batch_size = 4;
    c.data.seq_length = 8;
    c.gradient_clipping = 1.0;
    c.fp16.enabled = true;
    c.fp16.initial_scale_power = power;
    c.fp16.loss_scale_window = window;
    c.fp16.hysteresis = hysteresis;
    c.fp16.consecutive_hysteresis = consecutive;
    c.fp16.min_loss_scale = 1.0;
    return c;
}

/* Makes steps with ('1') or without ('0') an overflow. `want` lists "scale/hysteresis" after each
 * step, or EXIT. */
static void check_trace(const Config *c, const char *overflows, const char *want)
{
    Device dev = open_device();
    StepConstants constants = step_constants(c, 1);
    StepState s = step_state_initial(c);
    StepDecision decision;
    double lr[32];
    lr_schedule_fill(c, lr, 32);
    int64_t updates = 0;
    char *copy = must_strdup(want), *rest = copy, *word, got[64];
    for (int i = 0; overflows[i]; i++) {
        bool overflow = overflows[i] == '1';
        StepStats stats = {.sq_norm = overflow ? INFINITY : 4.0, .nats = 32.0, .targets = 32.0};
        op_step_decide(&dev, &s, &stats, &decision, tensor_1d(lr, F64, 32), &constants);
        assert_int_equal(decision.apply, !overflow);
        if (!overflow) {
            assert_true(decision.lr == lr[updates]);
            assert_int_equal(decision.update, ++updates);
        }
        assert_int_equal(s.updates, updates);
        assert_int_equal(s.steps, i + 1);
        assert_int_equal(s.samples, (i + 1) * c->train_batch_size);
        assert_int_equal(s.skipped, i + 1 - updates);
        snprintf(got, sizeof got, "%g/%d", s.loss_scale, (int)s.hysteresis);
        if (s.stop) snprintf(got, sizeof got, "EXIT");
        word = strsep(&rest, " ");
        if (strcmp(got, word) != 0) fail_msg("%s, step %d: %s, want %s", overflows, i, got, word);
    }
    free(copy);
    device_close(&dev);
}

static void test_the_loss_scale_falls_after_overflows_and_rises_after_a_window(void **state)
{
    (void)state;
    Config c = fp16_config(4, 3, 2, false);
    check_trace(&c, "00000000", "16/2 16/2 16/2 32/2 32/2 32/2 64/2 64/2");
    check_trace(&c, "010000111", "16/2 16/1 16/1 16/1 16/1 32/2 32/1 16/1 8/1");
    c = fp16_config(4, 3, 2, true);
    check_trace(&c, "010000111", "16/2 16/1 16/2 16/2 16/2 32/2 32/1 16/1 8/1");
    c = fp16_config(2, 3, 1, false);
    check_trace(&c, "111", "2/1 1/1 EXIT");
    c.fp16.min_loss_scale = 2.0; /* the scale stays at 2, and the next overflow ends the run */
    check_trace(&c, "1011", "2/1 2/1 EXIT EXIT");
    c = fp16_config(4, 3, 2, false);
    c.fp16.min_loss_scale = 3.0; /* not a power of two: the scale stops at 3 */
    check_trace(&c, "1111100001", "16/1 8/1 4/1 3/1 EXIT EXIT EXIT EXIT EXIT EXIT");
    check_trace(&c, "1111000001", "16/1 8/1 4/1 3/1 3/1 3/1 3/1 6/2 6/2 6/1");
    c.fp16.loss_scale = 128.0;
    check_trace(&c, "0110", "128/2 128/2 128/2 128/2");
}

static void test_step_constants_and_initial_state_follow_the_config(void **state)
{
    (void)state;
    Config c = fp16_config(16, 1000, 2, true);
    StepConstants constants = step_constants(&c, 1);
    assert_true(constants.dynamic_scale && constants.consecutive_hysteresis &&
                constants.skip_nonfinite);
    assert_true(constants.nominal_targets == 32.0 && constants.max_norm == 1.0 &&
                constants.min_scale == 1.0);
    assert_true(constants.samples == 4 && constants.tokens == 32);
    assert_true(constants.scale_window == 1000 && constants.hysteresis == 2);
    StepState s = step_state_initial(&c);
    assert_true(s.loss_scale == 65536.0 && s.hysteresis == 2 && s.last_overflow == -1);
    assert_true(s.samples == 0 && s.updates == 0 && s.scale_steps == 0 && s.stop == 0);
    c.fp16.loss_scale = 128.0;
    assert_false(step_constants(&c, 1).dynamic_scale);
    assert_true(step_state_initial(&c).loss_scale == 128.0);
    c.fp16.enabled = false;
    c.bf16.enabled = true;
    assert_false(step_constants(&c, 1).dynamic_scale);
    assert_false(step_constants(&c, 1).skip_nonfinite);
    assert_true(step_state_initial(&c).loss_scale == 1.0);
    c.bf16.check_grad_overflow = true;
    assert_true(step_constants(&c, 1).skip_nonfinite);
    assert_int_equal(step_constants(&c, 3).summed_ranks, 0);
    c.gradient_allreduce_op = GRADIENT_SUM;
    assert_int_equal(step_constants(&c, 3).summed_ranks, 3);
}

/* ---- the table of optimizers ----------------------------------------------------------------- */

/* The config's optimizer name must select the row of that name, with constants from the config.
 * Only Adam uses adam_w_mode. */
static void test_every_optimizer_name_in_a_config_selects_its_row(void **state)
{
    (void)state;
    for (int type = OPTIMIZER_ADAMW; type <= OPTIMIZER_SGD; type++) {
        const OptimizerRule *rule = optimizer_rule((OptimizerType)type);
        char *keys =
            text_format("\"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.1}}", rule->name);
        const Config *c = config_test_keys(keys);
        Config changed = *c;
        assert_int_equal(c->optimizer.type, type);
        assert_true(rule->op == (type == OPTIMIZER_SGD ? OP_sgd : OP_adamw));
        assert_int_equal(optimizer_rule_slots(rule, c), type == OPTIMIZER_SGD ? 0 : 2);
        changed.optimizer.params.adam_w_mode = false;
        changed.optimizer.params.momentum = 0.5;
        OptimizerConstants k = rule->constants(&changed, 0.25);
        if (type == OPTIMIZER_SGD) {
            assert_int_equal(optimizer_rule_slots(rule, &changed), 1);
            assert_true(k.sgd.momentum == 0.5 && k.sgd.weight_decay == 0.25);
        } else {
            assert_true(k.adamw.decoupled == (type == OPTIMIZER_ADAMW));
            assert_true(k.adamw.weight_decay == 0.25);
        }
        config_free(c);
        free(keys);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warmup_lr_matches_deepspeed),
        cmocka_unit_test(test_warmup_decay_lr_matches_deepspeed),
        cmocka_unit_test(test_warmup_cosine_lr_matches_deepspeed),
        cmocka_unit_test(test_lr_range_test_matches_deepspeed),
        cmocka_unit_test(test_one_cycle_matches_deepspeed),
        cmocka_unit_test(test_constant_and_wsd_give_the_expected_learning_rates),
        cmocka_unit_test(test_the_loss_scale_falls_after_overflows_and_rises_after_a_window),
        cmocka_unit_test(test_step_constants_and_initial_state_follow_the_config),
        cmocka_unit_test(test_every_optimizer_name_in_a_config_selects_its_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
