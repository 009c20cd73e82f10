/* terminal.h -- prints text so that it fits a terminal. In a pipe or a file, messages are not
 * folded, and there are no colours. */
#ifndef MODEL_CORE_TERMINAL_H
#define MODEL_CORE_TERMINAL_H

#include "model/core/text_wrap.h"

#include <stdbool.h>
#include <stdio.h>

/* Returns whether the stream writes to a terminal. */
bool terminal_is(FILE *to);
/* Returns the terminal's number of columns: the number that it reports, else the environment
 * variable COLUMNS, else 80. */
int terminal_columns(FILE *to);
/* Returns the number of columns of folded lines on `to`: one less than the terminal has, but at
 * least 39 and at most 139. Returns LINE_COLUMNS if `to` is not a terminal. */
int terminal_line(FILE *to);
/* Returns whether text on a terminal may have colours: not if the environment sets NO_COLOR, or
 * TERM to "dumb". */
bool terminal_colours(void);

typedef enum { MARK_NONE, MARK_WARNING, MARK_ERROR } Mark;

/* Prints a message and a line feed with one write, so that messages of different threads do not
 * mix. Control characters are escaped. The first `marked` bytes are printed in the colour of
 * `mark`. The message is folded on a terminal; its further lines are indented by 4, or aligned with
 * the text after a label such as "done ". Prints even if memory is exhausted. */
void terminal_message(FILE *to, const char *text, Mark mark, size_t marked);
/* Prints a label, which is at most `indent` columns wide, and a text that begins at column `indent`
 * and is always folded: to the columns of a terminal, elsewhere to LINE_COLUMNS. */
void terminal_field(FILE *to, const char *label, const char *text, int indent);
/* Prints a formatted text and a line feed without escaping. On a terminal it is folded, and further
 * lines are indented by `indent`, the width of the label with which the text may begin. */
void terminal_print(FILE *to, int indent, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
