/* wgmma.h -- products of a warpgroup on the emulated device (wgmma.cc). */
#ifndef TESTS_EMU_DEVICE_WGMMA_H
#define TESTS_EMU_DEVICE_WGMMA_H

#include "tests/emu/device/hopper.h"

enum { EMU_WGMMA_ROWS = 64, EMU_WGMMA_COLUMNS = 256 /* at most */ };

/* A product as its threads request it. */
typedef struct {
    EmuPlace place;
    int n; /* columns of B and D */
    bool f16, b_mn, accumulate;
    uint64_t a, b;             /* descriptors */
    const uint32_t *registers; /* A's fragment; NULL: A is in shared memory */
} EmuWgmma;

/* Start a product on n / 2 registers of this thread, close a group of products, and wait until at
 * most `pending` groups are incomplete. */
void emu_wgmma(const EmuWgmma &call, float *d);
void emu_wgmma_fence(EmuPlace place);
void emu_wgmma_commit(EmuPlace place);
void emu_wgmma_wait(int pending, EmuPlace place);

/* wgmma_product.cc: ends the program if a descriptor is invalid, or the calling thread's block
 * cannot read an operand there. */
void emu_wgmma_check(const EmuWgmma *call);
/* Computes the rows of `warps` warps from warp `first` on: sum (64, n) = or += A B. word[i] is the
 * fragment of thread i, if A is in registers. */
void emu_wgmma_multiply(const EmuWgmma *call, float *sum, const uint32_t (*word)[4], int first,
                        int warps);
/* Returns a checksum of A (64, 16) in shared memory. */
uint64_t emu_wgmma_sum_of_a(const EmuWgmma *call);

/* Runs products that a warpgroup waits for, when no thread of the block can continue otherwise.
 * Returns false if there are none. */
bool emu_wgmma_progress(EmuBlock *block);
/* Called by block.cc when a block starts and when a thread leaves the kernel. */
void emu_wgmma_start(EmuBlock *block);
void emu_wgmma_exit(const EmuThread *thread);

#endif
