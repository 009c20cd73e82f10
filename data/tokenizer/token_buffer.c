/* token_buffer.c -- lists of ids, and the text that they stand for. */
#include "data/tokenizer/tokenizer.h"
#include "model/core/check.h"

#include <stdlib.h>
#include <string.h>

void token_buffer_reserve(TokenBuffer *b, int64_t more)
{
    if (b->count + more <= b->capacity) return;
    b->capacity = 2 * (b->count + more) + 1024;
    b->id = must_realloc(b->id, (size_t)b->capacity * sizeof *b->id);
}

void token_buffer_add(TokenBuffer *b, int32_t id)
{
    token_buffer_reserve(b, 1);
    b->id[b->count++] = id;
}

void token_buffer_append(TokenBuffer *b, const int32_t *id, int64_t count)
{
    token_buffer_reserve(b, count);
    if (count > 0) memcpy(b->id + b->count, id, (size_t)count * sizeof *id);
    b->count += count;
}

void token_buffer_free(TokenBuffer *b)
{
    free(b->id);
    *b = (TokenBuffer){0};
}

char *tokenizer_decode(const Tokenizer *t, const int32_t *ids, int64_t count, bool with_specials,
                       int64_t *size)
{
    int64_t total = 0;
    /* The first pass computes the length, the second copies the bytes. */
    for (int pass = 0;; pass++) {
        char *text = pass ? must_alloc((size_t)total + 1) : NULL;
        total = 0;
        for (int64_t i = 0; i < count; i++) {
            int64_t length;
            const void *bytes = tokenizer_token(t, ids[i], &length);
            const char *special = with_specials ? tokenizer_special(t, ids[i]) : NULL;
            if (special) {
                bytes = special;
                length = (int64_t)strlen(special);
            }
            if (text && length > 0) memcpy(text + total, bytes, (size_t)length);
            total += length;
        }
        if (text) {
            text[total] = 0;
            if (size) *size = total;
            return text;
        }
    }
}
