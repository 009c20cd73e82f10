/* launch_meeting.h -- inside parallel/grid: how ranks that a launcher has started find each other,
 * as the launcher's variables and the section `parallel` of the config say. */
#ifndef PARALLEL_GRID_LAUNCH_MEETING_H
#define PARALLEL_GRID_LAUNCH_MEETING_H

#include "configs/config.h"
#include "model/core/string_list.h"
#include "parallel/grid/started_by.h"
#include "parallel/meeting/meeting.h"

enum { LAUNCH_FACTS = 2 };

/* The options of a meeting, and what they point to. */
typedef struct {
    MeetingOptions options;
    MeetingFact fact[LAUNCH_FACTS];
    char name[STARTED_BY_NAME], master[256];
    char binary[2 * SHA256_BYTES + 1];
    unsigned char secret[SHA256_BYTES];
    StringList hosts; /* of all ranks, as the launcher says; empty: it does not */
    GridPlace size;
} LaunchMeeting;

/* Fills in the options. With a secret, of the variable TRAIN_SECRET or of the file
 * parallel.secret_file, the ranks meet at the address in MASTER_ADDR (under SLURM, if that is not
 * set, at the first machine), near the port in MASTER_PORT. Without one they meet by a file in
 * parallel.rendezvous, whose name is that of the start. Returns false and sets *code and err if
 * that does not say where to meet. The structure must not be moved afterwards. */
bool launch_meeting_open(LaunchMeeting *m, const StartedBy *by, const Environment *environment,
                         const Config *config, ExitCode *code, char *err, size_t n);
/* Forgets the secret, and frees what the options point to. */
void launch_meeting_close(LaunchMeeting *m);

#endif
