/* cmd_config_show.c -- `./train config show`: prints every value of a config with its origin, or
 * the schedule of its pipeline. */
#include "model/core/check.h"
#include "parallel/commands/cmd_config.h"
#include "parallel/run/print_ranks.h"
#include "parallel/trainer/session.h"

#include <stdio.h>
#include <stdlib.h>

/* Prints the layers [from, to) of the model, such as "embedding, blocks 0 to 2". Layer 0 is the
 * embedding; the layer after the last block is the head. */
static void print_layers(int64_t blocks, int from, int to)
{
    int64_t first = from > 0 ? from - 1 : 0, last = to - 2 < blocks ? to - 2 : blocks - 1;
    if (from == 0) printf("embedding, ");
    if (first == last)
        printf("block %lld", (long long)first);
    else
        printf("blocks %lld to %lld", (long long)first, (long long)last);
    if (to == blocks + 2) printf(", head");
}

/* Prints the layers of each stage and the schedule of a step. If the vocabulary is not known before
 * the data are opened, assumes a likely size, because the cost of the head depends on it. */
static int show_schedule(const Config *config)
{
    enum { WIDTH = 80 };
    char text[256];
    bool known = config->model.vocab_size > 0;
    const Config *c = config;
    if (!known) c = config_settle(c, &(ConfigFacts){.vocab_size = config_likely_vocab(c)}, NULL, 0);
    /* The code below calls the same functions as a run, so it prints the schedule of that run. */
    const ScheduleSpec spec = step_spec(c);
    int runs = spec.stages * spec.chunks, *border = session_borders(c, runs),
        digits = snprintf(NULL, 0, "%d", spec.stages - 1);
    printf("%s\n", run_schedule_text(c, text, sizeof text));
    /* The chunks of layers are assigned round-robin: stage s has chunks s, s + stages, ... */
    for (int stage = 0; stage < spec.stages; stage++) {
        printf("stage %-*d  ", digits, stage);
        for (int run = stage; run < runs; run += spec.stages) {
            if (run > stage) printf("; ");
            if (spec.chunks > 1) printf("%c: ", schedule_chunk_letter(run / spec.stages));
            print_layers(c->model.num_layers, border[run], border[run + 1]);
        }
        printf("\n");
    }
    schedule_draw(&spec, stdout, WIDTH);
    if (!known && runs > 1 && c->parallel.pipeline_split.count == 0)
        printf("(cut for a vocabulary of %lld, before the data are there)\n",
               (long long)c->model.vocab_size);
    free(border);
    config_free(c);
    return EXIT_OK;
}

static int run_show(const void *values)
{
    const ConfigArguments *a = values;
    int code;
    if (a->schedule && a->json)
        return error_print(EXIT_USAGE, "--json prints the keys and --schedule a picture: give one");
    const Config *config = cmd_config_load(a->config, a->set, a->world, a->verbose, &code);
    if (config == NULL) return code;
    config = session_settle(config, 0);
    if (a->schedule) return show_schedule(config);
    if (a->json)
        config_print_json(config, stdout);
    else
        config_print(config, stdout);
    config_free(config);
    return EXIT_OK;
}

static const ArgOption options[] = {
    CONFIG_OPTIONS("override one key of the config; may be repeated"),
    {.name = "--json",
     .help = "as plain JSON without origins, which ./train reads again;\nwithout the values that "
             "follow from other keys",
     .kind = ARG_FLAG,
     .at = offsetof(ConfigArguments, json)},
    {.name = "--schedule",
     .help = "instead of the keys: which layers each stage of the\npipeline has, and when it does "
             "what in a step",
     .kind = ARG_FLAG,
     .at = offsetof(ConfigArguments, schedule)},
};

const ArgCommand cmd_config_show = {
    .name = "show",
    .call = "./train config show",
    .usage = "CONFIG [options]",
    .summary = "every key with its value and where the value comes from, or a pipeline's\n"
               "schedule",
    .notes = cmd_config_notes,
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 1,
              .most = 1,
              .at = offsetof(ConfigArguments, config),
              .missing = "which config? ./train config show configs/demo.json",
              .plural = "configs"},
    .size = sizeof(ConfigArguments),
    .run = run_show,
};
