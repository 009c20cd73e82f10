/* choice_file.c -- reads and checks multiple-choice files, and turns their rows into sequences; see
 * choice_file.h. */
#include "data/tokens/choice_file.h"

#include "model/core/check.h"
#include "model/core/files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    EXAMPLE_BEGIN = 65535,
    EXAMPLE_WORDS = 5, /* 65535, bytes, number, label, number of completions */
    /* Bytes of the shortest example: these five words, a context and two completions of one token
     * each. */
    EXAMPLE_LEAST = 2 * 11
};

/* The state of reading the file. */
typedef struct {
    ChoiceFile *file;
    int64_t vocab_size;
    int64_t at, words; /* index of the next word (uint16) in file->word; number of words */
    int64_t end;       /* index of the word at which the current example ends */
    int64_t rows_reserved;
    char *err;
    size_t n;
} Reader;

/* Returns the byte offset of a word in the file. */
static long long offset_of(int64_t word)
{
    return (long long)(CHOICE_FILE_HEADER + 2 * word);
}

static bool check_header(const char *name, const void *bytes, size_t size, int32_t word[4],
                         char *err, size_t n)
{
    if (size < CHOICE_FILE_HEADER)
        return error_set(err, n,
                         "%s has %zu bytes, fewer than the %d of a multiple-choice file's "
                         "header",
                         name, size, (int)CHOICE_FILE_HEADER);
    memcpy(word, bytes, 4 * sizeof *word);
    if (word[0] != CHOICE_FILE_MAGIC)
        return error_set(err, n, "%s is not a multiple-choice file: it begins with %d, not %d",
                         name, word[0], (int)CHOICE_FILE_MAGIC);
    if (word[1] != 1)
        return error_set(err, n,
                         "%s is a multiple-choice file of version %d; version 1 is understood",
                         name, word[1]);
    if (word[2] < 1 || word[2] > (int64_t)(size - CHOICE_FILE_HEADER) / EXAMPLE_LEAST)
        return error_set(err, n,
                         "%s is damaged: its header promises %d examples, but it has %zu "
                         "bytes",
                         name, word[2], size);
    if (size % 2 != 0)
        return error_set(err, n, "%s is damaged: it has %zu bytes, an odd number", name, size);
    return true;
}

/* Reads the number of tokens and the tokens of a context or a completion. */
static bool take_tokens(Reader *r, const char *what, int64_t *first, int64_t *count)
{
    const uint16_t *word = r->file->word;
    if (r->at == r->end)
        return error_set(r->err, r->n, "%s is damaged: its example ends at byte %lld, before a %s",
                         r->file->name, offset_of(r->end), what);
    *count = word[r->at++];
    *first = r->at;
    if (*count == 0)
        return error_set(r->err, r->n, "%s: the %s at byte %lld has no token; give at least one",
                         r->file->name, what, offset_of(r->at - 1));
    if (*count > r->end - r->at)
        return error_set(r->err, r->n,
                         "%s is damaged: the %s at byte %lld has %lld tokens, but "
                         "its example ends at byte %lld",
                         r->file->name, what, offset_of(r->at - 1), (long long)*count,
                         offset_of(r->end));
    for (; r->at < *first + *count; r->at++)
        if (word[r->at] >= r->vocab_size)
            return error_set(r->err, r->n,
                             "%s: token %d at byte %lld, but the vocabulary has "
                             "%lld ids; give a file of the model's tokenizer",
                             r->file->name, word[r->at], offset_of(r->at),
                             (long long)r->vocab_size);
    return true;
}

