/* relay.h -- inside parallel/meeting: the table of members travels down a tree of ranks, so that no
 * process sends it more than TABLE_CHILDREN times. Rank 0 sends it over the connections that it
 * has; every other rank with children waits for them at its listening socket. */
#ifndef PARALLEL_MEETING_RELAY_H
#define PARALLEL_MEETING_RELAY_H

#include "parallel/meeting/door.h"

#include <poll.h>

enum { TABLE_CHILDREN = 16 };

/* The rank from which `rank` gets the table, and the first of those that get it from `rank`; they
 * are the next TABLE_CHILDREN, as far as they exist. */
static inline int table_parent(int rank)
{
    return (rank - 1) / TABLE_CHILDREN;
}
static inline int table_first_child(int rank)
{
    return TABLE_CHILDREN * rank + 1;
}

typedef struct {
    const MeetingOptions *o;
    Answer answer; /* of rank 0 */
    /* To the parent. */
    Handshake hand;
    Channel parent;
    bool asked;
    double began, next, pause; /* of the attempt to connect; when the next one begins */
    /* From the children. */
    Door *door; /* NULL: none is missing */
    int children, served;
    Channel child[TABLE_CHILDREN];
    bool has_table;
    Bytes table; /* the body of the message */
} Relay;

/* `listener`: the listening socket of this rank. Fails with errno. */
bool relay_begin(Relay *r, const MeetingOptions *o, const Answer *answer, int listener);
void relay_end(Relay *r);
/* The table, as rank 0 has sent it. */
void relay_give(Relay *r, const unsigned char *body, size_t n);
/* Adds what to wait for; returns the number of entries, at most RELAY_POLLS. */
enum { RELAY_POLLS = TABLE_CHILDREN + 2 };
int relay_polls(const Relay *r, struct pollfd wait[RELAY_POLLS]);
/* Does all that can be done without waiting. Returns when it must be called again although nothing
 * has happened. */
double relay_move(Relay *r, double now);
/* Whether this rank has the table and has passed it on to all of its children. */
bool relay_done(const Relay *r);

#endif
