/* progress.h -- reports the progress of long work. On a terminal it redraws one line, the live
 * line.
 *
 *     Progress p = progress_begin();
 *     for (int64_t i = 0; i < n; i++) {
 *         progress_count(&p, i, n, "reading file %lld of %lld", (long long)i + 1, (long long)n);
 *         ...
 *     }
 *     progress_end(&p);
 *
 * The caller only sets a text that says what it is doing. A thread (the ticker) then prints the
 * newest text again and again, with the remaining or elapsed time, even while the caller is busy:
 * on a terminal it redraws the live line twice a second, elsewhere it prints a message every 30
 * seconds. The live line is cleared before another message is printed. Nothing is printed for work
 * that takes less than a second, on ranks other than 0, or if the log level is above LOG_INFO. Only
 * one piece of work at a time can report its progress. */
#ifndef MODEL_CORE_PROGRESS_H
#define MODEL_CORE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

typedef struct {
    double began;  /* seconds_now() at the start of the work */
    double every;  /* seconds between two lines; 0: each text is printed */
    bool terminal; /* stdout is a terminal */
    bool at_once;  /* the next text is printed at once, even if the work has just begun */
} Progress;

Progress progress_begin(void);
/* Like progress_begin, for a command whose stdout is its result: prints on a terminal only. */
Progress progress_begin_quiet(void);
/* Begins another piece of work with the same Progress. The line on the screen stays until the first
 * text of this work is printed. */
void progress_again(Progress *progress);
/* Makes the next text appear at once on a terminal, for work that is known to be long. */
void progress_hurry(Progress *progress);
/* Sets the text, which should begin with the name of the work, and prints it if a line is due. Does
 * nothing if `progress` is NULL. Allocates nothing. */
void progress_print(Progress *progress, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Like progress_print for work of which `done` of `all` equal parts are done. Once a part is done,
 * the line ends with the time that the rest will take at the speed so far. */
void progress_count(Progress *progress, int64_t done, int64_t all, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Ends the work and clears its live line. */
void progress_end(Progress *progress);

/* Like fork(), but stops the ticker during the fork: it may own a lock that nobody would release in
 * the child, such as one of AddressSanitizer's allocator, which does not handle forks. Afterwards
 * the ticker runs again in the parent, and in the child once it sets a text. All code that forks
 * must call this. */
pid_t progress_fork(void);

/* Prints `text` as the live line over the cursor's line, cut to the terminal's width. It replaces
 * the line of the work in progress, until that work sets its next text. */
void live_line_show(FILE *to, const char *text);
/* Makes room for output on `to`: clears the live line if there is one, leaves the cursor at its
 * start, and prints no more lines of the work in progress until it sets its next text. */
void live_line_clear(FILE *to);

#endif
