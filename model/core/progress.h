/* progress.h -- reports the progress of long work. On a terminal it redraws one line, the live
 * line.
 *
 *     Progress p = progress_begin();
 *     for (int64_t i = 0; i < n; i++) {
 *         progress_print(&p, "reading: %lld of %lld files", (long long)i, (long long)n);
 *         ...
 *     }
 *     progress_end(&p);
 *
 * On a terminal the live line is redrawn at most twice a second and is cleared before another
 * message is printed. Elsewhere a message is printed once a minute. Nothing is printed for work
 * that takes less than a second, on ranks other than 0, or if the log level is above LOG_INFO. */
#ifndef MODEL_CORE_PROGRESS_H
#define MODEL_CORE_PROGRESS_H

#include <stdbool.h>
#include <stdio.h>

typedef struct {
    double next;   /* seconds_now() from which the next line is due */
    double every;  /* seconds between two lines */
    bool terminal; /* stdout is a terminal */
    bool shown;    /* the live line shows it, and progress_end must clear it */
} Progress;

Progress progress_begin(void);
/* Begins another piece of work with the same Progress; its first line is delayed as after
 * progress_begin. */
void progress_again(Progress *progress);
/* Prints a line of progress, which should begin with the name of the work. If the next line is not
 * due yet, only reads the clock. Does nothing if `progress` is NULL. */
void progress_print(Progress *progress, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Returns whether the next line is due. For callers whose text is expensive to make. */
bool progress_due(const Progress *progress);
/* Ends the work and clears its live line. */
void progress_end(Progress *progress);
/* Prints `text` over the cursor's line, cut to the terminal's width, and makes the next log message
 * clear it first. */
void live_line_show(FILE *to, const char *text);
/* Clears the live line and leaves the cursor at its start. Only for terminals. */
void live_line_clear(FILE *to);

#endif
