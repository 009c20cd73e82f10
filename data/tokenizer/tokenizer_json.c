/* tokenizer_json.c -- reads the vocabulary, merges and added tokens of Hugging Face's
 * tokenizer.json. (tokenizer_rules.c reads how text becomes symbols.)
 *
 * Newer files store a merge as ["a", "b"], older ones as "a b"; both are read. */
#include "data/tokenizer/tokenizer_json.h"

#include "data/tokenizer/tokenizer_rules.h"
#include "model/core/check.h"
#include "model/core/json_tree.h"
#include "model/core/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* State of reading one file. */
typedef struct {
    const char *name;
    Tokenizer *t;
    WordTable tokens; /* the bytes of all tokens that merges join or make */
    int32_t *id;      /* (tokens) their ids */
    char *err;
    size_t n;
} TokenizerReader;

/* Returns the id that a number of the file gives, or -1 if it is not an id. */
static int64_t id_of(const cJSON *number)
{
    double value = cJSON_IsNumber(number) ? number->valuedouble : -1;
    return value >= 0 && value < MAX_VOCAB && value == floor(value) ? (int64_t)value : -1;
}

static bool read_id(const TokenizerReader *r, const cJSON *number, const char *token, int32_t *id)
{
    int64_t value = id_of(number);
    *id = (int32_t)value;
    return value >= 0 ||
           error_set(r->err, r->n, "%s: the id of \"%s\" is not a number from 0 to %d", r->name,
                     token, MAX_VOCAB - 1);
}

/* ---- added tokens ---------------------------------------------------------------------------- */

static bool read_added_token(TokenizerReader *r, const cJSON *a)
{
    const cJSON *content = rules_key(a, "content");
    if (!cJSON_IsString(content) || content->valuestring[0] == 0)
        return error_set(r->err, r->n, "%s: an added token has no content", r->name);
    AddedToken token = {.content = content->valuestring,
                        .special = rules_true(a, "special", false),
                        .lstrip = rules_true(a, "lstrip", false),
                        .rstrip = rules_true(a, "rstrip", false)};
    token.normalized = rules_true(a, "normalized", !token.special);
    if (!read_id(r, rules_key(a, "id"), token.content, &token.id)) return false;
    if (r->t->kind[token.id] != TOKEN_UNUSED)
        return error_set(r->err, r->n, "%s: two added tokens have the id %d", r->name, token.id);
    size_t size = strlen(token.content);
    if (size > MAX_TOKEN_BYTES)
        return error_set(r->err, r->n, "%s: the added token %d has more than %d bytes", r->name,
                         token.id, (int)MAX_TOKEN_BYTES);
    if (rules_true(a, "single_word", false))
        return error_set(r->err, r->n,
                         "%s: the added token \"%s\" is only found as a whole word (single_word), "
                         "which is not supported",
                         r->name, token.content);
    if (r->t->rules.characters && token.normalized && !token.special)
        return error_set(r->err, r->n,
                         "%s: the added token \"%s\" is found after spaces have been marked "
                         "(normalized), which is not supported",
                         r->name, token.content);
    if (token.special)
        vocabulary_set_special(r->t, token.id, token.content);
    else
        vocabulary_set_token(r->t, token.id, TOKEN_ADDED, (const uint8_t *)token.content,
                             (int64_t)size);
    added_append(&r->t->added, &token);
    return true;
}

/* Reads the added tokens. This must precede read_vocab, because the vocabulary may list them
 * again. */
static bool read_added(TokenizerReader *r, const cJSON *added)
{
    for (const cJSON *a = added ? added->child : NULL; a != NULL; a = a->next)
        if (!read_added_token(r, a)) return false;
    return true;
}

/* Returns whether the vocabulary lists an added token again. */
static bool is_added(const Tokenizer *t, int32_t id, const char *token)
{
    if (t->kind[id] == TOKEN_SPECIAL) return strcmp(t->special[id], token) == 0;
    return t->kind[id] == TOKEN_ADDED && (size_t)t->length[id] == strlen(token) &&
           memcmp(t->bytes + t->start[id], token, strlen(token)) == 0;
}

/* ---- the vocabulary -------------------------------------------------------------------------- */

/* Converts characters to the bytes of the token that they spell, in place. Returns the number of
 * bytes, or -1 if they spell none. */
static int64_t bytes_of_spelling(const TokenizerReader *r, char *text, int64_t size)
{
    if (!r->t->rules.characters) return bytes_of_chars(text, size);
    int64_t kept = 0;
    for (int64_t at = 0; at < size; kept++) {
        bool space = at + 3 <= size && memcmp(text + at, "\xE2\x96\x81", 3) == 0;
        if (text[at] == ' ') return -1; /* text has no spaces after they have been replaced */
        text[kept] = space ? ' ' : text[at];
        at += space ? 3 : 1;
    }
    return kept;
}

