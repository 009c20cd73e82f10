/* test_settle.c -- tests config_settle, which adds the facts that are known only when a command
 * starts, and the two vocabulary sizes: the model's and that of a tokenizer trained on the text. */
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void config_settle_takes_the_vocabulary_size_of_the_data_or_refuses_another(void **state)
{
    (void)state;
    char err[300];
    ConfigFacts facts = {.vocab_size = 1024, .vocab_of = "t.json"};
    const Config *c = config_settle(config_test_set("seed=1"), &facts, err, sizeof err);
    assert_int_equal(c->model.vocab_size, 1024);
    assert_string_equal(config_origin(c, "model.vocab_size"), "derived");
    config_free(c);
    c = config_test_keys("\"model\": {\"vocab_size\": 500}");
    c = config_settle(c, &(ConfigFacts){.vocab_size = 500}, err, sizeof err);
    assert_string_equal(config_origin(c, "model.vocab_size"), "c.json:2");
    assert_null(config_settle(c, &facts, err, sizeof err));
    assert_int_equal(c->model.vocab_size, 500);
    assert_string_equal(err, "c.json:2:11: model.vocab_size: 500, but t.json has 1024 tokens; "
                             "write 1024, or leave the key out");
    config_free(c);
    c = config_test_set("model.vocab_size=5e2");
    assert_null(config_settle(c, &facts, err, sizeof err));
    assert_string_equal(err, "--set model.vocab_size=5e2: model.vocab_size: 500, but t.json has "
                             "1024 tokens; write 1024, or leave the key out");
    config_free(c);
}

static void config_settle_changes_only_keys_of_the_given_facts(void **state)
{
    (void)state;
    char err[300];
    const char *sets[] = {"data.tokenizer=a.json", "model.vocab_size=7"};
    const char *text = "{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8}";
    ConfigDifference *d;
    const Config *was = config_test_parse(text, 2, sets), *now = config_test_parse(text, 2, sets);
    now = config_settle(now, &(ConfigFacts){0}, err, sizeof err);
    assert_int_equal(config_diff(was, now, &d), 0);
    config_diff_free(d, 0);
    now = config_settle(now, &(ConfigFacts){.tokenizer = "own.json"}, err, sizeof err);
    int n = config_diff(was, now, &d);
    assert_int_equal(n, 1);
    assert_string_equal(d[0].key, "data.tokenizer");
    assert_string_equal(d[0].now, "\"own.json\"");
    config_diff_free(d, n);
    config_free(was);
    was = config_test_set("seed=1337");
    was = config_settle(was, &(ConfigFacts){0}, err, sizeof err);
    assert_string_equal(config_origin(was, "model.vocab_size"), "default");
    config_free(was);
    config_free(now);
}

/* A preset's vocabulary is a limit for the tokenizer that is trained on the text. */
static void a_tokenizer_trained_on_the_text_may_have_fewer_ids_than_the_model(void **state)
{
    (void)state;
    static const char text[] = "{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, \n"
                               "\"model\": {\"vocab_size\": 50257}}";
    char err[300];
    const ConfigFacts facts = {.vocab_size = 900, .vocab_of = "t.json"};
    const Config *c = config_test_parse(text, 0, NULL);
    assert_int_equal(c->data.tokenizer_vocab_size, 50257);
    assert_string_equal(config_origin(c, "data.tokenizer_vocab_size"), "derived");
    assert_true(c->data.tokenizer_vocab_at_most);
    c = config_settle(c, &facts, err, sizeof err);
    assert_int_equal(c->model.vocab_size, 900);
    assert_int_equal(c->data.tokenizer_vocab_size, 900);
    assert_string_equal(config_origin(c, "model.vocab_size"), "derived");
    /* Read back, the sizes are exact. */
    char *stored = config_text(c);
    const Config *again = config_test_parse(stored, 0, NULL);
    assert_int_equal(again->model.vocab_size, 900);
    assert_false(again->data.tokenizer_vocab_at_most);
    config_free(again);
    free(stored);
    config_free(c);
    /* A given tokenizer must have the model's size. */
    const char *given = "data.tokenizer=t.json";
    c = config_test_parse(text, 1, &given);
    assert_null(config_settle(c, &facts, err, sizeof err));
    assert_string_equal(err,
                        "c.json:2:11: model.vocab_size: 50257, but t.json has 900 tokens; write "
                        "900, or leave the key out");
    config_free(c);
}

