/* prepare.c -- prepares the token shards of a text, or finds them in the cache; see prepare.h.
 *
 * A folder's name contains a hash of everything that determines its contents, so a folder with the
 * right name has the right contents. It is checked against its own meta.json, but not compared with
 * the text. */
#include "data/text/prepare.h"

#include "data/text/meta.h"
#include "data/text/prepared.h"
#include "data/text/shards.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens/token_file.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/hash.h"
#include "model/core/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void preparation_free(Preparation *p)
{
    free(p->folder);
    free(p->tokenizer);
    *p = (Preparation){0};
}

/* ---- the hash in the folder's name ----------------------------------------------------------- */

static uint64_t hash_text(uint64_t h, const Text *text)
{
    h = hash_bytes(h, text->bytes, text->size);
    return hash_bytes(h, text->document_end,
                      text->n_documents * (int64_t)sizeof *text->document_end);
}

/* Sets the part of the text that each split is made from. */
static void split_text(const PrepareRequest *r, TextRange range[SPLITS])
{
    const Text *val = r->val_text ? r->val_text : r->text;
    int64_t end = r->val_text ? r->text->size : text_split(r->text, r->val_fraction);
    range[SPLIT_TRAIN] = (TextRange){.text = r->text, .to = r->val_only ? 0 : end};
    range[SPLIT_VAL] = (TextRange){.text = val, .from = r->val_text ? 0 : end, .to = val->size};
}

/* Returns a hash of a split's text and of the positions where its documents end; never 0. */
static uint64_t hash_range(const TextRange *range)
{
    const Text *text = range->text;
    uint64_t h = hash_bytes(META_FORMAT, text->bytes + range->from, range->to - range->from);
    for (int64_t d = 0; d < text->n_documents && text->document_end[d] <= range->to; d++)
        if (text->document_end[d] > range->from)
            h = hash_mix(h, (uint64_t)(text->document_end[d] - range->from));
    return h ? h : 1;
}

/* Returns a hash of everything that determines the tokens. `given` is the request's tokenizer, NULL
 * if one is to be trained. */
static uint64_t request_hash(const PrepareRequest *r, const Tokenizer *given)
{
    uint64_t h = hash_mix(META_FORMAT, given ? tokenizer_hash(given) : (uint64_t)r->vocab_size);
    h = hash_mix(h, r->val_only ? 3 : given != NULL ? 1 : r->vocab_at_most ? 2 : 0);
    if (r->val_only) {
        TextRange range[SPLITS];
        split_text(r, range);
        return hash_mix(h, hash_range(&range[SPLIT_VAL]));
    }
    h = hash_text(h, r->text);
    if (r->val_text) return hash_text(hash_mix(h, 1), r->val_text);
    return hash_bytes(hash_mix(h, 0), &r->val_fraction, sizeof r->val_fraction);
}

/* ---- reading a prepared folder --------------------------------------------------------------- */

/* Returns whether all shards of a split exist and have as many tokens as meta.json says. */
static bool check_shards(const char *folder, Split split, const SplitSize *s, char *err, size_t n)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < s->shards; i++) {
        char *path = split_shard_path(folder, split, i);
        TokenFile f;
        bool good = token_file_open(&f, path, err, n);
        free(path);
        if (!good) return false;
        tokens += f.n_tokens;
        token_file_close(&f);
    }
    if (tokens != s->tokens)
        return error_set(err, n, "its %s shards have %lld tokens, meta.json says %lld",
                         split_name[split], (long long)tokens, (long long)s->tokens);
    return true;
}

/* Returns the checksum of a whole split; 0 if meta.json was written before checksums were
 * introduced. */
static uint64_t checksum_of(const Meta *m, Split k)
{
    return m->checksum[k] ? m->checksum[k][m->split[k].shards - 1] : 0;
}

