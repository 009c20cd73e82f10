/* wgmma_chain.h -- the sums of products that add to the same D one after another, a chain. It has
 * the sums of the whole warpgroup as one matrix. A warp's D gets them in the wait that covers the
 * chain's last product. */
#ifndef TESTS_EMU_DEVICE_WGMMA_CHAIN_H
#define TESTS_EMU_DEVICE_WGMMA_CHAIN_H

#include "tests/emu/device/wgmma.h"

enum {
    GROUP = 128, /* threads of a warpgroup */
    WARPS = GROUP / EMU_WARP,
    WARP_ROWS = EMU_WGMMA_ROWS / WARPS,
    CHAINS = 16
};

typedef struct {
    alignas(64) float sum[EMU_WGMMA_ROWS * EMU_WGMMA_COLUMNS];
    float *d[GROUP];
    int n;                 /* columns */
    int incomplete[WARPS]; /* products that have not ended in a wait of the warp */
    EmuPlace place;        /* of its first product */
} EmuChain;

/* The chains of a warpgroup. */
typedef struct {
    EmuChain *chain[CHAINS];
} EmuChains;

static inline int number_of(const EmuThread *thread)
{
    return (int)((thread - thread->block->thread) % GROUP);
}

/* Returns the thread of the caller's warpgroup with this number. */
static inline EmuThread *thread_of(int number)
{
    return emu_thread - number_of(emu_thread) + number;
}

/* Returns the incomplete chain on this D of the thread, or NULL if nothing uses its registers. */
EmuChain *emu_chain_on(EmuChains *chains, int number, const EmuWgmma *call, const float *d);
/* Returns a chain that begins with this product. */
EmuChain *emu_chain_new(EmuChains *chains, const EmuWgmma *call);
/* Takes over D of thread `number`: copies what it contains if that is added to (`accumulate`),
 * stores its address, and poisons it. */
void emu_chain_join(EmuChain *chain, int number, float *d, bool accumulate);
/* Gives each thread of a warp the chain's sums. */
void emu_chain_end(EmuChain *chain, int warp);

#endif
