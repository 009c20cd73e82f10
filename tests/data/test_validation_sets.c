/* test_validation_sets.c -- tests the sets of eval.sets: their tokens, where they are kept, and
 * that the rest of the data does not depend on them. */
#include "data/identity.h"
#include "data/loader.h"
#include "model/core/check.h"
#include "tests/support/files/config_support.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = 16 };

/* A folder, and the path of the text to train on, which is in it. */
typedef struct {
    char *folder, *text;
} Corpus;

static Corpus corpus_new(void)
{
    Corpus p = {.folder = folder_new()};
    char *words = drawn_text(5, 4000);
    p.text = text_file_new(p.folder, "train.txt", words);
    free(words);
    return p;
}

static void corpus_drop(Corpus *p)
{
    folder_drop(p->folder);
    free(p->text);
}

/* Opens the data of a config that trains on the corpus's text. `more`: further keys of the config,
 * such as ", \"eval.sets\": ...". */
static bool open_with(const Corpus *p, const char *more, DataSet *out, char *err, size_t n,
                      ExitCode *code, bool val_only)
{
    char *json = text_format("{\"data\": {\"text\": \"%s\", \"cache\": \"%s/cache\", "
                             "\"tokenizer_vocab_size\": 280, \"seq_length\": %d}, "
                             "\"train_batch_size\": 1%s}",
                             p->text, p->folder, (int)T, more);
    const Config *c = config_test_parse(json, 0, NULL);
    assert_non_null(c);
    bool good = (val_only ? data_open_validation : data_open)(c, out, err, n, code);
    config_free(c);
    free(json);
    return good;
}

static void open_good(const Corpus *p, const char *more, DataSet *out)
{
    char err[1024];
    ExitCode code;
    if (!open_with(p, more, out, err, sizeof err, &code, false)) fail_msg("%s", err);
}

/* Reads all tokens of a set; the caller frees them. */
static int32_t *tokens_of(const TokenSet *set)
{
    char err[512];
    int32_t *ids = must_alloc((size_t)set->n_tokens * sizeof *ids);
    if (!token_set_read(set, 0, set->n_tokens, 280, ids, err, sizeof err)) fail_msg("%s", err);
    return ids;
}

static void test_a_validation_set_has_the_tokens_of_its_text_and_changes_no_other_data(void **state)
{
    (void)state;
    Corpus p = corpus_new();
    char *words = drawn_text(6, 300), *other = text_file_new(p.folder, "other.txt", words);
    char *sets = text_format(", \"eval.sets\": {\"other\": {\"text\": \"%s\"}}", other);
    DataSet plain, with, again;
    open_good(&p, "", &plain);
    open_good(&p, sets, &with);
    assert_int_equal(plain.n_sets, 0);
    assert_null(plain.sets_identity);
    assert_string_equal(plain.identity, with.identity);
    assert_string_equal(plain.title, with.title);
    assert_int_equal(with.n_sets, 1);
    assert_string_equal(with.sets[0].name, "other");
    assert_false(with.sets[0].cached);
    /* Its tokens are those that the run's tokenizer gives, and the end-of-text token. */
    TokenBuffer ids = {0};
    Encoder *encoder = encoder_create(with.tokenizer);
    encoder_encode(encoder, (const uint8_t *)words, (int64_t)strlen(words), &ids);
    token_buffer_add(&ids, tokenizer_end_of_text(with.tokenizer));
    int32_t *got = tokens_of(&with.sets[0].tokens);
    assert_int_equal(with.sets[0].tokens.n_tokens, ids.count);
    assert_memory_equal(got, ids.id, (size_t)ids.count * sizeof *got);
    /* The second time, its tokens are found in the cache, although the set now has another name. */
    free(sets);
    sets = text_format(", \"eval.sets\": {\"o2\": {\"text\": [\"%s\"]}, \"o3\": {\"text\": "
                       "\"%s\"}}",
                       other, p.text);
    open_good(&p, sets, &again);
    assert_true(again.sets[0].cached && !again.sets[1].cached);
    assert_string_equal(again.identity, plain.identity);
    assert_string_not_equal(again.sets_identity, with.sets_identity);
    assert_non_null(strstr(again.sets_identity, "; o3 "));
    assert_memory_equal(strstr(again.sets_identity, "o2 ") + 3,
                        strstr(with.sets_identity, "other ") + 6, strlen(with.sets_identity) - 6);
    data_close(&plain);
    data_close(&with);
    data_close(&again);
    encoder_free(encoder);
    token_buffer_free(&ids);
    free(got);
    free(words);
    free(other);
    free(sets);
    corpus_drop(&p);
}