static bool check_tokenizer(const Meta *m, const char *path, char *err, size_t n)
{
    Tokenizer *t = NULL;
    if (!tokenizer_load(path, &t, NULL, err, n)) return false;
    bool good = tokenizer_hash(t) == m->tokenizer_hash;
    tokenizer_free(t);
    return good || error_set(err, n, "its tokenizer.json is another one than it was made with");
}

/* Returns whether the folder has the contents that its meta.json describes, and fills in `p` from
 * meta.json. Only headers and sizes of shards are read; flipped bits are found by `data inspect
 * --verify`. */
static bool check_folder(const char *folder, uint64_t hash, Preparation *p, char *err, size_t n)
{
    char *path = text_format("%s/meta.json", folder);
    Meta m;
    bool good = meta_read(&m, path, err, n);
    free(path);
    if (good && m.key != hash) good = error_set(err, n, "its meta.json is not what was written");
    for (Split k = 0; good && k < SPLITS; k++)
        good = check_shards(folder, k, &m.split[k], err, n);
    good = good && check_tokenizer(&m, p->tokenizer, err, n);
    p->documents = m.documents;
    p->vocab_size = m.vocab_size;
    p->tokenizer_hash = m.tokenizer_hash;
    p->train_bytes = m.split[SPLIT_TRAIN].bytes;
    p->train_tokens = m.split[SPLIT_TRAIN].tokens;
    p->train_checksum = checksum_of(&m, SPLIT_TRAIN);
    p->val_bytes = m.split[SPLIT_VAL].bytes;
    p->val_tokens = m.split[SPLIT_VAL].tokens;
    p->val_checksum = checksum_of(&m, SPLIT_VAL);
    meta_free(&m);
    return good;
}

/* Fills in `p` from the finished folder p->folder. */
static bool read_folder(uint64_t hash, Preparation *p, char *err, size_t n, ExitCode *code)
{
    char why[512] = "";
    p->tokenizer = text_format("%s/tokenizer.json", p->folder);
    if (check_folder(p->folder, hash, p, why, sizeof why)) return true;
    *code = error_exit_code(why, EXIT_DAMAGED);
    if (*code == EXIT_PERMISSION)
        return error_set(err, n, "the prepared corpus %s cannot be used: %s", p->folder, why);
    return error_set(err, n,
                     "the prepared corpus %s is damaged (%s): remove that folder and start again",
                     p->folder, why);
}

/* ---- the same tokens under another name ------------------------------------------------------ */

/* The tokens that are searched for, and the folder that was found. */
typedef struct {
    uint64_t text[SPLITS]; /* hash of each split's text; 0: any text */
    uint64_t tokenizer;    /* its hash; 0: it is to be trained */
    int64_t vocab_size;    /* exact size of the tokenizer that is to be trained */
    char *folder;          /* NULL: not found */
    uint64_t key;
} Search;

/* Checks whether the folder has the wanted tokens. If so, stores it in the Search and returns
 * false, which ends the search. A tokenizer that was trained with vocab_size as a limit is the same
 * as one trained to exactly the size that it reached, because merges are made one by one. */
static bool compare_folder(const char *folder, PreparedState state, const Meta *m, void *context)
{
    Search *s = context;
    if (state != PREPARED_WHOLE) return true;
    bool same = s->tokenizer ? m->tokenizer_hash == s->tokenizer
                             : m->at_most && m->vocab_size == s->vocab_size;
    for (Split k = 0; same && k < SPLITS; k++)
        same = s->text[k] == 0 || s->text[k] == m->text[k];
    if (!same) return true;
    s->folder = must_strdup(folder);
    s->key = m->key;
    return false;
}

/* Searches for a folder that has the wanted tokens but was made by another request: for example, an
 * evaluation with a run's tokenizer finds the folder that was made for the training of the run. If
 * there is one, sets p->folder, p->cached and *key. */