/* Checks the first words of example number `number`, and sets r->end. */
static bool begin_example(Reader *r, int64_t number)
{
    const ChoiceFile *f = r->file;
    const uint16_t *word = f->word + r->at;
    if (r->words - r->at < EXAMPLE_WORDS)
        return error_set(r->err, r->n, "%s is damaged: it ends at byte %lld, within example %lld",
                         f->name, offset_of(r->words), (long long)number);
    if (word[0] != EXAMPLE_BEGIN || word[2] != number % 65536)
        return error_set(r->err, r->n,
                         "%s is damaged: at byte %lld there is %d, %d, %d, not the "
                         "begin of example %lld",
                         f->name, offset_of(r->at), word[0], word[1], word[2], (long long)number);
    if (word[1] % 2 != 0 || word[1] / 2 > r->words - r->at || word[1] / 2 < EXAMPLE_WORDS)
        return error_set(r->err, r->n,
                         "%s is damaged: example %lld at byte %lld has %d bytes, "
                         "but the file %lld more",
                         f->name, (long long)number, offset_of(r->at), word[1],
                         (long long)(2 * (r->words - r->at)));
    if (word[4] < 2 || word[3] >= word[4])
        return error_set(r->err, r->n,
                         "%s: example %lld at byte %lld has %d completions and the "
                         "label %d; give two or more, and the number of one",
                         f->name, (long long)number, offset_of(r->at), word[4], word[3]);
    r->end = r->at + word[1] / 2;
    r->at += EXAMPLE_WORDS;
    return true;
}

static bool read_example(Reader *r, int64_t number)
{
    ChoiceFile *f = r->file;
    int64_t begin = r->at;
    if (!begin_example(r, number)) return false;
    ChoiceExample *e = &f->example[number];
    *e = (ChoiceExample){
        .first_row = f->n_rows, .rows = f->word[begin + 4], .label = f->word[begin + 3]};
    /* Each completion takes at least two words, so this is checked before memory is reserved. */
    if (2 * (int64_t)e->rows > r->end - r->at)
        return error_set(r->err, r->n,
                         "%s is damaged: example %lld at byte %lld has %d "
                         "completions in %lld bytes",
                         f->name, (long long)number, offset_of(begin), e->rows,
                         (long long)(2 * (r->end - begin)));
    if (f->n_rows + e->rows > r->rows_reserved) {
        r->rows_reserved = 2 * (f->n_rows + e->rows);
        f->row = must_realloc(f->row, (size_t)r->rows_reserved * sizeof *f->row);
    }
    ChoiceRow row = {0};
    if (!take_tokens(r, "context", &row.context, &row.context_tokens)) return false;
    for (int i = 0; i < e->rows; i++) {
        if (!take_tokens(r, "completion", &row.completion, &row.completion_tokens)) return false;
        f->row[f->n_rows++] = row;
    }
    if (r->at == r->end) return true;
    return error_set(r->err, r->n,
                     "%s is damaged: example %lld has %lld bytes after its last "
                     "completion, at byte %lld",
                     f->name, (long long)number, (long long)(2 * (r->end - r->at)),
                     offset_of(r->at));
}

static bool read_examples(Reader *r, int32_t longest_promised)
{
    ChoiceFile *f = r->file;
    int64_t longest = 0;
    for (int64_t i = 0; i < f->n_examples; i++) {
        int64_t begin = r->at;
        if (!read_example(r, i)) return false;
        if (r->end - begin > longest) longest = r->end - begin;
    }
    if (r->at != r->words)
        return error_set(r->err, r->n,
                         "%s is damaged: after its %lld examples there are %lld "
                         "bytes, at byte %lld",
                         f->name, (long long)f->n_examples, (long long)(2 * (r->words - r->at)),
                         offset_of(r->at));
    if (2 * longest != longest_promised)
        return error_set(r->err, r->n,
                         "%s is damaged: its header promises a longest example of "
                         "%d bytes, but that has %lld",
                         f->name, longest_promised, (long long)(2 * longest));
    return true;
}

bool choice_file_parse(ChoiceFile *f, const char *name, const void *bytes, size_t size,
                       int64_t vocab_size, char *err, size_t n)
{
    int32_t word[4];
    *f = (ChoiceFile){0};
    if (!check_header(name, bytes, size, word, err, n)) return false;
    Reader r = {.file = f, .vocab_size = vocab_size, .err = err, .n = n};
    r.words = (int64_t)(size - CHOICE_FILE_HEADER) / 2;
    f->name = must_strdup(name);
    f->n_examples = word[2];
    f->example = must_calloc((size_t)f->n_examples, sizeof *f->example);
    f->word = must_alloc((size_t)r.words * sizeof *f->word);
    memcpy(f->word, (const char *)bytes + CHOICE_FILE_HEADER, (size_t)r.words * sizeof *f->word);
    if (read_examples(&r, word[3])) return true;
    choice_file_close(f);
    return false;
}

