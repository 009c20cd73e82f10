/* tokenizer_json.c -- reads Hugging Face's tokenizer.json, or GPT-2's files with vocab_bpe.c.
 *
 * It is strict about everything that affects the ids of a text: a file that this program would
 * encode differently is refused, and the error message names the key. Newer files store a merge as
 * ["a", "b"], older ones as "a b"; both are read. */
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/vocabulary.h"
#include "data/tokenizer/word_table.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_tree.h"
#include "model/core/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The two forms of GPT-2's pattern that occur in files; words.c implements both. */
static const char gpt2_split[] =
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char gpt2_split_old[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Returns the value of a key; NULL if it is missing or null, which mean the same in these files. */
static const cJSON *key(const cJSON *object, const char *name)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNull(found) ? NULL : found;
}

static bool is_true(const cJSON *object, const char *name, bool when_absent)
{
    const cJSON *found = key(object, name);
    return found == NULL ? when_absent : cJSON_IsTrue(found);
}

static bool is_type(const cJSON *object, const char *type)
{
    const cJSON *found = key(object, "type");
    return cJSON_IsString(found) && strcmp(found->valuestring, type) == 0;
}

static bool is_gpt2_split(const cJSON *split)
{
    const cJSON *regex = key(key(split, "pattern"), "Regex");
    if (!is_type(split, "Split") || !cJSON_IsString(regex) || is_true(split, "invert", false))
        return false;
    return strcmp(regex->valuestring, gpt2_split) == 0 ||
           strcmp(regex->valuestring, gpt2_split_old) == 0;
}

/* Returns whether the file splits text into words as words.c does. If not, sets `err`. */
static bool check_split(const char *name, const cJSON *root, char *err, size_t n)
{
    const cJSON *pre = key(root, "pre_tokenizer"), *level = pre;
    bool own_regex = true;
    if (is_type(pre, "Sequence")) {
        const cJSON *steps = key(pre, "pretokenizers");
        level = cJSON_GetArrayItem(steps, cJSON_GetArraySize(steps) - 1);
        own_regex = false;
        if (cJSON_GetArraySize(steps) != 2 || !is_gpt2_split(cJSON_GetArrayItem(steps, 0)))
            return error_set(
                err, n, "%s splits text by another pattern than GPT-2's (pre_tokenizer)", name);
    }
    if (!is_type(level, "ByteLevel") || is_true(level, "use_regex", true) != own_regex)
        return error_set(
            err, n, "%s is not a byte-level tokenizer with GPT-2's split (pre_tokenizer)", name);
    if (is_true(level, "add_prefix_space", true))
        return error_set(
            err, n, "%s puts a space before text (add_prefix_space), which is not supported", name);
    if (key(root, "normalizer") != NULL)
        return error_set(
            err, n, "%s changes text before encoding (normalizer), which is not supported", name);
    return true;
}

/* Returns whether the file's model encodes as encoder.c does. If not, sets `err`. */
static bool check_model(const char *name, const cJSON *model, char *err, size_t n)
{
    if (!is_type(model, "BPE")) return error_set(err, n, "%s: model.type is not \"BPE\"", name);
    if (is_true(model, "byte_fallback", false) || is_true(model, "ignore_merges", false))
        return error_set(
            err, n, "%s asks for byte_fallback or ignore_merges, which are not supported", name);
    const cJSON *dropout = key(model, "dropout");
    if (cJSON_IsNumber(dropout) && dropout->valuedouble != 0)
        return error_set(err, n, "%s asks for dropout of merges, which is not supported", name);
    if (!cJSON_IsObject(key(model, "vocab")) || !cJSON_IsArray(key(model, "merges")))
        return error_set(err, n, "%s has no model.vocab or no model.merges", name);
    if (cJSON_GetArraySize(key(model, "merges")) == 0)
        return error_set(err, n, "%s has no merges", name);
    return true;
}

/* State of reading one file. */
typedef struct {
    const char *name;
    Tokenizer *t;
    WordTable tokens; /* the bytes of ordinary tokens */
    int32_t *id;      /* (tokens) the id of each ordinary token */
    char *err;
    size_t n;
} TokenizerReader;

static bool read_id(const TokenizerReader *r, const cJSON *number, const char *token, int32_t *id)
{
    double value = cJSON_IsNumber(number) ? number->valuedouble : -1;
    if (!(value >= 0 && value < r->t->vocab_size && value == floor(value)))
        return error_set(r->err, r->n, "%s: the id of \"%s\" is not a number from 0 to %d", r->name,
                         token, r->t->vocab_size - 1);
    *id = (int32_t)value;
    return true;
}

