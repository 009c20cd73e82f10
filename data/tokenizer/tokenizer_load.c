/* tokenizer_load.c -- reads a tokenizer from a file or folder. A file's contents determine its
 * format: tokenizer.json, .tiktoken or vocab.bpe. */
#include "data/tokenizer/tiktoken.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/vocabulary.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_tree.h"
#include "model/core/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool parse_json(const char *name, const char *text, size_t length, Tokenizer **out,
                       char *err, size_t n)
{
    int64_t bad = utf8_invalid((const uint8_t *)text, (int64_t)length);
    if (bad >= 0)
        return error_set(err, n, "%s: byte %lld (0x%02x) is not valid UTF-8", name, (long long)bad,
                         (unsigned char)text[bad]);
    if (json_has_nul(text, length))
        return error_set(err, n, "%s has the escape \\u0000, so this is not text", name);
    cJSON *root = json_tree_parse(text, length);
    bool good = root != NULL;
    if (!good)
        error_set(err, n, "%s is not valid JSON", name);
    else
        good = json_tokenizer(name, root, out, err, n);
    cJSON_Delete(root);
    return good;
}

bool tokenizer_parse(const char *name, const char *text, size_t length, Tokenizer **out, char *err,
                     size_t n)
{
    *out = NULL;
    size_t first = 0;
    while (first < length && strchr(" \t\r\n", text[first]) != NULL && text[first] != 0)
        first++;
    if (first < length && text[first] == '{') return parse_json(name, text, length, out, err, n);
    if (tiktoken_recognised(text, length)) return tiktoken_parse(name, text, length, out, err, n);
    /* SentencePiece's tokenizer.model is a Protocol Buffer that begins with a piece: LF, a length,
     * LF. */
    if (length > 2 && text[0] == '\n' && text[2] == '\n')
        return error_set(err, n,
                         "%s is a model of SentencePiece, which is not supported; give the "
                         "tokenizer.json of the same model",
                         name);
    return vocabulary_parse_merges(name, text, length, out, err, n);
}

/* Checks a vocab.bpe against the encoder.json next to it, if there is one. merges.txt and
 * vocab.json are Hugging Face's names for the same files. */
static bool check_encoder_json(const Tokenizer *t, const char *path, char *err, size_t n)
{
    bool bpe = strcmp(path_name(path), "vocab.bpe") == 0;
    if (!bpe && strcmp(path_name(path), "merges.txt") != 0) return true;
    char *beside = path_beside(path, bpe ? "encoder.json" : "vocab.json"), *text;
    size_t length;
    bool missing, good = true;
    if (file_read(beside, &text, &length, &missing, err, n))
        good = tokenizer_check_vocab(t, beside, text, length, err, n);
    else
        good = missing;
    free(text);
    free(beside);
    return good;
}

/* Returns the path of the tokenizer's file in a folder, or NULL if there is none; the caller frees
 * it. */
static char *file_in_folder(const char *folder)
{
    static const char *const names[] = {"tokenizer.json", "vocab.bpe", "merges.txt",
                                        "tokenizer.model"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = text_format("%s/%s", folder, names[i]);
        if (access(path, F_OK) == 0) return path;
        free(path);
    }
    return NULL;
}

static bool load_folder(const char *folder, Tokenizer **out, bool *missing, char *err, size_t n)
{
    char *path = file_in_folder(folder);
    if (missing) *missing = path == NULL;
    bool good = path != NULL && tokenizer_load(path, out, missing, err, n);
    if (path == NULL)
        error_set(err, n,
                  "%s cannot be read: Is a directory, and has no tokenizer.json, vocab.bpe, "
                  "merges.txt or tokenizer.model",
                  folder);
    free(path);
    return good;
}

bool tokenizer_load(const char *path, Tokenizer **out, bool *missing, char *err, size_t n)
{
    struct stat about;
    char *text;
    size_t length;
    *out = NULL;
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode))
        return load_folder(path, out, missing, err, n);
    if (!file_read(path, &text, &length, missing, err, n)) return false;
    bool good =
        tokenizer_parse(path, text, length, out, err, n) && check_encoder_json(*out, path, err, n);
    free(text);
    if (good) return true;
    tokenizer_free(*out);
    *out = NULL;
    return false;
}
