/* emu.h -- internal types and functions of the emulation, which runs CUDA kernels on the CPU: one
 * fiber per thread, and one block at a time on each OS thread.
 *
 * A fiber runs until it has to wait: at a barrier for its block, at a collective for its warp.
 * EMU_ORDER decides which fiber runs next. forward and reverse: the lanes of one warp run as long
 * as any of them can continue, then those of the next warp, in ascending or descending order. Each
 * warp gets as far ahead of the others as barriers allow, so both outcomes of a missing barrier
 * occur. shuffled: every thread of the block runs once, then again, so the warps keep step. Where a
 * GPU would give a wrong result or report an error code much later, the emulation ends the program
 * with a message that names the kernel, block, thread and line.
 *
 * Hopper's barriers in shared memory, tiled copies and warpgroups: see hopper.h.
 *
 * Not emulated: clusters, grid-wide synchronization (blocks run to completion), weak memory order,
 * registers and timing. Streams work at once, as late as possible, or randomly (stream.cc).
 *
 * There are EMU_DEVICES devices (default 1). EMU_MEMORY gives the MiB of each (default 8192), and
 * EMU_CAPABILITY its compute capability (default 90, which is 9.0): one number, or a list with
 * commas whose last number applies to all further devices. EMU_NAME is the name of all. Memory,
 * streams and events belong to the device that was current in the thread that created them. Using
 * them on another device ends the program, except where CUDA allows it: any thread may wait for,
 * query or free a stream or an event, and a device may use another's memory after
 * cudaDeviceEnablePeerAccess. CUDA would also copy between devices without such access, through the
 * host. The emulation treats that as an error. */
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
    EMU_LINE = 64,       /* bytes of a line of the CPU's cache */
    EMU_GUARD = 1 << 20, /* inaccessible bytes before and after memory; they use only address
                          * space */
    EMU_POISON = 0xff    /* value of every byte of fresh memory: NaN in all float types */
};

typedef struct {
    unsigned x, y, z;
} EmuIndex;

/* What a thread is doing, and where in the source. */
typedef struct {
    const char *what, *file;
    int line;
} EmuPlace;

/* The parameters of a launch. */
typedef struct {
    const char *kernel, *file;
    int line;
    const void *function;
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    void (*call)(const void *context); /* runs the kernel with its arguments; called in each
                                        * thread */
    const void *context;
    int device;
} EmuLaunch;

/* A copy into shared memory that has been started but not waited for. */
typedef struct {
    void *shared;
    const void *global;
    int bytes, group;
} EmuCopy;

typedef struct {
    EmuCopy *copy;
    int n, capacity, group; /* group: number of the open group */
} EmuCopies;

struct EmuBlock;
struct EmuThread;
struct EmuWarp;
struct EmuWarpgroup; /* the products of a warpgroup (wgmma.cc) */

/* A collective in which lanes of a warp wait for each other. */
typedef struct {
    uint32_t mask, arrived;
    EmuPlace place;
    void (*finish)(struct EmuWarp *warp, uint32_t lanes);
} EmuMeeting;

typedef struct EmuWarp {
    struct EmuThread *lane[EMU_WARP];
    uint32_t alive, ready; /* bit i: lane i has not exited; lane i can continue */
    uint32_t meetings;     /* bit i: lanes wait in meeting[i] */
    EmuMeeting meeting[EMU_WARP];
    /* For the shuffle in which a lane waits: the value that it gives, the value that it takes, and
     * the lane (`source`) from which it takes it. */
    uint64_t given[EMU_WARP], taken[EMU_WARP];
    int source[EMU_WARP];
} EmuWarp;

/* The first cache line has what every switch needs. */
typedef struct alignas(64) EmuThread {
    EmuIndex index;
    int lane;
    char *stack; /* EMU_STACK bytes */
    void *stack_pointer;
    EmuWarp *warp;
    struct EmuBlock *block;
    void *argument; /* argument of the collective that it waits in */
    bool started, in_collective;
    EmuPlace place;
    void *sanitizer_stack;
    EmuCopies copies;
} EmuThread;

enum class EmuOrder { FORWARD, REVERSE, SHUFFLED };

