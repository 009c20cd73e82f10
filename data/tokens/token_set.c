/* token_set.c -- opens several token shards and reads tokens across their borders; see
 * token_set.h. */
#include "data/tokens/token_set.h"

#include "model/core/check.h"

#include <stdlib.h>

bool token_set_open(TokenSet *s, const StringList *paths, char *err, size_t n)
{
    *s = (TokenSet){0};
    if (paths->count < 1) return error_set(err, n, "no token shards are given");
    s->file = must_calloc((size_t)paths->count, sizeof *s->file);
    s->first = must_calloc((size_t)paths->count + 1, sizeof *s->first);
    for (int i = 0; i < paths->count; i++) {
        if (!token_file_open(&s->file[i], paths->item[i], err, n)) {
            token_set_close(s);
            return false;
        }
        s->n_files = i + 1;
        /* This cannot overflow: each shard has fewer than 2^31 tokens, and the number of files is
         * an int. */
        s->n_tokens += s->file[i].n_tokens;
        s->first[i + 1] = s->n_tokens;
    }
    return true;
}

void token_set_close(TokenSet *s)
{
    for (int i = 0; i < s->n_files; i++)
        token_file_close(&s->file[i]);
    free(s->file);
    free(s->first);
    *s = (TokenSet){0};
}

/* Returns the position of the first of `count` ids that is too large, or -1. Computes the maximum
 * in a loop without branches, and searches only if the maximum is too large. */
static int64_t find_bad(const int32_t *id, int64_t count, int64_t vocab_size)
{
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = (uint32_t)id[i] > largest ? (uint32_t)id[i] : largest;
    if (count == 0 || largest < vocab_size) return -1;
    for (int64_t i = 0; i < count; i++)
        if ((uint32_t)id[i] >= vocab_size) return i;
    return -1;
}

/* Returns the last file that begins at or before token `index`. */
static int file_of(const TokenSet *s, int64_t index)
{
    int low = 0, high = s->n_files - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (s->first[middle] <= index)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

bool token_set_read(const TokenSet *s, int64_t first, int64_t count, int64_t vocab_size,
                    int32_t *out, char *err, size_t n)
{
    CHECK(first >= 0 && count >= 0 && count <= s->n_tokens - first, "tokens %lld + %lld of %lld",
          (long long)first, (long long)count, (long long)s->n_tokens);
    /* A window may start in one file and end in another, or span a short file completely. */
    for (int k = file_of(s, first); count > 0; k++) {
        const TokenFile *f = &s->file[k];
        int64_t from = first - s->first[k], some = f->n_tokens - from;
        if (some > count) some = count;
        if (!token_file_read(f, from, some, out, err, n)) return false;
        int64_t bad = find_bad(out, some, vocab_size);
        if (bad >= 0)
            return error_set(err, n,
                             "%s: token id %u at byte %lld (token %lld) is not in a vocabulary of "
                             "%lld; was the file made by another tokenizer?",
                             f->path, (uint32_t)out[bad],
                             (long long)token_file_offset(f->width, from + bad),
                             (long long)from + bad, (long long)vocab_size);
        out += some;
        first += some;
        count -= some;
    }
    return true;
}
