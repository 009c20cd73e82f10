/* emu.h -- the inside of the emulation: CUDA kernels on the CPU, one fiber per thread, one block at
 * a time on an OS thread.
 *
 * A fiber runs until it has to wait: at a barrier for its block, at a collective for its warp. Who
 * has the next turn is for EMU_ORDER to say. forward, reverse: the lanes of one warp, as long as
 * any of them can go on, then the next warp, ascending or descending; so a warp is as far ahead of
 * others as barriers let it, and what a missing barrier leaves open comes out both ways. shuffled:
 * every thread of the block once, and again; so warps keep step. What a GPU answers with a wrong
 * result or an error code long after ends the program here, with a sentence that names kernel,
 * block, thread and line.
 *
 * Not emulated: clusters, grid-wide waiting (blocks run to completion), weak memory order,
 * registers and timing. Streams do their work at once, as late as they may, or by chance
 * (stream.cc).
 *
 * There are EMU_DEVICES devices (1), with EMU_MEMORY MiB each (8192), or a number for each of the
 * first, with commas between them, of which the last is that of all others. Memory, streams, events
 * belong to the device that was current for the thread that made them, and what uses them on behalf
 * of another ends the program, but for what CUDA allows: whoever likes may wait for a stream or an
 * event, may ask about it and may free it; and a device that was given access to another's memory
 * (cudaDeviceEnablePeerAccess) uses it as its own. CUDA would also copy between devices without
 * such access, through the host; here that is taken for a mistake. */
#ifndef TESTS_EMU_DEVICE_EMU_H
#define TESTS_EMU_DEVICE_EMU_H

#include <signal.h>

#include "tests/emu/device/door.h"

enum {
    EMU_WARP = 32,
    EMU_DEVICES_MOST = 16,
    EMU_MAX_THREADS = 1024,
    EMU_MAX_WARPS = EMU_MAX_THREADS / EMU_WARP,
    EMU_STACK = 256 << 10,    /* bytes of a fiber's stack */
    EMU_SHARED_MOST = 232448, /* bytes of dynamic shared memory per block: 227 KiB */
    EMU_SIGNAL_STACK = 64 << 10,
    EMU_PAGE = 4096,
    EMU_GUARD = 1 << 20, /* bytes of nothing before memory and past it; they cost only addresses */
    EMU_POISON = 0xff    /* every byte of fresh memory: NaN in all float types */
};

typedef struct {
    unsigned x, y, z;
} EmuIndex;

/* What a thread does, and where in the source. */
typedef struct {
    const char *what, *file;
    int line;
} EmuPlace;

/* A launch, as it was asked for. */
typedef struct {
    const char *kernel, *file;
    int line;
    const void *function;
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    void (*call)(const void *context); /* runs the kernel with its arguments, in each thread */
    const void *context;
    int device;
} EmuLaunch;

/* A copy into shared memory that was started and not waited for. */
typedef struct {
    void *shared;
    const void *global;
    int bytes, group;
} EmuCopy;

typedef struct {
    EmuCopy *copy;
    int n, capacity, group; /* group: number of the group that is open */
} EmuCopies;

struct EmuBlock;
struct EmuThread;
struct EmuWarp;

/* Lanes of a warp that wait for each other in a collective. */
typedef struct {
    uint32_t mask, arrived;
    EmuPlace place;
    void (*finish)(struct EmuWarp *warp, uint32_t lanes);
} EmuMeeting;

typedef struct EmuWarp {
    struct EmuThread *lane[EMU_WARP];
    uint32_t alive, ready; /* bit i: lane i has not left; it can go on */
    uint32_t meetings;     /* bit i: lanes wait in meeting[i] */
    EmuMeeting meeting[EMU_WARP];
} EmuWarp;

typedef struct EmuThread {
    EmuIndex index;
    int lane;
    EmuPlace place;
    EmuWarp *warp;
    struct EmuBlock *block;
    void *argument; /* of the collective it waits in */
    void *stack_pointer, *sanitizer_stack;
    bool started, in_collective;
    EmuCopies copies;
} EmuThread;

/* A block and what an OS thread needs to run blocks one after another. */
typedef struct EmuBlock {
    EmuIndex index;
    const EmuLaunch *launch;
    unsigned char *shared; /* launch->shared bytes */
    int threads, live, at_barrier;
    EmuPlace barrier;
    void *scheduler_stack_pointer, *sanitizer_stack;
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
    char *stacks;       /* EMU_MAX_THREADS of EMU_STACK bytes */
    char *shared_space; /* room for shared memory between two guards */
    void *signal_stack;
    struct EmuBlock *next_free;
    EmuThread thread[EMU_MAX_THREADS];
    EmuWarp warp[EMU_MAX_WARPS];
} EmuBlock;

/* The thread whose fiber runs on this OS thread; NULL in host code. */
extern __thread EmuThread *emu_thread;

/* ---- for kernels ----------------------------------------------------------------------------- */

