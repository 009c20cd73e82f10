/* block.c -- implements block.h: adds a block's parameters, and runs the forward pass,
 * recomputation and backward pass of its two halves. */
#include "model/block.h"

#include <math.h>
#include <stdio.h>

/* Values that are the same for all parameters of a block while they are added. */
typedef struct {
    ParamTable *table;
    const GptShape *shape;
    int index, unit, pack;
} Adding;

static int add_row(const Adding *a, const char *what, ParamSpec spec)
{
    char name[64];
    snprintf(name, sizeof name, "block.%d.%s", a->index, what);
    spec.name = name;
    return param_table_add(a->table, a->unit, a->shape->dtype, &spec);
}

/* Adds a weight matrix (rows, cols). pack < 0: it is alone in its pack. */
static int add_matrix(const Adding *a, const char *what, int pack, int64_t rows, int64_t cols,
                      double std, bool row_cut, TpGrad tp_grad)
{
    return add_row(a, what,
                   (ParamSpec){.pack = pack,
                               .rows = rows,
                               .cols = cols,
                               .tp_dim = row_cut ? 1 : 0,
                               .tp_grad = tp_grad,
                               .group = GROUP_DECAY,
                               .init = INIT_NORMAL,
                               .std = std});
}

/* Adds a vector: the weight or bias of a norm (replicated), or the bias of a linear layer (split
 * like the matrix's rows, or replicated). */
static int add_vector(const Adding *a, const char *what, int pack, int64_t rows, Init init,
                      int tp_dim, TpGrad tp_grad)
{
    ParamGroup group = a->shape->decay_on == DECAY_ON_ALL ? GROUP_DECAY : GROUP_NO_DECAY;
    return add_row(a, what,
                   (ParamSpec){.pack = pack,
                               .rows = rows,
                               .tp_dim = tp_dim,
                               .tp_grad = tp_grad,
                               .group = group,
                               .init = init});
}

/* Numbers of the packs in a block. A pack is a set of adjacent matrices that one product reads. The
 * number need be unique only within the parameter unit, which here is one block. */
enum { PACK_QKV, PACK_QKV_BIAS, PACK_KV, PACK_KV_BIAS, PACK_UP, PACK_UP_BIAS };

/* Returns whether tensor-parallel ranks share kv heads. If so, the ranks that share a head sum
 * their gradients of it, and k and v form their own pack. */
static bool kv_shared(const Adding *a)
{
    return a->shape->G < a->table->tp;
}

static void add_matrices(const Adding *a, Block *block)
{
    const GptShape *s = a->shape;
    /* Two matrices of each block write to the residual stream. They start with smaller weights, so
     * that the stream's variance does not grow with the number of blocks (GPT-2, section 2.3). */
    double std = s->init_std, residual = s->init_std / sqrt(2.0 * (double)s->L);
    int64_t q = s->H * s->D, k = s->G * s->D;
    bool gated = s->activation == ACTIVATION_SWIGLU;
    bool shared = kv_shared(a);
    int kv_pack = shared ? PACK_KV : PACK_QKV;
    TpGrad cut = TP_GRAD_CUT, kv_grad = shared ? TP_GRAD_SUBGROUP : cut;
    /* Rows of a pack must be adjacent, so they must have the same tp_grad and the same optimizer
     * group. If the tp_grad of k and v differs from that of q, two products are used. */
    LinearParams *qkv = block->attention.qkv;
    block->attention.n_qkv = shared ? 2 : 1;
    qkv[0] = (LinearParams){.bias = -1, .rows = shared ? 1 : 3};
    qkv[1] = (LinearParams){.bias = -1, .rows = 2};
    qkv[0].weight = add_matrix(a, "attn.q.weight", PACK_QKV, q, s->C, std, false, cut);
    qkv[1].weight = add_matrix(a, "attn.k.weight", kv_pack, k, s->C, std, false, kv_grad);
    add_matrix(a, "attn.v.weight", kv_pack, k, s->C, std, false, kv_grad);
    block->attention.out = (LinearParams){.bias = -1, .rows = 1};
    block->attention.out.weight =
        add_matrix(a, "attn.out.weight", -1, s->C, q, residual, true, cut);
    block->mlp.up = (LinearParams){.bias = -1, .rows = gated ? 2 : 1};
    /* The gate comes first, because op_activation_forward reads gate | up. */
    if (gated)
        block->mlp.up.weight =
            add_matrix(a, "mlp.gate.weight", PACK_UP, s->F, s->C, std, false, cut);
    int up = add_matrix(a, "mlp.up.weight", PACK_UP, s->F, s->C, std, false, cut);
    if (!gated) block->mlp.up.weight = up;
    block->mlp.down = (LinearParams){.bias = -1, .rows = 1};
    block->mlp.down.weight = add_matrix(a, "mlp.down.weight", -1, s->C, s->F, residual, true, cut);
}

