/* trainer_fixture.c -- see trainer_fixture.h. */
#include "tests/support/trainer/trainer_fixture.h"

#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_SETS = 16 };

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

static const char base[] =
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

void trainer_run_prepare(Opened *o, const Folder *p, int ranks, const char *const *sets)
{
    const ConfigContext context = {.world = ranks};
    const char *all[MAX_SETS];
    char *text = text_format("data.text=%s", p->text),
         *cache = text_format("data.cache=%s", p->cache);
    const char *named = getenv("TEST_DEVICE");
    char *device = named ? text_format("device=%s", named) : NULL;
    char err[1024];
    int n = 0;
    ConfigReport report = {0};
    ExitCode code;
    all[n++] = text;
    all[n++] = cache;
    if (device && !any_starts(sets, "device=") && !any_starts(sets, "fp64.enabled=true"))
        all[n++] = device;
    while (*sets)
        all[n++] = *sets++;
    o->config = config_parse(&context, "test", base, strlen(base), n, all, &report);
    if (o->config == NULL) {
        config_report_print(&report, true, stderr);
        fail_msg("the config of this test is refused");
    }
    config_report_free(&report);
    if (!data_open(o->config, &o->data, err, sizeof err, &code)) fail_msg("%s", err);
    ConfigFacts facts = {.vocab_size = o->data.vocab_size, .vocab_of = "test"};
    o->config = config_settle(o->config, &facts, err, sizeof err);
    if (o->config == NULL) fail_msg("%s", err);
    free(text);
    free(cache);
    free(device);
}

void trainer_run_open(Opened *o, const Folder *p, const char *const *sets)
{
    char err[1024];
    trainer_run_prepare(o, p, 1, sets);
    if (!trainer_open(&o->trainer, o->config, NULL, err, sizeof err)) fail_msg("%s", err);
    o->plan = memory_plan(&o->trainer, &o->data);
    if (!trainer_allocate(&o->trainer, o->config, &o->data, err, sizeof err)) fail_msg("%s", err);
}

void trainer_run_close(Opened *o)
{
    trainer_close(&o->trainer);
    data_close(&o->data);
    config_free(o->config);
}

size_t trainer_run_host_bytes(const Opened *o)
{
    const Trainer *t = &o->trainer;
    const StepPlan *step = &t->session.step;
    return t->session.dev.host_held + (size_t)step->schedule.n * sizeof *step->schedule.action +
           (size_t)step->schedule.n_transfers * sizeof *step->schedule.transfer +
           (size_t)step->n_uses * sizeof *step->uses;
}

void trainer_run_steps(Opened *o, Trained *out, int64_t until)
{
    while (o->trainer.steps < until)
        trainer_step(&o->trainer);
    out->n += trainer_read_all(&o->trainer, out->record + out->n);
}

void trainer_run_read(Opened *o, Trained *out)
{
    Trainer *t = &o->trainer;
    int n = t->session.table.n_params;
    out->size = 0;
    for (int i = 0; i < n + t->n_slots; i++)
        out->size += tensor_bytes((i < n ? &t->weights[i] : &t->slots[i - n])->data);
    out->bytes = must_alloc(out->size);
    unsigned char *at = out->bytes;
    for (int i = 0; i < n + t->n_slots; i++) {
        Tensor x = (i < n ? &t->weights[i] : &t->slots[i - n])->data;
        device_copy(&t->session.dev, tensor_1d(at, x.dtype, tensor_count(x)), tensor_flat(x));
        at += tensor_bytes(x);
    }
    out->state = trainer_state(t);
}

void trained_equal(const Trained *a, const Trained *b, const char *what)
{
    assert_int_equal(a->size, b->size);
    for (size_t i = 0; i < a->size; i++)
        if (a->bytes[i] != b->bytes[i])
            fail_msg("%s: byte %zu of %zu of weights and slots differs", what, i, a->size);
    if (memcmp(&a->state, &b->state, sizeof a->state) != 0) fail_msg("%s: the states differ", what);
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        /* Bits, not values: the norm of a skipped step may be NaN. */
        if (memcmp(&a->record[i], &b->record[i], sizeof a->record[i]) != 0)
            fail_msg("%s: step %d: loss %.17g and %.17g, lr %.17g and %.17g", what, i + 1,
                     a->record[i].loss, b->record[i].loss, a->record[i].lr, b->record[i].lr);
    }
}
