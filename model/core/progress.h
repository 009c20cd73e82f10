/* progress.h -- printing how far long work has come, and the live line in which a terminal shows
 * it.
 *
 *     Progress p = progress_begin();
 *     for (int64_t i = 0; i < n; i++) {
 *         progress_print(&p, "reading: %lld of %lld files", (long long)i, (long long)n);
 *         ...
 *     }
 *     progress_end(&p);
 *
 * On a terminal the text is one line, redrawn twice a second at most, and goes
 * when a message comes; elsewhere it is a message once a minute. Work of less than a second shows
 * nothing, nor does a rank other than 0 or a log quieter than LOG_INFO. */
#ifndef MODEL_CORE_PROGRESS_H
#define MODEL_CORE_PROGRESS_H

#include <stdbool.h>
#include <stdio.h>

typedef struct {
    double next;   /* seconds_now() from which the next line is due */
    double every;  /* seconds from one to the next */
    bool terminal; /* stdout is one */
    bool shown;    /* in the live line, which progress_end clears */
} Progress;

Progress progress_begin(void);
/* Begins other work under the same Progress: its first line is due as late as after progress_begin.
 */
void progress_again(Progress *progress);
/* Prints how far the work is, in a text that begins with what it is. If that is not due yet, it
 * only looks at the clock. `progress` NULL: prints nothing. */
void progress_print(Progress *progress, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Whether progress_print would print; for callers whose text takes work to make. */
bool progress_due(const Progress *progress);
/* The work is over: takes its line away. */
void progress_end(Progress *progress);
/* Draws `text` in the line of the cursor, cut to the terminal's width, and has the next message
 * clear it. */
void live_line_show(FILE *to, const char *text);
/* Afterwards the cursor is at the start of an empty line. For terminals only. */
void live_line_clear(FILE *to);

#endif
