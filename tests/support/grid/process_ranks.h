/* process_ranks.h -- runs code on ranks that are processes, forked by the test, with the transport
 * over sockets: local ones, or TCP on the loopback interface. */
#ifndef TESTS_SUPPORT_GRID_PROCESS_RANKS_H
#define TESTS_SUPPORT_GRID_PROCESS_RANKS_H

#include "parallel/comm/comm.h"

#include <stddef.h>
#include <sys/types.h>

typedef void (*RankBody)(Comm *world, void *context);

/* Runs body(world, context) on `ranks` processes; no wait of a rank is longer than `timeout`
 * seconds. Returns when all have ended: 0 if all have ended with 0, else the exit code of the first
 * that has not (EXIT_PEER_LOST if a signal has ended it). The others are then killed if they are
 * stopped or do not end within some seconds. An error reported with rank_wrong is copied to
 * wrong[0..n). */
int process_ranks(int ranks, double timeout, RankBody body, void *context, char *wrong, size_t n);
/* Returns the exit code of a rank below 64 of the last process_ranks; -1: a signal has ended it. */
int process_code_of_rank(int rank);
/* How the ranks of process_ranks are connected. */
typedef enum {
    LINKS_LOCAL, /* by local sockets that they inherit, and with a launcher: the test */
    LINKS_IPV4,  /* joined over TCP, as ranks of several machines are, and without a launcher */
    LINKS_IPV6
} ProcessLinks;
/* Chooses them for the calls of process_ranks that follow. If nothing has been chosen, TEST_LINKS
 * (tcp, tcp6) does, else they are local. */
void process_links_choose(ProcessLinks links);
ProcessLinks process_links(void);
/* Returns whether this machine has such addresses. */
bool process_links_exist(ProcessLinks links);
/* Chooses on how many made-up machines joined ranks are, "host0", "host1", ...: rank r is on number
 * r % machines. The default is 2. */
void process_machines_choose(int machines);
/* Chooses a function that each rank's process calls before it joins the world, or NULL. */
void process_before_choose(void (*before)(int rank));
/* Makes the connection between rank 0 and this joined rank one that process_cut can cut: nothing
 * that is sent arrives any more, and neither side notices. -1: none. */
void process_cuttable_choose(int rank);
/* In a rank's process: cuts it. */
void process_cut(void);
/* In a rank's process: returns the process of a rank. */
pid_t process_of_rank(int rank);
/* In a rank's process: reports an error. The first one counts. Returns false in other processes. */
bool process_rank_wrong(const char *text);
/* Returns whether the tests' ranks shall be processes (TEST_RANKS=processes). */
bool ranks_are_processes(void);
/* Returns zeroed memory that all processes share which are forked later; never freed. */
void *shared_memory(size_t bytes);

#endif
