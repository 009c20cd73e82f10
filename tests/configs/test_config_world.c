/* test_config_world.c -- what of a config follows from the number of ranks: parallel.data and the
 * batch keys, in worlds that are known, not known, and others than the one a text was printed for.
 * What is refused: golden/config_errors.txt. */
#include "configs/config.h"
#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BATCH "\"train_batch_size\": "
#define MICRO "\"train_micro_batch_size_per_gpu\": "
#define ACCUM "\"gradient_accumulation_steps\": "

/* NULL where the text is refused in this context. */
static const Config *parse_in(ConfigContext context, const char *text)
{
    ConfigReport report;
    const Config *c = config_parse(&context, "c.json", text, strlen(text), 0, NULL, &report);
    config_report_free(&report);
    return c;
}

/* The config with these keys, which must be good in a world of so many ranks (0: not known). */
static const Config *in_world(int64_t world, const char *keys)
{
    char *text = text_format("{\"data\": {\"text\": \"x\"}%s%s}", *keys ? ", " : "", keys);
    const Config *c = parse_in((ConfigContext){.world = world}, text);
    if (c == NULL) fail_msg("%s is refused on %d ranks", text, (int)world);
    free(text);
    return c;
}

static void assert_batch(const Config *c, int64_t dp, int64_t batch, int64_t micro, int64_t accum)
{
    assert_int_equal(c->parallel.data, dp);
    assert_int_equal(c->train_batch_size, batch);
    assert_int_equal(c->train_micro_batch_size_per_gpu, micro);
    assert_int_equal(c->gradient_accumulation_steps, accum);
}

static void settles_the_batch_over_the_ranks(void **state)
{
    (void)state;
    static const struct {
        int64_t world;
        const char *keys;
        int64_t dp, batch, micro, accum;
        int64_t known; /* the world that comes out; 0: still not known */
    } cases[] = {
        /* A batch that is given is that of all ranks, however many they are. */
        {1, BATCH "16", 1, 16, 16, 1, 1},
        {4, BATCH "16", 4, 16, 4, 1, 4},
        {1, BATCH "16, " MICRO "4", 1, 16, 4, 4, 1},
        {2, BATCH "16, " MICRO "4", 2, 16, 4, 2, 2},
        {4, BATCH "16, " MICRO "4", 4, 16, 4, 1, 4},
        {2, BATCH "16, " ACCUM "4", 2, 16, 2, 4, 2},
        {4, BATCH "16, " MICRO "2, " ACCUM "2", 4, 16, 2, 2, 4},
        {3, BATCH "24, " MICRO "\"auto\"", 3, 24, 8, 1, 3},
        {4, BATCH "24, " MICRO "\"auto\"", 4, 24, 2, 3, 4},
        {2, BATCH "24, " MICRO "\"auto\", " ACCUM "4", 2, 24, 3, 4, 2},
        {1, BATCH "24, " MICRO "\"auto\", " ACCUM "1", 1, 24, 24, 1, 1},
        /* One that is not given is what all ranks make. */
        {3, MICRO "4, " ACCUM "2", 3, 24, 4, 2, 3},
        {5, MICRO "4", 5, 20, 4, 1, 5},
        {2, BATCH "\"auto\"", 2, 16, 8, 1, 2},
        /* A size that is given and right is no trouble. */
        {4, BATCH "16, \"parallel\": {\"data\": 4}", 4, 16, 4, 1, 4},
        {4, BATCH "16, \"parallel\": {\"data\": \"auto\"}", 4, 16, 4, 1, 4},
        {4, BATCH "16, \"parallel\": {\"data\": null}", 4, 16, 4, 1, 4},
        /* Not known: it follows from all three, or is given; else all is as for one rank. */
        {0, BATCH "16, " MICRO "2, " ACCUM "2", 4, 16, 2, 2, 4},
        {0, BATCH "16, " MICRO "2, \"parallel\": {\"data\": 2}", 2, 16, 2, 4, 2},
        {0, BATCH "16, " MICRO "2", 1, 16, 2, 8, 0},
        {0, MICRO "2, " ACCUM "3", 1, 6, 2, 3, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Config *c = in_world(cases[i].world, cases[i].keys);
        print_message("  %d ranks: %s\n", (int)cases[i].world, cases[i].keys);
        assert_batch(c, cases[i].dp, cases[i].batch, cases[i].micro, cases[i].accum);
        assert_int_equal(c->world, cases[i].known);
        config_free(c);
    }
}

static void reads_what_it_printed_on_any_number_of_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        int64_t was, is; /* ranks that it was printed and is read for */
        int64_t dp, batch, micro, accum;
    } cases[] = {
        {BATCH "16, " MICRO "4", 4, 1, 1, 16, 4, 4},
        {BATCH "16, " MICRO "4", 1, 4, 4, 16, 4, 1},
        {BATCH "16", 4, 2, 2, 16, 8, 1},
        {MICRO "4, " ACCUM "2", 3, 5, 5, 40, 4, 2},
        {BATCH "\"auto\"", 2, 3, 3, 24, 8, 1},
        {BATCH "24, " MICRO "\"auto\"", 3, 4, 4, 24, 2, 3},
        {BATCH "16, " MICRO "2, " ACCUM "2", 4, 4, 4, 16, 2, 2},
        {BATCH "16, " MICRO "4", 4, 0, 1, 16, 4, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Config *c = in_world(cases[i].was, cases[i].keys);
        char *text = config_text(c);
        const Config *again = parse_in((ConfigContext){.world = cases[i].is}, text);
        if (again == NULL) fail_msg("refused on %d ranks: %s", (int)cases[i].is, text);
        assert_batch(again, cases[i].dp, cases[i].batch, cases[i].micro, cases[i].accum);
        /* Opened to look at, it is what it was, whatever ranks look at it. */
        for (int64_t world = 0; world < 6; world++) {
            const ConfigContext looking = {.world = world, .stored = true};
            const Config *stored = parse_in(looking, text);
            assert_non_null(stored);
            assert_int_equal(stored->world, cases[i].was);
            assert_batch(stored, c->parallel.data, c->train_batch_size,
                         c->train_micro_batch_size_per_gpu, c->gradient_accumulation_steps);
            config_free(stored);
        }
        config_free(again);
        config_free(c);
        free(text);
    }
}

