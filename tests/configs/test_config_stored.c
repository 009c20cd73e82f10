/* test_config_stored.c -- tests that the shard groups of a stored run are read again under the name
 * that the user gave them. */
#include "configs/config.h"
#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A run stores which name gave the value. It resumes on other numbers of ranks as its own file
 * would be read there, in both forms in which it is stored: a name that does not fit is left out,
 * and parallel.shard itself is refused. A --set of parallel.shard replaces the name. */
static void a_stored_run_keeps_the_name_of_its_shard_groups(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *set;
        int world, shard; /* of the run that goes on; 0: refused */
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
        cmocka_unit_test(a_stored_run_keeps_the_name_of_its_shard_groups),
    };
    return cmocka_run_group_tests_name("stored configs", tests, NULL, NULL);
}
