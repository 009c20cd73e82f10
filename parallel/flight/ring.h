/* ring.h -- parses a file of RUN/flight into a RingFile. The file contains the last entries that
 * one rank has issued (from its ring buffer, flight.h), as write.c has written them. README.md
 * describes the format.
 *
 * A file has thousands of entries, and a large world has thousands of files. So only what the
 * search for a cause needs is kept of each file: the unfinished entries, how far the rank has got
 * in each of its groups, and its last calls there. */
#ifndef PARALLEL_FLIGHT_RING_H
#define PARALLEL_FLIGHT_RING_H

#include "model/core/dumps.h"
#include "model/core/flight.h"
#include "parallel/comm/rank_runs.h"

/* RING_FIRST: how many of a stream's first unfinished entries are kept, besides its last one.
 * RING_SEEN: how many of a group's last collectives are kept. RING_RUNS: the most runs of evenly
 * spaced ranks in a group (rank_runs.h). RING_NAME, RING_HOST: bytes of texts. */
enum { RING_FIRST = 8, RING_SEEN = 8, RING_RUNS = 4096, RING_NAME = 32, RING_HOST = 256 };

/* An entry of the file. A field that does not apply to an entry is -1 (elements: 0) or an empty
 * text. */
typedef struct {
    int64_t n, call, elements, step, micro_batch;
    double begun, ended; /* seconds after the dump's time, usually negative; ended NaN: it has not
                          * finished */
    int peer;            /* rank in the group */
    int unit;
    int group; /* index in RingFile.group */
    FlightKind kind;
    FlightAction action;
    int stream; /* GRAPH_COMPUTE ... or FLIGHT_HOST */
    char name[RING_NAME], dtype[8];
} RingEntry;

/* A group of ranks. */
typedef struct {
    char name[16];
    RankRun *run; /* [runs] its ranks, numbered in the world, in the group's order; 0 runs: they are
                   * not known */
    int runs, size;
} RingGroup;

/* A collective that a rank has begun. */
typedef struct {
    int64_t call;
    char name[RING_NAME], dtype[8];
    int64_t elements;
    bool ended;
} RingCall;

/* How far a rank has got in a group's collectives, or in its messages to or from one peer. begun,
 * ended and first are numbers of calls; 0: there is no such call in the file. */
typedef struct {
    int group;
    int peer; /* rank in the group; -1: collectives */
    bool send;
    int64_t begun;   /* the last call that has begun */
    int64_t ended;   /* the last call that has finished */
    int64_t first;   /* the first call that has not finished; 0: all have */
    double ended_at; /* when call `ended` finished, in seconds after the dump's time */
    RingCall *seen;  /* [RING_SEEN] the last collectives: call number i is at index i % RING_SEEN;
                        NULL for messages */
} RingPlace;

/* The content of a file. */
typedef struct {
    char dump[17], host[RING_HOST];
    DumpReason reason;
    int rank, ranks;
    int64_t pid, attempt;
    double time; /* of the dump: seconds since 1970 */
    int pp, dp, tp;
    int64_t step, micro_batch, issued;
    FlightAction action;
    RingGroup *group;
    int groups;
    RingEntry *open; /* [opens] unfinished entries, in ascending order */
    int opens;
    RingEntry last; /* the entry that has finished last; its n is 0: none has */
    RingPlace *place;
    int places;
    double longest; /* seconds of the longest collective, message or work that has finished */
} RingFile;

/* Parses the text of a file. On failure returns NULL and sets err: "line 3, byte 17: ...". The
 * caller calls ring_free. */
RingFile *ring_parse(const char *text, size_t size, char *err, size_t n);
void ring_free(RingFile *ring);

/* Returns how far the rank has got in the collectives of its group (peer -1), or in its messages to
 * (`send`) or from the peer; NULL: none of them is in the file. */
const RingPlace *ring_place(const RingFile *ring, int group, int peer, bool send);
/* Returns whether the entry is a message that is sent to the peer, not received from it. */
bool ring_sends(const RingEntry *entry);
/* Returns the rank in the world of member number i of the group; -1: it is not known. */
int ring_member(const RingGroup *group, int i);

#endif
