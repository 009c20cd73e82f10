/* fuzz_hf_config.c -- fuzz target: reads any bytes as a config.json of Hugging Face's libraries.
 * What is read must become a config of this program, or be refused by its rules, and a config.json
 * that is read again to the same. */
#include "tests/fuzz/fuzz_checkpoint.h"

#include "model/core/check.h"
#include "model/weights/hf_config.h"

#include <stdlib.h>
#include <string.h>

static void check_config(const Architecture *a)
{
    char err[1024];
    Architecture again;
    ConfigReport report = {0};
    char *text = architecture_config(a, F32, NULL);
    const Config *config = config_parse(&(ConfigContext){.stored = true}, "fuzz", text,
                                        strlen(text), 0, NULL, &report);
    if (config) {
        CHECK(architecture_of(config, &again, err, sizeof err), "%s", err);
        char *json = hf_config_print(&again, F32, -1, 0);
        CHECK(hf_config_parse(&again, "again", json, strlen(json), err, sizeof err), "%s", err);
        CHECK(again.layers == a->layers && again.mlp == a->mlp && again.vocab == a->vocab &&
                  again.rope_theta == a->rope_theta && again.norm_epsilon == a->norm_epsilon,
              "%s", json);
        free(json);
    }
    config_free(config);
    config_report_free(&report);
    free(text);
}

int fuzz_hf_config(const uint8_t *data, size_t n)
{
    char err[1024];
    Architecture a;
    if (!hf_config_parse(&a, "fuzz", (const char *)data, n, err, sizeof err)) return 0;
    check_config(&a);
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_hf_config(data, n);
    return 0;
}
