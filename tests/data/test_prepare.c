/* test_prepare.c -- tests preparing a folder of tokens from text, opening a run's data from its
 * config, and the command `./train data`. */
#include "data/dataset.h"
#include "data/loader.h"
#include "model/core/check.h"
#include "model/core/log.h"
#include "tests/support/files/data_support.h"
#include "tests/support/files/prepare_fixture.h"
#include "tests/support/trainer/train_child.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check_sentence(const char *got, const char *part)
{
    if (strstr(got, part) == NULL) fail_msg("\"%s\", want \"%s\" in it", got, part);
}

static void check_open_fails(const PrepareFixture *f, ExitCode want, const char *sentence)
{
    char err[512] = "opened";
    ExitCode code;
    DataSet d;
    assert_false(data_open(&f->config, &d, err, sizeof err, &code));
    check_sentence(err, sentence);
    assert_int_equal(code, want);
}

static int count_folders(const PrepareFixture *f)
{
    char *pattern = text_format("%s/*", f->cache);
    glob_t found;
    int n = glob(pattern, 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
    if (n > 0) globfree(&found);
    free(pattern);
    return n;
}

/* Decodes all tokens of a set. */
static char *text_of(const DataSet *d, const TokenSet *s)
{
    char err[512];
    int32_t *ids = must_alloc((size_t)s->n_tokens * sizeof *ids);
    assert_true(token_set_read(s, 0, s->n_tokens, d->vocab_size, ids, err, sizeof err));
    char *text = tokenizer_decode(d->tokenizer, ids, s->n_tokens, true, NULL);
    free(ids);
    return text;
}

static void test_decoding_prepared_tokens_gives_the_original_text(void **state)
{
    (void)state;
    PrepareFixture f = prepare_fixture_open();
    DataSet d = prepare_fixture_data(&f);
    char *train = text_of(&d, &d.train), *val = text_of(&d, &d.val),
         *both = text_format("%s%s", train, val);
    char *want = text_format("%s<|endoftext|>", f.text);
    assert_string_equal(both, want);
    assert_int_equal(train[strlen(train) - 1], '\n');
    assert_true(d.prepared && !d.preparation.cached);
    assert_int_equal(d.vocab_size, 300);
    assert_int_equal(d.preparation.train_bytes, strlen(train));
    assert_int_equal(d.preparation.train_bytes + d.preparation.val_bytes, strlen(f.text));
    assert_int_equal(d.preparation.train_tokens, d.train.n_tokens);
    assert_in_range(d.preparation.val_bytes, 1, strlen(f.text) / 10);
    check_sentence(d.preparation.folder, "/deep/corpora/My_text-");
    free(train);
    free(val);
    free(both);
    free(want);
    data_close(&d);
    prepare_fixture_close(&f);
}

/* Opens the data and returns whether they were found in the cache. */
static bool was_cached(const PrepareFixture *f)
{
    DataSet d = prepare_fixture_data(f);
    bool cached = d.preparation.cached;
    data_close(&d);
    return cached;
}

static void test_prepared_tokens_are_reused_only_if_nothing_changed(void **state)
{
    (void)state;
    PrepareFixture f = prepare_fixture_open();
    assert_false(was_cached(&f));
    assert_true(was_cached(&f));
    f.config.data.seq_length = 32; /* does not affect the tokens */
    assert_true(was_cached(&f));
    f.config.data.tokenizer_vocab_size = 301;
    assert_false(was_cached(&f));
    f.config.data.val_fraction = 0.2;
    assert_false(was_cached(&f));
    f.text[10] = f.text[10] == 'x'
                     ? 'y'
                     : 'x'; /* the size stays the same, and the modification time may, too */
    free(text_file_new(f.folder, "My text.txt", f.text));
    assert_false(was_cached(&f));
    assert_true(was_cached(&f));
    char *val = text_file_new(f.folder, "val.txt", f.text);
    f.config.data.val_text = (StringList){1, &val};
    assert_false(was_cached(&f));
    f.config.data.val_fraction = 0.3; /* has no effect together with data.val_text */
    assert_true(was_cached(&f));
    DataSet d = prepare_fixture_data(&f);
    /* The same tokenizer, given instead of trained, gives the same tokens. */
    f.config.data.tokenizer = d.tokenizer_path;
    assert_true(was_cached(&f));
    assert_int_equal(count_folders(&f), 5);
    data_close(&d);
    /* If vocab_size is exactly the size that a tokenizer reached under a limit, the tokens of that
     * tokenizer are found. The reverse is not the case. */
    f.config.data.tokenizer = NULL;
    f.config.data.tokenizer_vocab_at_most = true;
    assert_false(was_cached(&f));
    f.config.data.tokenizer_vocab_size = 9000;
    assert_false(was_cached(&f));
    d = prepare_fixture_data(&f);
    f.config.data.tokenizer_vocab_at_most = false;
    f.config.data.tokenizer_vocab_size = d.vocab_size;
    assert_true(d.vocab_size < 9000 && was_cached(&f));
    data_close(&d);
    f.config.data.tokenizer_vocab_size--;
    assert_false(was_cached(&f));
    free(val);
    prepare_fixture_close(&f);
}

/* The tokenizer must not be trained on the validation text. */
static void test_the_tokenizer_is_trained_on_the_training_part_only(void **state)
{
    (void)state;
    PrepareFixture f = prepare_fixture_open();
    char *changed = must_strdup(f.text);
    memset(changed + strlen(changed) - 200, 'q', 199);
    DataSet first = prepare_fixture_data(&f);
    free(text_file_new(f.folder, "My text.txt", changed));
    DataSet second = prepare_fixture_data(&f);
    assert_false(second.preparation.cached);
    assert_true(first.preparation.tokenizer_hash == second.preparation.tokenizer_hash);
    data_close(&first);
    data_close(&second);
    free(changed);
    prepare_fixture_close(&f);
}

static void test_a_damaged_prepared_folder_is_refused(void **state)
{
    (void)state;
    static const char *const file[] = {"train_000000.bin", "val_000000.bin", "tokenizer.json",
                                       "meta.json"};
    for (int i = 0; i < 4; i++) {
        PrepareFixture f = prepare_fixture_open();
        DataSet d = prepare_fixture_data(&f);
        char *path = text_format("%s/%s", d.preparation.folder, file[i]);
        data_close(&d);
        assert_int_equal(truncate(path, 200), 0);
        check_open_fails(&f, EXIT_DAMAGED, "remove that folder and start again");
        unlink(path);
        check_open_fails(&f, EXIT_DAMAGED, "is damaged");
        free(path);
        prepare_fixture_close(&f);
    }
}

static void *open_in_thread(void *fixture)
{
    DataSet *d = must_alloc(sizeof *d);
    *d = prepare_fixture_data(fixture);
    return d;
}

static void test_threads_preparing_the_same_text_share_one_folder(void **state)
{
    (void)state;
    enum { N = 4 };
    PrepareFixture f = prepare_fixture_open();
    pthread_t thread[N];
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, open_in_thread, &f), 0);
    for (int i = 0; i < N; i++) {
        void *result;
        pthread_join(thread[i], &result);
        DataSet *d = result;
        assert_int_equal(d->vocab_size, 300);
        data_close(d);
        free(d);
    }
    assert_int_equal(count_folders(&f), 1); /* no temporary folder is left */
    prepare_fixture_close(&f);
}