static void find_equal(const PrepareRequest *r, const Tokenizer *given, Preparation *p,
                       uint64_t *key)
{
    char ignored[256];
    TextRange range[SPLITS];
    if (given == NULL && r->vocab_at_most) return;
    split_text(r, range);
    Search s = {.tokenizer = given ? tokenizer_hash(given) : 0, .vocab_size = r->vocab_size};
    for (Split k = 0; k < SPLITS; k++)
        s.text[k] = k == SPLIT_TRAIN && r->val_only ? 0 : hash_range(&range[k]);
    /* A failure to read the cache is ignored here: make_folder, which is called next, reports
     * it. */
    prepared_visit(r->cache, compare_folder, &s, ignored, sizeof ignored);
    if (s.folder == NULL) return;
    free(p->folder);
    p->folder = s.folder;
    p->cached = true;
    *key = s.key;
}

/* ---- making a folder ------------------------------------------------------------------------- */

/* Trains a tokenizer, on the training part only. If a tokenizer is given, sets *out to NULL
 * instead. */
static bool make_tokenizer(const PrepareRequest *r, const Tokenizer *given, int64_t split,
                           Tokenizer **out, char *err, size_t n)
{
    char why[512], smaller[80] = "";
    int64_t most;
    *out = NULL;
    if (given != NULL) return true;
    BpeRequest bpe = {.text = r->text->bytes,
                      .size = split,
                      .vocab_size = r->vocab_size,
                      .at_most = r->vocab_at_most,
                      .pool = text_pool(r->threads, split),
                      .progress = r->progress};
    bool good = tokenizer_learn(&bpe, out, &most, why, sizeof why);
    pool_destroy(bpe.pool);
    if (good) return true;
    if (most > 0)
        snprintf(smaller, sizeof smaller, "write --set data.tokenizer_vocab_size=%lld, or ",
                 (long long)most);
    return error_set(err, n, "%s: a tokenizer cannot be trained: %s; %sgive more text", r->source,
                     why, smaller);
}

/* Writes all files into `folder`, which exists. */
static bool fill_folder(const PrepareRequest *r, const Tokenizer *given, const char *folder,
                        uint64_t hash, char *err, size_t n, ExitCode *code)
{
    TextRange range[SPLITS];
    Tokenizer *trained;
    split_text(r, range);
    int64_t end = range[SPLIT_TRAIN].to;
    *code = EXIT_CONFIG; /* a text that is too short is not damaged */
    if (!make_tokenizer(r, given, end, &trained, err, n)) return false;
    *code = EXIT_INPUT_OUTPUT;
    const Tokenizer *t = given ? given : trained;
    Meta meta = {.key = hash,
                 .documents = r->text->n_documents + (r->val_text ? r->val_text->n_documents : 0),
                 .at_most = given == NULL && r->vocab_at_most};
    for (Split k = 0; k < SPLITS; k++)
        meta.text[k] = hash_range(&range[k]);
    const ShardOptions options = {.threads = r->threads, .progress = r->progress};
    bool good = shards_write(t, range, r->fs, folder, &meta, &options, err, n) &&
                fs_sync_folder(r->fs, folder, err, n);
    meta_free(&meta);
    tokenizer_free(trained);
    return good;
}

/* Builds p->folder under a temporary name and renames it. If another process was faster, rename
 * fails because the folder exists and is not empty. That folder has the same name and so the same
 * contents; it is used, and the temporary one is removed. */
