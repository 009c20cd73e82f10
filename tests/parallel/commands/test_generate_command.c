/* test_generate_command.c -- tests `./train generate` and the samples during training with a model
 * that has the same logits at every position. So the expected text can be computed from the logits,
 * the options and the seed alone. */
#include "model/core/check.h"
#include "parallel/commands/commands.h"
#include "tests/support/checkpoint/whole_pieces.h"
#include "tests/support/model/param_rows.h"
#include "tests/support/model/plain_sampling.h"
#include "tests/support/trainer/trainer_fixture.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Only ten letters and the end-of-text token have a probability above zero. */
enum { LETTERS = 10, MOST_ARGUMENTS = 24, TOKENS = 60 };
#define NEVER (-1e4)

static const char prompt[] = "of the water";

typedef struct {
    const Folder *folder;
    char *run;
    double *logits; /* V logits, the same at every position */
    int64_t V;
    const Tokenizer *tokenizer;
} Model;

/* ---- the steps of parameter stores ----------------------------------------------------------- */

ZeroStore *__real_zero_create(const ParamTable *table, Grid *grid, const ZeroOptions *options);
ZeroStore *__wrap_zero_create(const ParamTable *table, Grid *grid, const ZeroOptions *options);

/* Counts the steps (step_begin to step_end) of all parameter stores: how many were begun, how many
 * of these during another step, and how many were ended. */
static struct {
    bool seen;
    int begun, within, ended;
    void (*begin)(ParamStore *, const Use *, int64_t);
    void (*end)(ParamStore *);
} steps;

static void seen_begin(ParamStore *params, const Use *uses, int64_t n)
{
    steps.within += steps.begun > steps.ended;
    steps.begun++;
    steps.begin(params, uses, n);
}

static void seen_end(ParamStore *params)
{
    steps.ended++;
    steps.end(params);
}

/* All test programs of this folder link this wrapper; only this test uses the counts. */
ZeroStore *__wrap_zero_create(const ParamTable *table, Grid *grid, const ZeroOptions *options)
{
    ZeroStore *store = __real_zero_create(table, grid, options);
    if (steps.seen) {
        ParamStore *params = zero_params(store);
        steps.end = params->step_end;
        steps.begin = params->step_begin;
        params->step_begin = seen_begin;
        params->step_end = seen_end;
    }
    return store;
}

/* Fails unless every step that was begun was also ended, before the next one began. */
static void steps_are_ended(void)
{
    assert_true(steps.begun > 0);
    assert_int_equal(steps.within, 0);
    assert_int_equal(steps.ended, steps.begun);
}

/* Chooses the logits: those of ten letters differ by at most 1.8, and that of the end-of-text token
 * is among them. */
static void logits_choose(Model *m)
{
    int n = 0;
    for (int32_t v = 0; v < m->V; v++) {
        int64_t size;
        const uint8_t *bytes = tokenizer_token(m->tokenizer, v, &size);
        m->logits[v] = NEVER;
        if (v == tokenizer_end_of_text(m->tokenizer))
            m->logits[v] = -0.75;
        else if (size == 1 && *bytes >= 'a' && *bytes < 'a' + LETTERS)
            m->logits[v] = -0.1875 * (7 * n++ % LETTERS);
    }
    assert_int_equal(n, LETTERS);
}

static Tensor weight_of(Opened *o, const char *name)
{
    Session *s = &o->trainer.session;
    int at = param_find(&s->table, name);
    assert_true(at >= 0);
    return piece_tensor(&o->trainer.weights[at]);
}

/* Sets the final norm so its output is always (1, 0, 0, ...), and column 0 of the head to the
 * logits. So the model returns these logits for any input. */
static void logits_set(Opened *o, const Model *m)
{
    Tensor head = weight_of(o, "head.weight"), w = weight_of(o, "final_norm.weight"),
           b = weight_of(o, "final_norm.bias");
    for (int64_t i = 0; i < w.dim[0]; i++) {
        dtype_set(w.dtype, w.data, i, 0);
        dtype_set(b.dtype, b.data, i, i == 0);
    }
    for (int64_t v = 0; v < m->V; v++)
        dtype_set(head.dtype, tensor_row(head, v), 0, m->logits[v]);
}

