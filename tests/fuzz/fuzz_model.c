/* fuzz_model.c -- fuzz target: turns any bytes into a config and runs it; see fuzz_model.h. */
#include "tests/fuzz/fuzz_model.h"

#include "configs/reader/options.h"
#include "model/core/check.h"
#include "parallel/memory/memory_plan.h"
#include "parallel/trainer/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SETS = 256, SET_BYTES = 160, VOCABULARY = 200 };

typedef struct {
    const uint8_t *at, *end;
} Bytes;

/* Takes a number below n from the bytes; returns 0 when they are used up. */
static unsigned take(Bytes *b, unsigned n)
{
    return b->at < b->end ? *b->at++ % n : 0;
}

/* Returns whether the key is left at its default: keys about data, paths, devices and several
 * ranks. */
static bool left_out(const Option *row)
{
    static const char *const ranks[] = {"parallel.tensor",         "parallel.pipeline",
                                        "parallel.schedule",       "parallel.pipeline_chunks",
                                        "parallel.pipeline_split", "parallel.shard"};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        if (strcmp(row->key, ranks[i]) == 0) return true;
    return strncmp(row->key, "data.", 5) == 0
               ? strcmp(row->key, "data.seq_length") != 0
               : row->built != NULL || strcmp(row->key, "device") == 0 ||
                     strcmp(row->key, "model.vocab_size") == 0;
}

/* State of drawing a config, with values that later rows must be consistent with. */
typedef struct {
    Bytes bytes;
    ModelSize model;
    double heads, length;
    Config types; /* only the types of optimizer, scheduler and RoPE scaling are set */
} Draw;

/* Draws an integer in the row's range, mostly values at which the code branches. */
static void whole_value(const Option *row, Draw *d, char *out)
{
    static const double small[] = {1, 1, 2, 2, 2, 3, 4, 4, 5, 6, 8, 8, 12, 16, 17, 24, 32, 0},
                        large[] = {1, 2, 64, 100, 1e3, 4096, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e12, 0};
    double x = d->model == MODEL_SMALL ? small[take(&d->bytes, sizeof small / sizeof *small)]
                                       : large[take(&d->bytes, sizeof large / sizeof *large)];
    bool costly = strcmp(row->key, "cpu.threads") == 0 ||
                  strcmp(row->key, "model.num_layers") == 0 ||
                  strcmp(row->key, "gradient_accumulation_steps") == 0;
    if (costly) x = fmin(x, d->model == MODEL_SMALL ? 3 : 1000);
    x = fmin(fmax(x, row->min), row->max);
    /* mostly consistent, because otherwise few configs would be accepted */
    bool fits = take(&d->bytes, 8) != 0;
    if (strcmp(row->key, "model.num_key_value_heads") == 0 && fits && fmod(d->heads, x) != 0)
        x = d->heads;
    if (strcmp(row->key, "model.max_position_embeddings") == 0 && fits) x = fmax(x, d->length);
    if (strcmp(row->key, "model.num_attention_heads") == 0) d->heads = x;
    if (strcmp(row->key, "data.seq_length") == 0) d->length = x;
    snprintf(out, SET_BYTES, "%s=%.0f", row->key, x);
}

static void value(const Option *row, Draw *d, char *out)
{
    Bytes *b = &d->bytes;
    static const double numbers[] = {0, 1e-8, 0.001, 0.1, 0.5, 0.9, 1, 2, 100, 1e9};
    double x = fmin(fmax(numbers[take(b, 10)], row->min), row->max);
    if ((row->flags & OPTION_ABOVE) && x <= row->min) x = 0.5;
    if ((row->flags & OPTION_BELOW) && x >= row->max) x = 0.5;
    char text[40];
    int choices = 0, chosen;
    json_number(x, text, sizeof text);
    switch (row->type) {
    case OPTION_BOOL:
        snprintf(out, SET_BYTES, "%s=%s", row->key, take(b, 2) ? "true" : "false");
        break;
    case OPTION_INT: whole_value(row, d, out); break;
    case OPTION_NUMBER: snprintf(out, SET_BYTES, "%s=%s", row->key, text); break;
    case OPTION_BETAS:
        snprintf(out, SET_BYTES, "%s=[%.1f, 0.95]", row->key, 0.1 * take(b, 10));
        break;
    case OPTION_SETS:
    case OPTION_INTEGERS: snprintf(out, SET_BYTES, "%s=null", row->key); break;
    case OPTION_STRING:
    case OPTION_STRINGS:
        snprintf(out, SET_BYTES, "%s=%.*s", row->key, (int)take(b, 8), "the king");
        break;
    case OPTION_CHOICE:
        while (row->choices[choices].name != NULL)
            choices++;
        chosen = (int)take(b, (unsigned)choices);
        /* this value is known but not implemented */
        if (row->choices[chosen].value < 0) chosen = 0;
        snprintf(out, SET_BYTES, "%s=%s", row->key, row->choices[chosen].name);
        break;
    }
}

/* Returns whether the row is drawn first, because other rows depend on it. */
static bool comes_first(const char *key)
{
    return strcmp(key, "optimizer.type") == 0 || strcmp(key, "scheduler.type") == 0 ||
           strcmp(key, "model.rope_scaling.type") == 0 || strcmp(key, "data.seq_length") == 0;
}

/* Decides whether the drawn config gives this key. */
static bool is_drawn(const Option *row, Draw *d, bool first)
{
    if (left_out(row) || comes_first(row->key) != first) return false;
    if (first) return true;
    if (!option_applies(row, &d->types)) return false;
    if (row->derived != NULL && (strncmp(row->derived, "none: OneCycle", 14) == 0 ||
                                 strncmp(row->derived, "none: llama3", 12) == 0))
        return true;
    bool width = strncmp(row->key, "model.", 6) == 0 && row->max >= 1e5;
    return take(&d->bytes, 8) >= (width ? 2 : 6);
}

