/* gpus.h -- assigns GPUs to the ranks of this machine and decides how they exchange data. Rank
 * number r on its machine computes on GPU r, and GPUs exchange data through NCCL. If there is only
 * one GPU, all ranks share it and exchange data through its memory (parallel/comm/local); they must
 * be threads for that. A launcher may make each rank see only one GPU, its own. */
#ifndef PARALLEL_GRID_GPUS_H
#define PARALLEL_GRID_GPUS_H

#include "parallel/comm/comm.h"
#include "parallel/grid/launch.h"

typedef enum {
    GPUS_NONE, /* a single rank, or ranks on CPUs */
    GPUS_ONE,  /* all ranks share one GPU, and are threads */
    GPUS_EACH  /* the ranks exchange data through NCCL: usually each is a process with a GPU of its
                  own; nccl_open has been called */
} Gpus;

/* The end of a sentence that begins with "ranks": how ranks that share a GPU exchange data. */
extern const char gpus_shared[];

/* Returns whether each rank that opens the survey's backend (seen.choice) will have its own GPU:
 * there are several ranks, and at least as many GPUs as ranks. For ranks that a launcher has
 * started, returns true if there is any GPU. These ranks are processes, which cannot share a GPU,
 * so gpus_agree ends the program unless each has its own. */
bool gpus_each(DeviceSurvey seen, int64_t ranks);
/* To be called before the process first queries the driver about GPUs, because the driver reads its
 * environment at that time. If there are several ranks, sets CUDA_DEVICE_MAX_CONNECTIONS=32 unless
 * the environment defines it. */
void gpus_prepare_driver(int64_t ranks);
/* To be called before ranks are started that will open the survey's backend. Returns whether they
 * must be processes. They must if kind.processes is set, or if each will have its own GPU and
 * kind.threads is not set. Ranks that a launcher has started are processes already. Ends the
 * program (EXIT_USAGE) if kind.processes and kind.threads are both set.
 *
 * If the ranks will be threads with a GPU each, which are for tests and measurements (launch.h),
 * sets NCCL's environment variables, which is unsafe once there are other threads, and raises the
 * limit of open files to the hard limit. */
bool gpus_prepare(DeviceSurvey seen, int ranks, LaunchKind kind);
/* To be called in the process of a rank before it has other threads. Sets NCCL's environment
 * variables. NCCL can connect ranks that are processes on one GPU if different NCCL_HOSTIDs make
 * them appear to be on different machines. If the environment has NCCL_HOSTID=each, replaces `each`
 * by a name that is unique to this rank. */
void gpus_prepare_process(int rank);
/* Returns a number that is the same for two devices of this machine if and only if they are the
 * same GPU. Device numbers do not show this, because a launcher may make each rank see a different
 * GPU as number 0. */
int64_t gpus_number(const Device *dev);
/* Returns how these ranks use GPUs; the result is the same on all ranks. All ranks call it
 * together, each with its open device. Ends the program if there are several GPUs but fewer than
 * ranks, if two ranks have the same GPU (unless they are threads that share a single GPU, or
 * NCCL_MULTI_RANK_GPU_ENABLE=1), or if NCCL is missing. Two GPUs are the same if they have the same
 * bus id and the same NCCL_HOSTID. Without NCCL_HOSTID, the machine is compared instead. There may
 * be more ranks than GPUs if the ranks are processes and no two have the same GPU in this sense.
 * For ranks that a launcher has started, the GPUs of each machine are compared with the ranks of
 * that machine. */
Gpus gpus_agree(Comm *world, const Device *dev);

#endif
