/* cmd_generate.c -- `./train generate RUN`: generates text with a checkpoint, by default the best,
 * and prints each token as soon as it is drawn. */
#include "model/core/log.h"
#include "model/generate.h"
#include "parallel/commands/commands.h"
#include "parallel/run/opened_run.h"
#include "parallel/run/ranks_option.h"

typedef struct {
    OpenedArguments opened; /* the first field: OPENED_CHOICES */
    const char *prompt;
    int64_t tokens;
    Sampling sampling;
} Arguments;

typedef struct {
    OpenedRank *rank;
    const Tokenizer *tokenizer;
    const char *prompt; /* still to be printed; NULL: it has been */
    int32_t end;
} Printer;

/* Prints a token's bytes, with control bytes escaped. Returns false, which ends the text, for the
 * end-of-text token or if the output cannot be written. */
static bool print_token(const Printer *p, int32_t token)
{
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

/* Prints the prompt, once the model has read it: until then the live line has its place. */
static void print_prompt(Printer *p)
{
    if (p->prompt == NULL) return;
    progress_end(&p->rank->progress);
    printf("%s", p->prompt);
    p->prompt = NULL;
}

/* Called for each token. All ranks draw the same tokens, and rank 0 prints them. Returns false on
 * all ranks when rank 0 ends the text. */
static bool take_token(void *context, int32_t token)
{
    Printer *p = context;
    if (p->rank->leads) print_prompt(p);
    return session_all_go_on(&p->rank->session, !p->rank->leads || print_token(p, token));
}

/* Takes a token that is drawn for the decoder's first uses. */
static bool pass_over(void *context, int32_t token)
{
    (void)context, (void)token;
    return true;
}

static int generate_on(OpenedRank *rank, void *context)
{
    const Arguments *a = context;
    Session *s = &rank->session;
    const Tokenizer *tokenizer = rank->run->tokenizer;
    const char *begin = a->prompt ? a->prompt : rank->run->config->eval.sample_prompt;
    TokenBuffer prompt = {0};
    if (begin == NULL) begin = ""; /* an empty prompt begins like a new document */
    Printer printer = {.rank = rank,
                       .tokenizer = tokenizer,
                       .prompt = begin,
                       .end = tokenizer_end_of_text(tokenizer)};
    tokenizer_encode_prompt(tokenizer, begin, &prompt);
    Decoder *decoder = decoder_create(&s->dev, &s->layers, s->params, &s->uncut, session_relay(s),
                                      s->layers.shape.P);
    if (session_connects(s)) {
        s->params->step_begin(s->params, NULL, 0);
        generate(decoder, &a->sampling, prompt.id, prompt.count, 2, pass_over, NULL);
        s->params->step_end(s->params);
    }
    opened_rank_connect(rank);
    /* No list of uses is given, because the number of tokens is not known in advance. */
    s->params->step_begin(s->params, NULL, 0);
    progress_again(&rank->progress);
    progress_print(&rank->progress, "reading the prompt");
    generate(decoder, &a->sampling, prompt.id, prompt.count, a->tokens, take_token, &printer);
    s->params->step_end(s->params);
    if (rank->leads) print_prompt(&printer);
    if (rank->leads) printf("\n");
    session_meet(s);
    decoder_destroy(decoder);
    token_buffer_free(&prompt);
    return EXIT_OK;
}

static int generate_text(const void *values)
{
    Arguments a = *(const Arguments *)values;
    OpenedRun run;
    opened_run_open(&run, &a.opened, false);
    if (run.tokenizer == NULL)
        fail(EXIT_MISSING, "%s has no tokenizer: its data were bare token files", a.opened.run);
    int code = opened_run_on(&run, generate_on, &a);
    opened_run_close(&run);
    return code;
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
     .at = offsetof(Arguments, opened.set)},
    OPENED_CHOICES,
    RANKS_OPTION(OpenedArguments),
};

const ArgCommand cmd_generate = {
    .name = "generate",
    .call = "./train generate",
    .usage = "RUN [options]",
    .summary = "write text with a trained run",
    .about = "RUN is a run folder, or one of its checkpoints.\n" OPENED_GRID,
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
                                   .sampling = {.temperature = 0.8, .top_p = 1.0, .seed = 1337}},
    .run = generate_text,
};
