/* cmd_import.c -- `./train import FORMAT SOURCE --out NAME`: creates a run folder from the weights
 * and the tokenizer of another program. */
#include "parallel/commands/cmd_import.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/log.h"
#include "model/core/shell_text.h"
#include "model/weights/hf_files.h"
#include "model/weights/interruptible.h"
#include "parallel/commands/commands.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *from, *out, *dtype;
    const char *tokenizer; /* --tokenizer, for a format whose files have none */
    ArgList set;
    bool without_tokenizer;
} Arguments;

void import_add_file(ImportInput *input, const char *name, char *text, size_t bytes)
{
    CHECK(input->n_files < IMPORT_MOST_FILES, "%d files", input->n_files);
    input->file[input->n_files++] =
        (ImportedFile){.name = must_strdup(name), .text = text, .bytes = bytes};
}

static void release(ImportInput *input)
{
    if (input->source) input->source->close(input->source);
    tokenizer_free(input->tokenizer);
    for (int i = 0; i < input->n_files; i++) {
        free(input->file[i].name);
        free(input->file[i].text);
    }
    free(input->opened);
    free(input->described);
}

/* Sets *out to the dtype of --dtype, or else to that of the token table: small tensors, such as
 * norms, may be stored in a wider one. Returns false if --dtype names no floating-point type. */
static bool choose_dtype(const Arguments *a, const WeightSource *source, DType *out)
{
    int token = weight_source_find(source, "token.weight");
    *out = token >= 0 ? source->tensor[token].dtype : F32;
    return a->dtype == NULL || (dtype_from_name(a->dtype, out) && dtype_is_float(*out));
}

static const char config_name[] = "the config of these weights";

/* In a message, replaces the name, line and column of the generated config, which the user has not
 * seen, by the name of the file that describes the model. */
static void name_source(char **message, int count, const char *file)
{
    size_t name = strlen(config_name);
    for (int i = 0; i < count; i++) {
        if (strncmp(message[i], config_name, name) != 0) continue;
        const char *rest = message[i] + name;
        char *named = text_format("%s:%s", file, rest + strspn(rest, ":0123456789"));
        free(message[i]);
        message[i] = named;
    }
}

/* Creates the config of the run. Returns NULL and prints an error if one of its values, perhaps
 * from --set, is refused. */
static const Config *make_config(const Arguments *a, const ImportInput *input, DType dtype,
                                 int *code)
{
    char *tokenizer = input->tokenizer ? text_format("%s/tokenizer.json", a->out) : NULL;
    char *text = architecture_config(&input->architecture, dtype, tokenizer);
    ConfigReport report = {0};
    const Config *config = config_parse(&(ConfigContext){.stored = true}, config_name, text,
                                        strlen(text), a->set.count, a->set.item, &report);
    name_source(report.error, report.n_errors, input->described);
    name_source(report.notice, report.n_notices, input->described);
    config_report_print(&report, false, config ? stdout : stderr);
    *code = config_report_code(&report);
    config_report_free(&report);
    free(text);
    free(tokenizer);
    return config;
}

/* Returns true if the config and the tokenizer match the weights; otherwise sets err. */
static bool check_model(const Arguments *a, const ImportInput *input, const Config *config,
                        char *err, size_t n)
{
    if (!architecture_check_window(&input->architecture, config, err, n)) return false;
    int32_t ids = input->tokenizer ? tokenizer_vocab_size(input->tokenizer) : 0;
    return ids <= config->model.vocab_size ||
           error_set(err, n,
                     "the tokenizer has %d ids and the token table %" PRId64
                     " rows; %s if the tokenizer belongs to other weights",
                     ids, config->model.vocab_size,
                     a->tokenizer ? "leave --tokenizer out" : "give --without-tokenizer");
}

static void print_model(const Config *c, DType dtype)
{
    log_field("model", "%s, %lld wide, %lld heads (%lld kv) of %lld, mlp %lld, vocabulary %lld, %s",
              figure_of(c->model.num_layers, "layer").text, (long long)c->model.hidden_size,
              (long long)c->model.num_attention_heads, (long long)c->model.num_key_value_heads,
              (long long)c->model.head_dim, (long long)c->model.intermediate_size,
              (long long)c->model.vocab_size, dtype_name(dtype));
}