/* Reads the added tokens. This must precede read_vocab, because the vocabulary may list them
 * again. */
static bool read_added(TokenizerReader *r, const cJSON *added)
{
    for (const cJSON *a = added ? added->child : NULL; a != NULL; a = a->next) {
        const cJSON *content = key(a, "content");
        int32_t id;
        if (!cJSON_IsString(content) || content->valuestring[0] == 0)
            return error_set(r->err, r->n, "%s: an added token has no content", r->name);
        if (!read_id(r, key(a, "id"), content->valuestring, &id)) return false;
        if (r->t->special[id] != NULL)
            return error_set(r->err, r->n, "%s: two added tokens have the id %d", r->name, id);
        r->t->special[id] = must_strdup(content->valuestring);
        if (strcmp(content->valuestring, END_OF_TEXT) == 0) r->t->end_of_text = id;
    }
    return true;
}

/* Reads the id and bytes of each ordinary token. No two may have the same id or the same bytes, and
 * every byte must have a token; otherwise some text could not be encoded. */
static bool read_vocab(TokenizerReader *r, const cJSON *vocab)
{
    for (const cJSON *v = vocab->child; v != NULL; v = v->next) {
        int32_t id;
        if (!read_id(r, v, v->string, &id)) return false;
        if (r->t->special[id] != NULL && strcmp(r->t->special[id], v->string) == 0) continue;
        if (r->t->special[id] != NULL || r->t->length[id] > 0)
            return error_set(r->err, r->n, "%s: two tokens have the id %d", r->name, id);
        char *text = must_strdup(v->string);
        int64_t size = bytes_of_chars(text, (int64_t)strlen(text));
        bool added = false, good = size > 0 && size <= MAX_TOKEN_BYTES;
        if (good) {
            r->id[word_table_add(&r->tokens, (uint8_t *)text, size, &added)] = id;
            vocabulary_set_token(r->t, id, (uint8_t *)text, size);
        }
        free(text);
        if (!good || !added)
            return error_set(r->err, r->n, "%s: token \"%s\" does not stand for bytes of its own",
                             r->name, v->string);
    }
    for (int b = 0; b < N_BYTES; b++)
        if (r->t->byte_id[b] < 0)
            return error_set(r->err, r->n, "%s has no token for the byte 0x%02x", r->name, b);
    return true;
}

/* Returns the id of the token that one part of a merge spells, or -1 if there is none. Appends its
 * bytes to `joined`, of which *n_joined are in use. */
static int32_t merge_part(const TokenizerReader *r, const char *from, int64_t size, uint8_t *joined,
                          int64_t *n_joined)
{
    char *text = must_alloc((size_t)size + 1);
    memcpy(text, from, (size_t)size);
    int64_t n_bytes = bytes_of_chars(text, size), found = -1;
    if (n_bytes > 0) found = word_table_find(&r->tokens, (uint8_t *)text, n_bytes);
    if (found >= 0) {
        memcpy(joined + *n_joined, text, (size_t)n_bytes);
        *n_joined += n_bytes;
    }
    free(text);
    return found < 0 ? -1 : r->id[found];
}

/* Reads a merge: it names two tokens by their characters and makes the token with their joined
 * bytes. That token must be in the vocabulary, which gives its id. */
static bool read_merge(TokenizerReader *r, const cJSON *merge)
{
    const char *left = NULL, *right = NULL;
    int64_t left_size = 0;
    /* Older files store a string, newer ones a pair. The first space separates the parts: inside a
     * token, another character represents the byte 0x20. */
    if (cJSON_IsString(merge) && strchr(merge->valuestring, ' ') != NULL) {
        left = merge->valuestring;
        left_size = strchr(left, ' ') - left;
        right = left + left_size + 1;
    } else if (cJSON_IsArray(merge) && cJSON_GetArraySize(merge) == 2 &&
               cJSON_IsString(merge->child) && cJSON_IsString(merge->child->next)) {
        left = merge->child->valuestring;
        left_size = (int64_t)strlen(left);
        right = merge->child->next->valuestring;
    }
    if (left == NULL)
        return error_set(r->err, r->n, "%s: merge %d is neither \"a b\" nor [\"a\", \"b\"]",
                         r->name, r->t->n_merges);
    /* This is large enough, because each byte is spelled by at least one byte of text. */
    uint8_t *joined = must_alloc((size_t)left_size + strlen(right) + 1);
    int64_t size = 0;
    int32_t a = merge_part(r, left, left_size, joined, &size);
    int32_t b = merge_part(r, right, (int64_t)strlen(right), joined, &size);
    /* Look it up by its bytes: in this format a token's id does not follow from its merge's
     * number. */
    int64_t made = a < 0 || b < 0 ? -1 : word_table_find(&r->tokens, joined, size);
    free(joined);
    if (made < 0)
        return error_set(r->err, r->n,
                         "%s: merge %d joins or makes a token that the vocabulary lacks", r->name,
                         r->t->n_merges);
    if (!vocabulary_add_merge(r->t, a, b, r->id[made]))
        return error_set(r->err, r->n, "%s: merge %d is there twice", r->name, r->t->n_merges);
    return true;
}

