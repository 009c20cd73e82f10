/* block.h -- a transformer block with pre-norm: an attention half and an MLP half, each added to
 * the residual stream; also which activations are kept for backward. */
#ifndef MODEL_BLOCK_H
#define MODEL_BLOCK_H

#include "model/attention.h"
#include "model/mlp.h"

typedef struct {
    /* unit: number of its parameter unit (param.h). index: 0 for the first block. */
    int unit, index;
    AttentionParams attention;
    MlpParams mlp;
} Block;

typedef struct {
    AttentionActs attention;
    MlpActs mlp;
    Tensor middle; /* (S, C): the residual stream between the two halves */
} BlockActs;

/* Adds the parameters of block `index` to the table, as unit number `unit`, and records their rows
 * in `block`. */
void block_add_params(Block *block, ParamTable *table, const GptShape *shape, int index, int unit);

/* Places the activations. Fields that the policy keeps are placed in `saved`, where each block has
 * its own memory, the others in `shared`, which all blocks use in turn. The selective policy keeps
 * the results of matrix products, attention and the residual add. It recomputes the norms' outputs
 * and the MLP's activation, which only backward needs and which are cheap to compute. */
void block_layout(BlockActs *acts, const GptShape *shape, int64_t B, int64_t T,
                  RecomputePolicy policy, Arena *saved, Arena *shared);

/* For the memory plan: takes as much memory from `scratch` as block_backward does, and gives it
 * back. The plan reads the peak of an arena that only measures. */
void block_backward_layout(const GptShape *shape, int64_t N, Arena *scratch);

/* Computes y (S, C) = block(x (S, C)). The caller has acquired the block's weights from the
 * store. */
void block_forward(const Pass *pass, const Block *block, BlockActs *acts, Tensor x, Tensor y);
/* Recomputes, before block_backward, the activations that backward reads and that the policy did
 * not keep, from forward's x. With the policy `full`, it runs forward again up to the MLP's down
 * product, which is left out. The caller has acquired the block's weights. */
void block_recompute(const Pass *pass, const Block *block, BlockActs *acts, Tensor x);
/* Runs the backward pass. On entry, grad is dy; on return, dx. The caller has acquired the block's
 * weights and gradients; acts are as forward or recompute left them. Weight gradients are added
 * (+=) if `accumulate`, else written (=). */
void block_backward(const Pass *pass, const Block *block, const BlockActs *acts, Tensor x,
                    ResidualGrad *grad, bool accumulate);

#endif