static void test_opening_bad_data_gives_an_error_message_and_exit_code(void **state)
{
    (void)state;
    PrepareFixture f = prepare_fixture_open();
    char *missing = "no/such.txt",
         *short_text = text_file_new(f.folder, "short.txt", "a few words only, of words\n");
    double fraction = f.config.data.val_fraction;
    f.config.data.val_fraction = 1e-9;
    check_open_fails(&f, EXIT_CONFIG, "My text.txt: the validation text has");
    check_open_fails(&f, EXIT_CONFIG, "write --set data.val_fraction=0.0");
    f.config.data.val_fraction = fraction;
    f.config.data.text.item = &missing;
    check_open_fails(&f, EXIT_MISSING, "no file matches no/such.txt");
    f.config.data.text.item = &short_text;
    check_open_fails(&f, EXIT_CONFIG,
                     "short.txt: a tokenizer cannot be trained: the text has pairs");
    check_open_fails(&f, EXIT_CONFIG, "; write --set data.tokenizer_vocab_size=2");
    /* As an upper limit, the same size gives a smaller tokenizer. The folder made for it is not
     * used for the exact size. */
    f.config.data.tokenizer_vocab_at_most = true;
    check_open_fails(&f, EXIT_CONFIG, "short.txt: the training text has 16 tokens");
    f.config.data.tokenizer_vocab_at_most = false;
    check_open_fails(&f, EXIT_CONFIG, "a tokenizer cannot be trained");
    f.config.data.tokenizer_vocab_size = 258;
    check_open_fails(&f, EXIT_CONFIG, "short.txt: the validation text has");
    check_open_fails(&f, EXIT_CONFIG, "fewer than the 17 of one window (data.seq_length + 1)");
    f.config.data.seq_length = 4;
    f.config.data.val_fraction = 0;
    DataSet d = prepare_fixture_data(&f);
    assert_int_equal(d.val.n_files, 0);
    data_close(&d);
    f.config.data.tokenizer = "no/tokenizer.json";
    check_open_fails(&f, EXIT_MISSING, "no/tokenizer.json cannot be opened");
    f.config.data.tokenizer = short_text;
    check_open_fails(&f, EXIT_DAMAGED, "not a merge");
    f.config.data.tokenizer = NULL;
    f.config.data.cache = short_text; /* a file where a folder must be created */
    check_open_fails(&f, EXIT_CANNOT_CREATE, "");
    f.config.data.text.count = 0;
    check_open_fails(&f, EXIT_MISSING, "no training data is named");
    free(short_text);
    prepare_fixture_close(&f);
}

