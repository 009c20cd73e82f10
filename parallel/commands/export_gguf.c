/* export_gguf.c -- `./train export gguf`: writes a run as a GGUF file. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/weights/gguf.h"
#include "parallel/commands/cmd_export.h"

#include <stdio.h>
#include <stdlib.h>

/* Writes the file; returns false and sets err and *code on failure. */
static bool write_model(const GgufModel *model, const char *out, const ExportedRun *run,
                        ExportResult *result, char *err, size_t n, ExitCode *code)
{
    *code = EXIT_CONFIG;
    if (!gguf_fits(model, err, n)) return false;
    *code = EXIT_CANNOT_CREATE;
    if (!export_file_begin(out, err, n)) return false;
    export_check_tokenizer(run, "file");
    *code = EXIT_INPUT_OUTPUT;
    Progress progress = progress_begin();
    bool good = gguf_write(&fs_system, out, model, run->source, &progress, &result->bytes,
                           &result->overflows, err, n);
    progress_end(&progress);
    if (good) return true;
    *code = export_failure(run->source);
    return false;
}

bool export_gguf(const ExportArguments *a, const ExportedRun *run, DType dtype,
                 ExportResult *result, char *err, size_t n, ExitCode *code)
{
    Architecture model;
    *code = EXIT_CONFIG;
    if (!architecture_of(run->config, &model, err, n)) return false;
    char *folder = path_trimmed(run->folder);
    GgufModel gguf = {.name = path_name(folder),
                      .model = &model,
                      .tokenizer = run->tokenizer,
                      .bos = -1,
                      .eos = -1,
                      .dtype = dtype};
    if (run->tokenizer) {
        gguf.bos = export_first_token(run->tokenizer);
        gguf.eos = tokenizer_end_of_text(run->tokenizer);
    }
    bool good = write_model(&gguf, a->out, run, result, err, n, code);
    free(folder);
    result->files = 1;
    snprintf(result->what, sizeof result->what, "a %s", architecture_name(model.kind));
    result->note = export_note("llama-cli -m", a->out);
    return good;
}
