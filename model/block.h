/* block.h -- a transformer block: attention half, mlp half, pre-norm residuals; and what recompute
 * keeps of it. */
#ifndef MODEL_BLOCK_H
#define MODEL_BLOCK_H

#include "model/attention.h"
#include "model/mlp.h"

typedef struct {
    int unit;
    AttentionRows attention;
    MlpRows mlp;
} Block;

typedef struct {
    AttentionActs attention;
    MlpActs mlp;
    Tensor middle; /* (N, C): the residual stream between the halves */
} BlockActs;

/* Adds the rows of block `index` to the table as unit `unit`; fills `block` with their places. */
void block_add_params(Block *block, ParamTable *table, const GptShape *shape, int index, int unit);

/* Fields that the policy keeps come from `saved` (one slot per block), the others from `shared`
 * (one for all blocks). */
void block_layout(BlockActs *acts, const GptShape *shape, int64_t B, int64_t T,
                  RecomputePolicy policy, Arena *saved, Arena *shared);

/* y (N, C) = block(x (N, C)). The unit is acquired. */
void block_forward(const Pass *pass, const Block *block, BlockActs *acts, Tensor x, Tensor y);
/* d (N, C): dy in, dx out. Unit and gradient are acquired; acts as forward left them. */
void block_backward(const Pass *pass, const Block *block, const BlockActs *acts, Tensor x, Tensor d,
                    bool accumulate);

#endif