static bool make_folder(const PrepareRequest *r, const Tokenizer *given, uint64_t hash,
                        const Preparation *p, char *err, size_t n, ExitCode *code)
{
    *code = EXIT_CANNOT_CREATE;
    if (!fs_make_folders(r->fs, r->cache, err, n)) return false;
    char *temporary = temporary_folder(r->fs, p->folder, err, n);
    bool good = temporary != NULL;
    if (good) {
        int lock = temporary_hold(temporary);
        good = fill_folder(r, given, temporary, hash, err, n, code);
        if (good && r->fs->rename(r->fs->self, AT_FDCWD, temporary, AT_FDCWD, p->folder) != 0) {
            good = errno == EEXIST || errno == ENOTEMPTY;
            if (!good) error_set(err, n, "%s cannot be created: %s", p->folder, strerror(errno));
        }
        char ignored[256]; /* the temporary folder no longer exists if it was renamed */
        fs_remove_tree(r->fs, AT_FDCWD, temporary, ignored, sizeof ignored);
        if (lock >= 0) close(lock);
        if (good) good = fs_sync_folder(r->fs, r->cache, err, n);
    }
    free(temporary);
    return good;
}

/* Returns the smallest val_fraction, a multiple of 0.001, that gives two windows of validation
 * text, assuming the text's mean number of bytes per token. Returns 0 if even half of the text is
 * not enough. */
static double enough_for_validation(const PrepareRequest *r, const Preparation *p)
{
    double tokens = (double)(p->train_tokens + p->val_tokens), size = (double)r->text->size,
           windows = 2 * (double)r->min_tokens / tokens;
    for (double share = ceil(1000 * windows); share <= 500; share++)
        if (size - (double)text_split(r->text, share / 1000) >= windows * size) return share / 1000;
    return 0;
}

/* Returns whether both splits have enough tokens for a window. If not, sets `err` to an error that
 * says how to change the config or the text. */
static bool check_length(const PrepareRequest *r, const Preparation *p, char *err, size_t n)
{
    bool has_val = r->val_text != NULL || r->val_fraction > 0;
    if (!r->val_only && p->train_tokens < r->min_tokens)
        return error_set(err, n,
                         "%s: the training text has %lld tokens, fewer than the %lld of one window "
                         "(data.seq_length + 1): give more text or a shorter data.seq_length",
                         r->source, (long long)p->train_tokens, (long long)r->min_tokens);
    if (!has_val || p->val_tokens >= r->min_tokens) return true;
    double share = r->val_only ? 0 : enough_for_validation(r, p);
    const char *key = r->val_key ? r->val_key : "data.val_text";
    char remedy[200];
    snprintf(remedy, sizeof remedy, "give more text in %s or a shorter data.seq_length", key);
    if (r->val_text == NULL && share > 0)
        snprintf(remedy, sizeof remedy,
                 "write --set data.val_fraction=%.3f, or 0 for no validation", share);
    else if (r->val_text == NULL)
        snprintf(remedy, sizeof remedy,
                 "give more text, write a shorter data.seq_length, or --set data.val_fraction=0 "
                 "for no validation");
    return error_set(err, n,
                     "%s: the validation text has %lld tokens, fewer than the %lld of one window "
                     "(data.seq_length + 1): %s",
                     r->val_text ? key : r->source, (long long)p->val_tokens,
                     (long long)r->min_tokens, remedy);
}

bool prepare_text(const PrepareRequest *r, Preparation *out, char *err, size_t n, ExitCode *code)
{
    Tokenizer *given = NULL;
    bool missing;
    *out = (Preparation){0};
    if (r->tokenizer && !tokenizer_load(r->tokenizer, &given, &missing, err, n)) {
        *code = missing ? EXIT_MISSING : EXIT_DAMAGED;
        return false;
    }
    uint64_t hash = request_hash(r, given);
    out->folder = text_format("%s/%s-%016llx", r->cache, r->name, (unsigned long long)hash);
    out->cached = access(out->folder, F_OK) == 0;
    if (!out->cached) find_equal(r, given, out, &hash);
    bool good = (out->cached || make_folder(r, given, hash, out, err, n, code)) &&
                read_folder(hash, out, err, n, code);
    tokenizer_free(given);
    if (good) {
        *code = EXIT_CONFIG;
        good = check_length(r, out, err, n);
    }
    if (!good) preparation_free(out);
    return good;
}
