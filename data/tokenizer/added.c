/* added.c -- finds added tokens in text; see added.h. */
#include "data/tokenizer/added.h"

#include "data/tokenizer/words.h"
#include "model/core/check.h"
#include "model/core/utf8.h"

#include <stdlib.h>
#include <string.h>

void added_append(AddedTokens *a, const AddedToken *token)
{
    if (a->count == a->capacity) {
        a->capacity = 2 * a->capacity + 16;
        a->token = must_realloc(a->token, (size_t)a->capacity * sizeof *a->token);
    }
    a->token[a->count] = *token;
    a->token[a->count++].content = must_strdup(token->content);
}

static const char *searched(const AddedToken *t)
{
    return t->normal ? t->normal : t->content;
}

static int by_first_byte_and_length(const void *a, const void *b)
{
    const AddedToken *x = a, *y = b;
    const char *p = searched(x), *q = searched(y);
    size_t n_p = strlen(p), n_q = strlen(q);
    if (p[0] != q[0]) return (uint8_t)p[0] < (uint8_t)q[0] ? -1 : 1;
    if (n_p != n_q) return n_p > n_q ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

void added_finish(AddedTokens *a, const Nfc *nfc)
{
    for (int i = 0; i < a->count; i++) {
        AddedToken *t = &a->token[i];
        a->any[t->normalized] = true;
        if (!t->special) a->plain[t->normalized] = true;
        if (nfc == NULL || !t->normalized) continue;
        for (const char *c = t->content; *c; c++)
            a->composes = a->composes || (uint8_t)*c >= 0x80;
        ByteBuffer composed = {0};
        nfc_compose(nfc, (const uint8_t *)t->content, (int64_t)strlen(t->content) + 1, &composed);
        t->normal = (char *)composed.byte;
    }
    if (a->count > 0) qsort(a->token, (size_t)a->count, sizeof *a->token, by_first_byte_and_length);
    for (int b = 0, at = 0; b <= 256; b++) {
        while (at < a->count && (uint8_t)searched(&a->token[at])[0] < b)
            at++;
        a->first[b] = at;
    }
}

void added_free(AddedTokens *a)
{
    for (int i = 0; i < a->count; i++) {
        free(a->token[i].content);
        free(a->token[i].normal);
    }
    free(a->token);
    *a = (AddedTokens){0};
}

bool added_active(const AddedTokens *a, bool normalized, bool specials)
{
    return specials ? a->any[normalized] : a->plain[normalized];
}

/* Returns the longest token at s[at]; NULL if there is none. */
static const AddedToken *token_at(const AddedTokens *a, bool normalized, const uint8_t *s,
                                  int64_t n, int64_t at)
{
    for (int i = a->first[s[at]]; i < a->first[s[at] + 1]; i++) {
        const AddedToken *t = &a->token[i];
        size_t size = strlen(searched(t));
        if (t->normalized == normalized && (int64_t)size <= n - at &&
            memcmp(searched(t), s + at, size) == 0)
            return t;
    }
    return NULL;
}

/* Returns the length of the white space character that ends at `at`; 0 if there is none. */
static int space_before(const uint8_t *s, int64_t from, int64_t at)
{
    uint32_t code;
    int length = 1;
    while (length < 4 && at - length > from && (s[at - length] & 0xC0) == 0x80)
        length++;
    if (at - length < from || utf8_decode(s + at - length, length, &code) != length) return 0;
    return is_white_space(code) ? length : 0;
}

/* Returns the length of the white space character that begins at `at`; 0 if there is none. */
static int space_after(const uint8_t *s, int64_t n, int64_t at)
{
    uint32_t code;
    int length = at < n ? utf8_decode(s + at, n - at, &code) : 0;
    return length > 0 && is_white_space(code) ? length : 0;
}

bool added_find(const AddedTokens *a, bool normalized, bool specials, const uint8_t *s, int64_t n,
                int64_t from, AddedMatch *match)
{
    for (int64_t at = from; at < n; at++) {
        if (a->first[s[at]] == a->first[s[at] + 1]) continue;
        const AddedToken *t = token_at(a, normalized, s, n, at);
        if (t == NULL) continue;
        int64_t begin = at, end = at + (int64_t)strlen(searched(t));
        if (t->special && !specials) {
            /* A special token that is not searched for still hides shorter tokens inside it. */
            at = end - 1;
            continue;
        }
        for (int space; t->lstrip && (space = space_before(s, from, begin)) > 0;)
            begin -= space;
        for (int space; t->rstrip && (space = space_after(s, n, end)) > 0;)
            end += space;
        *match = (AddedMatch){.token = t, .from = begin, .to = end};
        return true;
    }
    return false;
}

bool added_across(const AddedTokens *a, const uint8_t *s, int64_t n, int64_t at)
{
    for (int i = 0; i < a->count; i++) {
        int64_t size = (int64_t)strlen(searched(&a->token[i]));
        for (int64_t from = at > size ? at - size : 0; from <= at && from + size <= n; from++)
            if (memcmp(s + from, searched(&a->token[i]), (size_t)size) == 0) return true;
    }
    return false;
}
