/* fuzz_config.c -- fuzz target: reads any bytes as a config; see fuzz_config.h. */
#include "tests/fuzz/fuzz_config.h"

#include "configs/config.h"
#include "model/core/check.h"
#include "model/core/json_tree.h"

#include <stdlib.h>
#include <string.h>

/* Checks that the grid fits the model. */
static void check_grid(const Config *c)
{
    int64_t tp = c->parallel.tensor, stages = c->parallel.pipeline,
            runs = stages * c->parallel.pipeline_chunks, kv = c->model.num_key_value_heads;
    CHECK(c->world == 0 || c->world == c->parallel.data * tp * stages, "%lld ranks",
          (long long)c->world);
    CHECK(c->model.num_attention_heads % tp == 0 && c->model.intermediate_size % tp == 0 &&
              (kv % tp == 0 || tp % kv == 0),
          "tensor %lld", (long long)tp);
    CHECK(runs <= c->model.num_layers && (stages > 1 || runs == 1), "%lld runs", (long long)runs);
    CHECK((c->parallel.schedule == SCHEDULE_INTERLEAVED) == (c->parallel.pipeline_chunks > 1),
          "schedule %d", (int)c->parallel.schedule);
    int64_t blocks = 0;
    for (int i = 0; i < c->parallel.pipeline_split.count; i++)
        blocks += c->parallel.pipeline_split.item[i];
    CHECK(blocks == 0 ||
              (blocks == c->model.num_layers && c->parallel.pipeline_split.count == runs),
          "split of %lld", (long long)blocks);
}

/* Checks what all code that reads a Config relies on. A config that is only inspected takes no
 * step. */
static void check_sound(const Config *c, bool looked_at)
{
    CHECK(looked_at || c->train_batch_size == c->train_micro_batch_size_per_gpu *
                                                  c->gradient_accumulation_steps * c->parallel.data,
          "batch %lld", (long long)c->train_batch_size);
    check_grid(c);
    CHECK(c->model.head_dim > 0 && c->model.num_attention_heads % c->model.num_key_value_heads == 0,
          "head_dim %lld", (long long)c->model.head_dim);
    bool wsd = c->scheduler.type == SCHEDULER_WSD;
    CHECK(!wsd || c->scheduler.params.warmup_num_steps + c->scheduler.params.decay_num_steps <=
                      c->scheduler.params.total_num_steps,
          "warmup %lld", (long long)c->scheduler.params.warmup_num_steps);
    CHECK(c->data.train.count > 0 || c->data.text.count > 0 || c->data.corpus != NULL, "no data");
}

/* Returns the config as plain JSON. Also prints its origins, as if `text` were the earlier ones,
 * which must give JSON whatever that text is. */
static char *plain_text(const Config *config, const char *text, size_t length)
{
    char *plain, *origins;
    size_t n;
    FILE *to = text_stream(&origins, &n);
    config_print_origins(config, text, length, to);
    fclose(to);
    cJSON *tree = json_tree_parse(origins, n);
    CHECK(tree != NULL, "%s", origins);
    cJSON_Delete(tree);
    free(origins);
    to = text_stream(&plain, &n);
    config_print_json(config, to);
    fclose(to);
    tree = json_tree_parse(plain, n);
    CHECK(tree != NULL, "%s", plain);
    cJSON_Delete(tree);
    return plain;
}

/* Prints the config, every second time as plain JSON, and reads the text again. Read for the same
 * number of ranks, or only to be inspected, it must give the same config. Any number of ranks may
 * open it, with a grid of its own; read for another number of ranks it may be refused. Besides the
 * first context, one in four inputs also tries one of the others, chosen by `draw`. */
static void check_round_trip(const Config *config, int64_t world, const char *input, size_t draw)
{
    const ConfigContext context[] = {{.world = world},
                                     {.stored = true, .world = world + 1},
                                     {.stored = true, .opened = 1},
                                     {.stored = true, .opened = 6},
                                     {.world = 1},
                                     {.world = 6}};
    char *text = draw / 20 % 2 ? plain_text(config, input, draw) : config_text(config);
    int last = draw % 4 == 0 ? 1 + (int)(draw / 4 % 5) : 0;
    for (int i = 0; i <= last; i += last > 0 ? last : 1) {
        ConfigReport report;
        ConfigDifference *difference;
        const Config *again =
            config_parse(&context[i], "again", text, strlen(text), 0, NULL, &report);
        CHECK(again != NULL || i >= 4, "%s\n%s", report.error[0], text);
        if (again != NULL) check_sound(again, context[i].stored);
        CHECK(context[i].opened == 0 || again->world == context[i].opened, "%lld ranks",
              (long long)again->world);
        int n = i < 2 ? config_diff(config, again, &difference) : 0;
        CHECK(n == 0, "%s: %s, %s", difference[0].key, difference[0].was, difference[0].now);
        if (i < 2) config_diff_free(difference, n);
        config_report_free(&report);
        config_free(again);
    }
    free(text);
}

/* Reads one text for `world` ranks (0: not known); returns whether it is accepted. */
static bool fuzz_in_world(int64_t world, const char *text, size_t length, const char *set)
{
    const ConfigContext context = {.world = world};
    ConfigReport report;
    const Config *config = config_parse(&context, "fuzz", text, length, set != NULL, &set, &report);
    bool accepted = config != NULL;
    CHECK(accepted == (report.n_errors == 0), "%d errors", report.n_errors);
    if (accepted) check_sound(config, false);
    if (accepted) check_round_trip(config, world, text, length);
    config_report_free(&report);
    config_free(config);
    return accepted;
}

int fuzz_config(const uint8_t *data, size_t n)
{
    const uint8_t *end = n ? memchr(data, 0, n) : NULL;
    size_t length = end ? (size_t)(end - data) : n;
    char *set = NULL;
    if (end != NULL) {
        set = must_calloc(n - length, 1);
        memcpy(set, end + 1, n - length - 1);
    }
    const char *text = (const char *)data;
    bool accepted = fuzz_in_world(0, text, length, set);
    if (accepted && n % 8 == 1) fuzz_in_world((int64_t)(1 + n / 8 % 5), text, length, set);
    free(set);
    return accepted;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_config(data, n);
    return 0;
}
