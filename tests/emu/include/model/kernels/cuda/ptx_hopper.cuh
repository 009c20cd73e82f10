/* ptx_hopper.cuh -- replaces model/kernels/cuda/ptx_hopper.cuh on the emulated device: includes the
 * two files that it includes, as the emulated device has them. */
#ifndef MODEL_KERNELS_CUDA_PTX_HOPPER_CUH
#define MODEL_KERNELS_CUDA_PTX_HOPPER_CUH

#include "model/kernels/cuda/ptx_tma.cuh"
#include "model/kernels/cuda/ptx_wgmma.cuh"

#endif
