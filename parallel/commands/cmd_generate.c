/* cmd_generate.c -- `./train generate RUN`: text from the newest checkpoint of a run, as it is
 * made. */
#include "model/core/args.h"
#include "model/core/log.h"
#include "model/generate.h"
#include "parallel/commands/commands.h"
#include "parallel/run/opened_run.h"

#include <stdlib.h>
#include <string.h>

static void print_help(void)
{
    printf("usage: ./train generate RUN [options]\n\n"
           "RUN is a run folder, or one of its checkpoints.\n\n"
           "  --prompt TEXT      what the text begins with; default: eval.sample_prompt\n"
           "  --tokens N         how many tokens to write; default 200\n"
           "  --temperature X    0: always the most probable token; default 0.8\n"
           "  --top-k N          only the N most probable tokens; 0: all (default)\n"
           "  --top-p X          only the most probable tokens up to this mass; default 1\n"
           "  --seed N           another seed, another text; default 1337\n"
           "  --set key=value    override a key of the config, e.g. --set cpu.threads=1\n");
}

typedef struct {
    const char *run, *prompt;
    const char **set;
    int n_sets;
    int64_t tokens;
    Sampling sampling;
} Arguments;

static double number(const char *option, const char *text, double least, double most)
{
    char *end;
    double x = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !(x >= least && x <= most))
        fail(EXIT_USAGE, "%s %s: give a number from %g to %g", option, text, least, most);
    return x;
}

enum { PROMPT, TOKENS, TEMPERATURE, TOP_K, TOP_P, SEED, SET, N_OPTIONS };

static const ArgOption options[N_OPTIONS] = {
    [PROMPT] = {"--prompt", ARG_TEXT},
    [TOKENS] = {"--tokens", ARG_VALUE},
    [TEMPERATURE] = {"--temperature", ARG_VALUE},
    [TOP_K] = {"--top-k", ARG_VALUE},
    [TOP_P] = {"--top-p", ARG_VALUE},
    [SEED] = {"--seed", ARG_VALUE},
    [SET] = {"--set", ARG_SETTING},
};

static void take_option(Arguments *a, int option, const char *value)
{
    const char *name = options[option].name;
    switch (option) {
    case PROMPT: a->prompt = value; break;
    case TOKENS: a->tokens = (int64_t)number(name, value, 1, 1e9); break;
    case TEMPERATURE: a->sampling.temperature = number(name, value, 0, 1e6); break;
    case TOP_K: a->sampling.top_k = (int64_t)number(name, value, 0, 1e9); break;
    case TOP_P: a->sampling.top_p = number(name, value, 0, 1); break;
    case SEED: a->sampling.seed = (uint64_t)number(name, value, 0, 9e15); break;
    default: a->set[a->n_sets++] = value; break;
    }
}

/* False after help. */
static bool parse(Arguments *a, int argc, char **argv)
{
    Args args = {.command = "./train generate",
                 .options = options,
                 .count = N_OPTIONS,
                 .argc = argc,
                 .argv = argv};
    *a = (Arguments){.tokens = 200, .sampling = {.temperature = 0.8, .top_p = 1.0, .seed = 1337}};
    a->set = must_calloc((size_t)argc, sizeof *a->set);
    for (;;) {
        switch (args_next(&args)) {
        case ARGS_OPTION: take_option(a, args.option, args.value); break;
        case ARGS_WORD:
            if (a->run != NULL)
                fail(EXIT_USAGE,
                     "two runs, %s and %s: give one (a prompt goes behind --prompt, in quotes)",
                     a->run, args.value);
            a->run = args.value;
            break;
        case ARGS_HELP: print_help(); return false;
        case ARGS_WRONG: fail(EXIT_USAGE, "%s", args.error);
        case ARGS_END:
            if (a->run != NULL) return true;
            fail(EXIT_USAGE, "which run? ./train generate out/demo --prompt \"In the beginning\"");
        }
    }
}

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

int cmd_generate(int argc, char **argv)
{
    Arguments a;
    OpenedRun run;
    TokenBuffer prompt = {0};
    if (!parse(&a, argc, argv)) {
        free(a.set);
        return EXIT_OK;
    }
    opened_run_open(&run, a.run, false, a.n_sets, a.set);
    const Tokenizer *tokenizer = run.tokenizer;
    if (tokenizer == NULL)
        fail(EXIT_MISSING, "%s has no tokenizer: its data were bare token files", a.run);
    if (a.prompt == NULL)
        a.prompt = run.config->eval.sample_prompt ? run.config->eval.sample_prompt : "";
    Printer printer = {.tokenizer = tokenizer, .end = tokenizer_end_of_text(tokenizer)};
    Encoder *encoder = encoder_create(tokenizer);
    encoder_encode(encoder, (const uint8_t *)a.prompt, (int64_t)strlen(a.prompt), &prompt);
    encoder_free(encoder);
    if (prompt.count == 0) token_buffer_add(&prompt, printer.end >= 0 ? printer.end : 0);
    Session *s = &run.session;
    Decoder *decoder = decoder_create(&s->dev, &s->layers, s->params, &s->tp, s->layers.shape.P);
    printf("%s", a.prompt);
    generate(decoder, &a.sampling, prompt.id, prompt.count, a.tokens, print_token, &printer);
    printf("\n");
    decoder_destroy(decoder);
    token_buffer_free(&prompt);
    opened_run_close(&run);
    free(a.set);
    return EXIT_OK;
}
