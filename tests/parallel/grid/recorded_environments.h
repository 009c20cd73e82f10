/* recorded_environments.h -- the environments of test_started_by.c that were recorded from
 * processes of real launchers, and the launcher, rank and size that must be read from them. */
#ifndef TESTS_PARALLEL_GRID_RECORDED_ENVIRONMENTS_H
#define TESTS_PARALLEL_GRID_RECORDED_ENVIRONMENTS_H

#include <stddef.h>

/* Variables that all processes of SLURM's jobs below have. */
#define JOB "SLURM_JOB_ID=7 SLURM_JOBID=7 SLURM_CLUSTER_NAME=ci SLURM_GTIDS=0,1 "
/* The variables of the step by which mpirun and mpiexec start their daemons on the first of two
 * machines. */
#define DAEMON                                                                                     \
    JOB "SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 "            \
        "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) "
/* The variables of task 1 of srun -N2 --ntasks-per-node=2. */
#define TASK                                                                                       \
    JOB "SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_PROCID=1 "             \
        "SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 "            \
        "SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_TASKS_PER_NODE=2(x2) "
#define OMPI_OF(rank, local)                                                                       \
    "OMPI_COMM_WORLD_RANK=" rank " OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=" local       \
    " OMPI_COMM_WORLD_NODE_RANK=" local " OMPI_COMMAND=train PMIX_RANK=" rank " "

typedef struct {
    const char *what, *environment;
    const char *launcher; /* NULL: none */
    int rank, size, local_rank, local_size, idle_tasks;
} Recorded;

