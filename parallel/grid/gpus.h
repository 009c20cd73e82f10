/* gpus.h -- assigns GPUs to the ranks of this machine and decides how they exchange data. The rank
 * with number r among those of its machine computes on GPU r, and GPUs exchange data through NCCL.
 * If there is only one GPU, all ranks share it and exchange data through its memory
 * (parallel/comm/local); they must be threads for that. A launcher may show each rank a single GPU,
 * its own. */
#ifndef PARALLEL_GRID_GPUS_H
#define PARALLEL_GRID_GPUS_H

#include "parallel/comm/comm.h"
#include "parallel/grid/launch.h"

typedef enum {
    GPUS_NONE, /* a single rank, or ranks on CPUs */
    GPUS_ONE,  /* all ranks share one GPU, and are threads */
    GPUS_EACH  /* each rank has a GPU, and is a process; nccl_open has been called */
} Gpus;

/* The end of a sentence that begins with "ranks": says how ranks that share a GPU exchange data. */
extern const char gpus_shared[];

/* Returns whether ranks that open the backend of the survey will have a GPU each: there are several
 * ranks, and at least as many GPUs. Ranks that a launcher has started have one each if there are
 * any GPUs, because they are processes: otherwise gpus_agree refuses them. */
bool gpus_each(DeviceSurvey seen, int64_t ranks);
/* To be called before the process asks the driver about GPUs for the first time, because the driver
 * reads its environment then. If there are several ranks, sets CUDA_DEVICE_MAX_CONNECTIONS=32
 * unless the environment defines it. */
void gpus_prepare_driver(int64_t ranks);
/* To be called before ranks are started that will open the survey's backend. Returns whether they
 * must be processes: if `kind` says so, or if each will have a GPU of its own and `kind` does not
 * say that they are threads. Ranks that a launcher has started are processes already. Ends the
 * program (EXIT_USAGE) if `kind` says both. Prepares threads with a GPU each, which are for tests
 * and measurements (launch.h): sets NCCL's environment variables, which is unsafe once there are
 * threads, and raises the limit of open files to the hard limit. */
bool gpus_prepare(DeviceSurvey seen, int ranks, LaunchKind kind);
/* To be called in the process of a rank before it has other threads. Sets NCCL's environment
 * variables. NCCL may connect ranks that are processes on one GPU if they seem to be on different
 * machines, as NCCL_HOSTID says. If the environment has NCCL_HOSTID=each, replaces it by a name of
 * this rank's own. */
void gpus_prepare_process(int rank);
/* Returns a number that two devices of this machine have in common exactly if they are the same
 * GPU: their numbers may differ, because a launcher may show each rank another GPU as its number 0.
 */
int64_t gpus_number(const Device *dev);
/* Returns which case applies to these ranks, the same on all. All ranks call it together, each with
 * its open device. Ends the program if there are several GPUs but fewer than ranks, if two ranks
 * that are not threads with a single GPU have the same GPU (unless NCCL_MULTI_RANK_GPU_ENABLE=1),
 * or if NCCL is missing. A GPU is the same if its bus id is, and NCCL_HOSTID or, without it, the
 * machine. Ranks that are processes may be more than the GPUs if none have the same one in this
 * sense. If a launcher has started them, the GPUs of each machine are compared with its ranks. */
Gpus gpus_agree(Comm *world, const Device *dev);

#endif