/* A run's stored config has the vocabulary that a small text gave. The config that the run was
 * started with allows that vocabulary, so the two do not differ in it. */
static void a_vocabulary_made_smaller_by_the_text_is_not_a_config_change(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        int n; /* differences to the stored config */
    } cases[] = {
        {"model.vocab_size=50257", 0},         /* the config of the run */
        {"model.vocab_size=null", 0},          /* the tokenizer's default limit */
        {"model.vocab_size=900", 0},           /* what the run has */
        {"model.vocab_size=899", 2},           /* the run has more than this limit */
        {"data.tokenizer_vocab_size=900", 0},  /* the model's size stays a limit */
        {"data.tokenizer_vocab_size=1000", 1}, /* exactly this size */
        {"data.tokenizer=t.json", 3},          /* exactly 50257, and not trained on the text */
    };
    static const char text[] = "{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, "
                               "\"model\": {\"vocab_size\": 50257}}";
    char err[300];
    ConfigReport report;
    const ConfigContext stored = {.stored = true};
    const Config *run = config_test_parse(text, 0, NULL);
    run = config_settle(run, &(ConfigFacts){.vocab_size = 900}, err, sizeof err);
    char *kept = config_text(run);
    const Config *read = config_parse(&stored, "c.json", kept, strlen(kept), 0, NULL, &report);
    assert_non_null(read);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int turned = 0; turned < 2; turned++) {
            ConfigDifference *d;
            const Config *c = config_test_parse(text, 1, &cases[i].set);
            int n = turned ? config_diff(c, read, &d) : config_diff(read, c, &d);
            if (n != cases[i].n) print_message("%s: %s\n", cases[i].set, n ? d[0].key : "none");
            assert_int_equal(n, cases[i].n);
            config_diff_free(d, n);
            config_free(c);
        }
    /* Between two runs, or between two configs that were not run, other sizes are differences. */
    const char *set = "model.vocab_size=1000";
    const Config *asked = config_test_parse(text, 1, &set);
    const Config *other = config_parse(&stored, "c.json", kept, strlen(kept), 1, &set, &report);
    const Config *wide = config_test_parse(text, 0, NULL);
    ConfigDifference *d;
    int n = config_diff(read, other, &d);
    assert_int_equal(n, 1);
    config_diff_free(d, n);
    n = config_diff(wide, asked, &d);
    assert_int_equal(n, 2);
    config_diff_free(d, n);
    config_free(run);
    config_free(read);
    config_free(asked);
    config_free(other);
    config_free(wide);
    free(kept);
}

/* If the two vocabulary sizes contradict each other, --set replaces the file's. */
static void a_vocabulary_size_given_by_set_replaces_a_contradicting_one_of_the_file(void **state)
{
    (void)state;
    static const char text[] = "{\"data\": {\"text\": \"x\", \"tokenizer_vocab_size\": 400}, "
                               "\"train_batch_size\": 8, \"model\": {\"vocab_size\": 500}}";
    static const struct {
        const char *set;
        int64_t model, trained;
    } cases[] = {{"data.tokenizer_vocab_size=600", 0, 600},
                 {"data.tokenizer_vocab_size=500", 500, 500},
                 {"data.tokenizer_vocab_size=450", 500, 450},
                 {"model.vocab_size=300", 300, 300},
                 {"model.vocab_size=401", 401, 400}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Config *c = config_test_parse(text, 1, &cases[i].set);
        assert_int_equal(c->model.vocab_size, cases[i].model);
        assert_int_equal(c->data.tokenizer_vocab_size, cases[i].trained);
        config_free(c);
    }
}

/* ---- values that depend on the device -------------------------------------------------------- */

/* What the_device returns, and how often it was asked. */
static DeviceFacts facts_of_device;
static int asks;

static DeviceFacts the_device(const Config *config)
{
    (void)config;
    asks++;
    return facts_of_device;
}

static const Config *settled_on(const Config *config, int capability, double gigabytes,
                                const Config *run)
{
    char err[300];
    facts_of_device = (DeviceFacts){.capability = capability, .bytes = (int64_t)(gigabytes * 1e9)};
    asks = 0;
    return config_settle(config, &(ConfigFacts){.device = the_device, .run = run}, err, sizeof err);
}