static const Recorded recorded[] = {
    {"no launcher", "HOME=/root OMP_NUM_THREADS=1", NULL, 0, 1, -1, 0, 0},
    {"Open MPI: mpirun -np 4", OMPI_OF("1", "1") "OMPI_COMM_WORLD_LOCAL_SIZE=4", "Open MPI", 1, 4,
     1, 4, 0},
    {"Open MPI: mpirun -np 1",
     "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=1 PMIX_RANK=0",
     "Open MPI", 0, 1, 0, 1, 0},
    {"MPICH: mpiexec -n 4",
     "HYDI_CONTROL_FD=7 MPI_LOCALNRANKS=4 MPI_LOCALRANKID=2 PMI_FD=9 PMI_RANK=2 PMI_SIZE=4", "PMI",
     2, 4, 2, 4, 0},
    {"srun", TASK, "SLURM", 1, 4, 1, 2, 0},
    {"srun --mpi=pmi2", TASK "SLURM_MPI_TYPE=pmi2 PMI_FD=13 PMI_JOBID=2.0 PMI_RANK=1 PMI_SIZE=4",
     "PMI", 1, 4, 1, 2, 0},
    {"srun --mpi=pmix", TASK "SLURM_MPI_TYPE=pmix PMIX_RANK=1 PMIX_NAMESPACE=slurm.pmix.2.0",
     "SLURM", 1, 4, 1, 2, 0},
    {"srun -N2 -n3, the second machine",
     JOB "SLURM_NTASKS=3 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=1 "
         "SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=2,1",
     "SLURM", 2, 3, 0, 1, 0},
    {"srun --gpus-per-task=1",
     JOB "SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0 "
         "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 CUDA_VISIBLE_DEVICES=1",
     "SLURM", 1, 2, 1, 2, 0},
    {"srun -n1 in a job of four tasks",
     JOB "SLURM_NTASKS=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 "
         "SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1",
     "SLURM", 0, 1, 0, 1, 0},
    {"mpirun within salloc -N2 -n4, rank 2 of three on the first machine",
     DAEMON "SLURM_NTASKS=2 " OMPI_OF("2", "2") "OMPI_COMM_WORLD_LOCAL_SIZE=3", "Open MPI", 2, 4, 2,
     3, 0},
    {"mpirun within a batch script",
     JOB "SLURM_NTASKS=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 "
         "SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 " OMPI_OF(
             "1", "1") "OMPI_COMM_WORLD_LOCAL_SIZE=4",
     "Open MPI", 1, 4, 1, 4, 0},
    {"MPICH's mpiexec within salloc -N2 -n4, rank 3 on the second machine",
     JOB "SLURM_NTASKS=4 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID=1 "
         "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) PMI_FD=5 PMI_RANK=3 PMI_SIZE=4 "
         "MPI_LOCALNRANKS=1 MPI_LOCALRANKID=0",
     "PMI", 3, 4, 0, 1, 0},
    {"PMI's rank 0 within the step of a daemon, without a local rank",
     DAEMON "PMI_RANK=0 PMI_SIZE=4", "PMI", 0, 4, -1, 0, 0},
    {"PMI's rank 1 within the step of a daemon, without a local rank",
     DAEMON "PMI_RANK=1 PMI_SIZE=2", "PMI", 1, 2, -1, 0, 0},
    {"PMI's own local rank within a task of the same rank and size",
     TASK "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", "PMI", 1, 4, 0, 1, 0},
    {"a batch script without srun",
     JOB "SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 "
         "SLURM_TASKS_PER_NODE=4",
     NULL, 0, 1, -1, 0, 4},
    {"a batch script of one task",
     JOB "SLURM_NTASKS=1 SLURM_NPROCS=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0", NULL, 0, 1,
     -1, 0, 0},
    {"the shell of salloc -n2", JOB "SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=2", NULL, 0, 1, -1, 0, 2},
    {"the shell of salloc -n2 on a machine of the job",
     JOB "SLURM_NTASKS=2 SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 "
         "SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1",
     NULL, 0, 1, -1, 0, 2},
    {"torchrun --nnodes 2 --nproc-per-node 2",
     "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 ROLE_RANK=3 "
     "MASTER_ADDR=n1 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=none OMP_NUM_THREADS=1",
     "torchrun", 3, 4, 1, 2, 0},
    {"torchrun's variables, set by hand", "RANK=0 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1", "torchrun",
     0, 4, -1, 0, 0},
    {"srun -N2 --ntasks-per-node=1 torchrun --nproc-per-node 2",
     JOB "SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID=1 "
         "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 "
         "LOCAL_WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=none",
     "torchrun", 2, 4, 0, 2, 0},
    {"mpirun -np 1 torchrun --nproc-per-node 4",
     "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 RANK=2 WORLD_SIZE=4 LOCAL_RANK=2 "
     "LOCAL_WORLD_SIZE=4 MASTER_ADDR=n1 TORCHELASTIC_RUN_ID=none",
     "torchrun", 2, 4, 2, 4, 0},
    {"srun, with torchrun's variables for the same task",
     TASK "RANK=1 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=n1", "SLURM", 1, 4, 1, 2, 0},
    {"srun, with an address and a size from the batch script", TASK "WORLD_SIZE=9 MASTER_ADDR=n1",
     "SLURM", 1, 4, 1, 2, 0},
    {"one of torchrun's names alone", "RANK=captain", NULL, 0, 1, -1, 0, 0},
    {"an address alone", "MASTER_ADDR=n1 MASTER_PORT=29400", NULL, 0, 1, -1, 0, 0},
    {"a size alone", "WORLD_SIZE=4", NULL, 0, 1, -1, 0, 0},
    {"empty variables", "RANK= WORLD_SIZE= MASTER_ADDR= OMPI_COMM_WORLD_SIZE= PMI_SIZE=", NULL, 0,
     1, -1, 0, 0},
    {"PMIX_RANK alone", "PMIX_RANK=3 PMIX_NAMESPACE=prterun-1", NULL, 0, 1, -1, 0, 0},
    {"the 64th rank of 64", "PMI_RANK=63 PMI_SIZE=64 MPI_LOCALRANKID=15 MPI_LOCALNRANKS=16", "PMI",
     63, 64, 15, 16, 0},
};

#endif
