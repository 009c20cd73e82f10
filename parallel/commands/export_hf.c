/* export_hf.c -- `./train export hf`: writes a run as a folder for Hugging Face's libraries. */
#include "parallel/commands/cmd_export.h"

#include "data/identity.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_write.h"
#include "model/core/new_folder.h"
#include "model/core/progress.h"
#include "model/weights/hf_files.h"
#include "model/weights/hf_write.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show_progress(void *context, int done, int all)
{
    progress_count(context, done, all, "exporting the weights");
}

static void put_token(FILE *to, const char *key, const Tokenizer *t, int32_t id)
{
    const char *name = id >= 0 ? tokenizer_special(t, id) : NULL;
    if (name == NULL) return;
    fprintf(to, "  \"%s\": ", key);
    json_print_string(to, name);
    fputs(",\n", to);
}

/* Writes tokenizer.json and tokenizer_config.json. Without tokenizer_config.json, transformers
 * would choose a tokenizer class by the model's type, which changes how text is split. */
static bool write_tokenizer(const char *folder, const ExportedRun *run, const HfModel *model,
                            char *err, size_t n)
{
    char *text, *json = tokenizer_to_json(run->tokenizer);
    size_t size;
    FILE *to = text_stream(&text, &size);
    fputs("{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n", to);
    put_token(to, "bos_token", run->tokenizer, model->bos);
    put_token(to, "eos_token", run->tokenizer, model->eos);
    fprintf(to, "  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": %lld\n}\n",
            (long long)model->architecture.positions);
    fclose(to);
    bool good = file_write_in(&fs_system, folder, "tokenizer.json", json, strlen(json), err, n) &&
                file_write_in(&fs_system, folder, "tokenizer_config.json", text, size, err, n);
    free(json);
    free(text);
    return good;
}

/* Copies a file of the run folder as it is. */
static bool copy_file(const char *folder, const ExportedRun *run, const char *name, int64_t most,
                      char *err, size_t n)
{
    char *text = NULL;
    size_t bytes;
    bool good = hf_file_read(run->folder, name, most, &text, &bytes, err, n) &&
                file_write_in(&fs_system, folder, name, text, bytes, err, n);
    free(text);
    return good;
}

/* Copies the files that an import has left in the run folder next to the tokenizer (hf_companions),
 * and overwrites files that were written before. Copies none if the checkpoint's manifest names
 * another tokenizer than the run's, because the files may not fit it. */
static bool copy_companions(const char *folder, const ExportedRun *run, char *err, size_t n)
{
    char *identity = text_format("tokenizer %016" PRIx64, tokenizer_hash(run->tokenizer));
    bool good = true,
         same =
             !data_identity_other_tokenizer(checkpoint_manifest(run->checkpoint)->data, identity);
    for (int i = 0; good && same && hf_companions[i]; i++)
        if (hf_file_exists(run->folder, hf_companions[i]))
            good = copy_file(folder, run, hf_companions[i], HF_COMPANION_BYTES, err, n);
    free(identity);
    return good;
}

/* Copies the licences that an import has left in the run folder. */
static bool copy_licences(const char *folder, const ExportedRun *run, char *err, size_t n)
{
    struct dirent **entry;
    int count = fs_scan(run->folder, &entry);
    bool good = true;
    for (int i = 0; i < count; i++) {
        const char *name = entry[i]->d_name;
        if (good && hf_file_is_licence(run->folder, name))
            good = copy_file(folder, run, name, HF_LICENCE_BYTES, err, n);
        free(entry[i]);
    }
    if (count >= 0) free(entry);
    return good;
}

static bool write_folder(const char *folder, const HfModel *model, const ExportedRun *run,
                         HfWritten *written, char *err, size_t n)
{
    Progress progress = progress_begin();
    bool good = hf_write(folder, model, run->source, show_progress, &progress, written, err, n);
    progress_end(&progress);
    if (good && run->tokenizer)
        good = write_tokenizer(folder, run, model, err, n) && copy_companions(folder, run, err, n);
    return good && copy_licences(folder, run, err, n);
}

bool export_hf(const ExportArguments *a, const ExportedRun *run, DType dtype, ExportResult *result,
               char *err, size_t n, ExitCode *code)
{
    HfModel model = {.dtype = dtype, .shard_bytes = a->shard_bytes, .bos = -1, .eos = -1};
    NewFolder folder;
    HfWritten written = {0};
    *code = EXIT_CONFIG;
    if (!architecture_of(run->config, &model.architecture, err, n)) return false;
    if (run->tokenizer) {
        model.bos = export_first_token(run->tokenizer);
        model.eos = tokenizer_end_of_text(run->tokenizer);
    }
    int64_t bytes = hf_write_bytes(&model, run->source, err, n);
    if (bytes < 0) return false;
    *code = EXIT_CANNOT_CREATE;
    if (!new_folder_begin(&folder, &fs_system, a->out, err, n)) return false;
    export_check_tokenizer(run, "folder");
    bool good = file_room(&fs_system, a->out, bytes, err, n) &&
                write_folder(folder.temporary, &model, run, &written, err, n) &&
                new_folder_commit(&folder, err, n);
    if (!good) *code = export_failure(run->source);
    if (!good) new_folder_abort(&folder);
    result->files = written.files;
    result->bytes = written.bytes;
    result->overflows = written.overflows;
    snprintf(result->what, sizeof result->what, "a %s", architecture_name(model.architecture.kind));
    /* A JSON string is also a Python string. */
    char *name = json_string(a->out);
    result->note = text_format("AutoModelForCausalLM.from_pretrained(%s)", name);
    free(name);
    return good;
}
