/* test_meeting_files.c -- the file of a meeting, its folder and its name; a user's secret; messages
 * with any bytes in them. */
#include "parallel/meeting/rendezvous.h"

#include "model/core/check.h"
#include "tests/fuzz/fuzz_meeting.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define DIGITS "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define VALID                                                                                      \
    "train.c meeting 1\nsecret " DIGITS "\naddress 10.0.0.1 4711\naddress fd00::1 80\nend\n"

static bool parses(const char *text)
{
    Rendezvous r;
    return rendezvous_parse(&r, text, strlen(text));
}

/* ---- text ------------------------------------------------------------------------------------ */

static void test_only_what_rank_0_writes_is_accepted_as_a_rendezvous_file(void **state)
{
    Rendezvous r;
    char text[RENDEZVOUS_MOST_BYTES];
    (void)state;
    assert_true(rendezvous_parse(&r, VALID, strlen(VALID)));
    assert_int_equal(r.at.count, 2);
    assert_int_equal(r.at.address[0].port, 4711);
    assert_int_equal(r.at.address[1].family, 6);
    for (int i = 0; i < SHA256_BYTES; i++)
        assert_int_equal(r.secret[i], i);
    rendezvous_text(&r, text);
    assert_string_equal(text, VALID);
    static const char *const wrong[] = {
        "",
        "train.c meeting 2\nsecret " DIGITS "\naddress 10.0.0.1 4711\nend\n",
        "train.c meeting 1\nsecret " DIGITS "\nend\n",
        "train.c meeting 1\nsecret " DIGITS "\naddress 10.0.0.1 4711\nend\n\n",
        "train.c meeting 1\nsecret " DIGITS "\naddress 10.0.0.1 04711\nend\n",
        "train.c meeting 1\nsecret " DIGITS "\naddress 10.0.0.1 0\nend\n",
        "train.c meeting 1\nsecret " DIGITS "\naddress 10.0.0.1 65536\nend\n",
        "train.c meeting 1\nsecret " DIGITS "\naddress 10.0.0.256 4711\nend\n",
        "train.c meeting 1\nsecret " DIGITS "\naddress 10.0.0.1  4711\nend\n",
        "train.c meeting 1\nsecret " DIGITS "\naddress fd00:0::1 4711\nend\n",
        "train.c meeting 1\nsecret " DIGITS "\naddress node1 4711\nend\n",
        "train.c meeting 1\nsecret 0" DIGITS "\naddress 10.0.0.1 4711\nend\n",
        "train.c meeting 1\nsecret A" DIGITS "\naddress 10.0.0.1 4711\nend\n",
        "train.c meeting 1\r\nsecret " DIGITS "\naddress 10.0.0.1 4711\nend\n",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (parses(wrong[i])) fail_msg("accepted: %s", wrong[i]);
    /* A truncated file is refused. */
    for (size_t n = 0; n < strlen(VALID); n++)
        assert_false(rendezvous_parse(&r, VALID, n));
    for (int count = 15; count < 19; count++) {
        char *many = text_format("train.c meeting 1\nsecret %s", DIGITS);
        for (int i = 0; i < count; i++) {
            char *more = text_format("%s\naddress 10.0.0.%d 80", many, i);
            free(many);
            many = more;
        }
        char *all = text_format("%s\nend\n", many);
        assert_int_equal(parses(all), count <= NETWORK_MOST_ADDRESSES);
        free(all);
        free(many);
    }
}

static void test_rendezvous_file_names_have_only_plain_characters_and_stay_distinct(void **state)
{
    static const char *const name[][2] = {
        {"slurm-12.0-r1", "slurm-12.0-r1"},
        {"a/b", "a_2fb"},
        {"a_b", "a_5fb"},
        {"../x", "_2e._2fx"},
        {"a b\n", "a_20b_0a"},
        {"\xc3\xa9", "_c3_a9"},
    };
    char file[RENDEZVOUS_NAME_BYTES], other[RENDEZVOUS_NAME_BYTES], longer[4001];
    (void)state;
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        rendezvous_name(name[i][0], file);
        assert_string_equal(file, name[i][1]);
        assert_null(strchr(file, '/'));
        assert_true(file[0] != '.');
    }
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    rendezvous_name(longer, file);
    assert_true(strlen(file) < 140);
    longer[3999] = 'y';
    rendezvous_name(longer, other);
    assert_string_not_equal(file, other);
}

