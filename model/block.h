/* block.h -- a transformer block: attention half, mlp half, pre-norm residuals; and what recompute
 * keeps of it. */
#ifndef MODEL_BLOCK_H
#define MODEL_BLOCK_H

#include "model/attention.h"
#include "model/mlp.h"

typedef struct {
    int unit, index; /* index: 0 for the first block */
    AttentionParams attention;
    MlpParams mlp;
} Block;

typedef struct {
    AttentionActs attention;
    MlpActs mlp;
    Tensor middle; /* (S, C), S rows of the stream: the residual stream between the halves */
} BlockActs;

/* Adds the rows of block `index` to the table as unit `unit`; fills `block` with their places. */
void block_add_params(Block *block, ParamTable *table, const GptShape *shape, int index, int unit);

/* Fields that the policy keeps come from `saved` (one slot per block), the others from `shared`
 * (one for all blocks). Selective keeps what products, attention and the residual sum made; the
 * norms' outputs and the mlp's activation are read again by backward alone and cheap to make. */
void block_layout(BlockActs *acts, const GptShape *shape, int64_t B, int64_t T,
                  RecomputePolicy policy, Arena *saved, Arena *shared);

/* Takes from `scratch` what block_backward takes of it, and gives it back: for the plan, which
 * reads the peak of a measuring arena. */
void block_backward_layout(const GptShape *shape, int64_t N, Arena *scratch);

/* y (S, C) = block(x (S, C)). The unit is acquired. */
void block_forward(const Pass *pass, const Block *block, BlockActs *acts, Tensor x, Tensor y);
/* Before block_backward: makes again what the shape's policy did not keep and backward reads, from
 * x as in forward; so full ends before the down product. The unit is acquired. */
void block_recompute(const Pass *pass, const Block *block, BlockActs *acts, Tensor x);
/* grad: dy in, dx out. Unit and gradient are acquired; acts as forward or recompute left them. */
void block_backward(const Pass *pass, const Block *block, const BlockActs *acts, Tensor x,
                    ResidualGrad *grad, bool accumulate);

#endif
