/* flash.cuh -- includes the parts of attention on tensor cores: flash_copy.cuh copies tiles of
 * 16-bit elements to shared memory, flash_product.cuh multiplies a warp's rows by such a tile,
 * flash_mask.cuh hides scores, and flash_store.cuh stores results. The algorithm is
 * FlashAttention-2 (Dao, arXiv:2307.08691), in the form in which warps exchange no data.
 *
 * A block owns rows: queries, or keys when it computes dk and dv. Each of its warps owns 16 MT
 * rows. The block loops over tiles of the other side's rows, called the walked rows here. A warp's
 * scores (owned rows by walked rows) are the accumulators of one product. Rounded to T, they are
 * the left operand of the next product, which sums over the walked rows. So forward and backward
 * both consist of two kinds of product:
 *
 *   scores (owned, walked)  = owned (owned, D) times the walked tile's transpose
 *   sum    (owned, D)      += weights (owned, walked) times a walked tile
 *
 * Let g = lane / 4 and t = lane % 4. Of every 8 columns of an accumulator, a thread holds columns
 * 2t and 2t + 1: those of row g in elements 0 and 1, those of row g + 8 in elements 2 and 3. */
#ifndef MODEL_KERNELS_CUDA_FLASH_CUH
#define MODEL_KERNELS_CUDA_FLASH_CUH

#include "model/kernels/cuda/flash_copy.cuh"
#include "model/kernels/cuda/flash_mask.cuh"
#include "model/kernels/cuda/flash_product.cuh"
#include "model/kernels/cuda/flash_store.cuh"

#endif
