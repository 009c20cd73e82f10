/* say.c -- see say.h. */
#include "parallel/flight/say.h"

#include "model/core/check.h"
#include "model/core/log.h"
#include "model/core/shell_text.h"
#include "parallel/flight/words.h"

#include <stdlib.h>

/* READING: seconds after which the remaining files are left out, because the files of a large world
 * have gigabytes. LAST_READING: the same for a process that is about to end, because dumps.c does
 * not let it wait longer. */
static const double LAST_READING = 0.5, READING = 5;
/* The most waits that are printed: those nearest to where the hang begins. ./train flight prints
 * the others, too. */
enum { MOST_WAITS = 3 };

/* Prints the text, and frees it. */
static void explain(bool last, char *text)
{
    log_explain(last, "flight: %s", text);
    free(text);
}

static void explain_all(bool last, const FlightReading *reading)
{
    explain(last, flight_words_begin(reading));
    for (int i = 0; i < reading->chain.waits && i < MOST_WAITS; i++)
        explain(last, flight_words_wait(reading, &reading->chain.wait[i]));
}

void flight_say(const char *run, Dump dump)
{
    FlightReading reading;
    bool missing, last = dump.reason != DUMP_SIGNAL;
    char err[512], *folder = shell_quoted_path(run);
    if (dump.alone) {
        /* The other processes do not know of this dump, so their files are old or not written yet.
         * They are not read. */
    } else if (flight_reading_open(&reading, run, last ? LAST_READING : READING, &missing, err,
                                   sizeof err)) {
        explain_all(last, &reading);
        flight_reading_close(&reading);
    } else {
        explain(last, text_format("%s", err));
    }
    explain(last, text_format("./train flight %s shows more", folder));
    free(folder);
}
