/* choice_file.h -- reads multiple-choice questions in llm.c's evaluation format, which llm.c's
 * scripts write for HellaSwag and MMLU: contexts with several completions, one of which is right.
 *
 * The file begins with a header of 256 int32: {20240522, 1, number of examples, bytes of the
 * longest example}. The examples follow, in uint16: 65535, the bytes of the example, its number,
 * the label (the number of the right completion), the number of completions, the context, and each
 * completion. A context or completion is its number of tokens, then the tokens. Ids from 65536 on
 * cannot be stored in this format. */
#ifndef DATA_TOKENS_CHOICE_FILE_H
#define DATA_TOKENS_CHOICE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CHOICE_FILE_HEADER = 1024, /* size of the header in bytes */
    CHOICE_FILE_MAGIC = 20240522,
};

/* One completion with its context. For both, the index of the first token in ChoiceFile.word, and
 * the number of tokens. */
typedef struct {
    int64_t context, context_tokens; /* the context is shared by the rows of an example */
    int64_t completion, completion_tokens;
} ChoiceRow;

typedef struct {
    int64_t first_row; /* the first of its rows; each completion has one */
    int rows, label;
} ChoiceExample;

typedef struct {
    char *name;     /* the file's name, for messages */
    uint16_t *word; /* the file's contents after the header */
    ChoiceExample *example;
    ChoiceRow *row;
    int64_t n_examples, n_rows;
} ChoiceFile;

/* Reads a file that the user named. Returns false and sets `err` if the file cannot be read or is
 * not valid. *missing is set to whether it cannot be opened. A file is not valid if the header or
 * the file's size contradicts the examples, a label names no completion, an example has fewer than
 * two completions, a context or a completion has no token, or a token id is not below vocab_size.
 * Messages name the file, the byte offset and the value there. On failure *f is {0}, which may be
 * passed to choice_file_close. */
bool choice_file_open(ChoiceFile *f, const char *path, int64_t vocab_size, bool *missing, char *err,
                      size_t n);
/* Does what choice_file_open does with a file's contents in memory; `name` is its name in
 * messages. */
bool choice_file_parse(ChoiceFile *f, const char *name, const void *bytes, size_t size,
                       int64_t vocab_size, char *err, size_t n);
void choice_file_close(ChoiceFile *f);

/* Returns the maximum number of input tokens of a row: those of context and completion, except the
 * last. */
int64_t choice_file_longest(const ChoiceFile *f);
/* Checks that no completion has more than T tokens: then a sequence of T tokens begins with the
 * last token of the context or an earlier one, and has all tokens of the completion as targets. If
 * one has more, returns false and sets `err`, which names the file and the offset. *cut is the
 * number of rows from which choice_file_sequence leaves out the first tokens of the context. */
bool choice_file_fits(const ChoiceFile *f, int64_t T, int64_t *cut, char *err, size_t n);
/* Writes the sequence of one row. tokens (T) i32: the tokens of context and completion except the
 * last (only the last T of them, if there are more), then zeros. targets (T) i32: the tokens of the
 * completion, each at the position of the token before it, and -1 elsewhere. choice_file_fits must
 * have returned true for T. */
void choice_file_sequence(const ChoiceFile *f, int64_t row, int64_t T, int32_t *tokens,
                          int32_t *targets);

/* The accuracy of a model. */
typedef struct {
    int64_t right;        /* examples whose right completion has the lowest loss per token */
    int64_t right_by_sum; /* examples whose right completion has the lowest loss, summed over its
                             tokens */
    double loss;          /* mean loss of the right completions, in nats per token */
} ChoiceScore;
/* Counts the right choices. nats (n_rows) is the summed loss of each row's completion. Among equal
 * losses, the first completion is chosen; a loss that is NaN is never chosen. */
ChoiceScore choice_file_score(const ChoiceFile *f, const double *nats);

#endif
