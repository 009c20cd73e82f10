/* nccl.h -- the transport between ranks with a GPU each. Calls that a device carries go through
 * NCCL. Host calls stay with the communicator that existed before.
 *
 * libnccl.so.2 (2.28.9 or newer) is opened when ranks first need it. Its functions are declared in
 * library.h, so no build needs nccl.h. One thread issues all calls of a device. NCCL has no
 * deadlines, so one thread of the process, the watchdog, checks all communicators for errors and
 * publishes how far their calls have got (watched.h). If ranks are processes, rank 0's process
 * enforces parallel.timeout. If instead all ranks are threads of one process, the watchdog enforces
 * it. Ranks are threads only in tests and measurements: a run starts a process for each GPU
 * (launch.h). Any failure ends the process with a message that contains NCCL's own error text and
 * the call. Nothing is retried.
 *
 * NCCL adds in its own order, which is the same on all ranks. 16-bit sums are rounded at each step.
 * A maximum may lose a NaN. */
#ifndef PARALLEL_COMM_NCCL_NCCL_H
#define PARALLEL_COMM_NCCL_NCCL_H

#include "parallel/comm/comm.h"

/* Sets NCCL_LAUNCH_ORDER_IMPLICIT=1 and NCCL_RAS_ENABLE=0 unless the environment defines them, and
 * always sets NCCL_COMM_BLOCKING=1. To be called before nccl_open, and before the process has other
 * threads, because they may read the environment. */
void nccl_set_environment(void);
/* Opens the library, once per process: later calls return the first call's result. Returns false
 * and writes a message to err if the library is missing or too old, or lacks a function. */
bool nccl_open(char *err, size_t n);
/* Write, for example, "NCCL 2.28.9, /usr/lib/x86_64-linux-gnu/libnccl.so.2" and "NCCL 2.28.9", and
 * return buf. The library must be open. */
const char *nccl_describe(char *buf, size_t n);
const char *nccl_version(char *buf, size_t n);

/* The messages that the ranks of a group send each other. */
typedef enum {
    NCCL_NO_MESSAGES,
    NCCL_IN_LINE, /* between rank r and r + 1, in both directions */
    NCCL_IN_RING, /* also between the last rank and the first */
    NCCL_ALONE,   /* for a group of one rank: no messages, but NCCL is connected, to test it on one
                   * GPU */
} NcclMessages;
/* How a group uses NCCL. All ranks of the group must pass the same. */
typedef struct {
    NcclMessages messages;
    /* The most thread blocks of the GPU (CTAs) that a call takes, and the most channels that the
     * communicator has; 0 leaves the number to NCCL. NCCL_MAX_CTAS in the environment replaces
     * it. */
    int max_ctas;
} NcclUse;

/* Creates an NCCL communicator between the devices of comm's ranks; from now on it carries the
 * device calls of `comm`. All ranks must call it, each with its open device, and the library must
 * be open. A group of one rank is left unchanged, unless its messages are NCCL_ALONE.
 *
 * It uses each collective once before it returns, because NCCL's first use of an operation blocks
 * the host until the peers' hosts arrive, and later uses do not. (NCCL may still choose another
 * algorithm for another size; the trainer's warm-up therefore makes a step's calls in their real
 * sizes.) It also uses the messages that `use` lists, which take a lot of memory.
 *
 * No wait, here or later, lasts longer than `timeout` seconds (0: no limit). After that the process
 * ends (EXIT_HANG) with the group, the operation, its number, its element count, and the ranks that
 * have not arrived. comm_close closes both communicators. It must be called before the device is
 * closed, and waits for the device first. */
void nccl_connect(Comm *comm, Device *dev, NcclUse use, double timeout);
/* nccl_prepare, nccl_start and nccl_use_first do the same as nccl_connect in three steps, for ranks
 * with several communicators. All ranks must pass a barrier between the last allocation of device
 * memory and the first NCCL call: allocating or releasing memory of a device may wait for the work
 * of other devices, such as an NCCL call that itself waits for the rank that is allocating.
 * nccl_connect therefore has a barrier of the group before nccl_start and after it.
 *
 * nccl_prepare allocates everything. From then on device calls of `comm` move no data and are not
 * counted, so that computation can be warmed up between them. */
void nccl_prepare(Comm *comm, Device *dev, NcclUse use, double timeout);
/* Connects the ranks, for which NCCL allocates memory and starts threads. Those threads block
 * signals (signals_hold in pool.h). */
void nccl_start(Comm *comm);
/* Uses each operation once. NCCL may start threads here, too, which also block signals. */
void nccl_use_first(Comm *comm);
/* Prepares `comm` to use the NCCL communicator of `connected`, a group of the same ranks in the
 * same order for which nccl_prepare has been called. Call nccl_start for both, and close `comm`
 * before `connected`. */
void nccl_share(Comm *comm, const Comm *connected);

/* Estimates the bytes of device memory that rank `rank` of a communicator of this many ranks takes;
 * 0 for one rank. NCCL_MAX_CTAS and NCCL_BUFFSIZE in the environment change the estimate as they
 * change NCCL's memory. */
size_t nccl_reserve(int rank, int ranks, NcclUse use);
/* Returns a value for NCCL_MAX_CTAS that would reduce the memory of a communicator with this
 * NcclUse.max_ctas, or 0 if that communicator already has so few channels that this would not
 * help. */
int nccl_fewer_channels(int max_ctas);

#endif