/* Returns the number of ids: all tokens of the vocabulary, and the added tokens that it does not
 * list. */
static int64_t count_ids(const cJSON *vocab, const cJSON *added)
{
    int64_t count = cJSON_GetArraySize(vocab);
    WordTable names;
    const cJSON *a = added ? added->child : NULL;
    word_table_init(&names);
    for (const cJSON *v = vocab->child; v != NULL; v = v->next)
        word_table_add(&names, (const uint8_t *)v->string, (int64_t)strlen(v->string), NULL);
    for (; a != NULL; a = a->next) {
        const cJSON *content = key(a, "content");
        const char *name = cJSON_IsString(content) ? content->valuestring : "";
        count += word_table_find(&names, (const uint8_t *)name, (int64_t)strlen(name)) < 0;
    }
    word_table_free(&names);
    return count;
}

static bool read_all(TokenizerReader *r, const cJSON *model, const cJSON *added)
{
    if (!read_added(r, added) || !read_vocab(r, key(model, "vocab"))) return false;
    for (const cJSON *m = key(model, "merges")->child; m != NULL; m = m->next)
        if (!read_merge(r, m)) return false;
    return true;
}

/* Reads the parsed file. The number of ids must equal 256 bytes + merges + added tokens; this is
 * checked before anything of that size is allocated. A larger vocabulary would have tokens that no
 * text can produce. */
static bool read_root(const char *name, const cJSON *root, Tokenizer **out, char *err, size_t n)
{
    const cJSON *model = key(root, "model"), *added = key(root, "added_tokens");
    if (!check_model(name, model, err, n) || !check_split(name, root, err, n)) return false;
    int64_t n_merges = cJSON_GetArraySize(key(model, "merges"));
    int64_t n_added = cJSON_GetArraySize(added), n_ids = count_ids(key(model, "vocab"), added);
    if (n_ids != N_BYTES + n_merges + n_added || n_ids > MAX_VOCAB)
        return error_set(err, n,
                         "%s has %lld ids, but 256 bytes, %lld merges and %lld added tokens", name,
                         (long long)n_ids, (long long)n_merges, (long long)n_added);
    TokenizerReader r = {.name = name, .t = vocabulary_create(n_ids, n_merges), .err = err, .n = n};
    word_table_init(&r.tokens);
    r.id = must_alloc((size_t)n_ids * sizeof *r.id);
    bool good = read_all(&r, model, added);
    word_table_free(&r.tokens);
    free(r.id);
    if (good)
        *out = r.t;
    else
        tokenizer_free(r.t);
    return good;
}

bool tokenizer_parse(const char *name, const char *text, size_t length, Tokenizer **out, char *err,
                     size_t n)
{
    *out = NULL;
    size_t first = 0;
    while (first < length && strchr(" \t\r\n", text[first]) != NULL && text[first] != 0)
        first++;
    if (first == length || text[first] != '{')
        return vocabulary_parse_merges(name, text, length, out, err, n);
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
        good = read_root(name, root, out, err, n);
    cJSON_Delete(root);
    return good;
}

/* Checks a vocab.bpe against the encoder.json next to it, if there is one; merges.txt and
 * vocab.json are Hugging Face's names of the same files. */
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

/* Returns the tokenizer's file in a folder, or NULL if there is none; the caller frees it. */
static char *file_in_folder(const char *folder)
{
    static const char *const names[] = {"tokenizer.json", "vocab.bpe", "merges.txt"};
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
    *out = NULL;
    if (missing) *missing = path == NULL;
    bool good = path != NULL && tokenizer_load(path, out, missing, err, n);
    if (path == NULL)
        error_set(err, n, "the folder %s has no tokenizer.json, vocab.bpe or merges.txt", folder);
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