static void test_reading_randomly_changed_messages_never_crashes(void **state)
{
    Bytes b = {0};
    Greeting g = {.rank = 3, .size = 4, .local_rank = -1, .cpu_level = 2, .facts = 2};
    Answer a = {.cpu_level = 1, .parent = 2, .reach = {.family = 6, .port = 7}};
    Verdict v = {EXIT_CONFIG, "rank 3 is odd"};
    TableRank rank[3] = {{0, 0, {4, 80, {10}}}, {0, 1, {4, 81, {10}}}, {1, 0, {6, 80, {1}}}};
    char host[2][MEETING_NAME_BYTES] = {"node1", "node2"};
    Table t = {3, 2, rank, host};
    (void)state;
    snprintf(g.host, sizeof g.host, "node1");
    g.address = rank[0].address;
    g.fact[0] = (GreetingFact){"version", "1"};
    g.fact[1] = (GreetingFact){"config", "12ab"};
    fuzz_replay(fuzz_rendezvous, VALID, strlen(VALID), 1, 20000);
    for (int kind = 0; kind < FUZZ_KINDS; kind++) {
        b.used = 0;
        bytes_put_number(&b, (unsigned)kind, 1);
        if (kind == FUZZ_GREETING || kind == FUZZ_STRANGER) greeting_write(&b, &g);
        if (kind == FUZZ_ANSWER) answer_write(&b, &a);
        if (kind == FUZZ_TABLE) table_write(&b, &t);
        if (kind == FUZZ_VERDICT) verdict_write(&b, &v);
        if (kind == FUZZ_STREAM)
            bytes_put(&b, "\1\0\0\0\5\0\0\0hello\2\0\0\0\0\0\0\0\3\0\0\0\377\377\0\0", 29);
        fuzz_replay(fuzz_meeting, b.data, b.used, 2 + (unsigned)kind, 5000);
    }
    bytes_free(&b);
}

/* ---- files ----------------------------------------------------------------------------------- */

static Rendezvous example(void)
{
    Rendezvous r;
    assert_true(rendezvous_parse(&r, VALID, strlen(VALID)));
    return r;
}

static void assert_state(RendezvousState expected, const char *folder, const char *says)
{
    Rendezvous r;
    ExitCode code;
    char err[1024] = "";
    assert_int_equal(rendezvous_look(&r, folder, "job", &code, err, sizeof err), expected);
    if (strstr(err, says) == NULL) fail_msg("\"%s\"", err);
    if (expected == RENDEZVOUS_REFUSED && !strstr(says, "what rank 0 writes"))
        assert_int_equal(code, EXIT_PERMISSION);
}

