/* corpus.h -- texts that the machine has a package for; none is shipped or downloaded. */
#ifndef DATA_CORPUS_H
#define DATA_CORPUS_H

#include "data/text.h"

/* Appends the corpus called `name` ("bible-kjv": one verse a line, without its labels) as one
 * document. On false *code is EXIT_MISSING (unknown name, program not installed: the sentence names
 * the Debian package and data.text) or EXIT_DAMAGED (the program failed or said something else than
 * expected). */
bool corpus_read(Text *text, const char *name, char *err, size_t n, ExitCode *code);
/* What a person calls it; NULL if the name is unknown. */
const char *corpus_title(const char *name);

#endif