static void test_shards_use_the_tokenizer_json_next_to_them(void **state)
{
    (void)state;
    PrepareFixture f = prepare_fixture_open();
    DataSet d = prepare_fixture_data(&f);
    char *train = text_format("%s/train_*.bin", d.preparation.folder),
         *other = d.preparation.folder;
    f.config.data.train = (StringList){1, &train};
    DataSet again = prepare_fixture_data(&f);
    assert_false(again.prepared);
    assert_int_equal(again.vocab_size, 300);
    assert_int_equal(again.train.n_tokens, d.train.n_tokens);
    assert_int_equal(again.val.n_files, 0);
    char *moved = text_format("%s/tokenizer.json", other), *away = text_format("%s/t.json", other);
    assert_int_equal(rename(moved, away), 0);
    data_close(&again);
    again = prepare_fixture_data(&f);
    assert_null(again.tokenizer);
    assert_int_equal(again.vocab_size, 0);
    data_close(&again);
    free(moved);
    free(away);
    free(train);
    data_close(&d);
    prepare_fixture_close(&f);
}

/* The bytes of the targets of all validation windows are those of all tokens except the first one
 * and the tokens that no window uses. */
static void test_target_bytes_add_up_to_the_validation_text(void **state)
{
    (void)state;
    char err[512];
    PrepareFixture f = prepare_fixture_open();
    DataSet d = prepare_fixture_data(&f);
    Loader *l;
    LoaderOptions o = {
        .split = SPLIT_VAL, .B = 3, .T = 16, .vocab_size = 300, .dp_size = 1, .micros = 1};
    int64_t bytes = 0, targets = 0, want = 0;
    assert_true(loader_create(&l, &d, &o, err, sizeof err));
    for (int64_t k = 0; k < loader_batches(l); k++) {
        Batch b;
        assert_true(loader_next(l, 3 * k, 0, &b, err, sizeof err));
        bytes += b.target_bytes;
        targets += b.n_targets;
    }
    int32_t *ids = must_alloc((size_t)d.val.n_tokens * sizeof *ids);
    assert_true(token_set_read(&d.val, 0, d.val.n_tokens, 300, ids, err, sizeof err));
    for (int64_t i = 1; i < d.val.n_tokens - loader_dropped_tokens(l); i++)
        want += tokenizer_token_bytes(d.tokenizer)[ids[i]];
    assert_int_equal(bytes, want);
    assert_int_equal(targets, loader_windows(l) * 16);
    free(ids);
    loader_free(l);
    data_close(&d);
    prepare_fixture_close(&f);
}

/* Runs `./train data` and returns its exit code. */
static int run_command(const char *const *args)
{
    const char *arguments[16] = {"data"};
    for (size_t i = 0; args[i] && i < 14; i++)
        arguments[i + 1] = args[i];
    ChildResult r = train_in_child(&(ChildPlace){0}, arguments);
    free(r.text);
    return r.code;
}

#define RUN(...) run_command((const char *const[]){__VA_ARGS__, NULL})

