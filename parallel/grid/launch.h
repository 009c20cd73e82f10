/* launch.h -- starts the ranks of a run, as threads of this process or as processes of their own,
 * with a communicator of all ranks (the world). */
#ifndef PARALLEL_GRID_LAUNCH_H
#define PARALLEL_GRID_LAUNCH_H

#include "configs/config.h"
#include "parallel/comm/comm.h"
#include "parallel/grid/grid.h"

/* The largest number of ranks that launch_ranks starts. It is limited because all of them are on
 * this machine, each with its own device, loader and threads. A launcher may start up to
 * CONFIG_MAX_RANKS. */
enum { LAUNCH_MAX_RANKS = CONFIG_OWN_RANKS };

/* Largest LaunchOptions.result_bytes. */
enum { LAUNCH_RESULT_BYTES = 60000 };

/* Whether several ranks are processes or threads, from the command line. Both false: processes if
 * each rank has its own GPU, otherwise threads (gpus_prepare). */
typedef struct {
    bool processes; /* --processes */
    bool threads;   /* --no-processes */
} LaunchKind;

typedef struct {
    double timeout; /* seconds that a rank waits for another one; 0: without limit */
    GridPlace size; /* for coordinates in messages; zeros: all ranks are on axis dp */
    bool processes; /* start the ranks as processes instead of threads, even a single one */
    /* The caller gets what rank 0's body writes to result[0..result_bytes), even if rank 0 was
     * another process. Pointers in it must point to memory that the caller allocated before the
     * launch. */
    void *result;
    size_t result_bytes;
} LaunchOptions;

/* The code of one rank; returns its exit code. */
typedef int (*LaunchBody)(Comm *world, void *context);

/* Runs body(world, context) on `ranks` ranks at the same time and returns rank 0's exit code when
 * all have returned. Messages contain the coordinates of their rank, unless there is a single rank.
 * A single rank runs in the calling thread, or with options->processes in its own process. It needs
 * its own process if it uses CUDA and the caller will launch further processes. A rank that fails
 * ends all ranks (ends_share in check.h).
 *
 * Threads: rank 0 is the calling thread, the only one that receives signals, and the failure of a
 * rank ends the process. Threads that have their own GPUs are for tests and measurements: in one
 * process, a call that allocates memory or loads a kernel may wait for the GPUs of other ranks, so
 * a mistake in the order of such calls may hang the run.
 *
 * Processes: each rank is a child process with a copy of the caller's memory, so a body's changes
 * are lost, except for `result`. The caller's process is no rank. It passes SIGINT, SIGTERM, SIGHUP
 * and SIGUSR1 on to rank 0 (launch_signal), SIGUSR2 to all ranks if it is held (dumps.h), and waits
 * until all ranks have ended. If a rank failed, the exit code of the first failure is returned, and
 * its message has been printed. Once rank 0's body has returned and all ranks have left the world,
 * the result is final: a rank that does not exit properly then only causes a warning. If a user's
 * signal ended rank 0, the same signal ends the calling process. Signals that the caller ignores
 * are not passed on.
 *
 * When the calling thread ends, the kernel kills the children, also stopped ones, because each
 * child asks for that at its start. A child that was stopped before its first instruction has not
 * asked yet. But when its parent ends, its process group is orphaned, so the kernel continues the
 * child, which then ends at once. If the process that inherits the child is in the same session (as
 * the first process of a container may be), the group is not orphaned, and the child remains until
 * somebody continues it. */
int launch_ranks(int ranks, const LaunchOptions *options, LaunchBody body, void *context);

/* ---- ranks that a launcher has started ---------------------------------------------------------
 *
 * Under srun, mpirun or torchrun each process is one rank, on one machine or several. Such ranks
 * are called joined: this program has not forked them and does not wait for them. A command that
 * starts ranks calls the functions below in this order. Without such a launcher, or if it has
 * started a single process, launch_count returns the number that the command line gives, and the
 * other functions do nothing.
 *
 * In a joined process launch_ranks starts nothing. It runs the body in the calling thread, on the
 * world that launch_join has made, or on rank 0 alone for a single rank, and returns rank 0's exit
 * code on all ranks. `result` is filled on rank 0 only. It may be called several times. */

/* To be called before a command that joins prints anything: reads the rank from the environment, so
 * that from here on only rank 0 prints. Until the ranks have joined, an error that one of them
 * finds ends all of them, and rank 0 prints it (launch_decline.h). argv: the command line, which
 * must stay valid; `command`: argv[1] is the name of a command. Does nothing if the environment is
 * wrong: launch_count reports that. */
void launch_take_place(int argc, char **argv, bool command);
/* Returns the number of ranks of this command. If a launcher has started several processes, that is
 * their number; otherwise it is `given`, or `otherwise` if `given` is 0. Ends the program
 * (EXIT_USAGE) if the environment contradicts itself, or if the launcher has started several
 * processes and `given` is not 0 or `kind` asks for threads. From here on the standard output of
 * joined ranks other than rank 0 is discarded. */
int64_t launch_count(int64_t given, int64_t otherwise, LaunchKind kind);
/* Joins the other ranks: connects to them as configured in the section `parallel`, and returns the
 * world. Ends the program with an exit code of the rendezvous (meeting.h), or with EXIT_CONFIG if
 * the ranks have different configs. Returns NULL in a process that is not joined. */
Comm *launch_join(const Config *config);
/* Returns whether this process is a rank that a launcher has started; true from launch_count on. */
bool launch_joined(void);
/* Returns whether this process prints the results of a command: it is not joined, or it is rank 0.
 */
bool launch_leads(void);
/* At the end of the program: leaves the world. Returns the exit code; in joined processes it is
 * rank 0's `code` on all ranks. */
int launch_leave(int code);

/* Returns "threads" or "processes" for the ranks of `world`, for messages. */
const char *launch_kind(const Comm *world);
/* In a rank that is a process: returns the process that started the ranks. Returns 0 elsewhere. */
pid_t launch_parent(void);
/* In a rank that is a process: returns the real-time signal by which the launcher passes the
 * signals SIGINT, SIGTERM, SIGHUP and SIGUSR1 on to rank 0; its si_value.sival_int is the number of
 * the signal that is passed on. The rank ignores those signals themselves: a batch system may send
 * them to every process, and a pending signal of the same number would hide the one that the
 * launcher passes on. Returns 0 elsewhere. */
int launch_signal(void);

#endif
