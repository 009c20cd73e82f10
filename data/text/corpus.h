/* corpus.h -- texts that the machine has a package for; none is shipped or downloaded. */
#ifndef DATA_TEXT_CORPUS_H
#define DATA_TEXT_CORPUS_H

#include "data/text/text.h"

/* What a corpus's program may take; one that takes more is ended. */
typedef struct {
    int64_t bytes;   /* of output */
    int64_t seconds; /* until its output has ended */
    int64_t ending;  /* seconds from there until it has ended itself */
} CorpusLimits;
extern const CorpusLimits corpus_limits; /* of a run */

/* Appends the corpus called `name` ("bible-kjv": one verse a line, without its labels) as one
 * document. On false *code is EXIT_MISSING (unknown name, program not installed: the sentence names
 * the Debian package and data.text) or EXIT_DAMAGED (the program failed, said something else than
 * expected, or did not come to an end). */
bool corpus_read(Text *text, const char *name, const CorpusLimits *limits, char *err, size_t n,
                 ExitCode *code);
/* Whether corpus_read will find the program of `name`, without running it; else false with its
 * sentence and code. */
bool corpus_check(const char *name, char *err, size_t n, ExitCode *code);
/* What a person calls it; NULL if the name is unknown. */
const char *corpus_title(const char *name);

#endif