static void add_attention_biases(const Adding *a, Block *block)
{
    const GptShape *s = a->shape;
    if (s->attention_bias == ATTENTION_BIAS_NONE) return;
    int64_t q = s->H * s->D, k = s->G * s->D;
    int kv_pack = kv_shared(a) ? PACK_KV_BIAS : PACK_QKV_BIAS;
    TpGrad kv_grad = kv_shared(a) ? TP_GRAD_SUBGROUP : TP_GRAD_CUT;
    LinearParams *qkv = block->attention.qkv;
    qkv[0].bias = add_vector(a, "attn.q.bias", PACK_QKV_BIAS, q, INIT_ZERO, 0, TP_GRAD_CUT);
    qkv[1].bias = add_vector(a, "attn.k.bias", kv_pack, k, INIT_ZERO, 0, kv_grad);
    add_vector(a, "attn.v.bias", kv_pack, k, INIT_ZERO, 0, kv_grad);
    if (s->attention_bias == ATTENTION_BIAS_ALL)
        block->attention.out.bias =
            add_vector(a, "attn.out.bias", -1, s->C, INIT_ZERO, -1, TP_GRAD_PARTIAL_IF_SP);
}

static void add_mlp_biases(const Adding *a, Block *block)
{
    const GptShape *s = a->shape;
    int gate = -1;
    if (!s->mlp_bias) return;
    if (s->activation == ACTIVATION_SWIGLU)
        gate = add_vector(a, "mlp.gate.bias", PACK_UP_BIAS, s->F, INIT_ZERO, 0, TP_GRAD_CUT);
    int up = add_vector(a, "mlp.up.bias", PACK_UP_BIAS, s->F, INIT_ZERO, 0, TP_GRAD_CUT);
    block->mlp.up.bias = gate >= 0 ? gate : up;
    block->mlp.down.bias =
        add_vector(a, "mlp.down.bias", -1, s->C, INIT_ZERO, -1, TP_GRAD_PARTIAL_IF_SP);
}

static void add_norms(const Adding *a, Block *block)
{
    const GptShape *s = a->shape;
    bool bias = s->norm_bias && s->norm.kind == NORM_LAYERNORM;
    block->attention.norm.weight =
        add_vector(a, "attn.norm.weight", -1, s->C, INIT_ONE, -1, TP_GRAD_PARTIAL_IF_SP);
    block->mlp.norm.weight =
        add_vector(a, "mlp.norm.weight", -1, s->C, INIT_ONE, -1, TP_GRAD_PARTIAL_IF_SP);
    block->attention.norm.bias = block->mlp.norm.bias = -1;
    if (bias) {
        block->attention.norm.bias =
            add_vector(a, "attn.norm.bias", -1, s->C, INIT_ZERO, -1, TP_GRAD_PARTIAL_IF_SP);
        block->mlp.norm.bias =
            add_vector(a, "mlp.norm.bias", -1, s->C, INIT_ZERO, -1, TP_GRAD_PARTIAL_IF_SP);
    }
    block->attention.q_norm = block->attention.k_norm = (NormParams){-1, -1};
    if (s->qk_norm) {
        block->attention.q_norm.weight =
            add_vector(a, "attn.q_norm.weight", -1, s->D, INIT_ONE, -1, TP_GRAD_PARTIAL);
        block->attention.k_norm.weight =
            add_vector(a, "attn.k_norm.weight", -1, s->D, INIT_ONE, -1, TP_GRAD_PARTIAL);
    }
}

