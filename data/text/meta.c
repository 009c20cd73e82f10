/* meta.c -- computes, writes, reads and verifies the contents of meta.json; see meta.h. */
#include "data/text/meta.h"

#include "data/tokens/token_file.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/fs.h"
#include "model/core/hash.h"
#include "model/core/json_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void meta_free(Meta *m)
{
    for (int i = 0; i < SPLITS; i++)
        free(m->checksum[i]);
    *m = (Meta){0};
}

/* ---- checksums ------------------------------------------------------------------------------- */

/* Continues *hash over the shard at `path`. */
static bool hash_shard(const char *path, uint64_t *hash, char *err, size_t n)
{
    TokenFile f;
    bool good = token_file_open(&f, path, err, n) && token_file_hash(&f, hash, err, n);
    token_file_close(&f);
    return good;
}

bool meta_checksum(Meta *m, const char *folder, char *err, size_t n)
{
    bool good = true;
    for (int k = 0; k < SPLITS; k++) {
        int64_t shards = m->split[k].shards;
        uint64_t hash = TOKEN_FILE_HASH_START;
        m->checksum[k] = shards > 0 ? must_calloc((size_t)shards, sizeof *m->checksum[k]) : NULL;
        for (int64_t i = 0; good && i < shards; i++) {
            char *path = split_shard_path(folder, k, i);
            good = hash_shard(path, &hash, err, n);
            m->checksum[k][i] = hash;
            free(path);
        }
    }
    return good;
}

/* Finds the running checksums before and after the shard called `name`. Returns false if meta.json
 * has none for it. */
static bool find_checksum(const Meta *m, const char *name, uint64_t *before, uint64_t *after)
{
    bool found = false;
    for (int k = 0; k < SPLITS && !found; k++)
        for (int64_t i = 0; m->checksum[k] != NULL && i < m->split[k].shards && !found; i++) {
            char *path = split_shard_path(".", k, i);
            found = strcmp(path_name(path), name) == 0;
            free(path);
            *before = i > 0 ? m->checksum[k][i - 1] : TOKEN_FILE_HASH_START;
            *after = m->checksum[k][i];
        }
    return found;
}

bool meta_verify(const char *path, bool *known, char *err, size_t n)
{
    char *meta = path_beside(path, "meta.json"), why[512] = "it does not name the file";
    uint64_t hash, want;
    Meta m;
    bool good = meta_read(&m, meta, why, sizeof why);
    *known = good && find_checksum(&m, path_name(path), &hash, &want);
    good = *known && hash_shard(path, &hash, err, n);
    if (!*known) error_set(err, n, "%s has no checksum in %s: %s", path, meta, why);
    if (good && hash != want)
        good = error_set(err, n, "%s is not what was written: its checksum is %016llx, not %016llx",
                         path, (unsigned long long)hash, (unsigned long long)want);
    meta_free(&m);
    free(meta);
    return good;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void print_split(FILE *to, const Meta *m, Split k)
{
    const SplitSize *s = &m->split[k];
    fprintf(to, "  \"%s\": {\"bytes\": %lld, \"tokens\": %lld, \"shards\": %lld", split_name[k],
            (long long)s->bytes, (long long)s->tokens, (long long)s->shards);
    if (m->text[k] != 0) fprintf(to, ", \"text\": \"%016llx\"", (unsigned long long)m->text[k]);
    for (int64_t i = 0; m->checksum[k] != NULL && i < s->shards; i++)
        fprintf(to, "%s\"%016llx\"", i ? ", " : ", \"checksums\": [",
                (unsigned long long)m->checksum[k][i]);
    fprintf(to, m->checksum[k] ? "]}" : "}");
}

bool meta_write(const Meta *m, const FsOps *fs, const char *path, char *err, size_t n)
{
    char *text;
    size_t size;
    FILE *to = text_stream(&text, &size);
    fprintf(to,
            "{\n  \"format\": %d,\n  \"hash\": \"%016llx\",\n  \"tokenizer_hash\": \"%016llx\",\n"
            "  \"vocab_size\": %lld,\n  \"documents\": %lld,\n",
            META_FORMAT, (unsigned long long)m->key, (unsigned long long)m->tokenizer_hash,
            (long long)m->vocab_size, (long long)m->documents);
    if (m->at_most) fprintf(to, "  \"vocab_at_most\": true,\n");
    print_split(to, m, SPLIT_TRAIN);
    fprintf(to, ",\n");
    print_split(to, m, SPLIT_VAL);
    fprintf(to, "\n}\n");
    fclose(to);
    bool good = file_write(fs, path, text, size, err, n);
    free(text);
    return good;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Parses a string of 16 hexadecimal digits. */
static bool hash_number(const cJSON *found, uint64_t *out)
{
    return cJSON_IsString(found) && hash_parse(found->valuestring, 16, out);
}

static bool hash_key(const cJSON *object, const char *name, uint64_t *out)
{
    return hash_number(cJSON_GetObjectItemCaseSensitive(object, name), out);
}

/* Reads the size, the text's hash and the checksums of one split. Old folders have no hash and no
 * list of checksums; if there is a list, it must have one per shard. */
static bool read_split(const cJSON *root, Split k, Meta *m)
{
    const cJSON *split = cJSON_GetObjectItemCaseSensitive(root, split_name[k]);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(split, "checksums");
    SplitSize *s = &m->split[k];
    if (!json_tree_count(split, "bytes", &s->bytes) ||
        !json_tree_count(split, "tokens", &s->tokens) ||
        !json_tree_count(split, "shards", &s->shards))
        return false;
    if (cJSON_HasObjectItem(split, "text") && !hash_key(split, "text", &m->text[k])) return false;
    if (list == NULL) return true;
    int64_t i = 0, count = cJSON_GetArraySize(list);
    if (!cJSON_IsArray(list) || count == 0 || count != s->shards) return false;
    m->checksum[k] = must_calloc((size_t)count, sizeof *m->checksum[k]);
    for (const cJSON *item = list->child; item != NULL; item = item->next)
        if (!hash_number(item, &m->checksum[k][i++])) return false;
    return true;
}

bool meta_parse(Meta *m, const char *text, size_t size)
{
    int64_t format = -1;
    *m = (Meta){0};
    cJSON *root = json_tree_parse(text, size);
    bool good = json_tree_count(root, "format", &format) && format == META_FORMAT &&
                hash_key(root, "hash", &m->key) &&
                hash_key(root, "tokenizer_hash", &m->tokenizer_hash) &&
                json_tree_count(root, "vocab_size", &m->vocab_size) &&
                json_tree_count(root, "documents", &m->documents) &&
                read_split(root, SPLIT_TRAIN, m) && read_split(root, SPLIT_VAL, m);
    m->at_most = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "vocab_at_most"));
    cJSON_Delete(root);
    if (!good) meta_free(m);
    return good;
}

bool meta_read(Meta *m, const char *path, char *err, size_t n)
{
    char *text;
    size_t size;
    *m = (Meta){0};
    if (!file_read(path, &text, &size, NULL, err, n)) return false;
    bool good = meta_parse(m, text, size);
    free(text);
    return good || error_set(err, n, "%s is not what was written", path);
}
