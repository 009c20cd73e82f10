/* block.cc -- runs blocks: lets every ready fiber run in turn until all threads have exited, and
 * distributes the blocks of a launch to OS threads. */
#include "tests/emu/device/hopper.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/emu/device/sanitizer.h"
#include "tests/emu/device/wgmma.h"

__thread EmuThread *emu_thread;

static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static EmuBlock *free_blocks;

static EmuOrder order_from_environment(void)
{
    const char *word = getenv("EMU_ORDER");
    if (word == NULL || strcmp(word, "forward") == 0) return EmuOrder::FORWARD;
    if (strcmp(word, "reverse") == 0) return EmuOrder::REVERSE;
    if (strcmp(word, "shuffled") == 0) return EmuOrder::SHUFFLED;
    emu_die("EMU_ORDER is forward, reverse or shuffled, not \"%s\"", word);
}

int emu_workers(void)
{
    const char *word = getenv("EMU_THREADS");
    if (word != NULL && atoi(word) > 0) return atoi(word);
    cpu_set_t cores;
    CPU_ZERO(&cores);
    return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

/* ---- fibers ---------------------------------------------------------------------------------- */

static void fiber_main(void);

/* Makes a thread that has not run yet start in fiber_main. */
static inline void fiber_prepare(EmuThread *thread)
{
    if (thread->started) return;
    /* AddressSanitizer may forbid bytes of this page, which the previous fiber on this stack
     * used. */
    sanitizer_allow(thread->stack + EMU_STACK - EMU_PAGE, EMU_PAGE);
    thread->stack_pointer = emu_fresh_stack(thread->stack, EMU_STACK,
                                            (int)(thread - thread->block->thread), fiber_main);
    thread->started = true;
}

/* Called after each switch to a fiber. Stores the scheduler's stack if the switch came from the
 * scheduler. This function must have no variables of its own in memory: AddressSanitizer would
 * forbid the bytes around them, and the frame of a thread's last switch is never left. */
static inline void fiber_enter(EmuBlock *block, void *saved)
{
    bool from_scheduler = block->from_scheduler;
    block->from_scheduler = false;
    sanitizer_enter(saved, from_scheduler ? &block->scheduler_stack : NULL,
                    from_scheduler ? &block->scheduler_stack_bytes : NULL);
}

/* Returns the next lane of the warp that can continue: in ascending order of lanes (descending if
 * `order` is REVERSE), the first one after `lane`, or if there is none, the first one of all. At
 * least one lane must be able to continue. */
static inline int lane_after(const EmuWarp *warp, EmuOrder order, int lane)
{
    bool reverse = order == EmuOrder::REVERSE;
    uint32_t ahead = warp->ready & (reverse ? (1u << lane) - 1 : ~1u << lane);
    if (ahead == 0) ahead = warp->ready;
    return reverse ? EMU_WARP - 1 - __builtin_clz(ahead) : __builtin_ctz(ahead);
}

/* Switches from the thread to `next`, or to the scheduler if that is NULL, and tells
 * AddressSanitizer. `last`: the thread never continues. */
static void __attribute__((noinline))
fiber_switch_sanitized(EmuThread *thread, EmuThread *next, bool last)
{
    EmuBlock *block = thread->block;
    void **save = last ? NULL : &thread->sanitizer_stack;
    if (next != NULL) {
        sanitizer_leave(save, next->stack, EMU_STACK);
        emu_switch(&thread->stack_pointer, next->stack_pointer);
    } else {
        sanitizer_leave(save, block->scheduler_stack, block->scheduler_stack_bytes);
        emu_switch(&thread->stack_pointer, block->scheduler_stack_pointer);
    }
    fiber_enter(block, thread->sanitizer_stack);
}

/* Lets other fibers run until this thread is made ready again. Switches directly to the next lane
 * of its warp that can continue; if there is none, or in shuffled order, to the scheduler. `last`:
 * this thread will not run again. Half of the emulation's time passes here, most of it until the
 * next stack is in the cache. So without a sanitizer the switch is the last call, which needs no
 * frame, and the stack of the lane after the next one is fetched in advance. */
static inline void fiber_yield(EmuThread *thread, bool last)
{
    EmuBlock *block = thread->block;
    EmuWarp *warp = thread->warp;
    if (emu_stack_pointer() < thread->stack)
        emu_die("the thread used more than %d bytes of stack", EMU_STACK);
    warp->ready &= ~(1u << thread->lane);
    EmuThread *next = NULL;
    if (warp->ready != 0 && block->order != EmuOrder::SHUFFLED) {
        int lane = lane_after(warp, block->order, thread->lane);
        next = warp->lane[lane];
        fiber_prepare(next);
        emu_thread = next;
        const char *later =
            (const char *)warp->lane[lane_after(warp, block->order, lane)]->stack_pointer;
        __builtin_prefetch(later);
        __builtin_prefetch(later + EMU_LINE);
    }
    if (sanitizer_is_there())
        fiber_switch_sanitized(thread, next, last);
    else
        emu_switch(&thread->stack_pointer,
                   next != NULL ? next->stack_pointer : block->scheduler_stack_pointer);
}

static int warps_of(const EmuBlock *block)
{
    return (block->threads + EMU_WARP - 1) / EMU_WARP;
}

/* Releases all threads, which have reached the barrier. */
static void barrier_release(EmuBlock *block)
{
    for (int i = 0; i < warps_of(block); i++)
        block->warp[i].ready = block->warp[i].alive;
    block->at_barrier = 0;
    block->barriers++;
}

/* A lane that exits may be the last one that others waited for. A copy that was never waited for
 * could overwrite newer data, so it is an error. */
static void thread_exit(EmuThread *thread)
{
    EmuWarp *warp = thread->warp;
    if (thread->copies.n > 0)
        emu_die("the thread exits with %d copies under way that nothing waited for",
                thread->copies.n);
    emu_wgmma_exit(thread);
    warp->alive &= ~(1u << thread->lane);
    thread->block->live--;
    for (uint32_t left = warp->meetings; left != 0; left &= left - 1)
        emu_meeting_check(warp, __builtin_ctz(left));
    if (thread->block->at_barrier > 0)
        emu_die("the thread exits while others wait in %s at %s:%d", thread->block->barrier.what,
                thread->block->barrier.file, thread->block->barrier.line);
}

static void fiber_main(void)
{
    EmuThread *thread = emu_thread;
    EmuBlock *block = thread->block;
    fiber_enter(block, NULL);
    block->launch->call(block->launch->context);
    thread_exit(thread);
    fiber_yield(thread, true);
    abort();
}

/* Runs the thread, and lanes of its warp after it, until none can continue (in shuffled order: only
 * the thread, until it has to wait). */
static void fiber_resume(EmuBlock *block, int i)
{
    EmuThread *thread = &block->thread[i];
    fiber_prepare(thread);
    emu_thread = thread;
    block->from_scheduler = true;
    sanitizer_leave(&block->sanitizer_stack, thread->stack, EMU_STACK);
    emu_switch(&block->scheduler_stack_pointer, thread->stack_pointer);
    sanitizer_enter(block->sanitizer_stack, NULL, NULL);
    emu_thread = NULL;
}

/* ---- waiting --------------------------------------------------------------------------------- */

void emu_barrier(const EmuPlace &place)
{
    EmuThread *thread = emu_thread;
    EmuBlock *block = thread->block;
    thread->place = place;
    thread->in_collective = false;
    if (block->live < block->threads)
        emu_die("%s after another thread of the block has left the kernel", place.what);
    if (block->at_barrier > 0 &&
        (block->barrier.line != place.line ||
         (block->barrier.file != place.file && strcmp(block->barrier.file, place.file) != 0)))
        emu_die("a barrier in divergent code: others wait in %s at %s:%d", block->barrier.what,
                block->barrier.file, block->barrier.line);
    block->barrier = place;
    if (++block->at_barrier == block->live)
        barrier_release(block);
    else
        fiber_yield(thread, false);
}

void emu_wait_in_collective(EmuThread *thread)
{
    thread->in_collective = true;
    fiber_yield(thread, false);
}

/* Ends the program because no thread can continue. The message names one that waits and its
 * collective or barrier. */
static void die_of_deadlock(EmuBlock *block)
{
    int waiting = 0, first = -1;
    for (int i = block->threads - 1; i >= 0; i--) {
        const EmuThread *thread = &block->thread[i];
        if ((thread->warp->alive >> thread->lane & 1) == 0) continue;
        waiting++;
        if (first < 0 || thread->in_collective) first = i;
    }
    char more[512];
    emu_thread = &block->thread[first];
    emu_hopper_describe(block, more, sizeof more);
    emu_die("deadlock: %d of %d threads wait and none can go on, this one in %s%s", waiting,
            block->threads, emu_thread->place.what, more);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void block_start(EmuBlock *block)
{
    const dim3 *size = &block->launch->block;
    EmuIndex index = {0, 0, 0};
    block->live = block->threads;
    block->at_barrier = 0;
    emu_wgmma_start(block);
    emu_hopper_start(block);
    for (int i = 0; i < block->threads; i++) {
        EmuThread *thread = &block->thread[i];
        thread->index = index;
        if (++index.x == size->x) index = {0, index.y + 1, index.z};
        if (index.y == size->y) index = {0, 0, index.z + 1};
        thread->place = {"the kernel", block->launch->file, block->launch->line};
        thread->started = thread->in_collective = false;
        thread->copies.n = thread->copies.group = 0;
    }
    for (int i = 0; i < warps_of(block); i++) {
        int lanes = block->threads - i * EMU_WARP;
        EmuWarp *warp = &block->warp[i];
        warp->alive = warp->ready = lanes < EMU_WARP ? (1u << lanes) - 1 : ~0u;
        warp->meetings = 0;
    }
}

/* Lets each lane run as far as it can, in turn, until none can continue. Returns false if none
 * could. */
static bool warp_run(EmuBlock *block, int number)
{
    const EmuWarp *warp = &block->warp[number];
    if (warp->ready == 0) return false;
    int last = block->order == EmuOrder::REVERSE ? 0 : EMU_WARP - 1;
    fiber_resume(block, number * EMU_WARP + lane_after(warp, block->order, last));
    return true;
}

/* Runs warp after warp, each as far ahead of the others as barriers allow. */
static bool warps_run(EmuBlock *block)
{
    bool progress = false;
    int warps = warps_of(block);
    for (int k = 0; k < warps; k++)
        progress |= warp_run(block, block->order == EmuOrder::REVERSE ? warps - 1 - k : k);
    return progress;
}

/* Runs every thread once, up to its next collective or barrier, so that the warps keep step. The
 * stride is a prime above 1024, so it visits every thread. */
static bool threads_run(EmuBlock *block, uint32_t round)
{
    enum { STRIDE = 1031 };
    bool progress = false;
    uint32_t start = (round * 1664525u + 1013904223u) >> 8;
    for (int k = 0; k < block->threads; k++) {
        int i = (int)(((uint64_t)k * STRIDE + start) % (uint64_t)block->threads);
        if ((block->warp[i / EMU_WARP].ready >> i % EMU_WARP & 1) == 0) continue;
        progress = true;
        fiber_resume(block, i);
    }
    return progress;
}

static void block_run(EmuBlock *block, uint32_t seed)
{
    block_start(block);
    for (uint32_t round = seed; block->live > 0; round++) {
        bool progress =
            block->order == EmuOrder::SHUFFLED ? threads_run(block, round) : warps_run(block);
        if (!progress && block->live > 0 && !emu_hopper_progress(block) &&
            !emu_wgmma_progress(block))
            die_of_deadlock(block);
    }
    emu_hopper_end(block);
}

static EmuBlock *block_new(void)
{
    size_t bytes = (size_t)EMU_MAX_THREADS * EMU_STACK;
    EmuBlock *block = (EmuBlock *)aligned_alloc(alignof(EmuBlock), sizeof *block);
    char *stacks = (char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == NULL || stacks == MAP_FAILED) emu_die("no memory for the stacks of a block");
    memset((void *)block, 0, sizeof *block);
    block->shared_space = emu_shared_space();
    block->signal_stack = malloc(EMU_SIGNAL_STACK);
    for (int i = 0; i < EMU_MAX_THREADS; i++) {
        EmuThread *thread = &block->thread[i];
        thread->block = block;
        thread->stack = stacks + (size_t)i * EMU_STACK;
        thread->lane = i % EMU_WARP;
        thread->warp = &block->warp[i / EMU_WARP];
        thread->warp->lane[thread->lane] = thread;
    }
    return block;
}

static EmuBlock *block_take(void)
{
    pthread_mutex_lock(&blocks_lock);
    EmuBlock *block = free_blocks;
    if (block != NULL) free_blocks = block->next_free;
    pthread_mutex_unlock(&blocks_lock);
    return block != NULL ? block : block_new();
}

static void block_give_back(EmuBlock *block)
{
    pthread_mutex_lock(&blocks_lock);
    block->next_free = free_blocks;
    free_blocks = block;
    pthread_mutex_unlock(&blocks_lock);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Data shared by the OS threads of a launch. */
typedef struct {
    const EmuLaunch *launch;
    EmuOrder order;
    uint64_t blocks, next;
} Work;

static void *work_run(void *argument)
{
    Work *work = (Work *)argument;
    const dim3 *grid = &work->launch->grid;
    EmuBlock *block = block_take();
    EmuSignalStack before = emu_signal_stack_enter(block->signal_stack);
    block->launch = work->launch;
    block->order = work->order;
    block->threads = (int)(work->launch->block.x * work->launch->block.y * work->launch->block.z);
    for (;;) {
        uint64_t i = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (i >= work->blocks) break;
        uint64_t n = work->order == EmuOrder::REVERSE ? work->blocks - 1 - i : i;
        block->index = {(unsigned)(n % grid->x), (unsigned)(n / grid->x % grid->y),
                        (unsigned)(n / grid->x / grid->y)};
        emu_shared_prepare(block);
        block_run(block, (uint32_t)n);
        emu_shared_check(block);
    }
    emu_signal_stack_leave(before);
    block_give_back(block);
    return NULL;
}

void emu_run(const EmuLaunch *launch)
{
    enum { MOST_WORKERS = 64, THREADS_WORTH_A_WORKER = 4096 };
    emu_faults_install();
    Work work = {launch, order_from_environment(), 0, 0};
    work.blocks = (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z;
    uint64_t threads = work.blocks * launch->block.x * launch->block.y * launch->block.z;
    uint64_t workers = (uint64_t)emu_workers();
    if (workers > work.blocks) workers = work.blocks;
    if (workers > 1 + threads / THREADS_WORTH_A_WORKER)
        workers = 1 + threads / THREADS_WORTH_A_WORKER;
    if (workers > MOST_WORKERS) workers = MOST_WORKERS;
    pthread_t helper[MOST_WORKERS];
    uint64_t helpers = 0;
    emu_memory_open();
    while (helpers + 1 < workers && pthread_create(&helper[helpers], NULL, work_run, &work) == 0)
        helpers++;
    work_run(&work);
    for (uint64_t i = 0; i < helpers; i++)
        pthread_join(helper[i], NULL);
    emu_memory_check(launch);
    emu_memory_close();
}
