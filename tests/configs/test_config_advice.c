/* test_config_advice.c -- tests that a config is accepted once the advice of its error message is
 * followed. Many grids of a few models on many numbers of ranks are tried, and every suggestion in
 * an error is followed. */
#include "configs/config.h"
#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* A requested grid; 0: the key is not given. */
typedef struct {
    long long heads, layers, world, size[4];
    int schedule; /* index into schedule_name */
} Asked;
static const char *const size_name[] = {"tensor", "pipeline", "pipeline_chunks", "data"};
static const char *const schedule_name[] = {NULL, "gpipe", "1f1b", "interleaved"};
enum { DATA = 3, N_SIZES = 4, N_SCHEDULES = 4 };

static const Config *ask(const Asked *asked, ConfigReport *report)
{
    char sizes[256] = "\"_\": 0";
    for (int i = 0; i < N_SIZES; i++)
        if (asked->size[i] > 0)
            snprintf(sizes + strlen(sizes), sizeof sizes - strlen(sizes), ", \"%s\": %lld",
                     size_name[i], asked->size[i]);
    if (asked->schedule > 0)
        snprintf(sizes + strlen(sizes), sizeof sizes - strlen(sizes), ", \"schedule\": \"%s\"",
                 schedule_name[asked->schedule]);
    char *text = text_format(
        "{\"data\": {\"text\": \"x\"}, \"train_micro_batch_size_per_gpu\": 4, \"model\": "
        "{\"num_layers\": %lld, \"hidden_size\": %lld, \"num_attention_heads\": %lld}, "
        "\"parallel\": {%s}}",
        asked->layers, asked->heads > 48 ? asked->heads : 48, asked->heads, sizes);
    const ConfigContext context = {.world = asked->world};
    const Config *c = config_parse(&context, "c.json", text, strlen(text), 0, NULL, report);
    free(text);
    return c;
}

/* Returns the address of the number that a name in the advice refers to. Advice without a name
 * refers to the key that the error is about. */
static long long *named(Asked *asked, const char *name, const char *said)
{
    if (strcmp(name, "--ranks") == 0) return &asked->world;
    if (*name == '\0') name = strstr(said, "parallel.") + strlen("parallel.");
    for (int i = 0; i < N_SIZES; i++)
        if (strspn(name, "abcdefghijklmnopqrstuvwxyz_") == strlen(size_name[i]) &&
            strncmp(name, size_name[i], strlen(size_name[i])) == 0)
            return &asked->size[i];
    fail_msg("not understood: %s", said);
    return NULL;
}

/* Reads "[NAME ]A[ or B]" at *at and moves *at past it; returns the number of values read. */
static int read_values(const char **at, char name[32], long long value[2])
{
    name[0] = '\0';
    if (sscanf(*at, "%31[a-z_-] ", name) == 1) *at += strlen(name) + 1;
    int values = sscanf(*at, "%lld or %lld", &value[0], &value[1]);
    for (int i = 0; i < values; i++) {
        *at += strcspn(*at, "0123456789");
        *at += strspn(*at, "0123456789");
    }
    return values;
}

/* Reads "[schedule ]NAME" at *at and moves past it; NAME is in quotes. Returns the schedule's
 * number, or 0 if there is none. */
static int read_schedule(const char **at)
{
    const char *name = *at;
    if (strncmp(name, "schedule ", 9) == 0) name += 9;
    for (int i = 1; i < N_SCHEDULES; i++) {
        size_t n = strlen(schedule_name[i]);
        if (*name != '"' || strncmp(name + 1, schedule_name[i], n) != 0 || name[n + 1] != '"')
            continue;
        *at = name + n + 2;
        return i;
    }
    return 0;
}

/* Carries out the n-th suggestion of the error message; returns false if it has no more
 * suggestions. */
static bool follow(const char *said, int n, Asked *asked)
{
    const char *at = strstr(said, "; write ");
    if (at == NULL) fail_msg("no advice: %s", said);
    at += strlen("; write ");
    for (;;) {
        char name[32];
        long long value[2] = {0};
        if (strncmp(at, "leave the key out", 17) == 0) {
            if (n == 0) asked->size[DATA] = 0;
            return n == 0;
        }
        int schedule = read_schedule(&at), values = schedule ? 1 : read_values(&at, name, value);
        if (values < 1) fail_msg("not understood: %s", said);
        bool this = n < values;
        if (this && schedule)
            asked->schedule = schedule;
        else if (this)
            *named(asked, name, said) = value[n];
        if (strncmp(at, " and ", 5) == 0) { /* " and " joins changes that belong together */
            at += 5;
            continue;
        }
        if (this && strcmp(at, " without parallel.data") == 0) asked->size[DATA] = 0;
        if (this) return true;
        n -= values;
        at = strstr(at, ", or ");
        if (at == NULL) return false;
        at += strlen(", or ");
    }
}

/* Follows every suggestion of every error, together with the first suggestion of the other errors,
 * and checks that the config is then accepted. Returns the number of suggestions followed. */
