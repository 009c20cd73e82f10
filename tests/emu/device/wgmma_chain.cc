/* wgmma_chain.cc -- chains of products (wgmma_chain.h). */
#include "tests/emu/device/wgmma_chain.h"

#include <stdlib.h>
#include <string.h>

/* Returns where the chain holds elements 0 and 1 of a thread's D; 2 and 3 are 8 rows below. The
 * next four are 8 columns further, and so on. */
static inline float *first_of(EmuChain *chain, int number)
{
    int lane = number % EMU_WARP, row = number / EMU_WARP * WARP_ROWS + lane / 4;
    return chain->sum + row * chain->n + lane % 4 * 2;
}

void emu_chain_join(EmuChain *chain, int number, float *d, bool accumulate)
{
    enum { PAIR = 2 * sizeof *d };
    float *upper = first_of(chain, number), *lower = upper + 8 * chain->n;
    chain->d[number] = d;
    for (int i = 0; accumulate && i < chain->n; i += 8) {
        memcpy(upper + i, d + i / 2, PAIR);
        memcpy(lower + i, d + i / 2 + 2, PAIR);
    }
    memset(d, EMU_POISON, (size_t)chain->n / 2 * sizeof *d);
}

void emu_chain_end(EmuChain *chain, int warp)
{
    enum { PAIR = 2 * sizeof(float) };
    for (int number = warp * EMU_WARP; number < (warp + 1) * EMU_WARP; number++) {
        const float *upper = first_of(chain, number), *lower = upper + 8 * chain->n;
        float *d = chain->d[number];
        uint64_t word[2], intact = ~0ull;
        for (int i = 0; i < chain->n; i += 8) {
            memcpy(word, d + i / 2, 2 * PAIR);
            intact &= word[0] & word[1];
            memcpy(d + i / 2, upper + i, PAIR);
            memcpy(d + i / 2 + 2, lower + i, PAIR);
        }
        if (intact != ~0ull) {
            const EmuPlace *place = &chain->place;
            emu_thread = thread_of(number);
            emu_die("D of %s at %s:%d was written before a wait that covers the product",
                    place->what, place->file, place->line);
        }
    }
}

EmuChain *emu_chain_on(EmuChains *chains, int number, const EmuWgmma *call, const float *d)
{
    for (int i = 0; i < CHAINS; i++) {
        EmuChain *chain = chains->chain[i];
        if (chain == NULL || chain->incomplete[number / EMU_WARP] == 0) continue;
        const float *other = chain->d[number];
        if (other == d && chain->n == call->n) return chain;
        if (d < other + chain->n / 2 && other < d + call->n / 2)
            emu_die("%s with n = %d: D overlaps with D of %s with n = %d at %s:%d, for which "
                    "nothing has waited",
                    call->place.what, call->n, chain->place.what, chain->n, chain->place.file,
                    chain->place.line);
    }
    return NULL;
}

static bool chain_is_used(const EmuChain *chain)
{
    for (int i = 0; chain != NULL && i < WARPS; i++)
        if (chain->incomplete[i] > 0) return true;
    return false;
}

EmuChain *emu_chain_new(EmuChains *chains, const EmuWgmma *call)
{
    int i = 0;
    while (i < CHAINS && chain_is_used(chains->chain[i]))
        i++;
    if (i == CHAINS) emu_die("%s: more than %d incomplete chains", call->place.what, CHAINS);
    if (chains->chain[i] == NULL)
        chains->chain[i] = (EmuChain *)aligned_alloc(alignof(EmuChain), sizeof(EmuChain));
    EmuChain *chain = chains->chain[i];
    if (chain == NULL) emu_die("no memory for the sums of a warpgroup");
    memset(chain->d, 0, sizeof chain->d);
    chain->n = call->n;
    chain->place = call->place;
    memset(chain->incomplete, 0, sizeof chain->incomplete);
    return chain;
}
