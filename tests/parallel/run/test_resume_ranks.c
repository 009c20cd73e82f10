/* test_resume_ranks.c -- tests of resuming with a changed config: on another number of ranks, which
 * must keep the batch size, and with another number of steps. */
#include "parallel/run/identity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const Config *config_in(ConfigContext context, const char *text)
{
    ConfigReport report = {0};
    const Config *config = config_parse(&context, "c.json", text, strlen(text), 0, NULL, &report);
    if (config == NULL) fail_msg("%s\n%s", text, report.error[0]);
    config_report_free(&report);
    return config;
}

/* Returns true if a run that was started on `was` ranks may resume on `is` ranks, with the config
 * as its folder stores it; otherwise sets err. */
static bool may_resume(const char *text, int64_t was, int64_t is, char *err, size_t n)
{
    const Config *started = config_in((ConfigContext){.world = was}, text);
    char *kept = config_text(started);
    const Config *stored = config_in((ConfigContext){.stored = true, .world = is}, kept),
                 *config = config_in((ConfigContext){.world = is}, text);
    bool may = identity_may_resume("out/r", stored, config, false, false, err, n);
    config_free(started);
    config_free(stored);
    config_free(config);
    free(kept);
    return may;
}

static void test_a_run_with_a_given_batch_size_resumes_on_any_number_of_ranks(void **unused)
{
    (void)unused;
    static const char given[] = "{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 24, "
                                "\"train_micro_batch_size_per_gpu\": 2}";
    char err[1024] = "";
    for (int64_t was = 1; was <= 4; was++)
        for (int64_t is = 1; is <= 4; is++)
            if (!may_resume(given, was, is, err, sizeof err))
                fail_msg("from %d ranks to %d: %s", (int)was, (int)is, err);
}

/* A batch size that follows from the number of ranks would change. So the resume is refused, and
 * the message says what to write in the config to keep it. */
static void test_a_batch_size_that_would_change_with_the_ranks_is_refused_with_advice(void **unused)
{
    (void)unused;
    static const char open[] =
        "{\"data\": {\"text\": \"x\"}, \"train_micro_batch_size_per_gpu\": 2}";
    static const char accumulating[] =
        "{\"data\": {\"text\": \"x\"}, \"train_micro_batch_size_per_gpu\": 2, "
        "\"gradient_accumulation_steps\": 3}";
    char err[1024] = "";
    assert_true(may_resume(open, 2, 2, err, sizeof err));
    assert_false(may_resume(open, 1, 2, err, sizeof err));
    assert_string_equal(err,
                        "the run in out/r was started with another config: train_batch_size was 2, "
                        "is 4 (changes the run); to go on with its batch, write train_batch_size 2 "
                        "and train_micro_batch_size_per_gpu 1; or choose another folder with "
                        "--out, or say --allow-config-change");
    assert_false(may_resume(accumulating, 4, 2, err, sizeof err));
    assert_non_null(strstr(err, "train_batch_size was 24, is 12 (changes the run); to go on with "
                                "its batch, write train_batch_size 24 and leave "
                                "gradient_accumulation_steps out; or choose another folder with "
                                "--out, or say --allow-config-change"));
    assert_false(may_resume(open, 2, 3, err, sizeof err));
    assert_non_null(strstr(err, "to go on with its batch, take 2 ranks, which share 4 "
                                "evenly, and write train_batch_size 4; or choose"));
}

/* A run's config before and after a change, and the message that refuses to resume it. */
#define DATA "\"data\": {\"text\": \"x\"}, \"train_micro_batch_size_per_gpu\": 2"
#define DECAY(more)                                                                                \
    ", \"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"warmup_ratio\": 0.1" more "}}"
static const char constant[] = "{" DATA ", \"train_steps\": 100}",
                  decaying[] = "{" DATA ", \"train_steps\": 100" DECAY("") "}",
                  fixed[] = "{" DATA ", \"train_steps\": 100, \"scheduler\": {\"type\": "
                            "\"WarmupCosineLR\", \"params\": {\"warmup_num_steps\": 10, "
                            "\"total_num_steps\": 100}}}",
                  other[] = "the run in out/r was started with another config: ";
