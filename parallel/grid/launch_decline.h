/* launch_decline.h -- inside parallel/grid: a rank that finds an error before it has connected to
 * the others reports it to them, so that none of them waits for it. */
#ifndef PARALLEL_GRID_LAUNCH_DECLINE_H
#define PARALLEL_GRID_LAUNCH_DECLINE_H

#include "configs/config.h"
#include "parallel/grid/started_by.h"

/* From here on until launch_decline_end a failure (fail, error_print, ends_tell) is sent to all
 * ranks: this rank takes part in the rendezvous only to report it (MeetingOptions.fails). Rank 0
 * prints its own error first. Another rank that has reached rank 0 ends silently with rank 0's exit
 * code, because rank 0 prints the error; one that has not reached it prints its error itself. argv:
 * the command line, which must stay valid. Until launch_decline_config is called, the rendezvous
 * uses parallel.rendezvous, .interface and .secret_file from the config that argv names and from
 * its --set, or their defaults. */
void launch_decline_begin(const StartedBy *by, int argc, char **argv);
/* To be called when the config has been read: from then on the rendezvous uses its settings. */
void launch_decline_config(const Config *config);
void launch_decline_end(void);

#endif
