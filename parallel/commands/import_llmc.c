/* import_llmc.c -- opens a model file of llm.c for `./train import llmc`. */
#include "parallel/commands/cmd_import.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/weights/llmc.h"

#include <stdlib.h>
#include <string.h>

bool import_open_llmc(const char *path, bool tokenizer, ImportInput *out, char *err, size_t n,
                      ExitCode *code)
{
    LlmcHeader header;
    char *opened;
    bool missing;
    (void)tokenizer; /* a file of llm.c has no tokenizer */
    bool good = llmc_source_open(path, &header, &out->source, &opened, &missing, err, n);
    *code = missing ? EXIT_MISSING : EXIT_DAMAGED;
    if (!good) return false;
    llmc_architecture(&header, &out->architecture);
    /* If `path` is a folder, the chosen file is reported. */
    out->opened = opened;
    out->described = must_strdup(opened ? opened : path);
    return true;
}
