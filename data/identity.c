/* identity.c -- builds the line that identifies a run's data, and compares two such lines; see
 * identity.h. */
#include "data/identity.h"

#include "model/core/check.h"

#include <stdlib.h>
#include <string.h>

/* Returns "NAME N tokens HASH"; NULL, with `err` set, if a shard cannot be read. One hash covers
 * all shards, so it also changes if the same tokens are divided into other files. `known`, if not
 * 0, is the hash from meta.json; then no file is read. Otherwise all bytes of the shards are hashed
 * if `whole`, and only the ends of each shard if not. */
static char *split_identity(const char *name, const TokenSet *s, bool whole, uint64_t known,
                            char *err, size_t n)
{
    uint64_t h = known ? known : TOKEN_FILE_HASH_START;
    if (s->n_files == 0) return text_format("%s none", name);
    for (int i = 0; i < s->n_files && known == 0; i++) {
        const TokenFile *f = &s->file[i];
        bool good = whole ? token_file_hash(f, &h, err, n) : token_file_hash_ends(f, &h, err, n);
        if (!good) return NULL;
    }
    return text_format("%s %lld tokens %016llx", name, (long long)s->n_tokens,
                       (unsigned long long)h);
}

char *data_identity(const DataSet *d, char *err, size_t n)
{
    if (d->random) return must_strdup("tokenizer none; random tokens");
    char *tokenizer = d->tokenizer ? text_format("tokenizer %016llx",
                                                 (unsigned long long)tokenizer_hash(d->tokenizer))
                                   : must_strdup("tokenizer none");
    const Preparation *p = &d->preparation;
    char *val = NULL,
         *train = split_identity("train", &d->train, d->prepared, p->train_checksum, err, n);
    if (train) val = split_identity("val", &d->val, d->prepared, p->val_checksum, err, n);
    char *text = val ? text_format("%s; %s; %s", tokenizer, train, val) : NULL;
    free(tokenizer);
    free(train);
    free(val);
    return text;
}

char *data_identity_sets(const DataSet *d, char *err, size_t n)
{
    char *all = must_strdup("");
    for (int i = 0; i < d->n_sets; i++) {
        const ValidationSet *set = &d->sets[i];
        char *one = split_identity(set->name, &set->tokens, false, set->checksum, err, n);
        char *more = one ? text_format("%s%s%s", all, i ? "; " : "", one) : NULL;
        free(one);
        free(all);
        all = more;
        if (all == NULL) return NULL;
    }
    return all;
}

/* Returns the length of the part that starts at `at` and ends before the next ";". *next points to
 * the start of the following part. */
static int part_of(const char *at, const char **next)
{
    size_t length = strcspn(at, ";");
    *next = at + length;
    *next += strspn(*next, "; ");
    return (int)length;
}

char *data_identity_difference(const char *was, const char *is)
{
    char *text = NULL;
    const char *next_was, *next_is;
    for (; *was || *is; was = next_was, is = next_is) {
        int a = part_of(was, &next_was), b = part_of(is, &next_is);
        if (a == b && memcmp(was, is, (size_t)a) == 0) continue;
        char *longer =
            text_format("%s%s%.*s -> %.*s", text ? text : "", text ? ", " : "", a, was, b, is);
        free(text);
        text = longer;
    }
    return text;
}

/* Returns the part about the validation data, which is the last one; "" if there is none. */
static const char *val_part(const char *identity)
{
    static const char begin[] = "; val ";
    const char *at = strstr(identity, begin);
    return at ? at + strlen(begin) : "";
}

bool data_identity_same_val(const char *was, const char *is)
{
    return strcmp(val_part(was), val_part(is)) == 0;
}

bool data_identity_other_tokenizer(const char *was, const char *is)
{
    const char *next;
    int a = part_of(was, &next), b = part_of(is, &next);
    bool known = strncmp(was, "tokenizer none", 14) != 0 && strncmp(is, "tokenizer none", 14) != 0;
    return known && (a != b || memcmp(was, is, (size_t)a) != 0);
}
