/* test_config_runs.c -- generates thousands of configs from the option table and checks that none
 * ends in a failed check: large ones are planned, small ones are run. With TEST_EVERY, each commit
 * tests only a part of them, always the same part (tests/support/turns.h). */
#include "model/core/check.h"
#include "parallel/memory/memory_plan.h"
#include "tests/fuzz/fuzz_model.h"
#include "tests/support/support.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    SMALL = 4000,
    LARGE = 2000,
    BYTES = 400,
    PATIENCE = 60 /* seconds until a hanging child is killed */,
    LONG_STEP = 1 << 24 /* bytes; an action list above this takes long to make */
};

/* Progress that child processes report through shared memory. */
typedef struct {
    int at, accepted;
} Told;

static void draw(uint8_t *bytes, int number)
{
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(256 * drawn_uniform((uint64_t)number, i));
}

/* Returns the number of the i-th config that this run of the test tries. */
static int numbered(int i)
{
    int64_t every = turns_every(20);
    return (int)(turns_first(every) + i * every);
}

static void run_small(const uint8_t *bytes, Told *p)
{
    p->accepted += fuzz_model(bytes, BYTES);
}

/* Plans a large config as a run would: the size of a step's list of actions is compared with the
 * available memory before the list is made. A list that fits may still take a minute to make, so
 * such a config is measured with a shorter step. */
static void plan_large(const uint8_t *bytes, Told *p)
{
    char shown[8192];
    const Config *config = fuzz_model_config(bytes, BYTES, MODEL_LARGE, shown, sizeof shown);
    if (config == NULL) return;
    p->accepted++;
    memory_check_step(config);
    const Config shorter = config_of_one_micro_batch(config, true);
    bool lasts = step_plan_most_bytes(config, config->gradient_accumulation_steps) > LONG_STEP;
    Trainer trainer;
    trainer_measure(&trainer, lasts ? &shorter : config);
    memory_plan(&trainer, &(DataSet){.random = true});
    trainer_close(&trainer);
    config_free(config);
}

/* Calls `one` for all numbers below n in child processes. If a child dies, the next one continues
 * after the number at which it died. Returns how many died without a regular refusal. */
static int ends_in_children(int n, void (*one)(const uint8_t *, Told *), ModelSize model, Told *p)
{
    int wrong = 0;
    uint8_t bytes[BYTES];
    *p = (Told){0};
    while (p->at < n) {
        int status;
        fflush(stdout);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            if (freopen("/dev/null", "w", stderr) == NULL) _exit(126);
            for (; p->at < n; p->at++) {
                alarm(PATIENCE); /* otherwise a child that hangs would block all other configs */
                draw(bytes, numbered(p->at));
                one(bytes, p);
            }
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        bool refused = WIFEXITED(status) && (WEXITSTATUS(status) == EXIT_NO_MEMORY ||
                                             WEXITSTATUS(status) == EXIT_CONFIG);
        if (p->at < n && !(refused && model == MODEL_LARGE)) {
            char shown[8192];
            draw(bytes, numbered(p->at));
            config_free(fuzz_model_config(bytes, BYTES, model, shown, sizeof shown));
            print_error("config %d ends with %s %d:%s\n", p->at,
                        WIFEXITED(status) ? "exit code" : "signal",
                        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), shown);
            wrong++;
        }
        if (p->at < n) p->at++;
    }
    return wrong;
}

static void check(int n, void (*one)(const uint8_t *, Told *), ModelSize model)
{
    Told *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    n /= (int)turns_every(20);
    assert_int_equal(ends_in_children(n, one, model, p), 0);
    print_message("  %d configs, of which %d go together\n", n, p->accepted);
    /* 35 % of all large configs are accepted; of the hundred that one turn tests, 20 to 45 are. If
     * fewer than a tenth were, the generator would produce little more than refused configs. */
    assert_true(p->accepted > n / 10);
    munmap(p, sizeof *p);
}

static void every_small_random_config_runs_or_is_refused(void **state)
{
    (void)state;
    check(SMALL, run_small, MODEL_SMALL);
}

static void every_large_random_config_is_planned_or_refused(void **state)
{
    (void)state;
    check(LARGE, plan_large, MODEL_LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_random_config_runs_or_is_refused),
        cmocka_unit_test(every_large_random_config_is_planned_or_refused),
    };
    return cmocka_run_group_tests_name("config_runs", tests, NULL, NULL);
}
