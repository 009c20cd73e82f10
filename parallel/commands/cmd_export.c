/* cmd_export.c -- `./train export FORMAT RUN --out PATH`: writes a run's weights and tokenizer for
 * other programs. */
#include "parallel/commands/cmd_export.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "model/core/shell_text.h"
#include "model/weights/hf_write.h"
#include "model/weights/interruptible.h"
#include "parallel/commands/commands.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int export_opened(const ExportArguments *a, const ExportedRun *run, DType dtype,
                         ExportWrite write)
{
    char err[2048];
    ExitCode code = EXIT_INPUT_OUTPUT;
    ExportResult result = {0};
    fprintf(stderr, "%s\n", run->chosen);
    if (!write(a, run, dtype, &result, err, sizeof err, &code)) {
        free(result.note);
        return error_print(code, "%s", err);
    }
    log_field("export", "%s: %s in %s, %s", a->opened.run, result.what, dtype_name(dtype),
              figure_bytes((double)result.bytes).text);
    if (run->masters) log_field("", "from the master copies of its 16-bit weights");
    log_field("saved", "%s%s%s", a->out, result.files > 1 ? ": " : "",
              result.files > 1 ? figure_of(result.files, "weight file").text : "");
    if (result.overflows > 0)
        log_warning("%" PRId64 " weights are beyond the range of %s and became infinite; export "
                    "them with --dtype bf16 or f32",
                    result.overflows, dtype_name(dtype));
    log_field("next", "%s", result.note);
    free(result.note);
    return EXIT_OK;
}

static int export_run(const ExportArguments *a, ExportWrite write)
{
    char err[2048];
    ExitCode code;
    ExportedRun run;
    DType dtype = F32;
    if (a->dtype != NULL && !(dtype_from_name(a->dtype, &dtype) && dtype_is_float(dtype)))
        return error_print(EXIT_USAGE, "--dtype %s: write f32, f16 or bf16", a->dtype);
    /* If --dtype can represent the master copies exactly, they are exported instead of the 16-bit
     * weights. */
    bool masters = a->dtype != NULL && dtype_size(dtype) >= dtype_size(F32);
    if (!exported_run_open(&run, &a->opened, masters, err, sizeof err, &code))
        return error_print(code, "%s", err);
    if (a->dtype == NULL) dtype = config_dtype(run.config);
    run.source = interruptible_source(run.source);
    int result = export_opened(a, &run, dtype, write);
    exported_run_close(&run);
    return result;
}

/* ---- what formats share ---------------------------------------------------------------------- */

bool export_file_begin(const char *out, char *err, size_t n)
{
    struct stat info;
    if (lstat(out, &info) == 0)
        return error_set(err, n, "%s exists already; choose a new name with --out", out);
    char *folder = path_beside(out, "");
    bool good = fs_make_folders(&fs_system, folder, err, n);
    free(folder);
    return good;
}

ExitCode export_failure(const WeightSource *source)
{
    return source->damaged ? EXIT_DAMAGED : EXIT_INPUT_OUTPUT;
}

void export_check_tokenizer(const ExportedRun *run, const char *what)
{
    if (run->tokenizer == NULL)
        log_warning("the run has no tokenizer, so neither has the %s: programs that read it take "
                    "token ids alone",
                    what);
}

char *export_note(const char *command, const char *path)
{
    char *quoted = shell_quoted_path(path), *note = text_format("%s %s", command, quoted);
    free(quoted);
    return note;
}

int32_t export_first_token(const Tokenizer *t)
{
    static const char *const names[] = {"<|begin_of_text|>", "<s>", "<|startoftext|>"};
    int32_t ids = tokenizer_vocab_size(t);
    if (tokenizer_begin_of_text(t) >= 0) return tokenizer_begin_of_text(t);
    for (int32_t id = 0; id < ids; id++) {
        const char *name = tokenizer_special(t, id);
        for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
            if (strcmp(name, names[i]) == 0) return id;
    }
    return tokenizer_end_of_text(t);
}

