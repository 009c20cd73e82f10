/* hopper.h -- the emulation of what Hopper's warpgroups share: barriers in shared memory
 * (mbarrier.cc), tiled copies (tma.cc), shared memory as the async proxy sees it (proxy.cc), named
 * barriers and registers (warpgroup.cc). The state belongs to a block and is made by its first use.
 *
 * EMU_ASYNC says when a tiled copy is executed. late (the default): when no thread can continue
 * without it; until then its target is poisoned. early: at once. So a target that is overwritten
 * too soon, or read too early, gives wrong results in one of the two. */
#ifndef TESTS_EMU_DEVICE_HOPPER_H
#define TESTS_EMU_DEVICE_HOPPER_H

#include "tests/emu/device/emu.h"
#include "tests/emu/include/cuda.h"

enum { EMU_MBARRIERS = 64, EMU_NAMED_BARRIERS = 16, EMU_WARPGROUP = 4 /* warps */ };

/* A set of the block's threads: one bit per lane for each warp. */
typedef struct {
    uint32_t lanes[EMU_MAX_WARPS];
} EmuThreads;

typedef struct {
    uint64_t *at;
    int count, missing; /* arrivals that complete a phase; that the current one lacks */
    int64_t bytes;      /* bytes that the current phase still lacks */
    int64_t promised;   /* of these bytes, those for which no copy has been started yet */
    uint64_t phase;     /* number of completed phases */
    int64_t carried; /* bytes that the last completed phase brought, until somebody waits for it */
    bool seen;       /* somebody has waited for the last completed phase */
    bool fenced;
    const EmuThread *maker; /* the thread that initialised it, where, and after how many barriers */
    EmuPlace made;
    int made_after;
    EmuThreads waiting, woken; /* woken: have not continued since the phase completed */
} EmuMbarrier;

/* What the emulated driver encodes in a CUtensorMap. */
typedef struct {
    uint64_t mark;
    const char *address;
    uint64_t size[5], stride[4]; /* in elements; in bytes */
    uint32_t box[5];
    uint16_t rank;
    uint8_t element, swizzle; /* size of an element in bytes; CUtensorMapSwizzle */
} EmuMap;

/* A tiled copy that has been started and not executed. */
typedef struct {
    EmuMap map;
    int at[4];
    char *shared;
    size_t bytes;
    EmuMbarrier *barrier;
    EmuThread *thread;
    EmuPlace place;
} EmuTile;

typedef struct {
    int threads, arrivals; /* how many complete the barrier; how many have come */
    EmuThreads arrived, waiting;
    EmuPlace place;
} EmuNamedBarrier;

/* The registers of a warp's threads. */
typedef struct {
    int now, wanted; /* registers per thread; wanted is 0 unless the warp waits */
    int changes;     /* how often they were changed */
    uint32_t waiting;
    EmuPlace place;
} EmuRegisters;

typedef struct EmuHopper {
    EmuMbarrier mbarrier[EMU_MBARRIERS];
    int n_mbarriers;
    EmuTile *tile;
    int n_tiles, capacity;
    EmuNamedBarrier named[EMU_NAMED_BARRIERS];
    EmuRegisters registers[EMU_MAX_WARPS];
    EmuThreads held; /* threads that could continue, but do so only when no other thread can */
    int pool; /* registers of the block, in units of one register for each thread of a warp */
    unsigned char *shadow; /* shared memory as the async proxy sees it, once it has been used */
    bool shadowed;
} EmuHopper;

/* Returns the state of the calling thread's block. */
EmuHopper *emu_hopper(void);
/* Called by block.cc at the start and the end of each block. emu_hopper_end ends the program if
 * something is incomplete, for example if arrivals or bytes of a barrier's phase are missing. */
void emu_hopper_start(EmuBlock *block);
void emu_hopper_end(EmuBlock *block);
/* Lets held threads continue, or executes a copy that threads wait for. Returns false if there are
 * none. (tma.cc) */