/* What follows is shown, and not there for those who read the text. */
static void prints_what_follows_as_comments(void **state)
{
    (void)state;
    const Config *c = in_world(4, BATCH "16, " MICRO "\"auto\"");
    char *text = config_text(c);
    assert_non_null(strstr(text, "\"_world\": 4,"));
    assert_non_null(strstr(text, "// \"data\": 4,"));
    assert_non_null(strstr(text, "\n  \"train_batch_size\": 16,"));
    assert_non_null(strstr(text, "\n  \"train_micro_batch_size_per_gpu\": \"auto\","));
    assert_non_null(strstr(text, "// derived: 4\n"));
    assert_non_null(strstr(text, "// \"gradient_accumulation_steps\": 1,"));
    config_free(c);
    free(text);
    c = in_world(0, BATCH "16");
    text = config_text(c);
    assert_null(strstr(text, "_world"));
    config_free(c);
    free(text);
}

/* Also that of a program without a file, whose micro-batch nobody gave. */
static void prints_its_own_defaults_to_be_read(void **state)
{
    (void)state;
    ConfigReport report;
    const Config *c = config_load(NULL, 0, NULL, &(ConfigContext){.world = 2}, &report);
    config_report_free(&report);
    assert_batch(c, 2, 16, 8, 1);
    char *text = config_text(c);
    const char *set = "data.text=x";
    const Config *again = config_parse(NULL, "c.json", text, strlen(text), 1, &set, &report);
    if (again == NULL) fail_msg("%s", report.error[0]);
    assert_batch(again, 1, 8, 8, 1);
    config_report_free(&report);
    config_free(again);
    config_free(c);
    free(text);
}

/* Runs that were saved before there were ranks have every value written down. */
static void opens_runs_of_one_rank_that_give_everything(void **state)
{
    (void)state;
    static const char text[] =
        "{\"data\": {\"text\": \"x\"}, " BATCH "16, " MICRO "4, " ACCUM "4,\n"
        "\"parallel\": {\"data\": 1, \"tensor\": 1, \"pipeline\": 1}}";
    const Config *stored = parse_in((ConfigContext){.stored = true}, text),
                 *now = in_world(4, BATCH "16, " MICRO "4");
    assert_non_null(stored);
    assert_int_equal(stored->world, 1);
    assert_batch(stored, 1, 16, 4, 4);
    assert_batch(now, 4, 16, 4, 1);
    ConfigDifference *d;
    int n = config_diff(stored, now, &d);
    assert_int_equal(n, 2); /* nothing that a resumed run could not follow */
    assert_string_equal(d[0].key, "parallel.data");
    assert_string_equal(d[1].key, "gradient_accumulation_steps");
    for (int i = 0; i < n; i++)
        assert_int_equal(d[i].effect, EFFECT_ROUNDING);
    config_diff_free(d, n);
    config_free(stored);
    config_free(now);
    assert_null(
        parse_in((ConfigContext){.world = 4}, text)); /* as a config of its own it is held */
}