/* Writes the text that `sampling` must produce to `out`, computed from the logits alone. */
static void text_expect(const Model *m, const Sampling *sampling, int64_t tokens, char *out)
{
    for (int64_t i = 0; i < tokens; i++) {
        int64_t size;
        int32_t token = plain_sample(sampling, m->logits, m->V, (uint64_t)i);
        if (token == tokenizer_end_of_text(m->tokenizer)) break;
        *out++ = (char)*tokenizer_token(m->tokenizer, token, &size);
    }
    *out = '\0';
}

/* Runs `generate RUN` with these further arguments, and stores its output in out[0..n). */
static void command_run(const Model *m, const char *const *words, char *out, size_t n)
{
    char *argv[MOST_ARGUMENTS] = {"generate", m->run};
    char *file = text_format("%s/printed", m->folder->folder);
    int argc = 2, kept = dup(STDOUT_FILENO), fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(kept >= 0 && fd >= 0);
    for (; *words; words++)
        argv[argc++] = (char *)*words;
    fflush(stdout);
    dup2(fd, STDOUT_FILENO);
    int code = args_run(&cmd_generate, argc, argv);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    ssize_t got = pread(fd, out, n - 1, 0);
    close(fd);
    free(file);
    assert_int_equal(code, EXIT_OK);
    assert_true(got >= 0);
    out[got] = '\0';
}

/* Options of the command, and the sampling that they must select. The default seed is 1337. */
static const struct {
    const char *word[11];
    Sampling sampling;
    int64_t tokens;
} asked[] = {
    {{"--tokens", "60"}, {.temperature = 0.8, .top_p = 1, .seed = 1337}, TOKENS},
    {{"--tokens", "60", "--seed", "1"}, {.temperature = 0.8, .top_p = 1, .seed = 1}, TOKENS},
    {{"--tokens", "60", "--seed", "2"}, {.temperature = 0.8, .top_p = 1, .seed = 2}, TOKENS},
    {{"--tokens", "60", "--seed", "3"}, {.temperature = 0.8, .top_p = 1, .seed = 3}, TOKENS},
    {{"--tokens", "3", "--seed", "4", "--temperature", "2.5"},
     {.temperature = 2.5, .top_p = 1, .seed = 4},
     3},
    {{"--tokens", "40", "--temperature", "0"}, {.temperature = 0, .top_p = 1}, 40},
    {{"--tokens", "40", "--top-k", "3", "--seed", "9"},
     {.temperature = 0.8, .top_k = 3, .top_p = 1, .seed = 9},
     40},
    {{"--tokens", "40", "--top-p", "0.6", "--seed", "10"},
     {.temperature = 0.8, .top_p = 0.6, .seed = 10},
     40},
    {{"--tokens", "40", "--top-k", "4", "--top-p", "0.7", "--seed", "11", "--temperature", "1"},
     {.temperature = 1, .top_k = 4, .top_p = 0.7, .seed = 11},
     40}};
enum { ASKED = sizeof asked / sizeof *asked };

static void check_command(const Model *m)
{
    char text[ASKED][TOKENS + 1], all[1024], printed[4096];
    int ended = 0;
    for (int i = 0; i < ASKED; i++) {
        text_expect(m, &asked[i].sampling, asked[i].tokens, text[i]);
        command_run(m, asked[i].word, printed, sizeof printed);
        snprintf(all, sizeof all, "%s%s\n", prompt, text[i]);
        assert_string_equal(printed, all);
        ended += (int64_t)strlen(text[i]) < asked[i].tokens;
        for (int k = 0; k < i; k++) /* every case must give another text */
            assert_string_not_equal(text[i], text[k]);
    }
    assert_true(ended >= 3 && ended < ASKED);
    command_run(m, (const char *[]){"--prompt", "and the day", "--tokens", "60", NULL}, printed,
                sizeof printed);
    snprintf(all, sizeof all, "and the day%s\n", text[0]);
    assert_string_equal(printed, all);
}

/* Checks several samples at once: each is the text of its own seed, up to the stop text. */
static void check_samples(const Model *m)
{
    char text[TOKENS + 1], all[4 * TOKENS + 400] = "", printed[4096];
    int stopped = 0;
    for (uint64_t i = 0; i < 4; i++) {
        Sampling sampling = {.temperature = 0.8, .top_p = 1, .seed = 5 + i};
        text_expect(m, &sampling, TOKENS, text);
        char *stop = strstr(text, "g");
        stopped += stop != NULL;
        if (stop) *stop = '\0';
        size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, "--- sample %d of 4, seed %d\n%s%s\n", (int)i + 1,
                 5 + (int)i, prompt, text);
    }
    assert_true(stopped >= 2);
    command_run(
        m, (const char *[]){"--tokens", "60", "--seed", "5", "--samples", "4", "--stop", "g", NULL},
        printed, sizeof printed);
    assert_string_equal(printed, all);
}

