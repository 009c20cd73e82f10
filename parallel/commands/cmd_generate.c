/* cmd_generate.c -- `./train generate RUN`: text from the newest checkpoint of a run, as it is
 * made. */
#include "model/core/log.h"
#include "model/generate.h"
#include "parallel/commands/commands.h"
#include "parallel/run/opened_run.h"
#include "parallel/run/ranks.h"

typedef struct {
    const char *run, *prompt;
    ArgList set;
    int64_t ranks;
    int64_t tokens;
    Sampling sampling;
} Arguments;

typedef struct {
    const Tokenizer *tokenizer;
    int32_t end;
} Printer;

/* Prints a token's bytes; the end-of-text token ends the text, and so does a full disk. Terminal
 * control bytes are shown, not sent. */
static bool print_token(void *context, int32_t token)
{
    Printer *p = context;
    int64_t size = 0;
    if (token == p->end) return false;
    const uint8_t *bytes = tokenizer_token(p->tokenizer, token, &size);
    for (int64_t i = 0; i < size; i++) {
        if ((bytes[i] < 32 && bytes[i] != '\n' && bytes[i] != '\t') || bytes[i] == 127)
            printf("\\x%02x", bytes[i]);
        else
            putchar(bytes[i]);
    }
    return fflush(stdout) == 0;
}

static int generate_text(const void *values)
{
    const Arguments *a = values;
    if (a->ranks > 1)
        fail(EXIT_UNAVAILABLE, "--ranks %d: this command has one rank so far; leave --ranks out",
             (int)a->ranks);
    OpenedRun run;
    TokenBuffer prompt = {0};
    opened_run_open(&run, a->run, false, a->set.count, a->set.item);
    const Tokenizer *tokenizer = run.tokenizer;
    if (tokenizer == NULL)
        fail(EXIT_MISSING, "%s has no tokenizer: its data were bare token files", a->run);
    const char *begin = a->prompt ? a->prompt : run.config->eval.sample_prompt;
    if (begin == NULL) begin = "";
    Printer printer = {.tokenizer = tokenizer, .end = tokenizer_end_of_text(tokenizer)};
    tokenizer_encode_prompt(tokenizer, begin, &prompt);
    Session *s = &run.session;
    Decoder *decoder = decoder_create(&s->dev, &s->layers, s->params, &s->tp, s->layers.shape.P);
    printf("%s", begin);
    generate(decoder, &a->sampling, prompt.id, prompt.count, a->tokens, print_token, &printer);
    printf("\n");
    decoder_destroy(decoder);
    token_buffer_free(&prompt);
    opened_run_close(&run);
    return EXIT_OK;
}

static const ArgOption options[] = {
    {.name = "--prompt",
     .value = "TEXT",
     .help = "what the text begins with; default: eval.sample_prompt",
     .kind = ARG_TEXT,
     .at = offsetof(Arguments, prompt)},
    {.name = "--tokens",
     .value = "N",
     .help = "how many tokens to write; default 200",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, tokens),
     .least = 1,
     .most = 1e9},
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
     .at = offsetof(Arguments, set)},
    RANKS_OPTION(Arguments),
};

const ArgCommand cmd_generate = {
    .name = "generate",
    .call = "./train generate",
    .usage = "RUN [options]",
    .summary = "write text with a trained run",
    .about = "RUN is a run folder, or one of its checkpoints.",
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 1,
              .most = 1,
              .at = offsetof(Arguments, run),
              .missing = "which run? ./train generate out/demo --prompt \"In the beginning\"",
              .plural = "runs",
              .advice = " (a prompt goes behind --prompt, in quotes)"},
    .size = sizeof(Arguments),
    .defaults = &(const Arguments){.ranks = 1,
                                   .tokens = 200,
                                   .sampling = {.temperature = 0.8, .top_p = 1.0, .seed = 1337}},
    .run = generate_text,
};
