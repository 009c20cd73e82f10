/* cmd_generate.c -- `./train generate RUN`: generates texts with a checkpoint, by default the best,
 * and prints each token as soon as it is drawn. */
#include "model/core/clock.h"
#include "model/core/figures.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "model/generate.h"
#include "parallel/commands/commands.h"
#include "parallel/commands/stop_text.h"
#include "parallel/grid/control.h"
#include "parallel/run/opened_run.h"
#include "parallel/run/ranks_option.h"

#include <stdlib.h>
#include <string.h>

/* The largest size of --prompt-file in bytes. A model reads only the last tokens of a longer prompt
 * anyway. */
enum { PROMPT_BYTES = 16 << 20 };

typedef struct {
    OpenedArguments opened; /* must come first, for OPENED_CHOICES */
    const char *prompt, *prompt_file;
    ArgList stops;
    int64_t tokens, samples;
    Sampling sampling;
} Arguments;

typedef struct {
    OpenedRank *rank;
    const Tokenizer *tokenizer;
    const char *prompt; /* the prompt; NULL after it was printed */
    StopText text;
    int32_t end;
    /* Sums over all samples. drawn: tokens. later: tokens except the first of each sample. reading:
     * seconds up to the first token, in which the model reads the prompt. drawing: seconds for the
     * later tokens. */
    int64_t drawn, later;
    double reading, drawing;
    double since; /* when the work for the next token of this sample began */
} Printer;

/* Prints `size` bytes, with control bytes escaped. */
static void print_bytes(const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if ((c < 32 && c != '\n' && c != '\t') || c == 127)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
}

/* Prints a token's bytes, except those that may be the beginning of a stop text. Returns false,
 * which ends the text, for the end-of-text token, after a stop text, or if the output cannot be
 * written. */
static bool print_token(Printer *p, int32_t token)
{
    int64_t size = 0;
    if (token == p->end) return false;
    const uint8_t *bytes = tokenizer_token(p->tokenizer, token, &size);
    size_t free_to_print = stop_text_add(&p->text, bytes, size);
    print_bytes(p->text.held, free_to_print);
    stop_text_drop(&p->text, free_to_print);
    return fflush(stdout) == 0 && !p->text.found;
}

/* Prints the prompt, once the model has read it: until then the live line is shown in its place. */
static void print_prompt(Printer *p)
{
    if (p->prompt == NULL) return;
    progress_end(&p->rank->progress);
    printf("%s", p->prompt);
    p->prompt = NULL;
}

static void count_token(Printer *p)
{
    double now = seconds_now(), *clock = p->prompt ? &p->reading : &p->drawing;
    *clock += now - p->since;
    p->later += p->prompt == NULL;
    p->drawn++;
    p->since = now;
}

/* Called for each token. All ranks draw the same tokens, and rank 0 prints them. Returns false on
 * all ranks when rank 0 ends the text. */
static bool take_token(void *context, int32_t token)
{
    Printer *p = context;
    if (p->rank->leads) count_token(p);
    if (p->rank->leads) print_prompt(p);
    return session_all_go_on(&p->rank->session, !p->rank->leads || print_token(p, token));
}

/* Ignores a token that is drawn only to use the decoder for the first time. */
static bool pass_over(void *context, int32_t token)
{
    (void)context, (void)token;
    return true;
}

/* Prints the speed on stderr, because stdout contains only the text. Prints nothing if the text
 * could not be written. */
static void print_speed(const Printer *p, int64_t prompt_tokens)
{
    if (fflush(stdout) != 0 || ferror(stdout)) return;
    fprintf(stderr, "%s", figure_of(p->drawn, "token").text);
    if (p->later > 0)
        fprintf(stderr, ", %s tokens/s", figure_count((double)p->later / p->drawing).text);
    fprintf(stderr, ", after a prompt of %s", figure_of(prompt_tokens, "token").text);
    fprintf(stderr, " in %.2f s\n", p->reading);
}