/* Checks that a text ends before a stop text, which consists of two tokens of the text, but is not
 * looked for in the prompt. */
static void check_stop(const Model *m)
{
    char text[TOKENS + 1], all[512], printed[4096], stop[3] = "", seed[24];
    Sampling sampling = {.temperature = 0.8, .top_p = 1};
    long end = 0;
    while (end < 3) { /* a seed whose text is long enough */
        sampling.seed++;
        text_expect(m, &sampling, TOKENS, text);
        if (strlen(text) < 12) continue;
        memcpy(stop, text + 8, 2);
        end = strstr(text, stop) - text;
    }
    snprintf(seed, sizeof seed, "%d", (int)sampling.seed);
    snprintf(all, sizeof all, "%s%.*s\n", prompt, (int)end, text);
    command_run(m,
                (const char *[]){"--tokens", "60", "--seed", seed, "--stop", "of the", "--stop",
                                 stop, NULL},
                printed, sizeof printed);
    assert_string_equal(printed, all);
}

/* Checks a prompt from a file. */
static void check_prompt_file(const Model *m)
{
    char text[TOKENS + 1], all[512], printed[4096];
    char *path = text_format("%s/prompt.txt", m->folder->folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("two\nlines\n\n", file);
    assert_int_equal(fclose(file), 0);
    text_expect(m, &asked[0].sampling, TOKENS, text);
    snprintf(all, sizeof all, "two\nlines\n%s\n", text);
    command_run(m, (const char *[]){"--tokens", "60", "--prompt-file", path, NULL}, printed,
                sizeof printed);
    assert_string_equal(printed, all);
    free(path);
}

/* Checks the sample of a training run, which uses eval.sample_* and the run's seed. */
static void check_sample(const Model *m, Opened *o)
{
    char want[TOKENS + 1];
    Sampling sampling = {.temperature = 0.6, .top_k = 7, .top_p = 1, .seed = 23};
    text_expect(m, &sampling, TOKENS, want);
    char *sample = trainer_sample(&o->trainer, prompt, TOKENS);
    assert_true(strlen(want) > 8 && strlen(want) < TOKENS);
    assert_string_equal(sample, want);
    free(sample);
}

static void config_write(const Opened *o, const char *run)
{
    char *path = text_format("%s/config.json", run);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    config_print(o->config, file);
    assert_int_equal(fclose(file), 0);
    free(path);
}

static void test_generated_texts_are_determined_by_the_options_and_the_seed(void **state)
{
    Opened o;
    char err[1024];
    Model m = {.folder = *state, .run = text_format("%s/run", ((Folder *)*state)->folder)};
    steps.seen = true;
    trainer_run_open(&o, *state,
                     (const char *const[]){"device=cpu", "model.norm=layernorm", "seed=23",
                                           "model.tie_word_embeddings=false",
                                           "eval.sample_temperature=0.6", "eval.sample_top_k=7",
                                           "eval.sample_prompt=of the water", NULL});
    m.tokenizer = o.data.tokenizer;
    m.V = o.trainer.session.layers.shape.V;
    m.logits = must_calloc((size_t)m.V, sizeof *m.logits);
    logits_choose(&m);
    logits_set(&o, &m);
    if (!trainer_save(&o.trainer, m.run, "{}", "{}", err, sizeof err)) fail_msg("%s", err);
    config_write(&o, m.run);
    char *path = text_format("%s/tokenizer.json", m.run);
    if (!tokenizer_save(o.data.tokenizer, &fs_system, path, err, sizeof err)) fail_msg("%s", err);
    check_sample(&m, &o);
    steps_are_ended();
    check_command(&m);
    steps_are_ended();
    check_samples(&m);
    check_stop(&m);
    check_prompt_file(&m);
    steps_are_ended();
    free(path);
    free(m.logits);
    free(m.run);
    trainer_run_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated_texts_are_determined_by_the_options_and_the_seed),
    };
    return cmocka_run_group_tests_name("generate", tests, trainer_folder_setup,
                                       trainer_folder_teardown);
}
