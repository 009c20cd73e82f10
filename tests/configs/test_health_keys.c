/* test_health_keys.c -- tests the notices about a health.policy that nothing can bring into effect.
 */
#include "configs/config.h"
#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void a_health_policy_without_effect_gives_a_notice(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *notice; /* NULL: none */
    } cases[] = {
        {"\"health.policy\": \"warn\", \"health.spike_deviations\": 0", NULL},
        {"\"health.policy\": \"skip\"", NULL},
        {"\"health.policy\": \"skip\", \"health.spike_deviations\": 0",
         "config:1:3: notice: health.policy: without effect: health.spike_deviations is 0, so no "
         "loss is a spike"},
        {"\"health.policy\": \"stop\", \"health.spike_deviations\": 0",
         "config:1:3: notice: health.policy: without effect: health.spike_deviations is 0, so no "
         "loss is a spike"},
        {"\"health.policy\": \"rollback\", \"health.spike_deviations\": 0", NULL},
        {"\"health.policy\": \"rollback\", \"health.max_rollbacks\": 1", NULL},
        {"\"health.policy\": \"warn\", \"health.max_rollbacks\": 0", NULL},
        {"\"health.policy\": \"rollback\", \"health.max_rollbacks\": 0",
         "config:1:3: notice: health.policy: acts like \"stop\": health.max_rollbacks is 0, so the "
         "run never goes back"},
        {"\"health.policy\": \"rollback\", \"health.max_rollbacks\": 0, "
         "\"health.spike_deviations\": 0",
         "config:1:3: notice: health.policy: acts like \"stop\": health.max_rollbacks is 0, so the "
         "run never goes back"},
        {"\"health.policy\": \"rollback\", \"checkpoint.save_interval\": 0",
         "config:1:3: notice: health.policy: the run has no checkpoint to go back to: "
         "checkpoint.save_interval is 0, so only its end is saved"},
        {"\"health.policy\": \"rollback\", \"train_steps\": 500",
         "config:1:3: notice: health.policy: the run has no checkpoint to go back to: "
         "checkpoint.save_interval is 500, so only its end is saved"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = text_format("{ %s, \"data\": {\"text\": \"t\"}, \"train_batch_size\": 1}",
                                 cases[i].keys);
        ConfigReport report;
        const char *found = NULL;
        const Config *c = config_parse(NULL, NULL, text, strlen(text), 0, NULL, &report);
        if (c == NULL) fail_msg("%s: %s", text, report.error[0]);
        for (int k = 0; k < report.n_notices; k++)
            if (strstr(report.notice[k], "health") != NULL) found = report.notice[k];
        if ((found != NULL) != (cases[i].notice != NULL)) fail_msg("%s", text);
        if (found) assert_string_equal(found, cases[i].notice);
        config_report_free(&report);
        config_free(c);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_health_policy_without_effect_gives_a_notice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
