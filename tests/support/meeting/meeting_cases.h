/* meeting_cases.h -- real processes that meet over a file or an address, one of which may be
 * different, for tests of parallel/meeting. */
#ifndef TESTS_SUPPORT_MEETING_MEETING_CASES_H
#define TESTS_SUPPORT_MEETING_MEETING_CASES_H

#include "tests/support/meeting/meeting_ranks.h"

/* The name of the meetings. */
#define MEETING_CASE_NAME "job 7/step.0"

/* What differs between the tests. */
typedef struct {
    const char *folder; /* NULL: over the address 127.0.0.1 */
    const char *master;
    int port;
    int odd; /* this process is different, as `how` says */
    enum {
        LIKE_ALL,
        OTHER_FACT,
        OTHER_SIZE,
        OTHER_SECRET,
        TWICE,
        ABSENT,
        DIES,
        LATE,
        DEAF,
        DECLINES
    } how;
    int late; /* if not 0: this rank comes 1.5 s later */
    int size; /* if not that of the processes */
    double timeout;
    MeetingFact fact[2];
    char value[32];
    void (*make_deaf)(void); /* for DEAF: called in the process */
} MeetingCase;

/* A port that no other test of this folder uses at the same time. */
int meeting_free_ports(void);
/* Sets the options of process i (MeetingRun.set); `context` is the case. */
void meeting_case_set(void *context, int i, MeetingOptions *o);
/* Lets so many processes meet, and prints how they fail if they do. The caller frees. */
MeetingResult *meeting_case(MeetingCase *c, int processes);
/* All have met and have the same table. */
void assert_met(const MeetingResult *r, int processes);
/* All processes fail with the code and a message that contains `says`; `except` may fail
 * otherwise. */
void assert_failed(MeetingResult *r, int processes, int except, ExitCode code, const char *says);
/* How many files and folders are in a folder. */
int folder_entries(const char *folder);

#endif
