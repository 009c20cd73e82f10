/* tensor_map.h -- makes tensor maps, which describe the layout of a tensor for Hopper's tiled
 * copies (tma_load_4d in ptx_tma.cuh). A map is made on the host for each launch, without
 * allocating or waiting, and is passed as a kernel's parameter, `const __grid_constant__
 * CUtensorMap`. */
#ifndef MODEL_KERNELS_CUDA_TENSOR_MAP_H
#define MODEL_KERNELS_CUDA_TENSOR_MAP_H

#include <cuda.h>

#include "model/kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Columns of a box: 128 bytes of a 16-bit type, the most that the 128-byte swizzle allows. */
enum { MAP_COLUMNS = 64 };

/* Stores the driver's encoder in cuda->map_encoder; NULL if the driver has none. */
void tensor_map_find(CudaDevice *cuda);
/* Makes a map of x (B, T, heads * head_size), of 16-bit elements, with x.ld elements between rows.
 * Its dimensions, from the innermost: column of the head (head_size), head, token (T), batch row
 * (B). A box has 64 columns of one head for `rows` tokens (at most 256) of one batch row; in shared
 * memory it is `rows` lines of 128 bytes, swizzled by 128. Tokens outside [0, T) read as 0. The
 * address of x and its row stride must be multiples of 16 bytes, and head_size a multiple of 64.
 * Ends the program with EXIT_SYSTEM if the driver has no encoder or refuses. */
void tensor_map_heads(const Device *dev, CUtensorMap *map, Tensor x, int64_t heads,
                      int64_t head_size, int rows);

#ifdef __cplusplus
}
#endif

#endif