/* Returns the byte that "<0x0A>" stands for, or -1 if the token is not of that form. */
static int byte_of_name(const TokenizerReader *r, const char *token)
{
    static const char digits[] = "0123456789ABCDEF";
    if (!r->t->rules.characters || strlen(token) != 6 || strncmp(token, "<0x", 3) != 0 ||
        token[5] != '>')
        return -1;
    const char *high = strchr(digits, token[3]), *low = strchr(digits, token[4]);
    return high && low ? (int)(16 * (high - digits) + (low - digits)) : -1;
}

/* Reads one token of the vocabulary. Refuses an id or bytes that another token has. */
static bool read_token(TokenizerReader *r, const cJSON *v)
{
    int32_t id;
    if (!read_id(r, v, v->string, &id)) return false;
    if (is_added(r->t, id, v->string)) return true;
    if (r->t->kind[id] != TOKEN_UNUSED)
        return error_set(r->err, r->n, "%s: two tokens have the id %d", r->name, id);
    int byte = byte_of_name(r, v->string);
    if (byte >= 0) {
        bool twice = r->t->byte_id[byte] >= 0;
        vocabulary_set_token(r->t, id, TOKEN_BYTE, &(uint8_t){(uint8_t)byte}, 1);
        return !twice ||
               error_set(r->err, r->n, "%s: token \"%s\" is there twice", r->name, v->string);
    }
    char *text = must_strdup(v->string);
    int64_t size = bytes_of_spelling(r, text, (int64_t)strlen(text));
    bool added = false, good = size > 0 && size <= MAX_TOKEN_BYTES;
    if (good) {
        r->id[word_table_add(&r->tokens, (uint8_t *)text, size, &added)] = id;
        vocabulary_set_token(r->t, id, TOKEN_TEXT, (uint8_t *)text, size);
    }
    free(text);
    if (good && added) return true;
    return error_set(r->err, r->n, "%s: token \"%s\" does not stand for bytes of its own", r->name,
                     v->string);
}

/* Returns whether a vocabulary may lack a byte's token: some have none for bytes that UTF-8 never
 * has, or that their training text did not have. */
static bool may_lack(const Tokenizer *t, int byte)
{
    return !t->rules.characters && byte != '\n' && (byte < ' ' || byte > '~');
}

static bool read_vocab(TokenizerReader *r, const cJSON *vocab)
{
    for (const cJSON *v = vocab->child; v != NULL; v = v->next)
        if (!read_token(r, v)) return false;
    for (int b = 0; b < N_BYTES; b++)
        if (r->t->byte_id[b] < 0 && !may_lack(r->t, b))
            return error_set(r->err, r->n, "%s has no token for the byte 0x%02x", r->name, b);
    return true;
}

/* ---- merges ---------------------------------------------------------------------------------- */

/* Returns the id of the token that one part of a merge spells, or -1 if there is none. Appends its
 * bytes to `joined`, of which *n_joined are in use. */
