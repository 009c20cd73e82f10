/* test_prepared_files.c -- tests the files of prepared text: their modes, temporary names,
 * checksums, meta.json and progress lines. */
#include "data/identity.h"
#include "data/text/meta.h"
#include "data/text/prepare.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/fs.h"
#include "model/core/progress.h"
#include "tests/support/files/data_support.h"
#include "tests/support/files/prepare_fixture.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void check_sentence(const char *got, const char *part)
{
    if (strstr(got, part) == NULL) fail_msg("\"%s\", want \"%s\" in it", got, part);
}

static void check_mode(const char *path, mode_t want)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    if ((st.st_mode & 0777) != want) fail_msg("%s: %o, want %o", path, st.st_mode & 0777, want);
}

static void test_prepared_files_follow_the_umask(void **state)
{
    (void)state;
    static const char *const file[] = {"train_000000.bin", "val_000000.bin", "tokenizer.json",
                                       "meta.json"};
    static const mode_t mask[] = {0027, 0000, 0077};
    for (int k = 0; k < 3; k++) {
        mode_t before = umask(mask[k]);
        PrepareFixture f = prepare_fixture_open();
        DataSet d = prepare_fixture_data(&f);
        umask(before);
        check_mode(d.preparation.folder, 0777 & ~mask[k]);
        for (int i = 0; i < 4; i++) {
            char *path = text_format("%s/%s", d.preparation.folder, file[i]);
            check_mode(path, 0666 & ~mask[k]);
            free(path);
        }
        data_close(&d);
        prepare_fixture_close(&f);
    }
}

/* A killed run may have left files under the first temporary names. */
static void test_leftover_temporary_files_do_not_block_new_ones(void **state)
{
    (void)state;
    char *folder = folder_new(), *path = text_format("%s/a", folder), err[256], name[3][200];
    for (int i = 0; i < 3; i++) {
        snprintf(name[i], sizeof name[i], "%s.tmp-%ld-%d", path, (long)getpid(), i);
        free(text_file_new("", name[i] + 1, "mine"));
    }
    AtomicFile f;
    if (!atomic_file_open(&f, &fs_system, path, err, sizeof err)) fail_msg("%s", err);
    assert_true(atomic_file_write(&f, "new", 3, err, sizeof err));
    assert_true(atomic_file_commit(&f, err, sizeof err));
    char *made = temporary_folder(&fs_system, path, err, sizeof err), *text;
    size_t size;
    assert_non_null(made);
    assert_int_equal(rmdir(made), 0);
    for (int i = 0; i < 3; i++) {
        assert_true(file_read(name[i], &text, &size, NULL, err, sizeof err));
        assert_string_equal(text, "mine");
        free(text);
    }
    free(made);
    free(path);
    folder_drop(folder);
}

/* Returns the identity computed from every byte, without known checksums. */
static char *identity_from_bytes(DataSet *d)
{
    char err[512];
    uint64_t train = d->preparation.train_checksum, val = d->preparation.val_checksum;
    d->preparation.train_checksum = d->preparation.val_checksum = 0;
    char *identity = data_identity(d, err, sizeof err);
    d->preparation.train_checksum = train;
    d->preparation.val_checksum = val;
    if (identity == NULL) fail_msg("%s", err);
    return identity;
}

/* Old checkpoints store identities that were computed from every byte, so checksums must give the
 * same identity. */
static void test_stored_checksums_give_the_same_identity_as_reading_all_bytes(void **state)
{
    (void)state;
    char err[512];
    bool known;
    PrepareFixture f = prepare_fixture_open();
    DataSet d = prepare_fixture_data(&f);
    assert_true(d.preparation.train_checksum != 0 && d.preparation.val_checksum != 0);
    char *bytes = identity_from_bytes(&d), *shard = d.train.file[0].path;
    assert_string_equal(d.identity, bytes);
    if (!meta_verify(shard, &known, err, sizeof err)) fail_msg("%s", err);
    flip_bit(shard, 1024 + 20);
    assert_false(meta_verify(shard, &known, err, sizeof err));
    assert_true(known);
    check_sentence(err, "train_000000.bin is not what was written: its checksum is ");
    if (!meta_verify(d.val.file[0].path, &known, err, sizeof err)) fail_msg("%s", err);
    DataSet again =
        prepare_fixture_data(&f); /* sizes and stored checksums are unchanged, so no byte is read */
    assert_string_equal(again.identity, bytes);
    char *changed = identity_from_bytes(&again);
    assert_string_not_equal(changed, bytes);
    data_close(&again);
    data_close(&d);
    free(bytes);
    free(changed);
    prepare_fixture_close(&f);
}

