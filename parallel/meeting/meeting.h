/* meeting.h -- ranks that a launcher has started as processes of several machines find each other.
 * Rank 0 listens, all others connect to it, and nobody joins who does not know the secret of this
 * start. Afterwards each rank knows where all others are and has a connection to rank 0.
 *
 * They find rank 0 by a file in a folder that all machines see, or by its address. The README
 * explains both, what is compared, and what becomes of strangers. */
#ifndef PARALLEL_MEETING_MEETING_H
#define PARALLEL_MEETING_MEETING_H

#include "model/core/exit_codes.h"
#include "model/core/sha256.h"
#include "parallel/comm/socket/socket.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    MEETING_MOST_RANKS = 65536,
    MEETING_MOST_FACTS = 32,
    MEETING_FACT_BYTES = 256, /* of a fact's value, with its zero byte */
    MEETING_NAME_BYTES = 64,  /* of a fact's name, a host name and a boot id */
    MEETING_PORTS = 16,       /* from which rank 0 takes one if its address is given */
    MEETING_SENTENCE_BYTES = 1024
};

/* What must be alike on all ranks. If it is not, the meeting fails with EXIT_CONFIG, and the
 * message names the odd rank: "config is 12ab on rank 3 (node7), but 34cd on all others; ADVICE".
 */
typedef struct {
    const char *name, *value;
    const char *advice; /* what to do, or NULL */
} MeetingFact;

typedef struct {
    int rank, size;
    /* As the launcher says: -1 and 0 if it does not. If local_size is size, all ranks are on this
     * machine. */
    int local_rank, local_size;
    /* The file is folder/name. All starts of one job that may exist at the same time need different
     * names; any text, characters but [A-Za-z0-9.-] are escaped. folder NULL: there is no common
     * file system. */
    const char *folder, *name;
    /* Without a folder: rank 0's host name or address; rank 0 takes the first free port after
     * `port` (MEETING_PORTS of them); the secret is that of meeting_secret_text or _file. */
    const char *master;
    int port;
    const unsigned char *secret;
    /* The network interface on which this process connects and listens, for example "ib0". NULL:
     * that which reaches rank 0. */
    const char *interface;
    double timeout; /* seconds; 0: no limit */
    int cpu_level;  /* a number; Meeting.cpu_level is the least of all ranks */
    const MeetingFact *fact;
    int facts;
    /* For messages, each may be NULL: the machine on which the launcher has started a rank; the
     * rank's place in the grid ("dp 1 tp 0"). They write to buf[0..n), or return NULL. */
    const char *(*host)(const void *context, int rank, char *buf, size_t n);
    const char *(*place)(const void *context, int rank, char *buf, size_t n);
    const void *context;
    /* EXIT_OK, or the code of an error that this rank has found before. Then it comes only to say
     * so: the meeting fails with that code and sentence on all ranks. As rank 0 it waits for the
     * others for 2.5 s, as another rank for rank 0 for 10 s. */
    ExitCode fails;
    const char *sentence;
} MeetingOptions;

typedef struct {
    int size, rank;
    int listener;                       /* accepts connections of other ranks */
    unsigned char secret[SHA256_BYTES]; /* of the session: new, known to its ranks alone */
    int *control;                       /* [size] as socket_links_join takes it */
    SocketMember *member;               /* [size] */
    int machines;                       /* how many; member[].machine is less than that */
    int cpu_level;
    /* After a failure: rank 0 has reported the same one, and prints it. In rank 0: it has told the
     * others. */
    bool told;
} Meeting;

/* Meets all other ranks. All return at about the same time with the same result. On failure
 * returns false with an error message and an exit code:
 *
 *     69 (EXIT_UNAVAILABLE)  ranks have not arrived in time, or rank 0 cannot be reached
 *     71, 73, 77             the system refuses a socket, the file or its folder
 *     76 (EXIT_PROTOCOL)     a rank has arrived twice, or has a wrong secret
 *     78 (EXIT_CONFIG)       the ranks differ in their number or in a fact; a wrong interface
 *     86 (EXIT_HANG)         rank 0's process has stopped answering
 *     87 (EXIT_PEER_LOST)    the process of a rank has ended
 *
 * If one rank fails, all others that have arrived fail with its code and message. Rank 0 prints
 * every 10 s which ranks are missing. */
bool meeting_hold(Meeting *m, const MeetingOptions *o, ExitCode *code, char *err, size_t n);
/* Closes the descriptors that are not -1 and frees the rest. A caller that passes descriptors on
 * sets them to -1. */
void meeting_free(Meeting *m);

/* Make the secret of a job from a text of at least 16 bytes, or from such a file. The file must
 * belong to this user and be readable for nobody else; white space at its end does not count.
 * Return false and set err and *code. */
bool meeting_secret_text(const char *text, unsigned char secret[SHA256_BYTES], ExitCode *code,
                         char *err, size_t n);
bool meeting_secret_file(const char *path, unsigned char secret[SHA256_BYTES], ExitCode *code,
                         char *err, size_t n);

#endif
