/* validation_sets.c -- opens and checks the validation sets of eval.sets; see validation_sets.h. */
#include "data/validation_sets.h"

#include "data/identity.h"
#include "data/text/text.h"
#include "model/core/files.h"

#include <stdlib.h>
#include <string.h>

/* Opens the shards of a pattern. */
static bool open_shards(TokenSet *tokens, const StringList *patterns, char *err, size_t n,
                        ExitCode *code)
{
    StringList files = {0};
    *code = EXIT_MISSING;
    if (!file_list(patterns, &files, err, n)) return false;
    *code = EXIT_DAMAGED;
    bool good = token_set_open(tokens, &files, err, n);
    string_list_free(&files);
    return good;
}

/* Prepares the text of a set with the tokenizer of the run. Training text is not needed. */
static bool prepare(const DataSet *d, const Config *c, const EvalSet *set, const Text *text,
                    Preparation *p, char *err, size_t n, ExitCode *code)
{
    Progress progress = progress_begin();
    char *key = text_format("eval.sets.%s", set->name);
    const Text none = {0};
    const PrepareRequest r = {.fs = &fs_system,
                              .name = set->name,
                              .source = text_file_shown(set->text.item[0]),
                              .cache = c->data.cache,
                              .text = &none,
                              .val_text = text,
                              .val_key = key,
                              .tokenizer = d->tokenizer_path,
                              .val_only = true,
                              .progress = &progress,
                              .min_tokens = c->data.seq_length + 1};
    progress_print(&progress, "preparing the text of %s", key);
    bool good = prepare_text(&r, p, err, n, code);
    progress_end(&progress);
    free(key);
    return good;
}

/* Reads the text of a set, tokenizes it and opens its tokens. */
static bool open_text(DataSet *d, const Config *c, const EvalSet *set, ValidationSet *out,
                      char *err, size_t n, ExitCode *code)
{
    Text text = {.folder = c->data.cache};
    Preparation p = {0};
    if (d->tokenizer == NULL) {
        *code = EXIT_CONFIG;
        return error_set(err, n,
                         "a text needs a tokenizer, and the token files of this run name "
                         "none; give data.tokenizer, or shards");
    }
    Progress progress = progress_begin();
    const TextOptions options = {.text_key = c->data.text_key,
                                 .skip_bad_lines = c->data.skip_bad_lines,
                                 .progress = &progress};
    progress_print(&progress, "reading the text of eval.sets.%s", set->name);
    bool good = text_read_files(&text, &set->text, &options, err, n, code);
    progress_end(&progress);
    good = good && prepare(d, c, set, &text, &p, err, n, code);
    if (good) {
        char *pattern = text_format("%s/%s_*.bin", p.folder, split_name[SPLIT_VAL]);
        good = open_shards(&out->tokens, &(StringList){.count = 1, .item = &pattern}, err, n, code);
        free(pattern);
        out->checksum = p.val_checksum;
        out->cached = p.cached;
    }
    preparation_free(&p);
    text_free(&text);
    return good;
}

static bool open_set(DataSet *d, const Config *c, const EvalSet *set, ValidationSet *out, char *err,
                     size_t n, ExitCode *code)
{
    int64_t window = c->data.seq_length + 1;
    *out = (ValidationSet){.name = must_strdup(set->name)};
    if (set->text.count > 0) return open_text(d, c, set, out, err, n, code);
    if (!open_shards(&out->tokens, &set->shards, err, n, code)) return false;
    *code = EXIT_CONFIG;
    return out->tokens.n_tokens >= window ||
           error_set(err, n,
                     "it has %lld tokens, fewer than the %lld of one window (data.seq_length + 1); "
                     "give more tokens",
                     (long long)out->tokens.n_tokens, (long long)window);
}

bool validation_sets_open(DataSet *d, const Config *c, char *err, size_t n, ExitCode *code)
{
    const EvalSets *sets = &c->eval.sets;
    char why[1024];
    if (sets->count == 0) return true;
    d->sets = must_calloc((size_t)sets->count, sizeof *d->sets);
    for (int i = 0; i < sets->count; i++) {
        d->n_sets++;
        if (!open_set(d, c, &sets->item[i], &d->sets[i], why, sizeof why, code))
            /* The error about a text that is too short already begins with the key of its set. */
            return strncmp(why, "eval.sets.", 10) == 0
                       ? error_set(err, n, "%s", why)
                       : error_set(err, n, "eval.sets.%s: %s", sets->item[i].name, why);
    }
    *code = EXIT_DAMAGED;
    d->sets_identity = data_identity_sets(d, err, n);
    return d->sets_identity != NULL;
}

bool validation_sets_check(const Config *c, char *err, size_t n, ExitCode *code)
{
    char why[1024];
    for (int i = 0; i < c->eval.sets.count; i++) {
        const EvalSet *set = &c->eval.sets.item[i];
        TokenSet tokens = {0};
        bool good = set->text.count > 0 ? text_check_files(&set->text, why, sizeof why, code)
                                        : open_shards(&tokens, &set->shards, why, sizeof why, code);
        token_set_close(&tokens);
        if (!good) return error_set(err, n, "eval.sets.%s: %s", set->name, why);
    }
    return true;
}

void validation_sets_close(DataSet *d)
{
    for (int i = 0; i < d->n_sets; i++) {
        free(d->sets[i].name);
        token_set_close(&d->sets[i].tokens);
    }
    free(d->sets);
    free(d->sets_identity);
}