static int follow_all(const Asked *asked)
{
    ConfigReport report, after;
    const Config *c = ask(asked, &report);
    int followed = 0;
    /* The advice must not ask for more ranks than --ranks accepts, unless `world` is above that
     * already. */
    long long most = asked->world > CONFIG_OWN_RANKS ? CONFIG_MAX_RANKS : CONFIG_OWN_RANKS;
    for (int e = 0; e < report.n_errors; e++) {
        for (int n = 0;; n++, followed++) {
            Asked mended = *asked;
            for (int other = 0; other < report.n_errors; other++)
                if (other != e) follow(report.error[other], 0, &mended);
            if (!follow(report.error[e], n, &mended)) break;
            const Config *good_now = ask(&mended, &after);
            if (mended.world > most || good_now == NULL)
                fail_msg("%lld heads, %lld layers, %lld ranks: %s\nis followed on %lld by: %s",
                         asked->heads, asked->layers, asked->world, report.error[e], mended.world,
                         good_now ? "accepted" : after.error[0]);
            config_report_free(&after);
            config_free(good_now);
        }
    }
    config_report_free(&report);
    config_free(c);
    return followed;
}

static void a_refused_grid_is_accepted_once_its_advice_is_followed(void **state)
{
    (void)state;
    static const long long worlds[] = {0, 1, 3, 4, 8, 62, 64},
                           models[][2] = {{4, 3}, {12, 8}, {6, 2}}, tensor[] = {1, 2, 3, 4, 5, 24},
                           stages[] = {1, 2, 3, 5, 8, 33}, data[] = {0, 2, 40};
    enum { WORLDS = 7, MODELS = 3, TENSORS = 6, STAGES = 6, CHUNKS = 3, DATAS = 3 };
    int followed = 0, all = WORLDS * MODELS * TENSORS * STAGES * CHUNKS * DATAS;
    for (int i = 0; i < all; i += getenv("TEST_SAMPLE") ? 5 : 1) {
        int rest = i;
        Asked asked = {.world = worlds[rest % WORLDS]};
        rest /= WORLDS;
        asked.heads = models[rest % MODELS][0];
        asked.layers = models[rest % MODELS][1];
        rest /= MODELS;
        asked.size[0] = tensor[rest % TENSORS];
        rest /= TENSORS;
        asked.size[1] = stages[rest % STAGES];
        rest /= STAGES;
        asked.size[2] = 1 + rest % CHUNKS;
        asked.size[DATA] = data[rest / CHUNKS];
        /* vary the schedule, since testing all of them would take long */
        asked.schedule = (i + i / WORLDS) % N_SCHEDULES;
        followed += follow_all(&asked);
    }
    print_message("  %d pieces of advice followed\n", followed);
    assert_true(followed > all / 4);
}

/* A search for sizes and numbers of ranks tries thousands of values, but not all combinations of
 * them. The slowest search takes a few hundredths of a second. */
static void advice_for_many_ranks_is_correct_and_found_quickly(void **state)
{
    (void)state;
    static const Asked cases[] = {
        {12, 12, 65, {5, 5}, 0},
        {96, 126, 65536, {7, 3}, 0},
        {96, 126, 65536, {64, 12}, 0},
        {128, 126, 65521, {8, 9}, 0}, /* a prime number of ranks */
        {128, 126, 65536, {65536, 126}, 0},
        {65536, 3000, 65536, {65535, 3001}, 0},
        {65536, 3000, 65535, {65536, 2999}, 0},
        {65536, 3000, 60000, {32768, 3}, 0},
        {99991, 2999, 65536, {99990, 2998}, 0}, /* prime numbers of heads and blocks */
        {12, 8, 65536, {65536, 65536, 3}, 0},
        {12, 8, 0, {1000000, 1000000, 3}, 0},
        {12, 8, 0, {4099, 65537}, 0},
        {65536, 3000, 0, {999983, 999983}, 0},
        {128, 126, 65536, {8, 9, 1, 911}, 0},
        {128, 126, 65536, {8, 1, 1, 8191}, 0},
        {128, 126, 64, {8, 1, 1, 8191}, 0},
        {65536, 3000, 65536, {1, 1, 2999}, 0},
        {65536, 3000, 65521, {1, 1, 2, 65521}, 0},
    };
    int followed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ConfigReport report;
        clock_t begun = clock();
        const Config *c = ask(&cases[i], &report);
        double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
        if (c != NULL) fail_msg("case %zu is accepted", i);
        if (seconds > 1) fail_msg("case %zu takes %.1f s: %s", i, seconds, report.error[0]);
        config_report_free(&report);
        followed += follow_all(&cases[i]);
    }
    assert_true(followed > 18);
}

/* The errors about sizes that are impossible on any number of ranks name the size of the model that
 * they do not fit. Both errors suggest a pair of sizes that also fits the number of ranks. */
static void two_impossible_sizes_get_advice_that_changes_both(void **state)
{
    (void)state;
    ConfigReport report;
    const Asked asked = {.heads = 12, .layers = 3, .world = 8, .size = {5, 5}};
    assert_null(ask(&asked, &report));
    assert_int_equal(report.n_errors, 2);
    assert_non_null(strstr(report.error[0], "does not divide num_attention_heads 12; write "));
    assert_non_null(strstr(report.error[1], "and num_layers is 3; write "));
    for (int i = 0; i < 2; i++)
        assert_non_null(strstr(report.error[i], "; write tensor 4 and pipeline 2"));
    config_report_free(&report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_impossible_sizes_get_advice_that_changes_both),
        cmocka_unit_test(a_refused_grid_is_accepted_once_its_advice_is_followed),
        cmocka_unit_test(advice_for_many_ranks_is_correct_and_found_quickly),
    };
    return cmocka_run_group_tests_name("config advice", tests, NULL, NULL);
}