/* Folders written before checksums were introduced must still be readable. */
static void test_a_meta_json_without_checksums_can_be_read(void **state)
{
    (void)state;
    char err[512], *text;
    size_t size;
    bool known;
    PrepareFixture f = prepare_fixture_open();
    DataSet d = prepare_fixture_data(&f);
    char *was = must_strdup(d.identity), *path = text_format("%s/meta.json", d.preparation.folder);
    assert_true(file_read(path, &text, &size, NULL, err, sizeof err));
    for (char *at; (at = strstr(text, ", \"checksums\"")) != NULL;)
        memmove(at, strchr(at, ']') + 1, strlen(strchr(at, ']') + 1) + 1);
    data_close(&d);
    free(text_file_new("", path + 1, text));
    d = prepare_fixture_data(&f);
    assert_true(d.preparation.cached && d.preparation.train_checksum == 0);
    assert_string_equal(d.identity, was);
    assert_false(meta_verify(d.train.file[0].path, &known, err, sizeof err));
    assert_false(known);
    check_sentence(err, "train_000000.bin has no checksum in ");
    data_close(&d);
    free(text);
    free(path);
    free(was);
    prepare_fixture_close(&f);
}

/* ---- progress -------------------------------------------------------------------------------- */

/* Prepares the text with every progress line printed; sets *said to what appears on stdout, which
 * the caller frees. */
static void said_while_preparing(const PrepareRequest *request, char **said)
{
    char err[512], *path = text_format("%s/said", request->cache);
    size_t size;
    ExitCode code;
    Preparation p;
    Progress always = {0};
    PrepareRequest r = *request;
    r.progress = &always;
    assert_true(fs_make_folders(&fs_system, r.cache, err, sizeof err));
    fflush(stdout);
    int out = dup(STDOUT_FILENO), to = open(path, O_WRONLY | O_CREAT, 0600);
    dup2(to, STDOUT_FILENO);
    bool good = prepare_text(&r, &p, err, sizeof err, &code);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    close(out);
    close(to);
    if (!good) fail_msg("%s", err);
    preparation_free(&p);
    if (!file_read(path, said, &size, NULL, err, sizeof err)) fail_msg("%s", err);
    free(path);
}

/* Reads the lines that begin with `begin` and have a percentage after `before`, which must not
 * decrease. Returns the last percentage, and in *n how many different ones there were. */
static int shares(const char *said, const char *begin, const char *before, int *n)
{
    int last = -1;
    *n = 0;
    for (const char *line = said; *line; line = strchr(line, '\n') + 1) {
        const char *at = strstr(line, before);
        if (strncmp(line, begin, strlen(begin)) != 0) continue;
        if (at == NULL || at > strchr(line, '\n')) fail_msg("no \"%s\" in %.80s", before, line);
        int share = atoi(at + strlen(before));
        if (share < last || share > 100) fail_msg("%d after %d %%", share, last);
        *n += share != last;
        last = share;
    }
    return last;
}

