/* test_padded_vocab.c -- tests that a token table may have a few rows more than the data's
 * tokenizer has ids. */
#include "tests/support/files/config_support.h"

#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* Other programs pad their token tables: Qwen's have 151936 rows for 151669 ids. */
static void a_given_tokenizer_may_have_a_few_ids_fewer_than_the_model(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        int64_t ids;
        bool fits;
    } table[] = {{"\"text\": \"x\", \"tokenizer\": \"t.json\"", 1600, true},
                 {"\"text\": \"x\", \"tokenizer\": \"t.json\"", 1500, true},
                 {"\"train\": \"x.bin\"", 1500, true},
                 {"\"text\": \"x\", \"tokenizer\": \"t.json\"", 1499, false},
                 {"\"text\": \"x\", \"tokenizer\": \"t.json\"", 1601, false}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char err[300], *text = text_format("{\"data\": {%s}, \"train_batch_size\": 8, \"model\": "
                                           "{\"vocab_size\": 1600}}",
                                           table[i].source);
        const Config *c = config_test_parse(text, 0, NULL);
        const ConfigFacts facts = {.vocab_size = table[i].ids, .vocab_of = "t.json"};
        const Config *settled = config_settle(c, &facts, err, sizeof err);
        assert_int_equal(settled != NULL, table[i].fits);
        if (settled) assert_int_equal(settled->model.vocab_size, 1600);
        config_free(settled ? settled : c);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_given_tokenizer_may_have_a_few_ids_fewer_than_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
