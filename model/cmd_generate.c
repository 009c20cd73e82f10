/* cmd_generate.c -- `./train generate RUN`: text from the newest checkpoint of a run, as it is
 * made. */
#include "model/core/log.h"
#include "model/generate.h"
#include "parallel/commands.h"
#include "parallel/session.h"

#include <stdlib.h>
#include <string.h>

static void print_help(void)
{
    printf(
        "usage: ./train generate RUN [options]      (RUN: a run folder, or one of its "
        "checkpoints)\n\n"
        "  --prompt TEXT      what the text begins with; default: the config's eval.sample_prompt\n"
        "  --tokens N         how many tokens to write; default 200\n"
        "  --temperature X    0: always the most probable token; default 0.8\n"
        "  --top-k N          only the N most probable tokens; 0: all (default)\n"
        "  --top-p X          only the most probable tokens up to this mass; default 1\n"
        "  --seed N           another seed, another text; default 1337\n"
        "  --set key=value    override a key of the run's config, e.g. --set cpu.threads=1\n");
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

/* Takes "--option value"; false if it is no option of ours. */
static bool take_option(Arguments *a, const char *option, const char *value)
{
    if (strcmp(option, "--prompt") == 0)
        a->prompt = value;
    else if (strcmp(option, "--tokens") == 0)
        a->tokens = (int64_t)number(option, value, 1, 1e9);
    else if (strcmp(option, "--temperature") == 0)
        a->sampling.temperature = number(option, value, 0, 1e6);
    else if (strcmp(option, "--top-k") == 0)
        a->sampling.top_k = (int64_t)number(option, value, 0, 1e9);
    else if (strcmp(option, "--top-p") == 0)
        a->sampling.top_p = number(option, value, 0, 1);
    else if (strcmp(option, "--seed") == 0)
        a->sampling.seed = (uint64_t)number(option, value, 0, 9e15);
    else if (strcmp(option, "--set") == 0)
        a->set[a->n_sets++] = value;
    else
        return false;
    return true;
}

static void parse(Arguments *a, int argc, char **argv)
{
    *a = (Arguments){.tokens = 200, .sampling = {.temperature = 0.8, .top_p = 1.0, .seed = 1337}};
    a->set = must_calloc((size_t)argc, sizeof *a->set);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            print_help();
            exit(EXIT_OK);
        }
        if (strncmp(argv[i], "--", 2) != 0 && a->run == NULL) {
            a->run = argv[i];
        } else if (i + 1 < argc && take_option(a, argv[i], argv[i + 1])) {
            i++;
        } else {
            fail(EXIT_USAGE,
                 "%s: unknown option, or its value is missing; see ./train generate --help",
                 argv[i]);
        }
    }
    if (a->run == NULL)
        fail(EXIT_USAGE, "which run? ./train generate out/demo --prompt \"In the beginning\"");
}

typedef struct {
    const Tokenizer *tokenizer;
    int32_t end;
} Printer;

/* Prints a token's bytes; the end-of-text token ends the text. Terminal control bytes are shown,
 * not sent. */
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
    fflush(stdout);
    return true;
}

int cmd_generate(int argc, char **argv)
{
    Arguments a;
    OpenedRun run;
    TokenBuffer prompt = {0};
    parse(&a, argc, argv);
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
