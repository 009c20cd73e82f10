/* hopper_backward.cuh -- contains what the two kernels of attention backward on Hopper share. They
 * have the formulas and the division of work of flash_backward.cuh: blocks of the first own queries
 * and compute dq and delta, blocks of the second own keys and compute dk and dv.
 *
 * A block has two consumers (hopper.cuh), each of which owns 64 of the block's 128 rows, and a
 * producer. A consumer's scores have the owned rows as rows, so rounded to T they are the left
 * operand of the next product, straight from registers:
 *
 *   dq:      P = exp(Q K^T - lse), dP = dO V^T, dS = P (dP - delta), dQ += dS K
 *   dk, dv:  P^T from K Q^T, dP^T = V dO^T, dS^T as above, dV += P^T dO, dK += dS^T Q
 *
 * So the consumers exchange no data, and every sum has one owner and a fixed order. */
#ifndef MODEL_KERNELS_CUDA_HOPPER_BACKWARD_CUH
#define MODEL_KERNELS_CUDA_HOPPER_BACKWARD_CUH

#include "model/kernels/cuda/flash_backward.cuh"
#include "model/kernels/cuda/hopper_bias.cuh"

/* The launch gives each thread of the three warpgroups 168 registers. They are then divided anew:
 * 240 for the threads of the two consumers and 24 for those of the producer, as 2 * 240 + 24 = 3 *
 * 168. */
enum {
    BACKWARD_CONSUMERS = 2,
    BACKWARD_THREADS = (BACKWARD_CONSUMERS + 1) * WARPGROUP,
    BACKWARD_OWNED = BACKWARD_CONSUMERS * GROUP_ROWS,
    BACKWARD_STAGES = 2,
    CONSUMER_REGISTERS = 240,
    PRODUCER_REGISTERS = 24
};

/* Rows of a tile that the blocks walk over. */
#define BACKWARD_WALKED(D) ((D) == 64 ? 128 : 64)

/* Tensor maps of the operands that the two kernels load by bulk copies, in boxes of GROUP_ROWS
 * rows. */
struct BackwardMaps {
    CUtensorMap q, k, v, dout;
};

typedef Ring<BACKWARD_STAGES> BackwardRing;

/* Starts the copies of ROWS rows of one head as tile_load does. A tile of more rows than a box has
 * is loaded box by box. This is possible only for tiles of one panel, because only there the boxes
 * are adjacent. */
template <int ROWS, int D>
static __device__ __forceinline__ void boxes_load(unsigned char *tile, const CUtensorMap *map,
                                                  uint64_t *full, int head, int token, int b)
{
    static_assert(ROWS == GROUP_ROWS || D == PANEL, "the boxes of a panel are adjacent");
#pragma unroll
    for (int row = 0; row < ROWS; row += GROUP_ROWS)
        tile_load<GROUP_ROWS, D>(tile + row * PANEL_ROW, map, full, head, token + row, b);
}

/* Returns how many consumers own at least one existing row, if `rows` rows exist from the block's
 * first row on. The other consumers have nothing to do. */
static __device__ __forceinline__ int consumers_of(int rows)
{
    return min((rows + GROUP_ROWS - 1) / GROUP_ROWS, (int)BACKWARD_CONSUMERS);
}

/* Loads the consumers' rows of x and y: for each consumer, its rows of x and then its rows of y. */
template <int D>
static __device__ __forceinline__ void owned_load(unsigned char *tiles, int consumers,
                                                  const CUtensorMap *x, const CUtensorMap *y,
                                                  uint64_t *full, int head, int token, int b)
{
    enum { BYTES = TILE_BYTES(GROUP_ROWS, D) };
    mbarrier_expect(full, 2 * consumers * BYTES);
#pragma unroll 1
    for (int i = 0; i < consumers; i++, tiles += 2 * BYTES, token += GROUP_ROWS) {
        tile_load<GROUP_ROWS, D>(tiles, x, full, head, token, b);
        tile_load<GROUP_ROWS, D>(tiles + BYTES, y, full, head, token, b);
    }
}

/* The barriers of a block: `own` is full when the owned rows have arrived; `full` and `empty` are
 * those of the stages. */
struct BackwardBarriers {
    uint64_t own, full[BACKWARD_STAGES], empty[BACKWARD_STAGES];
};

/* Prepares the barriers. `fills` is the number of arrivals that make a stage full. All threads must
 * call it. */
static __device__ __forceinline__ void barriers_begin(BackwardBarriers *barriers, int fills,
                                                      int consumers)
{
    if (threadIdx.x == 0) {
        mbarrier_init(&barriers->own, 1);
#pragma unroll
        for (int i = 0; i < BACKWARD_STAGES; i++) {
            mbarrier_init(barriers->full + i, fills);
            mbarrier_init(barriers->empty + i, consumers * GROUP_WARPS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
}

/* Returns the row, among those of its warpgroup, at which the rows of the thread's warp begin. */
static __device__ __forceinline__ int warp_row()
{
    return (int)threadIdx.x % WARPGROUP / WARP * 16;
}

/* Calls f(t, width) with the storage type, as TypeName, and the head size, as Width. */
template <class F> static void with_hopper_types(const BackwardCall *c, F f)
{
    auto of_type = [&](auto t) {
        if (c->shape.head_size == 64)
            f(t, Width<64>{});
        else
            f(t, Width<128>{});
    };
    if (c->t->q.dtype == BF16)
        of_type(TypeName<bf16>{});
    else
        of_type(TypeName<f16>{});
}

/* The partial sums for the bias of q (`q`), and for the biases of k and v (`kv`). A row of `kv` has
 * the G D columns of k and then the G D columns of v. */
struct BackwardBiases {
    BiasPartials q, kv;
};

/* Launch the kernels of `pairs` (batch row, kv head) pairs from pair0 on. hopper_backward_query
 * computes dq, and the delta of all query heads of these pairs. hopper_backward_key then reads
 * delta and computes dk and dv. */
extern "C" {
void hopper_backward_query(Device *dev, const BackwardCall *c, const BackwardMaps *maps,
                           const BackwardBiases *biases, int pair0, int pairs);
void hopper_backward_key(Device *dev, const BackwardCall *c, const BackwardMaps *maps,
                         const BackwardBiases *biases, int pair0, int pairs);
}

#endif