static const Config *parsed(const ConfigContext *context, const char *text, const char *set)
{
    ConfigReport report;
    const Config *c =
        config_parse(context, "c.json", text, strlen(text), set != NULL, &set, &report);
    if (c == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    return c;
}

static void defaults_that_depend_on_the_device_follow_its_generation_and_memory(void **state)
{
    (void)state;
#define GPT2 "\"model\": {\"vocab_size\": 50257}"
#define BF16 ", \"bf16\": {\"enabled\": true}"
    static const struct {
        const char *keys;
        int capability;
        double gigabytes;
        int64_t rows;
        bool fused;
    } cases[] = {
        {GPT2 BF16, 0, 0, 0, false}, /* a CPU */
        {GPT2 BF16, 90, 85, 16384, true},
        {GPT2 BF16, 100, 190, 16384, true},
        {GPT2 BF16, 80, 85, 16384, false},
        {GPT2 BF16, 80, 42.3, 8192, false},
        {GPT2 BF16, 89, 25.4, 4096, false},
        {GPT2 BF16, 90, 0.1, 256, true},
        {GPT2, 90, 85, 8192, false}, /* f32: rows of twice the size, and one form of gelu */
        {GPT2 ", \"fp16\": {\"enabled\": true}", 90, 85, 16384, true},
        {GPT2 ", \"fp64\": {\"enabled\": true}", 90, 85, 4096, false},
        {"\"model\": {\"vocab_size\": 128256}" BF16, 90, 85, 4096, true},
        {"\"model\": {\"vocab_size\": 128256}, \"parallel\": {\"tensor\": 4}" BF16, 90, 85, 16384,
         true},
        {"\"model\": {\"activation\": \"swiglu\"}" BF16, 90, 85, 16384, false},
        {GPT2 BF16 ", \"activation_checkpointing\": {\"policy\": \"selective\"}", 90, 85, 16384,
         false},
        {GPT2 BF16 ", \"activation_checkpointing\": {\"policy\": \"full\"}", 90, 85, 16384, true},
        {"\"model\": {\"fused_gelu\": false, \"head_chunk_rows\": 5}, "
         "\"cuda\": {\"attention\": \"portable\"}" BF16,
         90, 85, 5, false},
        {"\"model\": {\"fused_gelu\": \"auto\", \"head_chunk_rows\": \"auto\"}" BF16, 90, 85, 16384,
         true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400];
        snprintf(text, sizeof text, "{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, %s}",
                 cases[i].keys);
        const ConfigContext context = {.world = 4};
        const Config *c = parsed(&context, text, NULL);
        c = settled_on(c, cases[i].capability, cases[i].gigabytes, NULL);
        if (c->model.head_chunk_rows != cases[i].rows || c->model.fused_gelu != cases[i].fused)
            fail_msg("%s: %lld rows, gelu %d", cases[i].keys, (long long)c->model.head_chunk_rows,
                     c->model.fused_gelu);
        assert_int_equal(asks, strstr(cases[i].keys, "rows\": 5") == NULL);
        config_free(c);
    }
}

/* A run keeps the values that it began with, on whatever device it is resumed. */
static void a_run_keeps_the_defaults_of_its_first_device(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        int64_t rows;
        bool fused;
        int n; /* differences between these two values and those of the run */
    } cases[] = {{"seed=1", 16384, true, 0},
                 {"model.head_chunk_rows=512", 512, true, 1},
                 {"model.fused_gelu=false", 16384, false, 1},
                 {"activation_checkpointing.policy=selective", 16384, false, 1}};
    static const char text[] =
        "{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, " GPT2 BF16 "}";
    const ConfigContext as_stored = {.stored = true}, resumed = {.resumed = true};
    const Config *run = settled_on(config_test_parse(text, 0, NULL), 90, 85, NULL);
    char *kept = config_text(run);
    const Config *stored = parsed(&as_stored, kept, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int own = 0; own < 2; own++) {
            /* Reads either the original config again, or the run's stored config. */
            ConfigDifference *d;
            const Config *c = own ? parsed(&resumed, kept, cases[i].set)
                                  : config_test_parse(text, 1, &cases[i].set);
            if (!own) {
                /* A config that is not settled yet counts as equal to any value that the device
                 * gave. */
                int n = config_diff(stored, c, &d);
                for (int k = 0; k < n; k++)
                    assert_true(strncmp(d[k].key, "model.", 6) != 0 ||
                                strncmp(d[k].key, cases[i].set, strlen(d[k].key)) == 0);
                config_diff_free(d, n);
            }
            c = settled_on(c, 80, 8, stored);
            assert_int_equal(asks, 0);
            assert_int_equal(c->model.head_chunk_rows, cases[i].rows);
            assert_int_equal(c->model.fused_gelu, cases[i].fused);
            int n = config_diff(stored, c, &d), ours = 0;
            for (int k = 0; k < n; k++)
                if (strncmp(d[k].key, "model.", 6) == 0) {
                    assert_int_equal(d[k].effect, EFFECT_ROUNDING);
                    ours++;
                }
            assert_int_equal(ours, cases[i].n);
            config_diff_free(d, n);
            config_free(c);
        }
    config_free(stored);
    config_free(run);
    free(kept);
    /* A run that was stored before these keys existed was computed with the values below. */
    stored = parsed(&as_stored, text, NULL);
    const Config *c = settled_on(config_test_parse(text, 0, NULL), 90, 85, stored);
    assert_int_equal(c->model.head_chunk_rows, 0);
    assert_false(c->model.fused_gelu);
    assert_int_equal(c->cuda.attention, ATTENTION_PORTABLE);
    config_free(c);
    config_free(stored);
#undef GPT2
#undef BF16
}