bool choice_file_open(ChoiceFile *f, const char *path, int64_t vocab_size, bool *missing, char *err,
                      size_t n)
{
    char *bytes;
    size_t size;
    *f = (ChoiceFile){0};
    if (!file_read(path, &bytes, &size, missing, err, n)) return false;
    bool good = choice_file_parse(f, path, bytes, size, vocab_size, err, n);
    free(bytes);
    return good;
}

void choice_file_close(ChoiceFile *f)
{
    free(f->name);
    free(f->word);
    free(f->example);
    free(f->row);
    *f = (ChoiceFile){0};
}

/* ---- sequences ------------------------------------------------------------------------------- */

static int64_t tokens_read(const ChoiceRow *row)
{
    return row->context_tokens + row->completion_tokens - 1;
}

int64_t choice_file_longest(const ChoiceFile *f)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < f->n_rows; i++)
        if (tokens_read(&f->row[i]) > longest) longest = tokens_read(&f->row[i]);
    return longest;
}

bool choice_file_fits(const ChoiceFile *f, int64_t T, int64_t *cut, char *err, size_t n)
{
    *cut = 0;
    for (int64_t i = 0; i < f->n_rows; i++) {
        const ChoiceRow *row = &f->row[i];
        if (row->completion_tokens > T)
            return error_set(err, n,
                             "%s: the completion at byte %lld has %lld tokens, and the "
                             "model reads %lld (data.seq_length); leave its example out",
                             f->name, offset_of(row->completion - 1),
                             (long long)row->completion_tokens, (long long)T);
        *cut += tokens_read(row) > T;
    }
    return true;
}

/* Returns token number i of the context and the completion after it. */
static int32_t token_at(const ChoiceFile *f, const ChoiceRow *row, int64_t i)
{
    return i < row->context_tokens ? f->word[row->context + i]
                                   : f->word[row->completion + i - row->context_tokens];
}

void choice_file_sequence(const ChoiceFile *f, int64_t row, int64_t T, int32_t *tokens,
                          int32_t *targets)
{
    const ChoiceRow *r = &f->row[row];
    int64_t count = tokens_read(r), first = count > T ? count - T : 0;
    CHECK(r->completion_tokens <= T, "%lld tokens in %lld", (long long)r->completion_tokens,
          (long long)T);
    for (int64_t i = 0; i < T; i++) {
        bool inside = first + i < count;
        tokens[i] = inside ? token_at(f, r, first + i) : 0;
        targets[i] =
            inside && first + i + 1 >= r->context_tokens ? token_at(f, r, first + i + 1) : -1;
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Returns the number of the completion with the lowest loss; -1 if all losses are NaN. */
static int chosen(const ChoiceFile *f, const ChoiceExample *e, const double *nats, bool per_token)
{
    int best = -1;
    double lowest = INFINITY;
    for (int i = 0; i < e->rows; i++) {
        int64_t row = e->first_row + i;
        double loss = per_token ? nats[row] / (double)f->row[row].completion_tokens : nats[row];
        if (!(loss < lowest)) continue;
        lowest = loss;
        best = i;
    }
    return best;
}

ChoiceScore choice_file_score(const ChoiceFile *f, const double *nats)
{
    ChoiceScore score = {0};
    double sum = 0;
    int64_t tokens = 0;
    for (int64_t i = 0; i < f->n_examples; i++) {
        const ChoiceExample *e = &f->example[i];
        score.right += chosen(f, e, nats, true) == e->label;
        score.right_by_sum += chosen(f, e, nats, false) == e->label;
        sum += nats[e->first_row + e->label];
        tokens += f->row[e->first_row + e->label].completion_tokens;
    }
    score.loss = sum / (double)tokens;
    return score;
}