static void print_result(const Arguments *a, const ImportInput *input, const Config *config,
                         DType dtype, const ImportedResult *result)
{
    char *out = shell_quoted_path(a->out);
    log_field("import", "%s: %s", input->opened ? input->opened : a->from,
              architecture_name(input->architecture.kind));
    print_model(config, dtype);
    if (result->rounded > 0)
        log_field("", "%s converted from another type", figure_of(result->rounded, "tensor").text);
    if (input->tokenizer)
        log_field("tokens", "a tokenizer of %s",
                  figure_of(tokenizer_vocab_size(input->tokenizer), "id").text);
    else
        log_field("tokens", "no tokenizer: text can be neither generated nor read%s",
                  input->opened ? "; --tokenizer PATH adds one" : "");
    for (int i = 0; i < input->n_files; i++)
        if (strcmp(input->file[i].name, "tokenizer.json") != 0)
            log_field(hf_file_is_companion(input->file[i].name) ? "kept" : "licence", "%s/%s",
                      a->out, input->file[i].name);
    log_field("saved", "%s (%s), sequences of %lld tokens", a->out,
              figure_bytes((double)result->bytes).text, (long long)config->data.seq_length);
    if (result->not_finite > 0)
        log_warning("%s of %s %s NaN or infinite there, so the model computes no numbers",
                    figure_of(result->not_finite, "weight").text, a->from,
                    result->not_finite == 1 ? "is" : "are");
    log_field("next", "./train generate %s --prompt \"...\"", out);
    log_field("", "./train %s --set data.text=my.txt", out);
    free(out);
}

static char *data_identity_of(const ImportInput *input)
{
    if (input->tokenizer == NULL) return must_strdup("tokenizer none; train none; val none");
    return text_format("tokenizer %016" PRIx64 "; train none; val none",
                       tokenizer_hash(input->tokenizer));
}

static int import_opened(const Arguments *a, const ImportInput *input)
{
    char err[2048];
    DType dtype;
    int code;
    if (!choose_dtype(a, input->source, &dtype))
        return error_print(EXIT_USAGE, "--dtype %s: write f32, f16 or bf16", a->dtype);
    const Config *config = make_config(a, input, dtype, &code);
    if (config == NULL) return code;
    ExitCode why = EXIT_CONFIG;
    ImportedResult result = {0};
    char *identity = data_identity_of(input);
    const ImportedRun run = {.source = input->source,
                             .config = config,
                             .origin = a->from,
                             .data = identity,
                             .file = input->file,
                             .n_files = input->n_files};
    bool good = check_model(a, input, config, err, sizeof err) &&
                imported_run_write(a->out, &run, &result, err, sizeof err, &why);
    if (good) print_result(a, input, config, dtype, &result);
    free(identity);
    config_free(config);
    return good ? EXIT_OK : error_print(why, "%s", err);
}

/* Reads the tokenizer of --tokenizer, which is stored as tokenizer.json. */
static bool open_tokenizer(const char *path, ImportInput *input, char *err, size_t n,
                           ExitCode *code)
{
    bool missing;
    if (path == NULL) return true;
    if (!tokenizer_load(path, &input->tokenizer, &missing, err, n)) {
        *code = missing ? EXIT_MISSING : EXIT_DAMAGED;
        return false;
    }
    char *text = tokenizer_to_json(input->tokenizer);
    import_add_file(input, "tokenizer.json", text, strlen(text));
    return true;
}

static int import_from(const Arguments *a, ImportOpen open)
{
    char err[4096];
    ExitCode code = EXIT_DAMAGED;
    ImportInput input = {0};
    bool good = open(a->from, !a->without_tokenizer, &input, err, sizeof err, &code) &&
                open_tokenizer(a->tokenizer, &input, err, sizeof err, &code);
    if (good) input.source = interruptible_source(input.source);
    int result = good ? import_opened(a, &input) : error_print(code, "%s", err);
    release(&input);
    return result;
}

