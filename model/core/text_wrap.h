/* text_wrap.h -- folds text into lines of a given width, at spaces and with a hanging indent.
 *
 * Widths are columns of a terminal: a combining character takes none, a wide one (Chinese,
 * Japanese, Korean, most emoji) takes two. */
#ifndef MODEL_CORE_TEXT_WRAP_H
#define MODEL_CORE_TEXT_WRAP_H

#include <stddef.h>

/* Where a line may end. A word longer than a line stays whole, so that it can be copied.
 * WRAP_PROSE: at any space. WRAP_FIGURES: like WRAP_PROSE, but preferably at two spaces in a row,
 * or after a comma, colon or semicolon. WRAP_HARD: like WRAP_PROSE, but breaks words that are too
 * long. WRAP_MESSAGE: at any space, but preferably at two in a row; and a command such as "./train
 * eval out/demo" stays on one line. A command longer than a line is folded between its words, each
 * line but the last ending with a backslash, so that it can still be pasted into a shell. */
typedef enum { WRAP_PROSE, WRAP_FIGURES, WRAP_HARD, WRAP_MESSAGE } Wrap;

/* Lines have at most `columns` columns. The first one starts after `used` columns, and the others
 * are indented by `indent`. */
typedef struct {
    int columns, used, indent;
    Wrap wrap;
} Fold;

/* The number of columns of a line if the output is not a terminal. */
enum { LINE_COLUMNS = 79 };

/* Writes the folded text to out[0..n), always terminated, and returns the length of the whole
 * result, as snprintf does. Allocates nothing; signal handlers may call it. */
size_t text_fold(char *out, size_t n, const char *text, Fold fold);
/* Folds the text into lines of LINE_COLUMNS columns. The caller frees the result. */
char *text_wrap(const char *text, int used, int indent, Wrap wrap);
/* Like text_wrap, for lines of `columns` columns. */
char *text_wrap_to(int columns, const char *text, int used, int indent, Wrap wrap);

/* Returns how many columns the first n bytes of the text take. A byte that is not UTF-8 takes
 * one. */
int text_columns(const char *text, size_t n);
/* Returns the length in bytes of the longest beginning of the text that takes at most `columns`
 * columns. */
size_t text_cut(const char *text, int columns);

#endif