static const struct {
    const char *was, *now;
    int64_t ranks;
    const char *begin, *says; /* NULL: the run goes on */
} cases[] = {
    {constant, "{" DATA ", \"train_steps\": 200}", 1, NULL, NULL},
    {constant, "{" DATA ", \"train_steps\": 50}", 1, NULL, NULL},
    {decaying, "{" DATA ", \"train_steps\": 200" DECAY("") "}", 1,
     "out/r: longer than before (100 -> 200): --allow-config-change goes on from step 0 with "
     "the new schedule",
     ""},
    {decaying, "{" DATA ", \"train_tokens\": 1638400" DECAY("") "}", 1,
     "out/r: longer than before (100 -> 800): --allow-config-change goes on from step 0 with "
     "the new schedule",
     ""},
    {decaying, "{" DATA ", \"train_steps\": 50" DECAY("") "}", 1,
     "out/r: shorter than before (100 -> 50): --allow-config-change goes on from step 0 with "
     "the new schedule",
     ""},
    {fixed,
     "{" DATA ", \"train_steps\": 200, \"scheduler\": {\"type\": \"WarmupCosineLR\", "
     "\"params\": {\"warmup_num_steps\": 10, \"total_num_steps\": 100}}}",
     1, NULL, NULL},
    {constant, "{" DATA ", \"train_steps\": 100, \"model\": {\"hidden_size\": 1536}}", 1, other,
     "model.hidden_size was 768, is 1536 (impossible); choose another folder with --out, or write "
     "model.hidden_size 768"},
    {constant,
     "{" DATA ", \"train_steps\": 100, \"bf16\": {\"enabled\": true}, \"data.seq_length\": 512}", 1,
     other,
     "model.max_position_embeddings was 1024, is 512 (impossible); data.seq_length was 1024, is "
     "512 "
     "(impossible); bf16.enabled was false, is true (impossible); choose another folder with "
     "--out, "
     "or write model.max_position_embeddings 1024 and data.seq_length 1024 and bf16.enabled false"},
    {constant, "{" DATA ", \"train_steps\": 100, \"seed\": 3, \"data.tokenizer\": \"t.json\"}", 1,
     other,
     "data.tokenizer was null, is \"t.json\" (impossible); seed was 1337, is 3 (changes the run); "
     "choose another folder with --out, or write data.tokenizer null and say "
     "--allow-config-change"},
    /* If the config is of another model, the message does not advise to restore each key. */
    {constant,
     "{" DATA ", \"train_steps\": 100, \"model\": {\"num_layers\": 2, \"hidden_size\": 64, "
     "\"num_attention_heads\": 2, \"norm\": \"rmsnorm\"}}",
     1, other,
     "model.num_layers was 12, is 2 (impossible); model.hidden_size was 768, is 64 (impossible); "
     "model.num_attention_heads was 12, is 2 (impossible); model.norm was \"layernorm\", is "
     "\"rmsnorm\" (impossible); choose another folder with --out"},
    {constant, "{" DATA ", \"train_steps\": 100, \"seed\": 3}", 2, other,
     "seed was 1337, is 3 (changes the run); train_batch_size was 2, is 4 (changes the run); "
     "to "
     "go on with its batch, write train_batch_size 2 and train_micro_batch_size_per_gpu 1; or "
     "choose another folder with --out, or say --allow-config-change"},
    /* The steps follow from the tokens and the batch, and the schedule from the steps, so only
     * train_batch_size is listed. */
    {"{" DATA ", \"train_tokens\": 204800, \"train_batch_size\": 2" DECAY("") "}",
     "{" DATA ", \"train_tokens\": 204800, \"train_batch_size\": 4" DECAY("") "}", 1, other,
     "train_batch_size was 2, is 4 (changes the run); choose another folder with --out, or say "
     "--allow-config-change"},
    {"{" DATA ", \"train_tokens\": 204800" DECAY("") "}",
     "{" DATA ", \"train_tokens\": 204800" DECAY("") "}", 2, other,
     "train_batch_size was 2, is 4 (changes the run); to go on with its batch, write "
     "train_batch_size 2 and train_micro_batch_size_per_gpu 1; or choose another folder with "
     "--out, or say --allow-config-change"},
};

/* A run that is named may have another length if no learning rate depends on it. Keys that only
 * follow from another changed key are not listed; those that change for another reason are. */
static void test_only_the_keys_that_were_changed_are_reported(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char err[1024] = "";
        const Config *started = config_in((ConfigContext){.world = 1}, cases[i].was);
        char *kept = config_text(started);
        const Config *stored = config_in((ConfigContext){.stored = true}, kept),
                     *now = config_in((ConfigContext){.world = cases[i].ranks}, cases[i].now);
        bool may = identity_may_resume("out/r", stored, now, false, true, err, sizeof err);
        char *says =
            cases[i].says ? text_format("%s%s", cases[i].begin, cases[i].says) : must_strdup("");
        if (may != (cases[i].says == NULL)) fail_msg("case %zu: %s", i, err);
        assert_string_equal(err, says);
        free(says);
        free(kept);
        config_free(now);
        config_free(stored);
        config_free(started);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_with_a_given_batch_size_resumes_on_any_number_of_ranks),
        cmocka_unit_test(test_a_batch_size_that_would_change_with_the_ranks_is_refused_with_advice),
        cmocka_unit_test(test_only_the_keys_that_were_changed_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
