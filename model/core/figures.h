/* figures.h -- figures and lines as a person reads them. */
#ifndef MODEL_CORE_FIGURES_H
#define MODEL_CORE_FIGURES_H

#include <stdint.h>

/* Returned by value: figure_count(n).text is valid within the expression that makes it, as in the
 * arguments of a printf. */
typedef struct {
    char text[32];
} Figure;

/* "1 layer", "12,100 layers": a number of things, each called `one`. */
Figure figure_of(int64_t n, const char *one);
/* "12,100"; below ten with one decimal unless it is whole: "2.1". */
Figure figure_count(double value);
/* In at most eight characters: "812,345", "1.28 M", "102.4 B", "1.50 T". */
Figure figure_short(double value);
/* A rate of work in at most eight characters: "0.3 G", "145.0 G", "1.2 T". */
Figure figure_flops(double value);
/* "512 bytes", "305.0 KiB", "62.6 MiB", "132.1 GiB". */
Figure figure_bytes(double bytes);
/* The bytes of the unit that figure_bytes writes them in, for their parts. */
double figure_bytes_unit(double bytes);
/* "ended with exit code 3", "was ended by signal 9": what waitpid tells of a program. */
Figure figure_ending(int status);
/* "0:42", "12:07", "3:05:09", "2d 21h", "412 d"; "-" when it is not known (negative, NaN). */
Figure figure_duration(double seconds);

/* The text, broken into lines of at most LINE_COLUMNS columns. The first line begins after `used`
 * columns, the others are indented by `indent`. Lines end at spaces; WRAP_FIGURES prefers two
 * spaces in a row, or a space after a comma, a colon or a semicolon. A word that is longer than a
 * line stays whole, so that it can be copied; WRAP_HARD breaks it. The caller frees. */
enum { LINE_COLUMNS = 79 };
typedef enum { WRAP_PROSE, WRAP_FIGURES, WRAP_HARD } Wrap;
char *text_wrap(const char *text, int used, int indent, Wrap wrap);

#endif
