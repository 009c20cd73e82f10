/* say.c -- see say.h. */
#include "parallel/flight/say.h"

#include "model/core/log.h"
#include "model/core/shell_text.h"

#include <stdlib.h>

void flight_say(const char *run, const FlightSource *own, Dump dump)
{
    char *folder = shell_quoted_path(run);
    (void)own;
    log_explain(dump.reason != DUMP_SIGNAL,
                "flight: ./train flight %s shows what each rank did last, and who waits for whom",
                folder);
    free(folder);
}