static void test_only_the_user_can_access_the_rendezvous_file(void **state)
{
    char *folder = folder_new(), *own = text_format("%s/a/b", folder),
         *file = text_format("%s/job", own), *aside = text_format("%s/other", own), err[1024] = "";
    Rendezvous r = example(), other = example();
    struct stat st;
    ExitCode code;
    (void)state;
    mode_t old = umask(0);
    assert_state(RENDEZVOUS_NOT_THERE, own, "");
    assert_true(rendezvous_publish(&r, own, "job", &code, err, sizeof err));
    umask(old);
    assert_int_equal(stat(own, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(lstat(file, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_state(RENDEZVOUS_READ, own, "");
    /* Another start of the same name replaces the file, and then the first start does not remove
     * it. */
    other.secret[0] = 99;
    assert_true(rendezvous_publish(&other, own, "job", &code, err, sizeof err));
    rendezvous_remove(&r, own, "job");
    assert_int_equal(lstat(file, &st), 0);
    /* The file is refused if other users may read or write it. */
    for (mode_t bit = 01; bit <= 040; bit *= 2) {
        assert_int_equal(chmod(file, 0600 | bit), 0);
        assert_state(RENDEZVOUS_REFUSED, own, "other users may read or change it");
    }
    assert_int_equal(chmod(file, 0600), 0);
    /* A link is refused, even one to a valid file. */
    assert_int_equal(rename(file, aside), 0);
    assert_int_equal(symlink("other", file), 0);
    assert_state(RENDEZVOUS_REFUSED, own, "it is a link");
    /* Rank 0 replaces the link and does not write through it. */
    assert_true(rendezvous_publish(&r, own, "job", &code, err, sizeof err));
    assert_int_equal(lstat(file, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    rendezvous_remove(&r, own, "job");
    assert_state(RENDEZVOUS_NOT_THERE, own, "");
    free(text_file_new(own, "job", "train.c meeting 1\n"));
    assert_int_equal(chmod(file, 0600), 0);
    assert_state(RENDEZVOUS_REFUSED, own, "it is not what rank 0 writes");
    free(file);
    free(aside);
    free(own);
    folder_drop(folder);
}

static void test_a_folder_that_others_control_is_refused(void **state)
{
    char *folder = folder_new(), *own = text_format("%s/own", folder),
         *link = text_format("%s/link", folder), err[1024] = "";
    Rendezvous r = example();
    ExitCode code;
    (void)state;
    assert_true(rendezvous_publish(&r, own, "job", &code, err, sizeof err));
    assert_int_equal(symlink("own", link), 0);
    assert_state(RENDEZVOUS_REFUSED, link, "is a link or no folder");
    assert_false(rendezvous_publish(&r, link, "job", &code, err, sizeof err));
    assert_int_equal(code, EXIT_PERMISSION);
    assert_int_equal(chmod(own, 0770), 0);
    assert_state(RENDEZVOUS_REFUSED, own, "other users may write in it; chmod 700 it");
    assert_false(rendezvous_publish(&r, own, "job", &code, err, sizeof err));
    assert_int_equal(code, EXIT_PERMISSION);
    assert_int_equal(chmod(own, 0755),
                     0); /* other users may list the folder, but not read the file */
    assert_state(RENDEZVOUS_READ, own, "");
    if (geteuid() == 0) {
        assert_int_equal(chown(own, 65534, 65534), 0);
        assert_state(RENDEZVOUS_REFUSED, own, "it belongs to another user");
        assert_int_equal(chown(own, 0, 0), 0);
        char *file = text_format("%s/job", own);
        assert_int_equal(chown(file, 65534, 65534), 0);
        assert_state(RENDEZVOUS_REFUSED, own, "it belongs to another user");
        free(file);
    }
    free(own);
    free(link);
    folder_drop(folder);
}

static void test_only_a_private_secret_of_at_least_16_bytes_is_accepted(void **state)
{
    unsigned char a[SHA256_BYTES], b[SHA256_BYTES];
    char *folder = folder_new(), err[512], *path;
    ExitCode code;
    (void)state;
    assert_false(meeting_secret_text("fifteen bytes..", a, &code, err, sizeof err));
    assert_int_equal(code, EXIT_CONFIG);
    assert_non_null(strstr(err, "TRAIN_SECRET: a secret has at least 16 bytes"));
    assert_true(meeting_secret_text("sixteen bytes...", a, &code, err, sizeof err));
    path = text_file_new(folder, "secret", "sixteen bytes...\n");
    assert_int_equal(chmod(path, 0640), 0);
    assert_false(meeting_secret_file(path, b, &code, err, sizeof err));
    assert_int_equal(code, EXIT_PERMISSION);
    assert_int_equal(chmod(path, 0600), 0);
    assert_true(meeting_secret_file(path, b, &code, err, sizeof err));
    assert_memory_equal(a, b, sizeof a);
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 65534, 65534), 0);
        assert_false(meeting_secret_file(path, b, &code, err, sizeof err));
        assert_int_equal(code, EXIT_PERMISSION);
    }
    free(path);
    path = text_format("%s/none", folder);
    assert_false(meeting_secret_file(path, b, &code, err, sizeof err));
    assert_int_equal(code, EXIT_MISSING);
    assert_false(meeting_secret_file(folder, b, &code, err, sizeof err));
    assert_int_equal(code, EXIT_PERMISSION);
    free(path);
    folder_drop(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_what_rank_0_writes_is_accepted_as_a_rendezvous_file),
        cmocka_unit_test(test_rendezvous_file_names_have_only_plain_characters_and_stay_distinct),
        cmocka_unit_test(test_reading_randomly_changed_messages_never_crashes),
        cmocka_unit_test(test_only_the_user_can_access_the_rendezvous_file),
        cmocka_unit_test(test_a_folder_that_others_control_is_refused),
        cmocka_unit_test(test_only_a_private_secret_of_at_least_16_bytes_is_accepted),
    };
    return cmocka_run_group_tests_name("meeting files", tests, NULL, NULL);
}
