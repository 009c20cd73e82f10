/* test_config_stored.c -- tests that a stored run keeps the name of the key with which the user set
 * the size of its shard groups. */
#include "configs/config.h"
#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A run stores which key gave the size of its shard groups. If it is resumed on another number of
 * ranks, its stored config is read as the user's file would be read there, in both forms in which
 * it is stored: a size that does not fit is dropped if it was given under a DeepSpeed name, and
 * refused if it was given as parallel.shard. A --set of parallel.shard replaces the value of a
 * DeepSpeed name. */
static void a_stored_run_keeps_the_key_name_that_set_its_shard_groups(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *set;
        int world, shard; /* of the resumed run; 0: it is refused */
        const char *notice;
    } cases[] = {
        {"\"mics_shard_size\": 4", NULL, 8, 4, NULL},
        {"\"mics_shard_size\": 4", NULL, 6, 6, "mics_shard_size: 4 does not divide the 6"},
        {"\"mics_shard_size\": 4", NULL, 2, 2, "mics_shard_size: 4: all 2 data-parallel ranks"},
        {"\"zero_hpz_partition_size\": 4", NULL, 12, 4, "size: 4: gradients, too, stay"},
        {"\"zero_hpz_partition_size\": 4", NULL, 6, 6, "partition_size: 4 does not divide the 6"},
        {"\"mics_shard_size\": 4", "zero_optimization.stage=2", 8, 8, "it is for stage 3"},
        {"\"mics_shard_size\": 4", "parallel.shard=3", 6, 3, NULL},
        {"\"mics_shard_size\": 4", "parallel.shard=4", 6, 0, NULL},
        {"\"mics_shard_size\": -1", NULL, 6, 6, NULL},
        {NULL, NULL, 6, 0, NULL},
        {NULL, NULL, 8, 4, NULL},
    };
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof *cases); i++) {
        bool plain = i % 2;
        const char *keys = cases[i / 2].keys, *set = cases[i / 2].set;
        char *text = text_format("{\"data\": {\"text\": \"x\"}, \"train_batch_size\": 24, "
                                 "\"zero_optimization\": {\"stage\": 3%s%s}%s}",
                                 keys ? ", " : "", keys ? keys : "",
                                 keys ? "" : ", \"parallel\": {\"shard\": 4}");
        ConfigReport report;
        const Config *c = config_parse(&(ConfigContext){.world = 8}, "c.json", text, strlen(text),
                                       0, NULL, &report);
        if (c == NULL) fail_msg("%s: %s", text, report.error[0]);
        config_report_free(&report);
        char *printed = plain ? NULL : config_text(c);
        size_t bytes;
        FILE *to = plain ? text_stream(&printed, &bytes) : NULL;
        if (plain) config_print_json(c, to);
        if (plain) fclose(to);
        const Config *again =
            config_parse(&(ConfigContext){.world = cases[i / 2].world, .resumed = true},
                         "run/config.json", printed, strlen(printed), set != NULL, &set, &report);
        int shard = again ? config_shard(again, cases[i / 2].world) : 0;
        if (shard != cases[i / 2].shard)
            fail_msg("%s: %d ranks: %d (%s)", printed, cases[i / 2].world, shard,
                     report.n_errors ? report.error[0] : "");
        bool found = cases[i / 2].notice == NULL;
        for (int n = 0; n < report.n_notices; n++)
            found |= cases[i / 2].notice && strstr(report.notice[n], cases[i / 2].notice);
        if (!found) fail_msg("%s: no notice \"%s\"", printed, cases[i / 2].notice);
        config_report_free(&report);
        config_free(again);
        config_free(c);
        free(printed);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stored_run_keeps_the_key_name_that_set_its_shard_groups),
    };
    return cmocka_run_group_tests_name("stored configs", tests, NULL, NULL);
}