bool emu_hopper_progress(EmuBlock *block);
/* Writes what the block's threads wait for, beginning with "; ", for a deadlock's message. */
void emu_hopper_describe(const EmuBlock *block, char *buf, size_t n);

/* Returns whether EMU_ASYNC is late. */
bool emu_async_late(void);

/* ---- mbarrier.cc ----------------------------------------------------------------------------- */
/* Returns the barrier, or ends the program if it cannot be used here. */
EmuMbarrier *emu_mbarrier_at(uint64_t *bar, const EmuPlace &place);
/* Counts bytes that a copy has brought. */
void emu_mbarrier_bytes(EmuBlock *block, EmuMbarrier *barrier, size_t bytes);
void emu_mbarriers_check(EmuBlock *block);
int emu_mbarrier_describe(const EmuMbarrier *barrier, char *buf, size_t n);

/* ---- warpgroup.cc ---------------------------------------------------------------------------- */
void emu_warpgroups_check(EmuBlock *block);

/* ---- proxy.cc -------------------------------------------------------------------------------- */
/* Notes that the async proxy has written these bytes of shared memory. */
void emu_proxy_wrote(const void *p, size_t bytes);
/* Ends the program if the async proxy would not read what these bytes of shared memory hold:
 * because a store was not made visible to it, or because a copy to them is under way. */
void emu_proxy_check(const void *p, size_t bytes);

/* ---- sets of threads ------------------------------------------------------------------------- */
static inline int emu_warp_number(const EmuThread *thread)
{
    return (int)(thread->warp - thread->block->warp);
}

static inline bool emu_threads_has(const EmuThreads *set, const EmuThread *thread)
{
    return (set->lanes[emu_warp_number(thread)] >> thread->lane & 1) != 0;
}

static inline void emu_threads_add(EmuThreads *set, const EmuThread *thread)
{
    set->lanes[emu_warp_number(thread)] |= 1u << thread->lane;
}

static inline void emu_threads_remove(EmuThreads *set, const EmuThread *thread)
{
    set->lanes[emu_warp_number(thread)] &= ~(1u << thread->lane);
}

static inline int emu_threads_count(const EmuThreads *set)
{
    int n = 0;
    for (int i = 0; i < EMU_MAX_WARPS; i++)
        n += __builtin_popcount(set->lanes[i]);
    return n;
}

/* Makes the threads of the set ready. */
static inline void emu_threads_wake(EmuBlock *block, const EmuThreads *set)
{
    for (int i = 0; i < EMU_MAX_WARPS; i++)
        block->warp[i].ready |= set->lanes[i];
}

/* Stops those threads of a warp that could continue, until no other thread of the block can
 * continue. */
static inline void emu_hold(EmuBlock *block, int warp)
{
    block->hopper->held.lanes[warp] |= block->warp[warp].ready;
    block->warp[warp].ready = 0;
}

/* ---- called by kernels ----------------------------------------------------------------------- */
void emu_mbarrier_init(uint64_t *bar, int count, const EmuPlace &place);
void emu_mbarrier_init_fence(const EmuPlace &place);
void emu_mbarrier_expect(uint64_t *bar, uint32_t bytes, const EmuPlace &place);
void emu_mbarrier_arrive(uint64_t *bar, const EmuPlace &place);
void emu_mbarrier_wait(uint64_t *bar, uint32_t parity, const EmuPlace &place);
void emu_tma_load(void *shared, const CUtensorMap *map, uint64_t *bar, const int (&at)[4],
                  const EmuPlace &place);
void emu_proxy_fence(const EmuPlace &place);
void emu_registers(int n, bool more, const EmuPlace &place);
void emu_named_barrier(int id, int threads, bool waits, const EmuPlace &place);
/* Ends the program unless *map is a tensor map of memory that the launch's device may use. */
void emu_check_map(const EmuLaunch *launch, const CUtensorMap *map);

#endif