static void test_a_loader_reads_a_set_of_shards_in_order(void **state)
{
    (void)state;
    Corpus p = corpus_new();
    char *shard = shard_new(p.folder, "set.bin", 280, 5 * T + 3, 7, 280), err[512];
    char *sets = text_format(", \"eval.sets\": {\"a\": {\"shards\": \"%s/s*.bin\"}}", p.folder);
    DataSet d;
    open_good(&p, sets, &d);
    const LoaderOptions options = {.split = SPLIT_VAL,
                                   .tokens = &d.sets[0].tokens,
                                   .B = 2,
                                   .T = T,
                                   .vocab_size = 280,
                                   .dp_size = 1,
                                   .micros = INT64_MAX};
    Loader *l;
    Batch batch;
    if (!loader_create(&l, &d, &options, err, sizeof err)) fail_msg("%s", err);
    assert_int_equal(loader_windows(l), 5);
    assert_int_equal(loader_batches(l), 3);
    int64_t targets = 0;
    for (int64_t micro = 0; micro < 3; micro++) {
        if (!loader_next(l, 0, micro, &batch, err, sizeof err)) fail_msg("%s", err);
        targets += batch.n_targets;
        const int32_t *first = batch.tokens.data;
        assert_int_equal(first[0], (7 + 2 * T * micro) % 280);
    }
    assert_int_equal(targets, 5 * T);
    loader_free(l);
    data_close(&d);
    free(shard);
    free(sets);
    corpus_drop(&p);
}

/* What is wrong with a set, and the exit code. %s is the folder. */
static const struct {
    const char *sets, *sentence;
    ExitCode code;
} wrong[] = {
    {"{\"a\": {\"text\": \"%s/none.txt\"}}", "eval.sets.a: no file matches", EXIT_MISSING},
    {"{\"a\": {\"shards\": \"%s/none_*.bin\"}}", "eval.sets.a: no file matches", EXIT_MISSING},
    {"{\"a\": {\"shards\": \"%s/train.txt\"}}", "train.txt is not a token shard", EXIT_DAMAGED},
    {"{\"a\": {\"shards\": \"%s/few.bin\"}}",
     "eval.sets.a: it has 16 tokens, fewer than the 17 of one window (data.seq_length + 1); give "
     "more tokens",
     EXIT_CONFIG},
    {"{\"a\": {\"text\": \"%s/short.txt\"}}",
     "eval.sets.a: the validation text has 4 tokens, fewer than the 17 of one window "
     "(data.seq_length + 1): give more text in eval.sets.a or a shorter data.seq_length",
     EXIT_CONFIG},
};

static void test_the_error_names_a_validation_set_that_cannot_be_used(void **state)
{
    (void)state;
    Corpus p = corpus_new();
    free(text_file_new(p.folder, "short.txt", "abc"));
    free(shard_new(p.folder, "few.bin", 280, T, 0, 280));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char err[1024] = "", sets[256];
        ExitCode code = EXIT_OK;
        DataSet d;
        char *value = text_format(", \"eval.sets\": %s", wrong[i].sets);
        char *at = strstr(value, "%s");
        snprintf(sets, sizeof sets, "%.*s%s%s", (int)(at - value), value, p.folder, at + 2);
        assert_false(open_with(&p, sets, &d, err, sizeof err, &code, false));
        if (strstr(err, wrong[i].sentence) == NULL)
            fail_msg("\"%s\", want \"%s\" in it", err, wrong[i].sentence);
        assert_int_equal(code, wrong[i].code);
        free(value);
    }
    corpus_drop(&p);
}

/* A run of another program's weights has no text, only a tokenizer. */
static void test_validation_sets_can_be_opened_without_any_other_data(void **state)
{
    (void)state;
    Corpus p = corpus_new();
    DataSet d, sets;
    char err[1024];
    ExitCode code;
    open_good(&p, "", &d);
    for (int k = 0; k < 2; k++) {
        char *json = text_format("{\"data\": {\"cache\": \"%s/cache\", \"tokenizer\": \"%s\", "
                                 "\"seq_length\": %d%s%s%s}, \"train_batch_size\": 1%s%s%s}",
                                 p.folder, d.tokenizer_path, (int)T, k ? ", \"val_text\": \"" : "",
                                 k ? p.text : "", k ? "\"" : "",
                                 k ? "" : ", \"eval.sets\": {\"a\": {\"text\": \"", k ? "" : p.text,
                                 k ? "" : "\"}}");
        ConfigReport report;
        const Config *c = config_parse(&(ConfigContext){.stored = true}, "stored", json,
                                       strlen(json), 0, NULL, &report);
        config_report_free(&report);
        assert_non_null(c);
        if (!data_open_validation(c, &sets, err, sizeof err, &code)) fail_msg("%s", err);
        assert_int_equal(sets.n_sets, k ? 0 : 1);
        assert_int_equal(sets.val.n_files, k ? 1 : 0);
        const TokenSet *tokens = k ? &sets.val : &sets.sets[0].tokens;
        assert_int_equal(tokens->n_tokens, d.preparation.train_tokens + d.preparation.val_tokens);
        data_close(&sets);
        config_free(c);
        free(json);
    }
    data_close(&d);
    corpus_drop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_a_validation_set_has_the_tokens_of_its_text_and_changes_no_other_data),
        cmocka_unit_test(test_a_loader_reads_a_set_of_shards_in_order),
        cmocka_unit_test(test_the_error_names_a_validation_set_that_cannot_be_used),
        cmocka_unit_test(test_validation_sets_can_be_opened_without_any_other_data),
    };
    return cmocka_run_group_tests_name("validation sets", tests, NULL, NULL);
}