static void test_data_commands_exit_with_the_documented_codes(void **state)
{
    (void)state;
    PrepareFixture f = prepare_fixture_open();
    char *tok = text_format("%s/tok.json", f.folder), *out = text_format("%s/shards", f.folder);
    char *shard = text_format("%s/train_000000.bin", out),
         *nowhere = text_format("%s/no/tok.json", f.folder),
         *below_a_file = text_format("%s/tok.json", f.text_path);
    assert_int_equal(RUN("--help"), EXIT_OK);
    assert_int_equal(RUN("train-bpe", "--help"), EXIT_OK);
    assert_int_equal(RUN("train"), EXIT_USAGE);
    assert_int_equal(RUN("train-bpe", "--vocab", "x", "--out", tok, f.text_path), EXIT_USAGE);
    assert_int_equal(RUN("train-bpe", "--vocab", "300", f.text_path), EXIT_USAGE);
    assert_int_equal(RUN("train-bpe", "--vocab", "300", "--out", tok), EXIT_USAGE);
    assert_int_equal(RUN("train-bpe", "--from", "3", "--vocab", "300", "--out", tok, f.text_path),
                     EXIT_USAGE);
    assert_int_equal(RUN("train-bpe", "--vocab", "300", "--out", below_a_file, f.text_path),
                     EXIT_CANNOT_CREATE);
    assert_int_equal(RUN("train-bpe", "--vocab=300", "--out", tok, "no.txt"), EXIT_MISSING);
    assert_int_equal(RUN("train-bpe", "--vocab=300", "--out", tok, f.text_path), EXIT_OK);
    assert_int_equal(RUN("tokenize", "--tokenizer", nowhere, "--out", out, f.text_path),
                     EXIT_MISSING);
    assert_int_equal(RUN("tokenize", "--tokenizer", tok, "--out", out, f.text_path), EXIT_OK);
    assert_int_equal(RUN("tokenize", "--tokenizer", tok, "--out", out, f.text_path),
                     EXIT_CANNOT_CREATE);
    assert_int_equal(RUN("inspect", shard), EXIT_OK);
    assert_int_equal(RUN("inspect", "--vocab", "100", shard), EXIT_DAMAGED);
    assert_int_equal(RUN("inspect", f.text_path), EXIT_DAMAGED);
    assert_int_equal(RUN("inspect", "--verify", shard), EXIT_OK);
    char *copy = text_format("%s/copy.bin", out);
    assert_int_equal(link(shard, copy), 0);
    assert_int_equal(RUN("inspect", "--verify", shard, copy), EXIT_MISSING);
    assert_int_equal(RUN("inspect", copy), EXIT_OK);
    flip_bit(shard, 1024 + 30);
    assert_int_equal(RUN("inspect", shard), EXIT_OK);
    assert_int_equal(RUN("inspect", "--verify", shard), EXIT_DAMAGED);
    flip_bit(shard, 1024 + 30);
    free(copy);
    assert_int_equal(RUN("decode", "--count", "5", shard), EXIT_OK);
    assert_int_equal(RUN("decode", "--from", "-5", shard), EXIT_USAGE);
    assert_int_equal(RUN("decode", "--tokenizer", nowhere, shard), EXIT_MISSING);
    free(tok);
    free(out);
    free(shard);
    free(below_a_file);
    free(nowhere);
    prepare_fixture_close(&f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_decoding_prepared_tokens_gives_the_original_text),
    cmocka_unit_test(test_prepared_tokens_are_reused_only_if_nothing_changed),
    cmocka_unit_test(test_the_tokenizer_is_trained_on_the_training_part_only),
    cmocka_unit_test(test_a_damaged_prepared_folder_is_refused),
    cmocka_unit_test(test_threads_preparing_the_same_text_share_one_folder),
    cmocka_unit_test(test_opening_bad_data_gives_an_error_message_and_exit_code),
    cmocka_unit_test(test_shards_use_the_tokenizer_json_next_to_them),
    cmocka_unit_test(test_target_bytes_add_up_to_the_validation_text),
    cmocka_unit_test(test_data_commands_exit_with_the_documented_codes),
};

int main(void)
{
    /* Without messages, preparing a text starts no thread that shows its progress: under
     * ThreadSanitizer, children of a process with several threads cannot start threads. */
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests_name("prepared data", tests, NULL, NULL);
}