static int32_t merge_part(const TokenizerReader *r, const char *from, int64_t size, uint8_t *joined,
                          int64_t *n_joined)
{
    char *text = must_alloc((size_t)size + 1);
    memcpy(text, from, (size_t)size);
    int64_t n_bytes = bytes_of_spelling(r, text, size), found = -1;
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

/* Returns whether a token of the vocabulary is a single symbol, so that no merge makes it. */
static bool is_symbol(const Tokenizer *t, int32_t id)
{
    uint32_t code;
    if (!t->rules.characters) return t->length[id] == 1;
    return utf8_decode(t->bytes + t->start[id], t->length[id], &code) == t->length[id];
}

/* Checks that merges make all tokens of the vocabulary, except at most one in a hundred. A file
 * without merges, or with merges in an unexpected spelling, would encode all text as single
 * bytes. */
static bool check_merges(const TokenizerReader *r)
{
    const Tokenizer *t = r->t;
    int64_t tokens = 0, made = 0;
    uint8_t *is_made = must_calloc((size_t)t->vocab_size, 1);
    for (int32_t m = 0; m < t->n_merges; m++)
        is_made[t->merged[m]] = 1;
    for (int32_t id = 0; id < t->vocab_size; id++) {
        if (t->kind[id] != TOKEN_TEXT || is_symbol(t, id)) continue;
        tokens++;
        made += is_made[id];
    }
    free(is_made);
    if (t->rules.ignore_merges || 100 * (tokens - made) <= tokens) return true;
    return error_set(r->err, r->n,
                     "%s has merges for %lld of the %lld tokens that are longer than a symbol",
                     r->name, (long long)made, (long long)tokens);
}

/* ---- the beginning of a text ----------------------------------------------------------------- */

/* Returns the list of ids of the special token that a piece of a template names; NULL if there is
 * none. */
static const cJSON *ids_of_special(const cJSON *template, const cJSON *piece)
{
    const cJSON *name = rules_key(rules_key(piece, "SpecialToken"), "id");
    const cJSON *specials = rules_key(template, "special_tokens");
    return cJSON_IsString(name) ? rules_key(rules_key(specials, name->valuestring), "ids") : NULL;
}

/* Sets the token that is put before a text. There may be only one. */
static bool set_begin(TokenizerReader *r, const cJSON *id)
{
    int64_t value = id_of(id);
    if (value < 0 || value >= r->t->vocab_size || r->t->kind[value] == TOKEN_UNUSED)
        return error_set(r->err, r->n,
                         "%s: post_processor puts a token before a text that the vocabulary lacks",
                         r->name);
    if (r->t->begin >= 0)
        return error_set(r->err, r->n,
                         "%s: post_processor puts several tokens before a text, which is not "
                         "supported",
                         r->name);
    r->t->begin = (int32_t)value;
    return true;
}

/* Reads the tokens that a template puts before a single text: all pieces before the text itself.
 * Tokens after the text are ignored, because a model continues the text. */
static bool read_template(TokenizerReader *r, const cJSON *template)
{
    const cJSON *single = rules_key(template, "single");
    for (const cJSON *p = single ? single->child : NULL; p && !rules_key(p, "Sequence");
         p = p->next) {
        const cJSON *ids = ids_of_special(template, p);
        if (!cJSON_IsArray(ids) || ids->child == NULL)
            return error_set(r->err, r->n,
                             "%s: post_processor puts something before a text that special_tokens "
                             "does not list",
                             r->name);
        for (const cJSON *id = ids->child; id; id = id->next)
            if (!set_begin(r, id)) return false;
    }
    return true;
}

/* Reads the token that post_processor puts before a text. */
static bool read_post_processor(TokenizerReader *r, const cJSON *post, int depth)
{
    const cJSON *type = rules_key(post, "type"), *cls = rules_key(post, "cls");
    const char *name = cJSON_IsString(type) ? type->valuestring : "";
    if (post == NULL || strcmp(name, "ByteLevel") == 0) return true;
    if (strcmp(name, "TemplateProcessing") == 0) return read_template(r, post);
    if (strcmp(name, "RobertaProcessing") == 0 || strcmp(name, "BertProcessing") == 0)
        return set_begin(r, cls && cls->child ? cls->child->next : NULL);
    const cJSON *list = rules_key(post, "processors");
    if (strcmp(name, "Sequence") != 0 || depth > 0)
        return error_set(r->err, r->n, "%s: post_processor \"%s\" is not supported", r->name, name);
    for (const cJSON *p = list ? list->child : NULL; p; p = p->next)
        if (!read_post_processor(r, p, depth + 1)) return false;
    return true;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Returns the number of ids up to the largest one. Some ids may have no token, but not many more
 * than there are tokens, because a damaged id must not make a table of millions; otherwise returns
 * -1 and sets `err`. An id that is not a number is found later. */
static int64_t count_ids(const char *name, const cJSON *vocab, const cJSON *added, char *err,
                         size_t n)
{
    int64_t largest = -1, tokens = 0;
    for (const cJSON *v = vocab->child; v != NULL; v = v->next, tokens++)
        if (id_of(v) > largest) largest = id_of(v);
    for (const cJSON *a = added ? added->child : NULL; a != NULL; a = a->next, tokens++) {
        const cJSON *id = rules_key(a, "id");
        if (id_of(id) > largest) largest = id_of(id);
    }
    if (largest < 2 * tokens + 1024) return largest + 1;
    error_set(err, n, "%s has the id %lld, but only %lld tokens", name, (long long)largest,
              (long long)tokens);
    return -1;
}

bool json_tokenizer(const char *name, const cJSON *root, Tokenizer **out, char *err, size_t n)
{
    TokenizerRules rules;
    if (!rules_read(name, root, &rules, err, n)) return false;
    const cJSON *model = rules_key(root, "model"), *added = rules_key(root, "added_tokens");
    const cJSON *vocab = rules_key(model, "vocab"), *merges = rules_key(model, "merges");
    int64_t n_merges = cJSON_GetArraySize(merges), n_ids = count_ids(name, vocab, added, err, n);
    if (n_ids < 0) return false;
    if (n_ids == 0) return error_set(err, n, "%s has no tokens", name);
    if (n_merges > MAX_MERGES)
        return error_set(err, n, "%s has %lld merges; at most %d are read", name,
                         (long long)n_merges, (int)MAX_MERGES);
    TokenizerReader r = {.name = name, .t = vocabulary_create(n_ids, n_merges), .err = err, .n = n};
    r.t->rules = rules;
    word_table_init(&r.tokens);
    r.id = must_alloc((size_t)n_ids * sizeof *r.id);
    bool good = read_added(&r, added) && read_vocab(&r, vocab);
    for (const cJSON *m = merges->child; good && m != NULL; m = m->next)
        good = read_merge(&r, m);
    const cJSON *post = rules_key(root, "post_processor");
    good = good && check_merges(&r) && read_post_processor(&r, post, 0);
    word_table_free(&r.tokens);
    free(r.id);
    if (!good) {
        tokenizer_free(r.t);
        return false;
    }
    char *printed = post ? cJSON_PrintUnformatted(post) : NULL;
    if (printed) r.t->post_processor = must_strdup(printed);
    cJSON_free(printed);
    vocabulary_finish(r.t);
    *out = r.t;
    return true;
}