/* A sequence has at least the tokens that are asked for, at most those of the config, and equal
 * parts for tensor-parallel ranks. */
static void config_of_short_sequences_keeps_the_model(void **state)
{
    (void)state;
    static const struct {
        const char *grid;
        int64_t tokens, length;
    } cases[] = {{"{}", 1, 8},
                 {"{}", 16, 16},
                 {"{}", 17, 24},
                 {"{}", 300, 100},
                 {"{}", 99, 100},
                 {"{\"tensor\": 4}", 17, 24},
                 {"{\"tensor\": 4, \"sequence_parallel\": true}", 17, 32},
                 {"{\"tensor\": 4, \"sequence_parallel\": true}", 90, 96},
                 {"{\"tensor\": 4, \"sequence_parallel\": true}", 97, 100}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{\"data\": {\"text\": \"x\", \"seq_length\": 100}, \"train_batch_size\": 12,"
                 " \"parallel\": %s}",
                 cases[i].grid);
        const Config *c = config_test_parse(text, 0, NULL);
        const Config shorter = config_of_short_sequences(c, cases[i].tokens);
        assert_int_equal(shorter.data.seq_length, cases[i].length);
        assert_int_equal(shorter.model.max_position_embeddings, 100);
        config_free(c);
    }
}

/* All ranks together have the sequences of one rank's micro-batch, and each has at least one. */
static void config_of_one_share_divides_a_micro_batch_among_the_ranks(void **state)
{
    (void)state;
    /* Sequences have 14 tokens: four ranks can divide two of them evenly, but not one. */
    static const struct {
        int world;
        const char *grid;
        int64_t rows;
    } cases[] = {{1, "{}", 12},
                 {4, "{}", 3},
                 {5, "{}", 2},
                 {16, "{}", 1},
                 {16, "{\"tensor\": 4, \"sequence_parallel\": true}", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{\"data\": {\"text\": \"x\", \"seq_length\": 14}, \"train_batch_size\": 12,"
                 " \"train_micro_batch_size_per_gpu\": 12, \"parallel\": %s}",
                 cases[i].grid);
        const Config *c = config_test_parse(text, 0, NULL);
        Config micro = config_of_one_micro_batch(c, true);
        int64_t whole = micro.train_batch_size;
        micro.world = cases[i].world;
        const Config share = config_of_one_share(&micro);
        assert_int_equal(share.train_micro_batch_size_per_gpu, cases[i].rows);
        assert_int_equal(share.train_batch_size, whole / 12 * cases[i].rows);
        config_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_settle_takes_the_vocabulary_size_of_the_data_or_refuses_another),
        cmocka_unit_test(config_settle_changes_only_keys_of_the_given_facts),
        cmocka_unit_test(a_tokenizer_trained_on_the_text_may_have_fewer_ids_than_the_model),
        cmocka_unit_test(a_vocabulary_made_smaller_by_the_text_is_not_a_config_change),
        cmocka_unit_test(a_vocabulary_size_given_by_set_replaces_a_contradicting_one_of_the_file),
        cmocka_unit_test(defaults_that_depend_on_the_device_follow_its_generation_and_memory),
        cmocka_unit_test(a_run_keeps_the_defaults_of_its_first_device),
        cmocka_unit_test(config_of_short_sequences_keeps_the_model),
        cmocka_unit_test(config_of_one_share_divides_a_micro_batch_among_the_ranks),
    };
    return cmocka_run_group_tests_name("settle", tests, NULL, NULL);
}
