/* export_llmc.c -- `./train export llmc`: writes a run as a model file of llm.c. */
#include "model/core/check.h"
#include "model/weights/llmc.h"
#include "parallel/commands/cmd_export.h"

#include <stdio.h>
#include <stdlib.h>

bool export_llmc(const ExportArguments *a, const ExportedRun *run, DType dtype,
                 ExportResult *result, char *err, size_t n, ExitCode *code)
{
    Architecture model;
    LlmcHeader header;
    *code = EXIT_CONFIG;
    if (!architecture_of(run->config, &model, err, n) ||
        !llmc_header_of(&model, dtype, &header, err, n))
        return false;
    *code = EXIT_CANNOT_CREATE;
    if (!export_file_begin(a->out, err, n)) return false;
    *code = EXIT_INPUT_OUTPUT;
    Progress progress = progress_begin();
    bool good =
        llmc_write(&fs_system, a->out, &header, run->source, &progress, &result->overflows, err, n);
    progress_end(&progress);
    if (!good) {
        *code = export_failure(run->source);
        return false;
    }
    result->files = 1;
    result->bytes = llmc_file_bytes(&header);
    snprintf(result->what, sizeof result->what, "a gpt2");
    result->note = export_note("train_gpt2cu -e", a->out);
    return true;
}