/* A block, and what an OS thread needs to run blocks one after another. */
typedef struct EmuBlock {
    EmuIndex index;
    const EmuLaunch *launch;
    EmuOrder order;
    unsigned char *shared; /* launch->shared bytes */
    int threads, live, at_barrier;
    int barriers;             /* barriers of all its threads that have completed */
    struct EmuHopper *hopper; /* see hopper.h; NULL until the block needs it */
    EmuPlace barrier;
    void *scheduler_stack_pointer, *sanitizer_stack;
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
    bool from_scheduler; /* true: the scheduler, not another fiber, is switching to a fiber */
    char *shared_space;  /* space for shared memory between two guards */
    void *signal_stack;
    struct EmuBlock *next_free;
    struct EmuWarpgroup *warpgroups; /* NULL before the first product */
    EmuThread thread[EMU_MAX_THREADS];
    EmuWarp warp[EMU_MAX_WARPS];
} EmuBlock;

/* The thread whose fiber runs on this OS thread, or NULL in host code. */
extern __thread EmuThread *emu_thread;

/* ---- called by kernels ----------------------------------------------------------------------- */

/* Checks a kernel's argument: ends the program unless p is NULL, or points into or right past
 * memory that the launch's device may use, or page-locked memory of the host. */
void emu_check_pointer(const EmuLaunch *launch, const void *p);
/* Checks an argument that is a struct, such as a table of ranges: ends the program if a word of it
 * is the address of other memory of this process. Words that are no addresses are left alone. */
void emu_check_words(const EmuLaunch *launch, const void *words, size_t bytes);
/* Ends the program if no GPU could run the launch. */
void emu_launch_check(const EmuLaunch *launch);
/* Runs all blocks of the launch. */
void emu_run(const EmuLaunch *launch);
/* __syncthreads: all threads of the block must reach this same place. */
void emu_barrier(const EmuPlace &place);
/* Waits until all living lanes of `mask` are in the same collective. The last one runs finish(warp,
 * lanes), which finds each lane's `argument` in its thread. */
void emu_collective(uint32_t mask, const EmuPlace &place, void *argument,
                    void (*finish)(EmuWarp *warp, uint32_t lanes));
/* Returns the value that lane `source` of the warp passes to the same call. */
uint64_t emu_shuffle(uint32_t mask, uint64_t value, int source, const EmuPlace &place);
/* Returns a bit for each lane of the mask whose predicate is not 0. */
uint32_t emu_ballot(uint32_t mask, int predicate, EmuPlace place);
/* Returns the start of the block's dynamic shared memory. */
void *emu_shared_memory(void);
/* Returns the address of p in the shared window: not 0, below 2^18, and aligned as p is. Ends the
 * program if p does not point into, or right past, the block's dynamic shared memory. */
uint32_t emu_shared_address(const void *p);
/* cp.async and related instructions: the copy happens in the wait that covers it. Until then its
 * destination is poisoned. */
void emu_copy_start(void *shared, const void *global, int bytes, EmuPlace place);
void emu_copy_commit(void);
void emu_copy_wait(int groups_under_way);

/* ---- internal -------------------------------------------------------------------------------- */

/* Writes where the calling thread is, as the last part of emu_die's message, to buf. */
void emu_describe(char *buf, size_t n);
/* End the program unless the bytes are in the block's shared memory, or in one allocation that the
 * current device may use. */
void emu_check_shared(const void *p, size_t bytes, const char *what);
void emu_check_device(const void *p, size_t bytes, const char *what);

/* ---- block.cc -------------------------------------------------------------------------------- */
int emu_workers(void); /* returns EMU_THREADS, or the number of allowed cores */
/* Lets other fibers run until one of them makes this one ready. */
void emu_wait_in_collective(EmuThread *thread);
/* Completes meeting i of the warp if all living lanes of its mask have arrived. Returns whether it
 * did. (collective.cc) */
bool emu_meeting_check(EmuWarp *warp, int i);

/* ---- launch.cc ------------------------------------------------------------------------------- */
/* Returns the number of threads per block in the kernel's __launch_bounds__, or 0 if it has
 * none. */
int emu_launch_bounds(const void *function);

/* shared.cc: a block's dynamic shared memory */
char *emu_shared_space(void);
void emu_shared_prepare(EmuBlock *block); /* places and poisons it */
void emu_shared_check(EmuBlock *block);   /* ends the program if it was written past its end */

