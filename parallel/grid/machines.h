/* machines.h -- determines which ranks share a machine: its cores, its memory, its GPUs and its
 * file systems. Ranks that are threads, or processes that this program has forked, are all on one
 * machine. Ranks that a launcher has started may be on several. */
#ifndef PARALLEL_GRID_MACHINES_H
#define PARALLEL_GRID_MACHINES_H

#include "parallel/comm/comm.h"

/* The machines of a world, as one of its ranks sees them. Machines are numbered in the order of
 * their lowest ranks, so rank 0 is on machine 0. */
typedef struct {
    int count;       /* number of machines */
    int own;         /* number of this rank's machine */
    int local_rank;  /* this rank's number among the ranks of its machine, in rank order */
    int local_ranks; /* number of ranks of its machine */
    int first;       /* the lowest rank of its machine */
    bool joined;     /* a launcher has started each rank as a process of its own */
} Machines;

/* Returns the machines for this rank of the world, or of a group that has the same ranks. If
 * `world` is NULL, or of another size than the world described by machines_set, all ranks are on
 * one machine. */
Machines machines_of(const Comm *world);
/* Returns the number of the machine of a rank. */
int machines_machine(const Comm *world, int rank);
/* Returns the lowest rank of a machine. */
int machines_first(const Comm *world, int machine);
/* Returns the number of ranks of a machine. */
int machines_ranks(const Comm *world, int machine);
/* Returns the name of a machine for messages; "" if it is not known. */
const char *machines_host(const Comm *world, int machine);
/* Returns the group of the ranks of this machine, in rank order. All ranks of the world call it,
 * and close the group. */
Comm machines_split(Comm *world);
/* Copies the `bytes` bytes of the lowest rank of each machine to all ranks of that machine. All
 * ranks of the world call it. */
void machines_share(Comm *world, void *data, size_t bytes);
/* Returns how many ranks, including this one, share the cores of this rank: the ranks of its
 * machine that may run on the same set of cores. Ranks that a launcher has bound to different sets
 * do not share cores. All ranks of the world call it. */
int machines_share_cores(Comm *world);
/* Writes where a rank is, for messages: " on HOST" if there are several machines, otherwise "".
 * Returns `text`. */
char *machines_place(const Comm *world, int rank, char *text, size_t n);

/* The machine of one rank. Ranks with equal numbers are on the same machine; the numbers may have
 * gaps. */
typedef struct {
    int machine;
    const char *host; /* its name; read from the lowest rank of each machine, and copied */
} MachineOfRank;
/* Stores the machine of each rank. From then on, a world of `ranks` ranks has these machines, and
 * Machines.joined is true for it. To be called in the process of each rank before it uses the
 * functions above, with the same values on all ranks. Tests, whose ranks are threads, call it once
 * before they start the threads. machines_forget undoes this. */
void machines_set(int ranks, const MachineOfRank *of);
void machines_forget(void);

#endif