/* Ends the program unless p is NULL or in (or right past) memory that the launch's device may
 * use: an argument of a kernel. */
void emu_check_pointer(const EmuLaunch *launch, const void *p);
/* Ends the program when the launch asks for what no GPU grants. */
void emu_launch_check(const EmuLaunch *launch);
/* Runs all blocks of the launch. */
void emu_run(const EmuLaunch *launch);
/* __syncthreads: all threads of the block must come to this same place. */
void emu_barrier(EmuPlace place);
/* Waits until all living lanes of `mask` are in the same collective, then the last one runs
 * finish(warp, lanes), which finds each lane's `argument` in its thread. */
void emu_collective(uint32_t mask, EmuPlace place, void *argument,
                    void (*finish)(EmuWarp *warp, uint32_t lanes));
/* The value that lane `source` of the warp brings to the same call. */
uint64_t emu_shuffle(uint32_t mask, uint64_t value, int source, EmuPlace place);
/* A bit for each lane of the mask whose predicate is not 0. */
uint32_t emu_ballot(uint32_t mask, int predicate, EmuPlace place);
/* The start of the block's dynamic shared memory. */
void *emu_shared_memory(void);
/* cp.async and its kin: the copy happens at the wait that covers it, until then the target is
 * poisoned. */
void emu_copy_start(void *shared, const void *global, int bytes, EmuPlace place);
void emu_copy_commit(void);
void emu_copy_wait(int groups_under_way);

/* ---- inside ---------------------------------------------------------------------------------- */

/* The last part of emu_die's sentence, where the calling thread is, into buf. */
void emu_describe(char *buf, size_t n);
/* Ends the program unless the bytes are in the block's shared memory, or in one allocation that the
 * device at work may use. */
void emu_check_shared(const void *p, size_t bytes, const char *what);
void emu_check_device(const void *p, size_t bytes, const char *what);

/* block.cc */
int emu_workers(void); /* EMU_THREADS, or the allowed cores */
/* Lets other fibers run until somebody makes this one ready. */
void emu_wait_in_collective(EmuThread *thread);
/* Ends meeting i of the warp if all living lanes of its mask are there; whether it did.
 * (collective.cc) */
bool emu_meeting_check(EmuWarp *warp, int i);

/* launch.cc */
/* Threads per block that the kernel's __launch_bounds__ promise; 0: it promises nothing. */
int emu_launch_bounds(const void *function);

/* shared.cc: a block's dynamic shared memory */
char *emu_shared_space(void);
void emu_shared_prepare(EmuBlock *block); /* places and poisons it */
void emu_shared_check(EmuBlock *block);   /* ends the program if somebody wrote past it */

/* memory.cc: device memory answers only between open and close, which nest, across OS threads too.
 * Closes device memory until the next kernel or copy, whatever its size. */
void emu_memory_host_waits(void);
/* Ends the program if the kernel wrote beside an allocation. */
void emu_memory_check(const EmuLaunch *launch);
/* Whether p is in (or right past) device memory, of which device, and how many bytes there are
 * from it to the allocation's end. */
bool emu_memory_find(const void *p, size_t *bytes, int *device);
/* Whether p is in device memory that was freed, or in the guards around some. */
bool emu_memory_beside(const void *p);
/* What an address is, for the message of a fault; false: none of device memory's. */
bool emu_memory_describe(const void *p, char *buf, size_t n);

/* stream.cc */
cudaError_t emu_stream_check(cudaStream_t stream); /* whether it is one */
/* Does work(context), now or when somebody waits for the stream; then on a copy of the context. */
void emu_stream_do(cudaStream_t stream, void (*work)(void *context), void *context, size_t bytes);
enum class EmuStreams { STRICT, DEFERRED, RANDOM };
EmuStreams emu_streams_mode(void);
/* All that the stream, that any stream of the device was asked for is done. */
void emu_stream_wait(cudaStream_t stream);
void emu_streams_wait(int device);

/* runtime.cc */
cudaError_t emu_error(cudaError_t code); /* keeps it for cudaGetLastError, and returns it */
void emu_count_wait(void);
void emu_count_allocation(void);
void emu_set_current_device(int device);
/* Whether the device may use another's memory, or it is its own. */
bool emu_device_reaches(int device, int other);

/* faults.cc */
void emu_faults_install(void); /* memory errors become sentences */
typedef stack_t EmuSignalStack;
EmuSignalStack emu_signal_stack_enter(void *stack); /* EMU_SIGNAL_STACK bytes; the one before */
void emu_signal_stack_leave(EmuSignalStack before);

/* Switches stacks: saves the running fiber's stack pointer in *save and goes on at `to`. */
extern "C" void emu_switch(void **save, void *to);
/* A stack pointer from which emu_switch enters `entry`, at the top of a fresh stack. */
void *emu_fresh_stack(char *stack, size_t bytes, int colour, void (*entry)(void));

#endif