/* The shards must contain the ids of the whole text, although it was encoded in pieces. */
static void check_tokens(const PrepareRequest *r, int64_t train)
{
    char err[512];
    ExitCode code;
    Preparation p;
    Tokenizer *t;
    TokenSet s;
    TokenBuffer want = {0};
    if (!prepare_text(r, &p, err, sizeof err, &code)) fail_msg("%s", err);
    char *path = split_shard_path(p.folder, SPLIT_TRAIN, 0);
    assert_true(tokenizer_load(p.tokenizer, &t, NULL, err, sizeof err));
    assert_true(token_set_open(&s, &(StringList){1, &path}, err, sizeof err));
    Encoder *e = encoder_create(t);
    encoder_encode(e, r->text->bytes, train, &want);
    int32_t *ids = must_alloc((size_t)s.n_tokens * sizeof *ids);
    assert_int_equal(s.n_tokens, want.count);
    assert_true(token_set_read(&s, 0, s.n_tokens, 300, ids, err, sizeof err));
    assert_memory_equal(ids, want.id, (size_t)want.count * sizeof *ids);
    free(ids);
    encoder_free(e);
    token_buffer_free(&want);
    token_set_close(&s);
    tokenizer_free(t);
    free(path);
    preparation_free(&p);
}

static void test_preparing_prints_progress_for_each_piece_and_merge(void **state)
{
    (void)state;
    PrepareFixture f = prepare_fixture_open();
    char *long_text = drawn_text(62, 150000), err[512];
    Text whole = {0};
    assert_true(
        text_add_file(&whole, "a.txt", long_text, strlen(long_text), NULL, err, sizeof err));
    PrepareRequest r = {.fs = &fs_system,
                        .name = "a",
                        .cache = f.cache,
                        .text = &whole,
                        .vocab_size = 300,
                        .val_fraction = 0.5};
    char *said = NULL, begin[80];
    said_while_preparing(&r, &said);
    int64_t train = text_split(&whole, 0.5);
    int n;
    snprintf(begin, sizeof begin, "  tokenizer: words of %.1f MB of text, ", 1e-6 * (double)train);
    assert_in_range(shares(said, begin, "text, ", &n), 50, 99);
    assert_int_equal(n, (train + (1 << 18) - 1) >> 18); /* one line per piece */
    snprintf(begin, sizeof begin, "  tokenizer: 300 ids from %.1f MB of text, ",
             1e-6 * (double)train);
    /* the line before the last of 43 merges */
    assert_int_equal(shares(said, begin, "text, ", &n), 97);
    assert_int_equal(n, 43);
    char *encoding = strstr(said, "  tokenizing: "),
         *val = strstr(encoding + 1, "  tokenizing: 0 %");
    assert_non_null(val); /* the second split starts at 0 % again */
    *val = 0;
    snprintf(begin, sizeof begin, " %% of %.1f MB of text, ", 1e-6 * (double)train); /* the time */
    assert_in_range(shares(encoding, "  tokenizing: ", "tokenizing: ", &n), 50, 99);
    assert_int_equal(n, (train + (1 << 18) - 1) >> 18);
    check_sentence(encoding, begin);
    check_tokens(&r, train);
    free(said);
    free(long_text);
    text_free(&whole);
    prepare_fixture_close(&f);
}

static void test_a_mutated_meta_json_is_accepted_or_refused_without_a_crash(void **state)
{
    (void)state;
    char err[512], *contents;
    size_t size;
    const char *path = "tests/fuzz/corpus/meta/two_shards.json";
    if (!file_read(path, &contents, &size, NULL, err, sizeof err)) fail_msg("%s", err);
    Meta m;
    assert_true(meta_parse(&m, contents, size));
    assert_int_equal(m.split[SPLIT_TRAIN].shards, 2);
    assert_true(m.checksum[SPLIT_TRAIN][1] == 0x23c40d2765aec106);
    meta_free(&m);
    fuzz_replay(fuzz_meta, contents, size, 51, 3000);
    free(contents);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_prepared_files_follow_the_umask),
    cmocka_unit_test(test_leftover_temporary_files_do_not_block_new_ones),
    cmocka_unit_test(test_stored_checksums_give_the_same_identity_as_reading_all_bytes),
    cmocka_unit_test(test_a_meta_json_without_checksums_can_be_read),
    cmocka_unit_test(test_preparing_prints_progress_for_each_piece_and_merge),
    cmocka_unit_test(test_a_mutated_meta_json_is_accepted_or_refused_without_a_crash),
};

int main(void)
{
    return cmocka_run_group_tests_name("prepared files", tests, NULL, NULL);
}
