/* relay.h -- inside parallel/meeting: the table of members is sent down a tree of ranks, so that no
 * process sends it more than TABLE_CHILDREN times. Rank 0 sends it over its existing connections;
 * the children of another rank connect to its listening socket. */
#ifndef PARALLEL_MEETING_RELAY_H
#define PARALLEL_MEETING_RELAY_H

#include "parallel/meeting/door.h"

#include <poll.h>

enum { TABLE_CHILDREN = 16 };

/* The rank from which `rank` receives the table, and the first of the TABLE_CHILDREN consecutive
 * ranks, as far as they exist, that receive it from `rank`. */
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
    Answer answer; /* rank 0's answer */
    /* To the parent. */
    Handshake hand;
    Channel parent;
    bool asked;
    double began, next, pause; /* began: of the attempt to connect; next: when the next one
                                * starts */
    /* From the children. */
    Door *door; /* NULL: all have received the table, or there are none */
    int children, served;
    Channel child[TABLE_CHILDREN];
    bool has_table;
    Bytes table; /* the body of the message */
} Relay;

/* `listener`: the listening socket of this rank. Fails with errno. */
bool relay_begin(Relay *r, const MeetingOptions *o, const Answer *answer, int listener);
void relay_end(Relay *r);
/* Takes the table that rank 0 has sent. */
void relay_give(Relay *r, const unsigned char *body, size_t n);
/* Writes the descriptors to wait for to `wait`. Returns their number, at most RELAY_POLLS. */
enum { RELAY_POLLS = TABLE_CHILDREN + 2 };
int relay_polls(const Relay *r, struct pollfd wait[RELAY_POLLS]);
/* Does all that can be done without waiting. Returns when it must be called again even without an
 * event. */
double relay_move(Relay *r, double now);
/* Returns whether this rank has the table and has sent it to all of its children. */
bool relay_done(const Relay *r);

#endif