void block_add_params(Block *block, ParamTable *table, const GptShape *shape, int index, int unit)
{
    Adding a = {.table = table, .shape = shape, .index = index, .unit = unit};
    block->unit = unit;
    block->index = index;
    add_matrices(&a, block);
    add_attention_biases(&a, block);
    add_mlp_biases(&a, block);
    add_norms(&a, block);
}

void block_layout(BlockActs *acts, const GptShape *s, int64_t B, int64_t T, RecomputePolicy policy,
                  Arena *saved, Arena *shared)
{
    Arena *kept = policy == RECOMPUTE_FULL ? shared : saved;
    Arena *remade = policy == RECOMPUTE_NONE ? saved : shared;
    attention_layout(&acts->attention, s, B, T, kept, remade, shared);
    acts->middle = arena_tensor(kept, s->dtype, 2, shape_stream_rows(s, B * T), s->C, 0);
    mlp_layout(&acts->mlp, s, B * T, kept, remade, shared);
}

void block_backward_layout(const GptShape *s, int64_t N, Arena *scratch)
{
    size_t mark = arena_mark(scratch);
    mlp_backward_layout(s, N, scratch);
    arena_rewind(scratch, mark); /* the two halves run one after the other */
    attention_backward_layout(s, N, scratch);
    arena_rewind(scratch, mark);
}

/* Adds the result of attention_forward, summed over the tensor-parallel ranks, to the residual
 * stream, and computes the norm of the MLP half. */
static void add_and_norm(const Pass *pass, const Block *block, BlockActs *acts, Tensor x)
{
    NormTensors norm = norm_bind(pass->store, &block->mlp.norm, false);
    Linear out = linear_bind(pass->store, &block->attention.out, false, false);
    op_residual_norm_forward(pass->dev, acts->middle, acts->mlp.normed, acts->mlp.stats, x,
                             region_rows(pass->tp, acts->attention.out), out.bias, norm.weight,
                             norm.bias, pass->shape->norm);
}

/* Runs the part of forward that computes all fields that backward reads. */
static void forward_before_down(const Pass *pass, const Block *block, BlockActs *acts, Tensor x)
{
    KvCache *cache = pass->caches ? &pass->caches[block->index] : NULL;
    attention_forward(pass, &block->attention, &acts->attention, x, acts->middle, cache);
    if (pass->shape->tp == 1)
        norm_forward(pass, &block->mlp.norm, acts->mlp.normed, acts->mlp.stats, acts->middle);
    else
        add_and_norm(pass, block, acts, x);
    mlp_forward_up(pass, &block->mlp, &acts->mlp);
}

void block_forward(const Pass *pass, const Block *block, BlockActs *acts, Tensor x, Tensor y)
{
    forward_before_down(pass, block, acts, x);
    mlp_forward_down(pass, &block->mlp, &acts->mlp, acts->middle, y);
}

void block_recompute(const Pass *pass, const Block *block, BlockActs *acts, Tensor x)
{
    switch (pass->shape->recompute) {
    case RECOMPUTE_NONE: return;
    case RECOMPUTE_SELECTIVE:
        /* Forward kept the residual stream, q | k | v and the values before the activation.
         * Everything else is recomputed from these without a matrix product. */
        attention_recompute(pass, &block->attention, &acts->attention, x);
        mlp_recompute(pass, &block->mlp, &acts->mlp, acts->middle);
        return;
    case RECOMPUTE_FULL: forward_before_down(pass, block, acts, x); return;
    }
}

void block_backward(const Pass *pass, const Block *block, const BlockActs *acts, Tensor x,
                    ResidualGrad *grad, bool accumulate)
{
    /* The residual path passes the gradient unchanged, and each half adds its own gradient to
     * it. */
    mlp_backward(pass, &block->mlp, &acts->mlp, acts->middle, grad, accumulate);
    attention_backward(pass, &block->attention, &acts->attention, x, grad, accumulate);
}