/* What is opened to look at has no steps: a batch that no ranks share is no trouble there. */
static void a_stored_batch_need_not_fit(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        int64_t micro, accum;
    } cases[] = {
        {BATCH "7, " MICRO "2", 2, 1},
        {BATCH "1, " MICRO "2", 2, 1},
        {BATCH "1", 1, 1},
        {BATCH "7, " MICRO "2, " ACCUM "5", 2, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = text_format("{\"_world\": 3, \"data\": {\"text\": \"x\"}, %s}", cases[i].keys);
        const Config *c = parse_in((ConfigContext){.stored = true}, text);
        if (c == NULL) fail_msg("%s is refused", text);
        assert_int_equal(c->world, 3);
        assert_int_equal(c->train_micro_batch_size_per_gpu, cases[i].micro);
        assert_int_equal(c->gradient_accumulation_steps, cases[i].accum);
        config_free(c);
        assert_null(parse_in((ConfigContext){.world = 3}, text));
        free(text);
    }
}

static void fewer_ranks_than_writers_bring_a_notice(void **state)
{
    (void)state;
    static const char text[] =
        "{\"data\": {\"text\": \"x\"}, " BATCH "12, \"gradient_clipping\": 1,\n"
        "\"checkpoint\": {\"writers\": 3}}";
    static const char *const notice[] = {
        "", "c.json:2:16: notice: checkpoint.writers: 3, but there is 1 rank, which writes alone",
        "c.json:2:16: notice: checkpoint.writers: 3, but there are 2 ranks, so 2 write", "", ""};
    for (int world = 0; world <= 4; world++) {
        ConfigReport report;
        const Config *c = config_parse(&(ConfigContext){.world = world}, "c.json", text,
                                       strlen(text), 0, NULL, &report);
        assert_int_equal(report.n_errors, 0);
        assert_int_equal(report.n_notices, *notice[world] != '\0');
        if (report.n_notices > 0) assert_string_equal(report.notice[0], notice[world]);
        config_report_free(&report);
        config_free(c);
    }
}