/* Remembers the value of a type that was just drawn. */
static void remember(const Option *row, const char *set, Config *types)
{
    const Choice *c = row->choices;
    while (c != NULL && c->name != NULL && strcmp(strchr(set, '=') + 1, c->name) != 0)
        c++;
    if (c != NULL && c->name != NULL)
        memcpy((char *)types + row->offset, &c->value, sizeof c->value);
}

const Config *fuzz_model_config(const uint8_t *data, size_t n, ModelSize model, char *shown,
                                size_t size)
{
    static const char *const base[] = {
        [MODEL_SMALL] = "{\"data\": {\"train\": \"drawn\"}, \"device\": \"cpu\", "
                        "\"cpu\": {\"threads\": 1, \"blas\": \"builtin\"}, \"model\": "
                        "{\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 4, "
                        "\"head_dim\": 4}}",
        [MODEL_LARGE] = "{\"data\": {\"train\": \"drawn\"}, \"device\": \"cpu\", "
                        "\"model\": {\"num_attention_heads\": 4, \"head_dim\": 4}}"};
    char set[MAX_SETS][SET_BYTES];
    const char *sets[MAX_SETS];
    int n_sets = 0;
    Draw d = {.bytes = {data, data + n}, .model = model, .heads = 4};
    snprintf(set[n_sets++], SET_BYTES, "train_micro_batch_size_per_gpu=%u", 1 + take(&d.bytes, 4));
    for (int first = 1; first >= 0; first--) {
        for (int i = 0; i < option_count && n_sets < MAX_SETS - 4; i++) {
            const Option *row = &option_table[i];
            if (!is_drawn(row, &d, first)) continue;
            value(row, &d, set[n_sets]);
            if (first) remember(row, set[n_sets], &d.types);
            n_sets++;
        }
    }
    if (d.types.scheduler.type == SCHEDULER_ONE_CYCLE)
        snprintf(set[n_sets++], SET_BYTES, "scheduler.params.cycle_momentum=false");
    if (d.types.optimizer.type == OPTIMIZER_SGD)
        snprintf(set[n_sets++], SET_BYTES, "optimizer.params.lr=0.1");
    if (d.types.model.rope_scaling.type == ROPE_SCALING_LLAMA3) {
        snprintf(set[n_sets++], SET_BYTES, "model.position=rope");
        snprintf(set[n_sets++], SET_BYTES, "model.rope_scaling.low_freq_factor=0.001");
    }
    size_t used = 0;
    for (int i = 0; i < n_sets; i++) {
        sets[i] = set[i];
        if (used < size) used += (size_t)snprintf(shown + used, size - used, " --set '%s'", set[i]);
    }
    ConfigReport report;
    const Config *config =
        config_parse(NULL, "drawn", base[model], strlen(base[model]), n_sets, sets, &report);
    if (config == NULL && report.n_errors > 0 && used < size)
        snprintf(shown + used, size - used, "\n%s", report.error[0]);
    config_report_free(&report);
    if (config == NULL) return NULL;
    char err[512];
    ConfigFacts facts = {.vocab_size = VOCABULARY, .vocab_of = "drawn"};
    config = config_settle(config, &facts, err, sizeof err);
    CHECK(config != NULL, "%s", err);
    return config;
}

static bool count_token(void *context, int32_t token)
{
    CHECK(token >= 0 && token < VOCABULARY, "token %d", token);
    ++*(int *)context;
    return true;
}

/* Generates a few tokens, going past the end of the context if it is short. */
static void generate_some(Session *s)
{
    const GptShape *shape = &s->layers.shape;
    const int32_t prompt[] = {1, 2, 3};
    Sampling sampling = {.temperature = 1, .top_k = 5, .top_p = 0.9, .seed = 1};
    Decoder *d = decoder_create(&s->dev, &s->layers, s->params, &s->tp, NULL, shape->P);
    int64_t tokens = shape->P < 8 ? shape->P + 2 : 3;
    int count = 0;
    s->params->step_begin(s->params, NULL, 0);
    generate(d, &sampling, prompt, 3, tokens, count_token, &count);
    CHECK(count == (int)tokens, "%d tokens", count);
    decoder_destroy(d);
}

int fuzz_model(const uint8_t *data, size_t n)
{
    char shown[8192], err[2048];
    Trainer t;
    DataSet tokens;
    StepRecord record[TRAINER_HISTORY];
    const Config *config = fuzz_model_config(data, n, MODEL_SMALL, shown, sizeof shown);
    if (config == NULL) return 0;
    data_open_random(&tokens, VOCABULARY);
    bool opened = trainer_open(&t, config, NULL, err, sizeof err);
    if (opened) { /* otherwise this machine lacks what the config asks for */
        MemoryPlan plan = memory_plan(&t, &tokens);
        CHECK(trainer_allocate(&t, config, &tokens, err, sizeof err), "%s", err);
        CHECK(plan.total == t.session.dev.held, "plan %zu, held %zu", plan.total,
              t.session.dev.held);
        for (int i = 0; i < 2 && i < config->train_steps; i++)
            trainer_step(&t);
        trainer_read_all(&t, record);
        if (t.val != NULL) trainer_evaluate(&t, 2);
        generate_some(&t.session);
        trainer_close(&t);
    }
    data_close(&tokens);
    config_free(config);
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_model(data, n);
    return 0;
}
