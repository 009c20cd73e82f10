/* training.c -- opens a config and its data for tests, and trainers over them. See training.h. */
#include "tests/support/trainer/training.h"

#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_SETS = 32 };

int trainer_folder_setup(void **state)
{
    static const char *const words[] = {"light", "and",   "the", "water", "was",
                                        "upon",  "earth", "day", "night", "good"};
    Folder *p = must_calloc(1, sizeof *p);
    strcpy(p->folder, "/tmp/test_trainer_XXXXXX");
    if (mkdtemp(p->folder) == NULL) return -1;
    snprintf(p->text, sizeof p->text, "%s/text.txt", p->folder);
    snprintf(p->cache, sizeof p->cache, "%s/cache", p->folder);
    FILE *f = fopen(p->text, "w");
    if (f == NULL) return -1;
    for (int64_t i = 0; i < 6000; i++)
        fprintf(f, "%s%c", words[(int)(10 * drawn_uniform(77, i) * drawn_uniform(78, i))],
                i % 12 == 11 ? '\n' : ' ');
    fclose(f);
    *state = p;
    return 0;
}

int trainer_folder_teardown(void **state)
{
    Folder *p = *state;
    char *command = text_format("rm -rf '%s'", p->folder);
    int code = system(command);
    free(command);
    free(p);
    return code;
}

static const char small_gpt[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2,"
    " \"norm\": \"rmsnorm\", \"position\": \"rope\", \"activation\": \"swiglu\", \"qk_norm\": "
    "true},"
    " \"data\": {\"tokenizer_vocab_size\": 280, \"seq_length\": 16},"
    " \"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 2, \"train_steps\": 40,"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
    " \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 4}},"
    " \"gradient_clipping\": 1.0, \"eval\": {\"sample_tokens\": 8}, \"cpu\": {\"threads\": 2}}";

static bool any_starts(const char *const *sets, const char *start)
{
    for (; *sets; sets++)
        if (strncmp(*sets, start, strlen(start)) == 0) return true;
    return false;
}

void training_of_config(Training *t, const char *json, const Folder *folder, int ranks,
                        const char *const *sets)
{
    const ConfigContext context = {.world = ranks};
    char *text = text_format("data.text=%s", folder->text),
         *cache = text_format("data.cache=%s", folder->cache);
    const char *all[MAX_SETS] = {text, cache};
    char err[1024];
    int n = 2;
    ConfigReport report = {0};
    ExitCode code;
    *t = (Training){.ranks = ranks};
    while (*sets) {
        assert_in_range(n, 2, MAX_SETS - 1);
        all[n++] = *sets++;
    }
    t->config = config_parse(&context, "test", json, strlen(json), n, all, &report);
    if (t->config == NULL) {
        config_report_print(&report, true, stderr);
        fail_msg("the config of this test is refused");
    }
    config_report_free(&report);
    if (!data_open(t->config, &t->data, err, sizeof err, &code)) fail_msg("%s", err);
    ConfigFacts facts = {.vocab_size = t->data.vocab_size, .vocab_of = "test"};
    t->config = config_settle(t->config, &facts, err, sizeof err);
    if (t->config == NULL) fail_msg("%s", err);
    free(text);
    free(cache);
}

void training_of_text(Training *t, const Folder *folder, int ranks, const char *const *sets)
{
    const char *named = getenv("TEST_DEVICE"), *all[MAX_SETS] = {NULL};
    char device[64];
    int n = 0;
    if (named && !any_starts(sets, "device=") && !any_starts(sets, "fp64.enabled=true")) {
        snprintf(device, sizeof device, "device=%s", named);
        all[n++] = device;
    }
    while (*sets) {
        assert_in_range(n, 0, MAX_SETS - 2);
        all[n++] = *sets++;
    }
    training_of_config(t, small_gpt, folder, ranks, all);
}

void training_of_tokens(Training *t, const Config *config, int ranks)
{
    *t = (Training){.config = config, .ranks = ranks};
    data_open_random(&t->data, config->model.vocab_size);
}

void training_close(Training *t)
{
    data_close(&t->data);
    config_free(t->config);
}

void training_run(const Training *t, RankBody body, void *context)
{
    session_launch(t->config, t->ranks, (LaunchKind){.threads = true});
    thread_ranks(t->ranks, 60, body, context);
}

/* (fail) is the program's function, not cmocka's macro: it ends the program on any rank. */
void training_lay_out(Trainer *trainer, Comm *world, const Training *t)
{
    char err[1024];
    if (!trainer_open(trainer, t->config, world, err, sizeof err))
        (fail)(EXIT_UNAVAILABLE, "%s", err);
}

void training_allocate(Trainer *trainer, const Training *t)
{
    char err[1024];
    if (!trainer_allocate(trainer, t->config, &t->data, err, sizeof err))
        (fail)(EXIT_DAMAGED, "%s", err);
}

void training_open_rank(Trainer *trainer, Comm *world, const Training *t)
{
    training_lay_out(trainer, world, t);
    training_allocate(trainer, t);
}