/* Draws and prints sample number `i`. It is the text that a single sample with the seed plus `i`
 * has. */
static void write_sample(Printer *p, Decoder *decoder, const Arguments *a, const char *begin,
                         const TokenBuffer *prompt, int64_t i)
{
    OpenedRank *rank = p->rank;
    ParamStore *params = rank->session.params;
    Sampling sampling = a->sampling;
    sampling.seed += (uint64_t)i;
    p->prompt = begin;
    stop_text_restart(&p->text);
    progress_again(&rank->progress);
    progress_print(&rank->progress, "reading the prompt");
    if (rank->leads && a->samples > 1) {
        live_line_clear(stdout);
        printf("--- sample %lld of %lld, seed %llu\n", (long long)i + 1, (long long)a->samples,
               (unsigned long long)sampling.seed);
    }
    p->since = seconds_now();
    /* The list of the weights that will be used is not given, because the number of tokens is not
     * known in advance. */
    params->step_begin(params, NULL, 0);
    generate(decoder, &sampling, prompt->id, prompt->count, a->tokens, take_token, p);
    params->step_end(params);
    if (!rank->leads) return;
    if (!p->text.found) print_bytes(p->text.held, p->text.count);
    printf("\n");
}

static int generate_on(OpenedRank *rank, void *context)
{
    const Arguments *a = context;
    Session *s = &rank->session;
    const Tokenizer *tokenizer = rank->run->tokenizer;
    TokenBuffer prompt = {0};
    /* All ranks use rank 0's prompt: the others have not read the file, and their machine may have
     * a different one. */
    char *begin = control_share_text(s->world, a->prompt);
    Printer printer = {.rank = rank,
                       .tokenizer = tokenizer,
                       .text.stops = &a->stops,
                       .end = tokenizer_end_of_text(tokenizer)};
    tokenizer_encode_prompt(tokenizer, begin, &prompt);
    if (rank->leads && prompt.count > s->layers.shape.P)
        log_warning("the prompt has %s; the model reads the last %lld",
                    figure_of(prompt.count, "token").text, (long long)s->layers.shape.P);
    Decoder *decoder = decoder_create(&s->dev, &s->layers, s->params, &s->uncut, session_relay(s),
                                      s->layers.shape.P);
    if (session_connects(s)) {
        s->params->step_begin(s->params, NULL, 0);
        generate(decoder, &a->sampling, prompt.id, prompt.count, 2, pass_over, NULL);
        s->params->step_end(s->params);
    }
    opened_rank_connect(rank);
    for (int64_t i = 0; i < a->samples; i++) {
        write_sample(&printer, decoder, a, begin, &prompt, i);
        if (!session_all_go_on(s, !rank->leads || !ferror(stdout))) break;
    }
    if (rank->leads) print_speed(&printer, prompt.count);
    session_meet(s);
    decoder_destroy(decoder);
    token_buffer_free(&prompt);
    stop_text_free(&printer.text);
    free(begin);
    return EXIT_OK;
}

/* Reads the prompt from a file, or from standard input, without the line feed at its end. Ends the
 * program if that fails. The caller frees the text. */
static char *read_prompt(const char *path)
{
    size_t size;
    const char *why, *name = strcmp(path, "-") == 0 ? "standard input" : path;
    char *text = file_read_input(path, PROMPT_BYTES + 1, &size, &why);
    if (text == NULL) fail(EXIT_MISSING, "the prompt cannot be read from %s: %s", name, why);
    if (size > PROMPT_BYTES)
        fail(EXIT_USAGE, "the prompt in %s is longer than 16 MiB; give less", name);
    if (size > 0 && text[size - 1] == '\n') size--;
    const char *zero = memchr(text, '\0', size);
    if (zero != NULL)
        fail(EXIT_DAMAGED, "%s: byte %lld of the prompt is zero; give a text", name,
             (long long)(zero - text));
    text[size] = '\0';
    return text;
}