static int run_hf(const void *values)
{
    return export_run(values, export_hf);
}

static int run_llmc(const void *values)
{
    return export_run(values, export_llmc);
}

static int run_gguf(const void *values)
{
    return export_run(values, export_gguf);
}

/* ---- the formats ----------------------------------------------------------------------------- */

/* The options that all formats share. */
#define EXPORT_OPTIONS(what)                                                                       \
    {.name = "--out",                                                                              \
     .value = "PATH",                                                                              \
     .help = what,                                                                                 \
     .kind = ARG_NAME,                                                                             \
     .required = true,                                                                             \
     .at = offsetof(ExportArguments, out)},                                                        \
        {.name = "--dtype",                                                                        \
         .value = "TYPE",                                                                          \
         .help = "f32, f16 or bf16: the type of the weights; default: as\nin the checkpoint; f32 " \
                 "of a 16-bit run: "                                                               \
                 "its master copies",                                                              \
         .kind = ARG_NAME,                                                                         \
         .at = offsetof(ExportArguments, dtype)},                                                  \
        OPENED_CHOICES

static const ArgOption hf_options[] = {
    EXPORT_OPTIONS("the folder to make; it must not exist"),
    {.name = "--shard-bytes",
     .value = "N",
     .help = "most bytes of weights in a file; default 5000000000",
     .kind = ARG_INTEGER,
     .at = offsetof(ExportArguments, shard_bytes),
     .least = 1,
     .most = 9e15},
};

static const ArgOption file_options[] = {EXPORT_OPTIONS("the file to write; it must not exist")};

static const ExportArguments defaults = {.shard_bytes = HF_SHARD_BYTES};

/* The fields that the command tables of all formats share. */
#define EXPORT_COMMAND(title, rows, function)                                                      \
    .name = (title), .call = "./train export " title,                                              \
    .usage = "RUN --out PATH [--dtype TYPE] [--best | --newest]", .options = (rows),               \
    .n_options = ARG_ROWS(rows),                                                                   \
    .words = {.least = 1,                                                                          \
              .most = 1,                                                                           \
              .at = offsetof(ExportArguments, opened.run),                                         \
              .missing = "which run? ./train export " title " out/demo --out PATH",                \
              .plural = "runs"},                                                                   \
    .size = sizeof(ExportArguments), .defaults = &defaults, .run = (function)

static const ArgCommand command_hf = {
    EXPORT_COMMAND("hf", hf_options, run_hf),
    .summary = "a folder for transformers: safetensors, config.json, tokenizer.json",
    .about = "Writes the weights of RUN, a run folder or one of its checkpoints, for Hugging\n"
             "Face's libraries: as a model of type gpt2, llama, qwen2 or qwen3, with its\n"
             "config.json and tokenizer.json. Its logits in transformers are the run's.",
};

static const ArgCommand command_llmc = {
    EXPORT_COMMAND("llmc", file_options, run_llmc),
    .summary = "a model file of llm.c, for models of GPT-2's shape",
    .about = "Writes the weights of RUN, a run folder or one of its checkpoints, as a model file\n"
             "of llm.c: version 3 in f32, version 5 in bf16. It has no tokenizer.",
};

static const ArgCommand command_gguf = {
    EXPORT_COMMAND("gguf", file_options, run_gguf),
    .summary = "a GGUF file, for llama.cpp and programs like it",
    .about = "Writes the weights and the tokenizer of RUN, a run folder or one of its\n"
             "checkpoints, as a GGUF file of the architecture gpt2, llama, qwen2 or qwen3.",
};

static const ArgCommand *const commands[] = {&command_hf, &command_llmc, &command_gguf};

const ArgCommand cmd_export = {
    .name = "export",
    .call = "./train export",
    .summary = "write a run's weights for other programs",
    .notes = "./train export FORMAT --help says more.",
    .commands = commands,
    .n_commands = ARG_ROWS(commands),
};
