/* meeting.h -- how ranks that a launcher has started as processes on several machines find each
 * other. Rank 0 listens, all others connect to it, and only processes that know the secret of this
 * start can join. Afterwards each rank knows the addresses of all others and has a connection to
 * rank 0.
 *
 * The other ranks find rank 0 by a file in a folder that all machines see, or by its address. The
 * README explains both, what is compared, and how connections of strangers are handled. */
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
    MEETING_FACT_BYTES = 256, /* of a fact's value, including its zero byte */
    MEETING_NAME_BYTES = 64,  /* of a fact's name, a host name and a boot id */
    MEETING_PORTS = 16,       /* number of ports that rank 0 tries if it is found by its address */
    MEETING_SENTENCE_BYTES = 1024
};

/* A value that must be equal on all ranks. Otherwise the meeting fails with EXIT_CONFIG, and the
 * message names a rank whose value is not that of most ranks: `rank 3 (node7, dp 1): config is
 * "12ab", but "34cd" on 7 of the 8 ranks; ADVICE`. */
typedef struct {
    const char *name, *value;
    const char *advice; /* what to do, or NULL */
} MeetingFact;

typedef struct {
    int rank, size;
    /* From the launcher; -1 and 0 if it does not provide them. If local_size equals size, all ranks
     * are on this machine. */
    int local_rank, local_size;
    /* The file is folder/name. Jobs and starts that may exist at the same time need different
     * names. The name may be any text; characters other than [A-Za-z0-9.-] are escaped. folder
     * NULL: the machines share no file system. */
    const char *folder, *name;
    /* Without a folder: rank 0's host name or address; rank 0 uses the first free one of the
     * MEETING_PORTS ports after `port`; the secret comes from meeting_secret_text or _file. */
    const char *master;
    int port;
    const unsigned char *secret;
    /* The network interface on which this process connects and listens, for example "ib0". NULL:
     * the one that reaches rank 0. */
    const char *interface;
    double timeout; /* seconds; 0: no limit */
    int cpu_level;  /* Meeting.cpu_level becomes the lowest of all ranks */
    const MeetingFact *fact;
    int facts;
    /* For messages, each may be NULL: the machine on which the launcher has started a rank; the
     * rank's place in the grid ("dp 1 tp 0"). They write to buf[0..n), or return NULL. */
    const char *(*host)(const void *context, int rank, char *buf, size_t n);
    const char *(*place)(const void *context, int rank, char *buf, size_t n);
    const void *context;
    /* EXIT_OK, or the code of an error that this rank has found before the meeting. It then takes
     * part only to report the error, and the meeting fails with that code and sentence on all
     * ranks. Rank 0 waits 2.5 s for the others to report it; another rank tries for 10 s to reach
     * rank 0. */
    ExitCode fails;
    const char *sentence;
} MeetingOptions;

typedef struct {
    int size, rank;
    int listener;                       /* accepts connections of other ranks */
    unsigned char secret[SHA256_BYTES]; /* of this start: new, known only to its ranks */
    int *control; /* [size] sockets between rank 0 and the other ranks, as socket_links_join takes
                     them; -1: none */
    SocketMember *member; /* [size] */
    int machines;         /* number of machines; each member[].machine is below it */
    int cpu_level;
    /* After a failure: rank 0 has told this rank why the meeting failed, so rank 0 prints the
     * error. On rank 0: it has told the others. */
    bool told;
} Meeting;

/* Holds the meeting with all other ranks. All return at about the same time with the same result.
 * On failure returns false with an error message and an exit code:
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
/* Closes the descriptors that are not -1 and frees the rest. A caller that hands descriptors over
 * to others sets them to -1 first. */
void meeting_free(Meeting *m);

/* Compute the secret of a job from a text of at least 16 bytes, or from a file with such a text.
 * The file must belong to this user and be readable by nobody else; white space at its end is
 * ignored. Return false and set err and *code. */
bool meeting_secret_text(const char *text, unsigned char secret[SHA256_BYTES], ExitCode *code,
                         char *err, size_t n);
bool meeting_secret_file(const char *path, unsigned char secret[SHA256_BYTES], ExitCode *code,
                         char *err, size_t n);

#endif