static int generate_text(const void *values)
{
    Arguments a = *(const Arguments *)values;
    OpenedRun run;
    char *read = NULL;
    if (a.prompt && a.prompt_file)
        return error_print(EXIT_USAGE, "--prompt and --prompt-file both give the prompt; give one");
    opened_run_open(&run, &a.opened, false);
    if (run.tokenizer == NULL)
        fail(EXIT_MISSING, "%s has no tokenizer: its data were bare token files", a.opened.run);
    if (a.prompt == NULL && a.prompt_file == NULL) a.prompt = run.config->eval.sample_prompt;
    if (a.prompt_file != NULL && launch_leads()) a.prompt = read = read_prompt(a.prompt_file);
    if (a.prompt == NULL) a.prompt = ""; /* an empty prompt begins like a new document */
    int code = opened_run_on(&run, generate_on, &a);
    free(read);
    opened_run_close(&run);
    return code;
}

static const ArgOption options[] = {
    {.name = "--prompt",
     .value = "TEXT",
     .help = "what the text begins with; default: eval.sample_prompt",
     .kind = ARG_TEXT,
     .at = offsetof(Arguments, prompt)},
    {.name = "--prompt-file",
     .value = "FILE",
     .help = "read the prompt from a file, or from standard input (-),\nwithout its last line feed",
     .kind = ARG_NAME,
     .at = offsetof(Arguments, prompt_file)},
    {.name = "--tokens",
     .value = "N",
     .help = "how many tokens to write; default 200",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, tokens),
     .least = 1,
     .most = 1e9},
    {.name = "--stop",
     .value = "TEXT",
     .help = "end the text before this one; may be repeated",
     .kind = ARG_NAMES,
     .at = offsetof(Arguments, stops)},
    {.name = "--samples",
     .value = "N",
     .help = "how many texts to write, with the seeds SEED, SEED + 1, ...;\ndefault 1",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, samples),
     .least = 1,
     .most = 1e6},
    {.name = "--temperature",
     .value = "X",
     .help = "0: always the most probable token; default 0.8",
     .kind = ARG_REAL,
     .at = offsetof(Arguments, sampling.temperature),
     .most = 1e6},
    {.name = "--top-k",
     .value = "N",
     .help = "only the N most probable tokens; 0: all (default)",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, sampling.top_k),
     .most = 1e9},
    {.name = "--top-p",
     .value = "X",
     .help = "only the most probable tokens up to this mass; default 1",
     .kind = ARG_REAL,
     .at = offsetof(Arguments, sampling.top_p),
     .most = 1},
    {.name = "--seed",
     .value = "N",
     .help = "another seed, another text; default 1337",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, sampling.seed),
     .most = 9e15},
    {.name = "--set",
     .value = "key=value",
     .help = "override a key of the config, e.g. --set cpu.threads=1",
     .kind = ARG_SETTINGS,
     .at = offsetof(Arguments, opened.set)},
    OPENED_CHOICES,
    RANKS_OPTION(OpenedArguments),
};

const ArgCommand cmd_generate = {
    .name = "generate",
    .call = "./train generate",
    .usage = "RUN [options]",
    .summary = "write text with a trained run",
    .about =
        "RUN is a run folder, or one of its checkpoints. Prints the prompt and the text after it,\n"
        "and on stderr how many tokens a second were drawn.\n" OPENED_GRID,
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 1,
              .most = 1,
              .at = offsetof(Arguments, opened.run),
              .missing = "which run? ./train generate out/demo --prompt \"In the beginning\"",
              .plural = "runs",
              .advice = " (a prompt goes after --prompt, in quotes)"},
    .size = sizeof(Arguments),
    .defaults = &(const Arguments){.tokens = 200,
                                   .samples = 1,
                                   .sampling = {.temperature = 0.8, .top_p = 1.0, .seed = 1337}},
    .run = generate_text,
};
