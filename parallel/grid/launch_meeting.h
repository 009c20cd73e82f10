/* launch_meeting.h -- inside parallel/grid: determines how ranks that a launcher has started find
 * each other, from the launcher's variables and the section `parallel` of the config. */
#ifndef PARALLEL_GRID_LAUNCH_MEETING_H
#define PARALLEL_GRID_LAUNCH_MEETING_H

#include "configs/config.h"
#include "model/core/string_list.h"
#include "parallel/grid/started_by.h"
#include "parallel/meeting/meeting.h"

enum { LAUNCH_FACTS = 3, LAUNCH_WORD_BYTES = MEETING_FACT_BYTES, PROGRAM_HASH_BYTES = 17 };

/* The options of a meeting, and what they point to. */
typedef struct {
    MeetingOptions options;
    MeetingFact fact[LAUNCH_FACTS];
    char name[STARTED_BY_NAME], master[256];
    char binary[PROGRAM_HASH_BYTES], words[LAUNCH_WORD_BYTES];
    unsigned char secret[SHA256_BYTES];
    StringList hosts; /* host of each rank, from the launcher; empty: not known */
    GridPlace size;
} LaunchMeeting;

/* Fills in m->options. With a secret, from the variable TRAIN_SECRET or from the file
 * parallel.secret_file, the ranks connect at the address in MASTER_ADDR (under SLURM, if that is
 * not set, at the first machine), near the port in MASTER_PORT. Without a secret they find each
 * other by a file in parallel.rendezvous, whose name identifies this start of the ranks
 * (started_by_meeting). Returns false and sets *code and err if these settings do not determine
 * where the ranks meet. `words`: from launch_words; NULL: none. The structure must not be moved
 * afterwards. */
bool launch_meeting_open(LaunchMeeting *m, const StartedBy *by, const Environment *environment,
                         const Config *config, const char *words, ExitCode *code, char *err,
                         size_t n);
/* Writes the words of a command line that must be the same on all ranks. Left out are --set,
 * because the configs are compared, and the config file of a run, whose path may differ between
 * machines. `command`: argv[1] is the name of a command; otherwise the words start with "train". If
 * they do not fit into LAUNCH_WORD_BYTES, they are cut and end with a hash of the whole text. */
void launch_words(char words[LAUNCH_WORD_BYTES], int argc, char **argv, bool command);
/* Forgets the secret, and frees what the options point to. */
void launch_meeting_close(LaunchMeeting *m);

#endif
