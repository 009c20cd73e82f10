/* nccl.h -- ranks with a GPU each: what a device carries goes through NCCL; the host's calls stay
 * with the communicator that was there before.
 *
 * libnccl.so.2 is opened when the first ranks ask for it, 2.28.9 or newer; its functions are
 * declared in library.h, so that no build needs its own header. One thread issues the calls of
 * a device. NCCL has no deadlines of its own: one thread of the process asks all communicators for
 * errors and holds parallel.timeout. What fails ends the process, with NCCL's own words and what
 * was called; nothing is retried.
 *
 * Sums are added in an order of NCCL's own, which is the same on all ranks; in 16 bits they are
 * rounded at each step of it. A maximum may lose a NaN. */
#ifndef PARALLEL_COMM_NCCL_NCCL_H
#define PARALLEL_COMM_NCCL_NCCL_H

#include "parallel/comm/comm.h"

/* Opens the library, once a process: later calls give the first one's answer. Sets
 * NCCL_LAUNCH_ORDER_IMPLICIT=1 and NCCL_RAS_ENABLE=0 where the environment has neither, and
 * NCCL_COMM_BLOCKING=1. False with a sentence: no library, one that is too old, a function
 * missing. */
bool nccl_open(char *err, size_t n);
/* "NCCL 2.28.9, /usr/lib/x86_64-linux-gnu/libnccl.so.2"; "NCCL 2.28.9". Open. Return buf. */
const char *nccl_describe(char *buf, size_t n);
const char *nccl_version(char *buf, size_t n);

/* From here on what a device carries of `comm` goes through a communicator of NCCL's own, between
 * the devices of its ranks; all ranks call it, each with its open device. When it returns each
 * collective has been used once, and with `messages` so have sends and receives of neighbours (rank
 * + 1, the last with the first), which take a lot of memory: a first use waits on the host for the
 * peers' hosts, a later one does not. (Unless NCCL takes another algorithm for another size: a
 * trainer's warm-up makes the calls of a step in the sizes of a step.) No wait is
 * longer than `timeout` seconds (0: for ever), here and later: then the process ends (EXIT_HANG),
 * naming group, operation, its number, elements, and who has not come. The library is open. A group
 * of one is left alone. comm_close ends both communicators, before the device is closed, for which
 * it waits first. */
void nccl_connect(Comm *comm, Device *dev, bool messages, double timeout);
/* The same for a group of the same ranks in the same order as `connected`, through whose
 * communicator its calls go; it is closed before that one. */
void nccl_share(Comm *comm, const Comm *connected);

/* Bytes of device memory that a communicator of so many ranks takes, about; 0 of one. `messages`:
 * those with the next and the previous rank are counted, too. NCCL_MAX_CTAS and NCCL_BUFFSIZE in
 * the environment make it smaller, as they make NCCL. */
size_t nccl_reserve(int ranks, bool messages);
/* An NCCL_MAX_CTAS that makes it smaller; 0: the environment's is as small. */
int nccl_fewer_channels(void);

#endif