/* memory.cc: device memory can be accessed only between open and close, which nest, also across OS
 * threads. emu_memory_host_waits is called when the host has waited for a device: it closes the
 * memory until the next kernel or copy. Once many bytes have been closed, only some of the calls do
 * so. */
void emu_memory_host_waits(void);
/* Ends the program if the kernel wrote outside an allocation. */
void emu_memory_check(const EmuLaunch *launch);
/* Returns whether p is in (or right past) device memory, stores its device, and stores the number
 * of bytes from p to the allocation's end. */
bool emu_memory_find(const void *p, size_t *bytes, int *device);
/* Returns whether p is in freed device memory or in a guard. */
bool emu_memory_beside(const void *p);
/* Describes an address for an error message. Returns false if it is not related to device
 * memory. */
bool emu_memory_describe(const void *p, char *buf, size_t n);

/* copy.cc: whether p is in (or right past) page-locked memory. */
bool emu_is_pinned(const void *p);

/* ---- stream.cc ------------------------------------------------------------------------------- */
cudaError_t emu_stream_check(cudaStream_t stream); /* returns an error unless it is a stream */
/* With strict streams, runs work(context) at once. Otherwise queues the work with a copy of the
 * context; it runs at the latest when somebody waits for the stream. */
void emu_stream_do(cudaStream_t stream, void (*work)(void *context), void *context, size_t bytes);
enum class EmuStreams { STRICT, DEFERRED, RANDOM };
EmuStreams emu_streams_mode(void);
/* Wait until the stream, or every stream of the device, has completed all its work so far. */
void emu_stream_wait(cudaStream_t stream);
void emu_streams_wait(int device);

/* ---- driver.cc ------------------------------------------------------------------------------- */
/* Exists during each call that allocates or releases memory or loads a kernel. The constructor
 * delays the host as EMU_JITTER says, then locks and waits as EMU_MEMORY_CALLS says; the destructor
 * unlocks. */
struct EmuDriverCall {
    EmuDriverCall();
    ~EmuDriverCall();
    bool mine; /* it holds the process-wide lock */
};
void emu_driver_works(void); /* called before work is enqueued */
/* Loads a kernel on the current device. `what` is the kernel's address or, for a product of
 * cuBLASLt, a hash that stands for its kernel. Returns false if it was loaded there before. */
bool emu_driver_load(uint64_t what);
void emu_driver_page_locks(void); /* called before host memory is page-locked */
/* Returns whether this process was forked by one that had used CUDA. Then no call succeeds. */
bool emu_driver_refuses(void);
/* Every CUDA function that needs the driver begins with this. */
#define EMU_CALL()                                                                                 \
    do {                                                                                           \
        if (emu_driver_refuses()) return emu_error(cudaErrorInitializationError);                  \
    } while (0)

/* ---- runtime.cc ------------------------------------------------------------------------------ */
cudaError_t emu_error(cudaError_t code); /* stores the code for cudaGetLastError and returns it */
void emu_count_wait(void);
void emu_count_allocation(void);
void emu_set_current_device(int device);
/* Returns the number that the environment variable `name` has for this device, in a list with
 * commas whose last number applies to all further devices; `fallback` without one. */
int emu_setting_of(const char *name, int device, int fallback);
/* Returns the bytes of this device's memory. */
size_t emu_memory_of(int device);
/* Returns whether the device may use the other's memory. True for its own. */
bool emu_device_reaches(int device, int other);

/* ---- faults.cc ------------------------------------------------------------------------------- */
void emu_faults_install(void); /* makes memory errors print a message */
typedef stack_t EmuSignalStack;
EmuSignalStack emu_signal_stack_enter(void *stack); /* EMU_SIGNAL_STACK bytes; returns the previous
                                                     * stack */
void emu_signal_stack_leave(EmuSignalStack before);

static inline const char *emu_stack_pointer(void)
{
    const char *here;
    asm("movq %%rsp, %0" : "=r"(here));
    return here;
}

/* Switches stacks: saves the running fiber's stack pointer in *save and continues at `to`. */
extern "C" void emu_switch(void **save, void *to);
/* Returns a stack pointer at the top of a fresh stack from which emu_switch enters `entry`. */
void *emu_fresh_stack(char *stack, size_t bytes, int colour, void (*entry)(void));

#endif
