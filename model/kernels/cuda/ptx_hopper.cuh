/* ptx_hopper.cuh -- the instructions that only Hopper (sm_90a) has: products of a warpgroup, and
 * copies of tiles by the tensor memory accelerator (TMA) with the barriers that count their bytes.
 * The emulated device replaces this file and the two that it includes. */
#ifndef MODEL_KERNELS_CUDA_PTX_HOPPER_CUH
#define MODEL_KERNELS_CUDA_PTX_HOPPER_CUH

#include "model/kernels/cuda/ptx_tma.cuh"
#include "model/kernels/cuda/ptx_wgmma.cuh"

#endif
