/* import_hf.c -- opens a folder of Hugging Face's libraries for `./train import hf`. */
#include "parallel/commands/cmd_import.h"

#include "model/core/check.h"
#include "model/core/fs.h"
#include "model/core/json_tree.h"
#include "model/core/log.h"
#include "model/weights/hf_files.h"
#include "model/weights/hf_source.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

/* Opens tokenizer.json, which is kept unchanged, or GPT-2's two files. If there are none of these,
 * the import has no tokenizer. */
static bool open_tokenizer(const char *folder, ImportInput *out, char *err, size_t n,
                           ExitCode *code)
{
    static const char name[] = "tokenizer.json";
    bool whole = hf_file_exists(folder, name);
    *code = EXIT_DAMAGED;
    if (whole) {
        char *text = NULL;
        size_t bytes;
        if (!hf_file_read(folder, name, HF_TOKENIZER_BYTES, &text, &bytes, err, n)) return false;
        import_add_file(out, name, text, bytes);
        char *path = text_format("%s/%s", folder, name);
        bool good = tokenizer_parse(path, text, bytes, &out->tokenizer, err, n);
        free(path);
        return good;
    }
    if (hf_file_exists(folder, "merges.txt") || hf_file_exists(folder, "vocab.bpe")) {
        if (!hf_tokenizer_check(folder, err, n) ||
            !tokenizer_load(folder, &out->tokenizer, NULL, err, n))
            return false;
        char *text = tokenizer_to_json(out->tokenizer);
        import_add_file(out, name, text, strlen(text));
        return true;
    }
    return !hf_file_exists(folder, "tokenizer.model") ||
           error_set(err, n,
                     "%s has tokenizer.model alone, which is not read; tokenizer.json is. Give "
                     "--without-tokenizer for the weights alone",
                     folder);
}

/* Sets *kept to whether to keep a file: false for a file that names code to be executed, because an
 * export would not contain that code. Returns false and sets err if a .json file is not a JSON
 * object. */
static bool check_companion(const char *folder, const char *name, const char *text, size_t bytes,
                            bool *kept, char *err, size_t n)
{
    *kept = true;
    if (strstr(name, ".json") == NULL) return true;
    cJSON *json = json_tree_parse(text, bytes);
    bool good = cJSON_IsObject(json) ||
                error_set(err, n, "%s/%s is damaged: it is not a JSON object", folder, name);
    *kept = good && !cJSON_HasObjectItem(json, "auto_map");
    if (good && !*kept)
        log_notice("%s/%s names code of its own (auto_map), and is not kept", folder, name);
    cJSON_Delete(json);
    return good;
}

/* Adds the files that describe how the model is used, unchanged. */
static bool add_companions(const char *folder, ImportInput *out, char *err, size_t n)
{
    bool good = true;
    for (int i = 0; good && hf_companions[i]; i++) {
        char *text = NULL;
        size_t bytes;
        bool kept = false;
        if (!hf_file_exists(folder, hf_companions[i])) continue;
        good = hf_file_read(folder, hf_companions[i], HF_COMPANION_BYTES, &text, &bytes, err, n) &&
               check_companion(folder, hf_companions[i], text, bytes, &kept, err, n);
        if (kept)
            import_add_file(out, hf_companions[i], text, bytes);
        else
            free(text);
    }
    return good;
}

/* Adds the licences, which must stay with the weights. */
static bool add_licences(const char *folder, ImportInput *out, char *err, size_t n)
{
    struct dirent **entry;
    int count = fs_scan(folder, &entry);
    bool good = true;
    for (int i = 0; i < count; i++) {
        const char *name = entry[i]->d_name;
        if (good && out->n_files < IMPORT_MOST_FILES && hf_file_is_licence(folder, name)) {
            char *text = NULL;
            size_t bytes;
            good = hf_file_read(folder, name, HF_LICENCE_BYTES, &text, &bytes, err, n);
            if (good) import_add_file(out, name, text, bytes);
        }
        free(entry[i]);
    }
    if (count >= 0) free(entry);
    return good;
}

bool import_open_hf(const char *folder, bool tokenizer, ImportInput *out, char *err, size_t n,
                    ExitCode *code)
{
    if (!hf_folder_config(folder, &out->architecture, err, n, code) ||
        !hf_source_open(folder, &out->architecture, &out->source, err, n, code))
        return false;
    out->described = text_format("%s/config.json", folder);
    if (tokenizer && !open_tokenizer(folder, out, err, n, code)) return false;
    *code = EXIT_DAMAGED;
    if (out->tokenizer && !add_companions(folder, out, err, n)) return false;
    return add_licences(folder, out, err, n);
}
