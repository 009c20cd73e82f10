/* relay.h -- inside parallel/meeting: the table of members is sent down a tree of ranks, so that no
 * process sends it more than TABLE_CHILDREN times. Rank 0 sends it over its existing connections;
 * the children of another rank connect to its listening socket. */
#ifndef PARALLEL_MEETING_RELAY_H
#define PARALLEL_MEETING_RELAY_H

#include "parallel/meeting/door.h"

#include <poll.h>

enum { TABLE_CHILDREN = 16 };

/* Returns the parent of a rank in the tree: the rank from which it receives the table. */
static inline int table_parent(int rank)
{
    return (rank - 1) / TABLE_CHILDREN;
}
/* Returns the first child of a rank. The children receive the table from it; they are
 * TABLE_CHILDREN consecutive ranks, as far as these exist. */
static inline int table_first_child(int rank)
{
    return TABLE_CHILDREN * rank + 1;
}

typedef struct {
    const MeetingOptions *o;
    Answer answer; /* rank 0's answer */
    /* The connection to the parent. */
    Handshake hand;
    Channel parent;
    bool asked;
    double began, next,
        pause; /* began: time of the last attempt to connect; next: earliest time of the next one */
    /* The connections from the children. */
    Door *door; /* NULL: all have received the table, or there are none */
    int children, served;
    Channel child[TABLE_CHILDREN];
    bool has_table;
    Bytes table; /* the body of the message */
} Relay;

/* `listener`: the listening socket of this rank. Returns false with errno if the system refuses. */
bool relay_begin(Relay *r, const MeetingOptions *o, const Answer *answer, int listener);
void relay_end(Relay *r);
/* Takes the table that rank 0 has sent to this rank directly, because rank 0 is its parent. */
void relay_give(Relay *r, const unsigned char *body, size_t n);
/* Writes the descriptors to wait for to `wait`. Returns their number, at most RELAY_POLLS. */
enum { RELAY_POLLS = TABLE_CHILDREN + 2 };
int relay_polls(const Relay *r, struct pollfd wait[RELAY_POLLS]);
/* Receives and sends the table as far as that is possible without waiting. Returns the time at
 * which it must be called again even without an event. */
double relay_move(Relay *r, double now);
/* Returns whether this rank has the table and has sent it to all of its children. */
bool relay_done(const Relay *r);

#endif