static int import_hf(const void *values)
{
    return import_from(values, import_open_hf);
}

/* ---- the formats ----------------------------------------------------------------------------- */

static int import_llmc(const void *values)
{
    return import_from(values, import_open_llmc);
}

/* The options of all formats, as rows of a table. */
#define IMPORT_OUT                                                                                 \
    {                                                                                              \
        .name = "--out", .value = "NAME", .help = "the run folder to make; it must not exist",     \
        .kind = ARG_NAME, .required = true, .at = offsetof(Arguments, out)                         \
    }
#define IMPORT_DTYPE                                                                               \
    {                                                                                              \
        .name = "--dtype", .value = "TYPE",                                                        \
        .help = "f32, f16 or bf16: the type of the weights; default: as\nstored",                  \
        .kind = ARG_NAME, .at = offsetof(Arguments, dtype)                                         \
    }
#define IMPORT_SET                                                                                 \
    {                                                                                              \
        .name = "--set", .value = "key=value",                                                     \
        .help = "override a key of the run's config, such as\ndata.seq_length",                    \
        .kind = ARG_SETTINGS, .at = offsetof(Arguments, set)                                       \
    }

static const ArgOption options_hf[] = {
    IMPORT_OUT,
    IMPORT_DTYPE,
    {.name = "--without-tokenizer",
     .help = "the weights alone, for data that are token files",
     .kind = ARG_FLAG,
     .at = offsetof(Arguments, without_tokenizer)},
    IMPORT_SET,
};

static const ArgOption options_llmc[] = {
    IMPORT_OUT,
    IMPORT_DTYPE,
    {.name = "--tokenizer",
     .value = "PATH",
     .help = "its tokenizer, which FILE does not have: a vocab.bpe or a\ntokenizer.json",
     .kind = ARG_NAME,
     .at = offsetof(Arguments, tokenizer)},
    IMPORT_SET,
};

/* The fields that the command tables of all formats share. */
#define IMPORT_COMMAND(title, source, rows, own, function)                                         \
    .name = (title), .call = "./train import " title,                                              \
    .usage = source " --out NAME [--dtype TYPE] " own " [--set key=value]...", .options = (rows),  \
    .n_options = ARG_ROWS(rows),                                                                   \
    .words = {.least = 1,                                                                          \
              .most = 1,                                                                           \
              .at = offsetof(Arguments, from),                                                     \
              .missing = "./train import " title ": import what? see --help",                      \
              .plural = "sources"},                                                                \
    .size = sizeof(Arguments), .run = (function)

static const ArgCommand command_hf = {
    IMPORT_COMMAND("hf", "DIR", options_hf, "[--without-tokenizer]", import_hf),
    .summary = "a folder of Hugging Face's libraries: config.json, safetensors,\n"
               "tokenizer.json",
    .about = "Makes the run folder NAME of the model in DIR, which has config.json,\n"
             "model.safetensors (or several files with their index) and tokenizer.json.\n"
             "Models of the types gpt2, llama, mistral, qwen2 and qwen3 are read. NAME\n"
             "generates and evaluates like a run, and `./train NAME --set data.text=FILE`\n"
             "trains it from step 0.",
};

static const ArgCommand command_llmc = {
    IMPORT_COMMAND("llmc", "FILE", options_llmc, "[--tokenizer PATH]", import_llmc),
    .summary = "a model file of llm.c, or the folder of its run",
    .about = "Makes the run folder NAME of the model in FILE, such as gpt2_124M.bin (version\n"
             "3, f32) or gpt2_124M_bf16.bin (version 5). Of a folder that llm.c made, the\n"
             "newest model_N.bin that has its DONE_N is read. llm.c's tokenizer files have no\n"
             "merges, so text can be split only with --tokenizer.",
};

static const ArgCommand *const commands[] = {&command_hf, &command_llmc};

const ArgCommand cmd_import = {
    .name = "import",
    .call = "./train import",
    .summary = "make a run of another program's weights",
    .notes = "./train import FORMAT --help says more.",
    .commands = commands,
    .n_commands = ARG_ROWS(commands),
};
