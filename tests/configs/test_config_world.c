/* test_config_world.c -- tests what is derived from the number of ranks ("world"): parallel.data
 * and the batch keys, for known and unknown numbers of ranks and for other numbers than a text was
 * printed for. The values that are refused are in golden/config_errors.txt. */
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

/* Returns NULL if the text is refused in this context. */
static const Config *parse_in(ConfigContext context, const char *text)
{
    ConfigReport report;
    const Config *c = config_parse(&context, "c.json", text, strlen(text), 0, NULL, &report);
    config_report_free(&report);
    return c;
}

/* Returns the config with these keys, which must be valid on `world` ranks (0: not known). */
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

static void batch_keys_are_derived_for_known_and_unknown_numbers_of_ranks(void **state)
{
    (void)state;
    static const struct {
        int64_t world;
        const char *keys;
        int64_t dp, batch, micro, accum;
        int64_t known; /* the resulting number of ranks; 0: still not known */
    } cases[] = {
        /* A given batch is the batch of all ranks together, for any number of ranks. */
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
        /* A batch that is not given is the product of the other keys and the number of ranks. */
        {3, MICRO "4, " ACCUM "2", 3, 24, 4, 2, 3},
        {5, MICRO "4", 5, 20, 4, 1, 5},
        {2, BATCH "\"auto\"", 2, 16, 8, 1, 2},
        /* A given parallel.data that is right is accepted. */
        {4, BATCH "16, \"parallel\": {\"data\": 4}", 4, 16, 4, 1, 4},
        {4, BATCH "16, \"parallel\": {\"data\": \"auto\"}", 4, 16, 4, 1, 4},
        {4, BATCH "16, \"parallel\": {\"data\": null}", 4, 16, 4, 1, 4},
        /* The number of ranks is not known: it follows from the three batch keys or from
         * parallel.data, otherwise values are derived for one rank. */
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

static void a_printed_config_can_be_read_on_any_number_of_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        int64_t was, is; /* numbers of ranks for which it was printed and is read */
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
        /* A stored config that is only inspected keeps its values, whatever the number of ranks. */
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

/* Derived values are printed as comments, so they are derived again when the text is read. */
static void values_derived_from_the_ranks_are_printed_as_comments(void **state)
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

/* This includes a run without a config file, where no micro-batch is given. */
static void the_default_config_prints_text_that_can_be_read_again(void **state)
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

/* A stored config has values that the user never wrote, so there is no notice that one of them has
 * no effect. */
static void a_stored_config_has_no_notice_of_an_unused_value(void **state)
{
    (void)state;
    static const char text[] = "{\"data\": {\"text\": \"x\"}, \"model\": {\"rope_theta\": 10000}}";
    for (int stored = 0; stored < 2; stored++) {
        ConfigReport report;
        const ConfigContext context = {.world = 1, .resumed = stored};
        const Config *c = config_parse(&context, "c.json", text, strlen(text), 0, NULL, &report);
        assert_non_null(c);
        int n = 0;
        for (int i = 0; i < report.n_notices; i++)
            n += strstr(report.notice[i], "rope_theta") != NULL;
        assert_int_equal(n, 1 - stored);
        config_report_free(&report);
        config_free(c);
    }
}

/* Versions of the program that had only one rank stored every value in the config, even values that
 * are now derived from the number of ranks. */
static void an_old_run_with_all_values_given_opens_and_resumes_on_more_ranks(void **state)
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
    assert_int_equal(n, 2); /* both may change when a run is resumed */
    assert_string_equal(d[0].key, "parallel.data");
    assert_string_equal(d[1].key, "gradient_accumulation_steps");
    for (int i = 0; i < n; i++)
        assert_int_equal(d[i].effect, EFFECT_ROUNDING);
    config_diff_free(d, n);
    config_free(stored);
    config_free(now);
    assert_null(
        /* as an ordinary config it is refused on 4 ranks */
        parse_in((ConfigContext){.world = 4}, text));
}

/* A run that is only inspected takes no steps, so its batch need not be divisible. */
static void a_stored_run_may_have_a_batch_that_does_not_fit_its_ranks(void **state)
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

static void fewer_ranks_than_checkpoint_writers_give_a_notice(void **state)
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

/* A batch that is not given changes with the number of ranks. For a config without
 * train_batch_size, the advice says what to write to get the wanted batch; for others there is no
 * advice. */
static void config_batch_advice_names_keys_that_keep_the_batch(void **state)
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
         "take 3 ranks, which share 9 evenly, and write train_batch_size 9 and "
         "train_micro_batch_size_per_gpu 3"},
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

/* Returns the number after `name` in `advice`; with `second`, the number after " or " there. 0:
 * none. */
static long long advised(const char *advice, const char *name, bool second)
{
    long long first = 0, other = 0;
    const char *at = strstr(advice, name);
    if (at == NULL) return 0;
    int n = sscanf(at + strlen(name), " %lld or %lld", &first, &other);
    return second && n == 2 ? other : first;
}

/* Every way that the advice names must be accepted and give the desired batch. */
static void following_config_batch_advice_gives_the_wanted_batch(void **state)
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
                continue; /* there is no second number */
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

/* A "_world" that is not a number of ranks is ignored. */
static void a_stored_world_that_is_not_a_rank_count_is_ignored(void **state)
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

/* The other mistakes in this config switch off the rules for the tensor and pipeline sizes. The
 * number of ranks must not overflow, and the batch, which is derived from it, must not be
 * reported. */
static void huge_grid_sizes_in_a_wrong_config_do_not_overflow(void **state)
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
        cmocka_unit_test(batch_keys_are_derived_for_known_and_unknown_numbers_of_ranks),
        cmocka_unit_test(a_printed_config_can_be_read_on_any_number_of_ranks),
        cmocka_unit_test(values_derived_from_the_ranks_are_printed_as_comments),
        cmocka_unit_test(the_default_config_prints_text_that_can_be_read_again),
        cmocka_unit_test(a_stored_config_has_no_notice_of_an_unused_value),
        cmocka_unit_test(an_old_run_with_all_values_given_opens_and_resumes_on_more_ranks),
        cmocka_unit_test(config_batch_advice_names_keys_that_keep_the_batch),
        cmocka_unit_test(following_config_batch_advice_gives_the_wanted_batch),
        cmocka_unit_test(a_stored_run_may_have_a_batch_that_does_not_fit_its_ranks),
        cmocka_unit_test(fewer_ranks_than_checkpoint_writers_give_a_notice),
        cmocka_unit_test(a_stored_world_that_is_not_a_rank_count_is_ignored),
        cmocka_unit_test(huge_grid_sizes_in_a_wrong_config_do_not_overflow),
    };
    return cmocka_run_group_tests_name("config world", tests, NULL, NULL);
}
