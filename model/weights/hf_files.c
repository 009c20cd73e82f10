/* hf_files.c -- implements hf_files.h. */
#include "model/weights/hf_files.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/fs.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

bool hf_file_exists(const char *folder, const char *name)
{
    struct stat st;
    char *path = text_format("%s/%s", folder, name);
    bool there = lstat(path, &st) == 0 || errno == EACCES;
    free(path);
    return there;
}

/* Returns whether `path` is below `folder`; both are real paths. */
static bool is_below(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && path[n] == '/';
}

/* Returns whether the real path `target` is a blob of the same cache as the snapshot `folder`,
 * which is also a real path: CACHE/snapshots/COMMIT, CACHE/blobs/HASH. */
static bool is_blob(const char *folder, const char *target)
{
    char *parent = path_beside(folder, ""), *above = NULL, *blobs = NULL;
    char *snapshots = path_trimmed(parent);
    bool good = strcmp(path_name(snapshots), "snapshots") == 0;
    if (good) {
        above = path_beside(snapshots, "blobs");
        blobs = path_trimmed(above);
        good = is_below(target, blobs);
    }
    free(parent);
    free(snapshots);
    free(above);
    free(blobs);
    return good;
}

/* Returns whether the symbolic link `path` in `folder` leads to a file that may be read. */
static bool check_link(const char *folder, const char *path, char *err, size_t n)
{
    char *home = realpath(folder, NULL), *target = realpath(path, NULL);
    bool good = home && target;
    if (!good)
        error_set(err, n, "cannot open %s: %s", path, strerror(errno));
    else if (!is_below(target, home) && !is_blob(home, target))
        good = error_set(err, n,
                         "%s is a symbolic link that leads out of the folder, to %s; it is "
                         "not followed",
                         path, target);
    free(home);
    free(target);
    return good;
}

int hf_file_open(const char *folder, const char *name, int64_t *bytes, char *err, size_t n)
{
    const char *why;
    char *path = text_format("%s/%s", folder, name);
    int fd = -1;
    if (!fs_is_link(path) || check_link(folder, path, err, n)) {
        fd = fs_open_input(path, false, bytes, &why);
        if (fd < 0) error_set(err, n, "cannot open %s: %s", path, why);
    }
    free(path);
    return fd;
}

/* Returns false and sets err if a file is too large to be read. */
static bool check_size(const char *path, int64_t size, int64_t most, char *err, size_t n)
{
    return size <= most || error_set(err, n, "%s has %lld bytes; at most %lld are read", path,
                                     (long long)size, (long long)most);
}

bool hf_file_read(const char *folder, const char *name, int64_t most, char **text, size_t *bytes,
                  char *err, size_t n)
{
    int64_t size = 0;
    int fd = hf_file_open(folder, name, &size, err, n);
    if (fd < 0) return false;
    char *path = text_format("%s/%s", folder, name);
    bool good = check_size(path, size, most, err, n);
    *bytes = (size_t)size;
    good = good && file_read_open(fd, *bytes, path, text, err, n);
    close(fd);
    free(path);
    return good;
}

bool hf_tokenizer_check(const char *folder, char *err, size_t n)
{
    static const char *const names[] = {"tokenizer.json", "vocab.bpe", "encoder.json", "merges.txt",
                                        "vocab.json"};
    bool good = true, whole = hf_file_exists(folder, names[0]);
    for (size_t i = 0; good && i < (whole ? 1 : sizeof names / sizeof *names); i++) {
        if (!hf_file_exists(folder, names[i])) continue;
        int64_t size = 0;
        int fd = hf_file_open(folder, names[i], &size, err, n);
        if (fd < 0) return false;
        close(fd);
        char *path = text_format("%s/%s", folder, names[i]);
        good = check_size(path, size, HF_TOKENIZER_BYTES, err, n);
        free(path);
    }
    return good;
}

bool hf_file_is_licence(const char *folder, const char *name)
{
    static const char *const begins[] = {"LICENSE", "LICENCE", "COPYING", "NOTICE", "USE_POLICY"};
    bool is = false;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        is |= strncasecmp(name, begins[i], strlen(begins[i])) == 0;
    if (!is) return false;
    char *path = text_format("%s/%s", folder, name);
    is = !fs_is_folder(path);
    free(path);
    return is;
}

const char *const hf_companions[] = {"tokenizer_config.json",   "generation_config.json",
                                     "chat_template.jinja",     "chat_template.json",
                                     "special_tokens_map.json", NULL};

bool hf_file_is_companion(const char *name)
{
    for (int i = 0; hf_companions[i]; i++)
        if (strcmp(name, hf_companions[i]) == 0) return true;
    return false;
}

/* ---- no weights ------------------------------------------------------------------------------ */

static bool ends_in(const char *name, const char *const *endings)
{
    size_t n = strlen(name);
    for (int i = 0; endings[i] != NULL; i++) {
        size_t e = strlen(endings[i]);
        if (n > e && strcmp(name + n - e, endings[i]) == 0) return true;
    }
    return false;
}

void hf_explain_no_weights(const char *folder, char *err, size_t n)
{
    static const char *const pickles[] = {".bin", ".pt", ".pth", ".pkl", ".ckpt", NULL};
    static const char *const others[] = {".gguf", ".h5", ".msgpack", ".onnx", ".safetensors", NULL};
    struct dirent **entry;
    char pickle[256] = "", other[256] = "";
    int count = fs_scan(folder, &entry);
    for (int i = 0; i < count; i++) {
        const char *name = entry[i]->d_name;
        if (*pickle == '\0' && ends_in(name, pickles)) strcpy(pickle, name);
        if (*other == '\0' && ends_in(name, others)) strcpy(other, name);
        free(entry[i]);
    }
    if (count >= 0) free(entry);
    if (*pickle)
        error_set(err, n,
                  "%s has no model.safetensors, and %s is a pickle file, which could run any code "
                  "when it is read; take the model's safetensors, or write them with "
                  "transformers: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)",
                  folder, pickle);
    else if (*other)
        error_set(err, n,
                  "%s has neither model.safetensors nor model.safetensors.index.json; %s alone is "
                  "not read",
                  folder, other);
    else
        error_set(err, n, "%s has neither model.safetensors nor model.safetensors.index.json",
                  folder);
}
