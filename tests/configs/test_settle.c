/* test_settle.c -- tests config_settle, which adds the facts that are known only when a command
 * starts, and the two vocabulary sizes: the model's and that of a tokenizer trained on the text. */
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void config_settle_takes_the_vocabulary_of_the_data_or_refuses(void **state)
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
    assert_string_equal(err, "c.json:2: model.vocab_size: 500, but t.json has 1024 tokens; write "
                             "1024, or leave the key out");
    config_free(c);
}

static void config_settle_changes_only_the_given_facts(void **state)
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
    assert_string_equal(err, "c.json:2: model.vocab_size: 50257, but t.json has 900 tokens; write "
                             "900, or leave the key out");
    config_free(c);
}

/* A run's stored config has the vocabulary that a small text gave. The config that the run was
 * started with allows that vocabulary, so the two do not differ in it. */
static void a_vocabulary_that_a_text_has_lowered_is_no_difference(void **state)
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
    /* Two runs, and two configs that were not run, have the sizes that they say. */
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

/* Where the two vocabulary sizes contradict each other, --set replaces the file's. */
static void a_set_vocabulary_replaces_a_contradicting_one_of_the_file(void **state)
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

/* All ranks together have the sequences of one rank's micro-batch, and each has at least one. */
static void config_of_one_share_divides_a_micro_batch_among_the_ranks(void **state)
{
    (void)state;
    /* Of 14 tokens, four ranks get equal parts of two sequences, but not of one. */
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
        cmocka_unit_test(config_settle_takes_the_vocabulary_of_the_data_or_refuses),
        cmocka_unit_test(config_settle_changes_only_the_given_facts),
        cmocka_unit_test(a_tokenizer_trained_on_the_text_may_have_fewer_ids_than_the_model),
        cmocka_unit_test(a_vocabulary_that_a_text_has_lowered_is_no_difference),
        cmocka_unit_test(a_set_vocabulary_replaces_a_contradicting_one_of_the_file),
        cmocka_unit_test(config_of_one_share_divides_a_micro_batch_among_the_ranks),
    };
    return cmocka_run_group_tests_name("settle", tests, NULL, NULL);
}
