/* launch_decline.h -- inside parallel/grid: a rank that finds an error before it has met the others
 * tells them, so that none of them waits for it. */
#ifndef PARALLEL_GRID_LAUNCH_DECLINE_H
#define PARALLEL_GRID_LAUNCH_DECLINE_H

#include "configs/config.h"
#include "parallel/grid/started_by.h"

/* From here on until launch_decline_end a failure (fail, error_print, ends_tell) goes to all ranks:
 * this rank takes part in the meeting only to say so (MeetingOptions.fails). Rank 0 prints its own
 * error first. Another rank that has reached rank 0 ends silently with rank 0's exit code, because
 * rank 0 prints the error; one that has not prints its error itself. argv: the command line, kept.
 * Until launch_decline_config the ranks meet as the config that it names and its --set of
 * parallel.rendezvous, .interface and .secret_file say, or by default. */
void launch_decline_begin(const StartedBy *by, int argc, char **argv);
/* The config has been read. */
void launch_decline_config(const Config *config);
void launch_decline_end(void);

#endif
