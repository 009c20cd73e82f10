/* screen.h -- what the program shows on a terminal: the screen that results from its raw output. */
#ifndef TESTS_SUPPORT_TRAINER_SCREEN_H
#define TESTS_SUPPORT_TRAINER_SCREEN_H

#include <stdbool.h>

enum { COLUMNS = 80, MOST_LINES = 400, CELLS = 2048 };

/* The text on the screen, including the lines that have scrolled off it. */
typedef struct {
    char line[MOST_LINES][CELLS];
    int lines;   /* number of finished lines; the cursor is in line[lines] */
    int redrawn; /* how many times a line was overwritten from its start */
} Screen;

/* Interprets the output of the program: carriage returns, line feeds, "erase to end of line" and
 * colours. */
void screen_show(Screen *screen, const char *text);
bool screen_has(const Screen *screen, const char *text);
/* Returns the text on the screen with single spaces instead of the folds; the caller frees. */
char *screen_unfolded(const Screen *screen);
/* Returns whether the text is on the screen, possibly folded. */
bool screen_says(const Screen *screen, const char *text);
/* Fails unless every line is narrower than the terminal, which has disturbance.columns. */
void screen_fits(const Screen *screen);
/* Runs the program (run_expecting) in a terminal, of 80 columns unless disturbance has others, and
 * returns the final screen. Sets *sent to its
 * raw output. The caller frees both. */
Screen *screen_of_run(const char *run, const char *const *sets, int code, char **sent);

#endif
