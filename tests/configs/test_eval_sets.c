/* test_eval_sets.c -- tests eval.sets, an option whose value is an object of validation sets by
 * name. */
#include "model/core/check.h"
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BEGIN "{\n\"data\": {\"text\": \"x\"}, \"train_batch_size\": 1,\n \"eval.sets\": "
#define EXAMPLE                                                                                    \
    "; write an object of sets by name, such as {\"code\": {\"text\": \"code.txt\"}, \"news\": "   \
    "{\"shards\": \"news_*.bin\"}}"

static const char both[] =
    "{\"code\": {\"text\": [\"a.txt\", \"b\\\"c\"]}, \"_note\": 5, \"n-2_X\": "
    "{\"shards\": \"d.bin\"}}";

static void check_both(const Config *c)
{
    const EvalSets *sets = &c->eval.sets;
    assert_int_equal(sets->count, 2);
    assert_string_equal(sets->item[0].name, "code");
    assert_int_equal(sets->item[0].text.count, 2);
    assert_int_equal(sets->item[0].shards.count, 0);
    assert_string_equal(sets->item[0].text.item[1], "b\"c");
    assert_string_equal(sets->item[1].name, "n-2_X");
    assert_string_equal(sets->item[1].shards.item[0], "d.bin");
}

static void eval_sets_are_read_in_order_and_can_be_read_again_when_printed(void **state)
{
    (void)state;
    char *json = text_format(BEGIN "%s}", both);
    const Config *c = config_test_parse(json, 0, NULL);
    check_both(c);
    char *text = config_text(c);
    assert_non_null(strstr(text, "\"sets\": {\"code\": {\"text\": [\"a.txt\", \"b\\\"c\"]}, "
                                 "\"n-2_X\": {\"shards\": [\"d.bin\"]}},"));
    const Config *again = config_test_parse(text, 0, NULL);
    check_both(again);
    ConfigDifference *d;
    assert_int_equal(config_diff(c, again, &d), 0);
    config_diff_free(d, 0);
    config_free(again);
    config_free(c);
    free(text);
    free(json);
}

static void eval_sets_of_the_command_line_replace_those_of_the_file(void **state)
{
    (void)state;
    char *json = text_format(BEGIN "{\"code\": 3}}"), *set = text_format("eval.sets=%s", both);
    const Config *c = config_test_parse(json, 1, (const char *[]){set});
    check_both(c);
    config_free(c);
    c = config_test_parse(json, 1, (const char *[]){"eval.sets=null"});
    assert_int_equal(c->eval.sets.count, 0);
    config_free(c);
    free(json);
    free(set);
}

static const struct {
    const char *value, *error;
} wrong[] = {
    {"3}", "config:3:15: eval.sets: a number does not fit" EXAMPLE},
    {"[\"a\"]}", "config:3:15: eval.sets: a list does not fit" EXAMPLE},
    {"{\"a b\": {\"text\": \"x\"}}}", "config:3:15: eval.sets: \"a b\" is no name of a set: it has "
                                      "letters, digits, - and _, at most "
                                      "20" EXAMPLE},
    {"{\"a\": \"x.txt\"}}", "config:3:15: eval.sets: a is neither a text nor shards; write "
                            "{\"a\":{\"text\":\"x.txt\"}}, or \"shards\" for token files"},
    {"{\"b\": {\"shards\": \"y\"}, \"a\": [\"x\", \"z\"]}}",
     "config:3:15: eval.sets: a is neither a text nor shards; write "
     "{\"a\":{\"text\":[\"x\",\"z\"]}}, or \"shards\" for token files"},
    {"{\"a\": [3]}}", "config:3:15: eval.sets: a is neither a text nor shards" EXAMPLE},
    {"{\"a\": {}}}", "config:3:15: eval.sets: a is neither a text nor shards" EXAMPLE},
    {"{\"a\": {\"texts\": \"x\"}}}",
     "config:3:15: eval.sets: a is neither a text nor shards" EXAMPLE},
    {"{\"a\": {\"text\": []}}}", "config:3:15: eval.sets: a is neither a text nor shards" EXAMPLE},
    {"{\"a\": {\"text\": [\"\"]}}}",
     "config:3:15: eval.sets: a is neither a text nor shards" EXAMPLE},
    {"{\"a\": {\"text\": \"x\", \"shards\": \"y\"}}}",
     "config:3:15: eval.sets: a is neither a text nor shards" EXAMPLE},
    {"{\"a\": {\"text\": \"x\"}, \"a\": {\"text\": \"y\"}}}",
     "config:3:36: eval.sets.a: given twice; keep one of them"},
    {"{\"a\": {\"text\": \"x\"}}, \"data.val_fraction\": 0}",
     "config:3:2: eval.sets: there is no main validation data, which the best checkpoint follows; "
     "give one of the sets as data.val_text"},
};

static void check_error(const char *json, int n, const char *const *set, const char *error)
{
    ConfigReport report;
    const Config *c =
        config_parse(&(ConfigContext){0}, "config", json, strlen(json), n, set, &report);
    assert_null(c);
    assert_int_equal(report.n_errors, 1);
    assert_string_equal(report.error[0], error);
    config_report_free(&report);
}

static void invalid_values_of_eval_sets_are_refused_with_advice(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *json = text_format(BEGIN "%s", wrong[i].value);
        check_error(json, 0, NULL, wrong[i].error);
        free(json);
    }
    check_error(
        BEGIN "null}", 1, (const char *[]){"eval.sets.a.text=x"},
        "--set eval.sets.a.text=x: eval.sets.a.text: a part of eval.sets, which is given as "
        "a whole, such as {\"code\": {\"text\": \"code.txt\"}, \"news\": {\"shards\": "
        "\"news_*.bin\"}}");
}

static void more_than_32_validation_sets_are_refused(void **state)
{
    (void)state;
    for (int n = EVAL_SETS_MOST; n <= EVAL_SETS_MOST + 1; n++) {
        char *sets = must_strdup("{\"a\": {\"text\": \"x\"}");
        for (int i = 1; i < n; i++) {
            char *more = text_format("%s, \"a%d\": {\"text\": \"x\"}", sets, i);
            free(sets);
            sets = more;
        }
        char *json = text_format(BEGIN "%s}}", sets);
        if (n > EVAL_SETS_MOST) {
            check_error(json, 0, NULL, "config:3:15: eval.sets: more than 32 sets" EXAMPLE);
        } else {
            const Config *c = config_test_parse(json, 0, NULL);
            assert_int_equal(c->eval.sets.count, EVAL_SETS_MOST);
            config_free(c);
        }
        free(json);
        free(sets);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eval_sets_are_read_in_order_and_can_be_read_again_when_printed),
        cmocka_unit_test(eval_sets_of_the_command_line_replace_those_of_the_file),
        cmocka_unit_test(invalid_values_of_eval_sets_are_refused_with_advice),
        cmocka_unit_test(more_than_32_validation_sets_are_refused),
    };
    return cmocka_run_group_tests_name("eval.sets", tests, NULL, NULL);
}
