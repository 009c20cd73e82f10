/* corpus.h -- reads texts that are installed as packages of the operating system; none is shipped
 * or downloaded. */
#ifndef DATA_TEXT_CORPUS_H
#define DATA_TEXT_CORPUS_H

#include "data/text/text.h"

/* Limits for the program that prints a corpus; if it exceeds one, it is killed. */
typedef struct {
    int64_t bytes;   /* maximum size of the program's output */
    int64_t seconds; /* maximum time until its output ends */
    /* Maximum time in seconds from the end of the output until the program exits. */
    int64_t ending;
} CorpusLimits;
extern const CorpusLimits corpus_limits; /* The limits used in training runs. */

/* Appends the corpus called `name` to `text` as one document ("bible-kjv": one verse per line,
 * without its labels). On failure it returns false and sets *code: EXIT_MISSING (unknown name, or
 * the program is not installed; the error message names the Debian package and data.text) or
 * EXIT_DAMAGED (the program failed, printed something unexpected, or did not end). */
bool corpus_read(Text *text, const char *name, const CorpusLimits *limits, char *err, size_t n,
                 ExitCode *code);
/* Returns whether corpus_read would find the program of `name`, without running it. If not, sets
 * `err` and *code as corpus_read does. */
bool corpus_check(const char *name, char *err, size_t n, ExitCode *code);
/* Returns the corpus's title for display; NULL if the name is unknown. */
const char *corpus_title(const char *name);

#endif