/* What to write where a batch that was not given would be another on more ranks. */
static void advice_keeps_the_batch_of_a_run(void **state)
{
    (void)state;
    static const struct {
        int64_t world;
        const char *keys;
        int64_t batch;
        const char *advice;
    } cases[] = {
        {4, MICRO "2", 8, "write train_batch_size 8"},
        {4, MICRO "2, " ACCUM "2", 8,
         "write train_batch_size 8 and leave gradient_accumulation_steps out"},
        {4, MICRO "4", 8, "write train_batch_size 8 and train_micro_batch_size_per_gpu 2"},
        {4, MICRO "4, " ACCUM "3", 12,
         "write train_batch_size 12 and train_micro_batch_size_per_gpu 3 and leave "
         "gradient_accumulation_steps out"},
        {4, MICRO "3", 9, "take 3 ranks, which share 9 evenly, and write train_batch_size 9"},
        {3, MICRO "2, " ACCUM "2", 16,
         "take 2 or 4 ranks, which share 16 evenly, and write train_batch_size 16 and leave "
         "gradient_accumulation_steps out"},
        {4, MICRO "4", 9,
         "take 3 or 9 ranks, which share 9 evenly, and write train_batch_size 9 and "
         "train_micro_batch_size_per_gpu 1"},
        {4, BATCH "16", 8, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char advice[256];
        const Config *c = in_world(cases[i].world, cases[i].keys);
        config_batch_advice(c, cases[i].batch, advice, sizeof advice);
        assert_string_equal(advice, cases[i].advice);
        config_free(c);
    }
}

/* The number after `name` in `advice`, or after " or " there, which is the second; 0: none. */
static long long advised(const char *advice, const char *name, bool second)
{
    long long first = 0, other = 0;
    const char *at = strstr(advice, name);
    if (at == NULL) return 0;
    int n = sscanf(at + strlen(name), " %lld or %lld", &first, &other);
    return second && n == 2 ? other : first;
}

/* ... and it is accepted, in each way that it names. */
static void what_keeps_a_batch_is_accepted(void **state)
{
    (void)state;
    int followed = 0;
    for (int i = 0; i < 8 * 4 * 4 * 30; i += 3) {
        int world = 1 + i % 8, micro = 1 + i / 8 % 4, accum = i / 32 % 4, batch = 1 + i / 128;
        char keys[128], advice[256];
        snprintf(keys, sizeof keys, MICRO "%d", micro);
        if (accum > 0) snprintf(keys, sizeof keys, MICRO "%d, " ACCUM "%d", micro, accum);
        const Config *c = in_world(world, keys);
        config_batch_advice(c, batch, advice, sizeof advice);
        config_free(c);
        for (int second = 0; second < 4; second++) {
            long long ranks = advised(advice, "take", second & 1),
                      rows = advised(advice, "per_gpu", second & 2);
            if (((second & 1) && ranks == advised(advice, "take", false)) ||
                ((second & 2) && rows == advised(advice, "per_gpu", false)))
                continue; /* there is no second */
            snprintf(keys, sizeof keys, BATCH "%lld, " MICRO "%lld",
                     advised(advice, "train_batch_size", false), rows > 0 ? rows : micro);
            if (accum > 0 && strstr(advice, "leave gradient_accumulation_steps out") == NULL)
                snprintf(keys + strlen(keys), sizeof keys - strlen(keys), ", " ACCUM "%d", accum);
            c = in_world(ranks > 0 ? ranks : world, keys);
            assert_int_equal(c->train_batch_size, batch);
            config_free(c);
            followed++;
        }
    }
    print_message("  %d pieces of advice followed\n", followed);
}

/* A world beyond sense in a text is none. */
static void ignores_a_world_that_is_no_number_of_ranks(void **state)
{
    (void)state;
    static const char *const worlds[] = {"0", "-3", "1.5", "1e300", "\"4\"", "null", "[4]"};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        char *text =
            text_format("{\"_world\": %s, \"data\": {\"text\": \"x\"}, " BATCH "16}", worlds[i]);
        const Config *c = parse_in((ConfigContext){.stored = true}, text);
        assert_non_null(c);
        assert_int_equal(c->world, 0);
        config_free(c);
        free(text);
    }
}

/* Sizes whose own rules were silenced by other mistakes: no number of ranks overflows, and the
 * batch, which follows from it, is not blamed. */
static void sizes_beyond_all_ranks_do_not_overflow(void **state)
{
    (void)state;
    static const char text[] =
        "{\"data\": {\"text\": \"x\"}, \"model\": {\"num_attention_heads\": \"x\","
        " \"hidden_size\": \"x\", \"num_layers\": \"x\", \"intermediate_size\": \"x\","
        " \"num_key_value_heads\": \"x\"},"
        " \"parallel\": {\"tensor\": 1000000, \"pipeline\": 1000000},"
        " \"train_batch_size\": 1000000000, \"train_micro_batch_size_per_gpu\": 1,"
        " \"gradient_accumulation_steps\": 1}";
    ConfigReport report;
    assert_null(config_parse(NULL, "c.json", text, strlen(text), 0, NULL, &report));
    assert_int_equal(report.n_errors, 5);
    config_report_free(&report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settles_the_batch_over_the_ranks),
        cmocka_unit_test(reads_what_it_printed_on_any_number_of_ranks),
        cmocka_unit_test(prints_what_follows_as_comments),
        cmocka_unit_test(prints_its_own_defaults_to_be_read),
        cmocka_unit_test(opens_runs_of_one_rank_that_give_everything),
        cmocka_unit_test(advice_keeps_the_batch_of_a_run),
        cmocka_unit_test(what_keeps_a_batch_is_accepted),
        cmocka_unit_test(a_stored_batch_need_not_fit),
        cmocka_unit_test(fewer_ranks_than_writers_bring_a_notice),
        cmocka_unit_test(ignores_a_world_that_is_no_number_of_ranks),
        cmocka_unit_test(sizes_beyond_all_ranks_do_not_overflow),
    };
    return cmocka_run_group_tests_name("config world", tests, NULL, NULL);
}
