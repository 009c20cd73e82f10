"""kernels.py -- what scripts/sass_report.sh must know about the kernels and cannot read from machine code: how much work a hot
path does, how often its inner loops run, how many blocks must be resident, and which kernels a training step launches.

A change of a kernel's tiles or of the model's ops must be repeated here. The report ends with an error if a kernel no longer
exists or if the number of loops in its hot path differs."""
import collections
import math

# ---- models ----------------------------------------------------------------------------------------------------------
# L layers, C hidden size, H heads, G key-value heads, D head size, F width of the MLP, V vocabulary (padded), T tokens of a
# sequence, B sequences; gpt: LayerNorm, GELU and biases, else RMSNorm, SwiGLU and rotary positions.
Model = collections.namedtuple('Model', 'name L C H G D F V T B gpt')
MODELS = [
    Model('GPT-2 124M', 12, 768, 12, 12, 64, 3072, 50304, 1024, 64, True),
    Model('GPT-2 1558M', 48, 1600, 25, 25, 64, 6400, 50304, 1024, 16, True),
    Model('Llama 8B', 32, 4096, 32, 8, 128, 14336, 128256, 4096, 4, False),
]


def rows(m):
    return m.B * m.T


def qkv_width(m):
    return (m.H + 2 * m.G) * m.D


def up_width(m):
    return m.F if m.gpt else 2 * m.F


def parameters(m):
    """Returns the number of weights without the small vectors."""
    tables = m.V * m.C * (1 if m.gpt else 2) + (m.T * m.C if m.gpt else 0)
    return m.L * ((qkv_width(m) + m.H * m.D) * m.C + (up_width(m) + m.F) * m.C) + tables


def flops_per_token(m):
    """Returns the same number as gpt_flops_per_token (model/gpt.c): products forward and backward, causal attention."""
    return 6 * (m.L * ((qkv_width(m) + m.H * m.D) * m.C + (up_width(m) + m.F) * m.C) + m.V * m.C) + 6 * m.L * m.H * m.D * m.T


def visible_pairs(m):
    """Returns the number of (query, key) pairs in all heads of a layer in which the query sees the key."""
    return m.B * m.H * m.T * (m.T + 1) / 2


def tiles(m, owned, walked):
    """Returns the number of tiles that the blocks of all query heads of a layer walk, each of which owns `owned` rows."""
    return m.B * m.H * sum(math.ceil(min(first + owned, m.T) / walked) for first in range(0, m.T, owned))


# ---- kernels ---------------------------------------------------------------------------------------------------------
# name: of the row. file, kernel: its source and its name, as sass.short_name writes it. threads, shared: of a block; shared may
# depend on the model. blocks: how many must be resident on sm_80, sm_90a, sm_100. loops, trips, also: as in sass.hot_path.
# unit: the work of a hot path of a warp. units, elements, bytes, flops: of a launch, as functions of the model; only attention
# has flops. model: the model whose launch the table shows. archs: what it is compiled for.
Kernel = collections.namedtuple(
    'Kernel', 'name file kernel threads shared blocks loops trips also unit units elements bytes flops model archs')


def kernel(name, file, kernel_name, threads, blocks, unit, units, elements=None, moved=0, shared=0, loops=(), trips=(), also=(),
           flops=None, model=0, archs=('sm_80', 'sm_90a', 'sm_100')):
    """Returns a Kernel. moved: bytes per element, or a function of the model. shared, blocks: also one number for all."""
    per_element = moved if callable(moved) else lambda m: moved
    return Kernel(name, file, kernel_name, threads, shared if callable(shared) else lambda m: shared,
                  blocks if isinstance(blocks, tuple) else (blocks,) * 3, loops, trips, also, unit, units, elements,
                  lambda m: elements(m) * per_element(m) if elements else 0, flops, MODELS[model], archs)


def elementwise(name, file, kernel_name, blocks, elements, moved, pack=8, model=0):
    """A kernel whose threads process `pack` elements each, which take `moved` bytes each."""
    return kernel(name, file, kernel_name, 256, blocks, '%d x 32 elements' % pack, lambda m: elements(m) / (32 * pack),
                  elements, moved, also=('global',), model=model)


def norm(name, file, kernel_name, blocks, held, moved, model, block=True, **options):
    """A norm over rows of C elements, of which a thread holds `held` packs. The threads of a row are a block, else a warp."""
    def warps(m):
        return math.ceil(m.C / 8 / 32 / held)
    return kernel(name, file, kernel_name, 32 * warps(MODELS[model]) if block else 256, blocks,
                  "a warp's part of a row" if block else 'a row', lambda m: rows(m) * warps(m), hidden, moved, model=model,
                  **options)


def attention(name, file, kernel_name, blocks, owned, walked, held, products, trips, model):
    """Attention on tensor cores: four warps own `owned` rows and walk tiles of `walked` rows. A block keeps `held` rows in
    shared memory and computes `products` products of each tile. Loops inside: blocks that own keys search for the next tile,
    usually once, and at head size 64 compute a tile in two steps."""
    shared = held * (MODELS[model].D + 8) * 2 + (768 if '_key_' in kernel_name else 0)
    return kernel(name, file, kernel_name, 128, blocks, "a warp's tile, %d x %d" % (owned // 4, walked),
                  lambda m: 4 * tiles(m, owned, walked), shared=shared, loops=(1,), trips=trips,
                  flops=lambda m: products * 2 * m.D * visible_pairs(m), model=model)


def hopper(name, threads, owned, walked, shared, products, model):
    """Attention for Hopper: all but the last four warps of a block own 16 rows each, together `owned`, and walk tiles of `walked`
    rows. The last four load the tiles. One block is resident. It computes `products` products of each tile."""
    return kernel(name + ', head size %d' % MODELS[model].D, name, '%s_kernel<bf16,%d>' % (name, MODELS[model].D), threads, 1,
                  "a warp's tile, 16 x %d" % walked, lambda m: owned / 16 * tiles(m, owned, walked), shared=shared, loops=(1,),
                  flops=lambda m: products * 2 * m.D * visible_pairs(m), model=model, archs=('sm_90a',))


def hidden(m):
    return rows(m) * m.C


def inner(m):
    return rows(m) * m.F


def logits(m):
    return rows(m) * m.V


SUMS = ('shared', 'fp32')  # a thread's sums over rows, in registers or, of wide rows, in shared memory
KERNELS = [
    elementwise('activation_forward, GELU', 'elementwise', 'activation_forward_kernel<bf16,8,0>', 8, inner, 4),
    elementwise('activation_backward, GELU', 'elementwise', 'activation_backward_kernel<bf16,bf16,8,0>', 8, inner, 6),
    elementwise('gelu_of_sum', 'elementwise', 'gelu_of_sum_kernel<bf16,8>', 8, inner, 8),
    elementwise('activation_backward of an f32 product, GELU', 'elementwise', 'activation_backward_kernel<bf16,float,8,0>', 8,
                inner, 8),
    elementwise('activation_forward, squared ReLU', 'elementwise', 'activation_forward_kernel<bf16,8,1>', 8, inner, 4),
    elementwise('swiglu_forward', 'elementwise', 'swiglu_forward_kernel<bf16,8>', 8, inner, 6, model=2),
    elementwise('swiglu_backward', 'elementwise', 'swiglu_backward_kernel<bf16,8>', 6, inner, 10, model=2),
    elementwise('bias_residual', 'elementwise', 'bias_residual_kernel<bf16,8>', 8, hidden, 6),
    elementwise('rope', 'elementwise', 'rope_kernel<bf16,8>', 6, lambda m: rows(m) * (m.H + m.G) * m.D, 4, pack=16, model=2),
    elementwise('rows_fill', 'elementwise', 'rows_fill_kernel<bf16,8>', 8, hidden, 2),
    elementwise('fill', 'memory', 'fill_kernel<Pack<unsignedint,4>>', 8, hidden, 2),
    elementwise('copy, bf16', 'memory', 'copy_kernel<bf16,bf16,8>', 8, hidden, 4),
    elementwise('copy, f32 to bf16', 'memory', 'copy_kernel<bf16,float,4>', 8, hidden, 6, pack=4),
    kernel('sum, of each source', 'memory', 'sum_kernel<bf16,bf16,8>', 256, 7, '4 sources x 8 x 32', lambda m: hidden(m) / 1024,
           hidden, 2, loops=(1,)),
    kernel('maximum, of each source', 'memory', 'maximum_kernel<bf16,8>', 256, 6, '4 sources x 8 x 32', lambda m: hidden(m) / 1024,
           hidden, 2, loops=(1,)),
    norm('norm_forward', 'norm', 'norm_forward_kernel<bf16,8,false,false>', 4, 4, 4, 0, block=False,
         also=('shuffle',)),
    norm('norm_forward, a block a row', 'norm', 'norm_forward_kernel<bf16,8,false,true>', 8, 4, 4, 2, shared=128),
    norm('residual_norm_forward', 'norm', 'norm_forward_kernel<bf16,8,true,false>', 4, 4, 8, 0, block=False,
         also=('shuffle',)),
    norm('residual_norm_forward, a block a row', 'norm', 'norm_forward_kernel<bf16,8,true,true>', 8, 4, 8, 2, shared=128),
    norm('norm_backward', 'norm_backward', 'norm_backward_kernel<bf16,8,1,true>', 5, 1, 8, 0, shared=512,
         loops=(1,), trips=(0, 0), also=SUMS),
    norm('norm_backward, wide rows', 'norm_backward', 'norm_backward_kernel<bf16,8,2,true>', 2, 2, 8, 2,
         shared=512 + 16384,  # with the column sums for biases, which Llama 8B has not
         loops=(1,), trips=(0, 0), also=SUMS),
    kernel('column_sums', 'reduce', 'column_sums_kernel<bf16,8>', 256, 4, '4 x 8 x 32 elements',
           lambda m: rows(m) * qkv_width(m) / 1024, lambda m: rows(m) * qkv_width(m), 2, shared=8192, loops=(1,)),
    elementwise('token_forward', 'embedding', 'token_forward_kernel<bf16,8>', 8, hidden, 4),
    elementwise('position_add', 'embedding', 'position_add_kernel<bf16,8>', 8, hidden, 6),
    # The loops over the parts of frequent tokens come first.
    kernel('table_sums', 'embedding_backward', 'table_sums_kernel<bf16,float,4>', 256, 4, '8 x 4 x 32 elements', lambda m: hidden(m) / 1024,
           hidden, lambda m: 2 + 4 * m.V / rows(m), loops=(0, 0, 1)),
    attention('flash_forward, head size 64', 'flash_forward', 'flash_forward_kernel<bf16,64>', 2,
              128, 64, 256, 2, (), 0),
    attention('flash_forward, head size 128', 'flash_forward', 'flash_forward_kernel<bf16,128>', 2,
              128, 32, 192, 2, (), 2),
    attention('flash_backward_query, head size 64', 'flash_backward_query', 'flash_backward_query_kernel<bf16,64>', 2,
              128, 32, 384, 3, (), 0),
    attention('flash_backward_query, head size 128', 'flash_backward_query', 'flash_backward_query_kernel<bf16,128>', 2,
              64, 32, 256, 3, (), 2),
    attention('flash_backward_key, head size 64', 'flash_backward_key', 'flash_backward_key_kernel<bf16,64>', 2,
              128, 32, 384, 4, (1, 2), 0),
    attention('flash_backward_key, head size 128', 'flash_backward_key', 'flash_backward_key_kernel<bf16,128>', 2,
              64, 32, 256, 4, (1,), 2),
    hopper('hopper_forward', 512, 192, 128, 92160, 2, 0),
    hopper('hopper_forward', 384, 128, 128, 165888, 2, 2),
    hopper('hopper_backward_query', 384, 128, 128, 99400, 3, 0),
    hopper('hopper_backward_query', 384, 128, 64, 132168, 3, 2),
    hopper('hopper_backward_key', 384, 128, 128, 102472, 4, 0),
    hopper('hopper_backward_key', 384, 128, 64, 133704, 4, 2),
    kernel('loss', 'loss', 'loss_kernel<bf16,8,true>', 512, (1, 2, 2), '8 x 32 logits', lambda m: logits(m) / 256, logits, 4,
           shared=lambda m: 256 + 2 * m.V, loops=(1, 1)),
    kernel('loss, a row read twice', 'loss', 'loss_kernel<bf16,8,false>', 512, (2, 2, 2), '4 x 8 x 32 logits',
           lambda m: logits(m) / 1024, logits, 6, shared=256, loops=(1, 4), also=('mufu',), model=2),
    kernel('loss_max', 'loss_cut', 'loss_max_kernel<bf16,8>', 512, 2, '4 x 8 x 32 logits', lambda m: logits(m) / 1024, logits, 2,
           shared=256, loops=(1,), also=('int',)),
    kernel('loss_terms', 'loss_cut', 'loss_terms_kernel<bf16,8>', 512, 2, '4 x 8 x 32 logits', lambda m: logits(m) / 1024,
           logits, 2, shared=256, loops=(1,), also=('mufu',)),
    kernel('loss_finish', 'loss_cut', 'loss_finish_kernel<bf16,8>', 512, 4, '8 x 32 logits', lambda m: logits(m) / 256, logits, 4,
           shared=256, loops=(1,)),
    kernel('sq_norm, f32', 'sq_norm', 'sq_norm_kernel<float>', 128, 12, '16 x 32 weights',
           lambda m: parameters(m) / 512, parameters, 4, loops=(1,)),
    # Of f32 weights; its integers are its work.
    kernel('hash, f32', 'hash', 'hash_kernel<2>', 256, 4, '8 x 32 words',
           lambda m: parameters(m) / 512, parameters, 4, shared=256, loops=(1,), also=('int',)),
    # The loops over tiles; the loops inside, over a tile's weights, run four times. The loop in these draws at borders.
    kernel('adamw, f32 gradients', 'optimizer', 'adamw_kernel<bf16,float,float,4,ToNearest>', 256, 4, '4 x 4 x 32 weights',
           lambda m: parameters(m) / 512, parameters, 30, loops=(1,), trips=(4,)),
    kernel('adamw, stochastic', 'optimizer', 'adamw_kernel<bf16,bf16,float,4,Stochastic>', 256, 4, '4 x 4 x 32 weights',
           lambda m: parameters(m) / 512, parameters, 22, loops=(1,), trips=((4, 0),)),
    kernel('adamw, averages in bf16', 'optimizer', 'adamw_kernel<bf16,float,bf16,4,Stochastic>', 256, 3, '4 x 4 x 32 weights',
           lambda m: parameters(m) / 512, parameters, 22, loops=(1,), trips=((4, 0),)),
    kernel('sgd, f32 gradients', 'optimizer', 'sgd_kernel<bf16,float,4,ToNearest>', 256, 4, '4 x 4 x 32 weights',
           lambda m: parameters(m) / 512, parameters, 22, loops=(1,), trips=(4,)),
]

# ---- a training step -------------------------------------------------------------------------------------------------
def head_chunks(m, memory):
    """Returns how many chunks of logits a step computes on a GPU with `memory` bytes, and the rows of each, as
    configs/reader/settle.c and model/head.c choose them."""
    most = 256
    while 2 * most <= 16384 and 2 * most * 2 * m.V <= memory / 50:
        most *= 2
    chunks = math.ceil(rows(m) / most)
    return chunks, min(math.ceil(rows(m) / chunks / 256) * 256, rows(m))


def ranges(m):
    """Returns how many ranges of memory the optimizer updates. The weights of a range have the same weight decay and are split in
    the same way among tensor-parallel ranks: matrices, norms and, of GPT-2, the biases of q, k, v and up."""
    return (3 if m.gpt else 2) * m.L + 3


def step_kernels(m, memory):
    """Returns [(name of a kernel, launches, share of its units and bytes in each)] of one step of a bf16 model with f32 masters,
    one micro-batch, one rank, and no recomputation. The library's products also add biases and the residual stream and apply GELU."""
    narrow = m.C <= 32 * 32
    one_block = '' if narrow else ', a block a row'
    size = ', head size %d' % m.D
    norms, updates = math.ceil(ranges(m) / 160), math.ceil(ranges(m) / 54)
    step = [
        ('token_forward', 1, 1),
        ('table_sums', 1, 1),
        ('norm_forward' + one_block, 2 * m.L + 1, 1),
        ('norm_backward' + ('' if m.C <= 2048 else ', wide rows'), 2 * m.L + 1, 1),
        ('flash_forward' + size, m.L, 1),
        ('flash_backward_query' + size, m.L, 1),
        ('flash_backward_key' + size, m.L, 1),
        ('loss' if 2 * m.V <= 227 << 10 else 'loss, a row read twice', head_chunks(m, memory)[0],
         1 / head_chunks(m, memory)[0]),
        ('sq_norm, f32', norms, 1 / norms),
        ('adamw, f32 gradients', updates, 1 / updates),
    ]
    if m.gpt:
        positions = (2 + 4 * m.T / rows(m)) / (2 + 4 * m.V / rows(m))
        return step + [('table_sums', 1, positions), ('position_add', 1, 1), ('column_sums', m.L, 1),
                       ('column_sums', m.L, m.F / qkv_width(m))]
    return step + [('rope', 2 * m.L, 1), ('swiglu_forward', m.L, 1), ('swiglu_backward', m.L, 1)]


def small_launches(m):
    """Returns how many launches of a step take a few microseconds: sums of partial sums, of norms and of biases; sorting of tokens
    and positions; sums of losses and squares, constants, the decision."""
    return (2 * m.L + 1) + (4 * m.L + 7 if m.gpt else 0) + 7 + 4


def products(m, memory):
    """Returns how many products the library computes in the blocks and in the head."""
    return 12 * m.L, 3 * head_chunks(m, memory)[0]


def launches(m, memory):
    """Returns how many kernels and products of the library a step launches (counted by tests/emu/device/test_emu_step.c)."""
    return sum(n for _, n, _ in step_kernels(m, memory)) + small_launches(m), sum(products(m, memory))


def block_products(m):
    """Returns the operations of the matrix products of all blocks, forward and backward."""
    return rows(m) * 6 * m.L * ((qkv_width(m) + m.H * m.D) * m.C + (up_width(m) + m.F) * m.C)


def gelu_epilogue_bytes(m):
    """Returns the bytes that the products' GELU epilogue writes besides the products' own results, and the share of their time that
    adds to the products' time: an estimate of 48 us for GPT-2 124M, whose up product alone takes 485 us."""
    return (m.L * 2 * inner(m) if m.gpt else 0), 0.45


def head_products(m, memory):
    """Returns the operations of the three products of the head, and the factor by which incomplete tiles of 128 rows raise them."""
    chunks, chunk = head_chunks(m, memory)
    last = rows(m) - (chunks - 1) * chunk
    return rows(m) * 6 * m.V * m.C, 128 * ((chunks - 1) * math.ceil(chunk / 128) + math.ceil(last / 128)) / rows(m)


def head_gradient_bytes(m, memory):
    """Returns the bytes of all passes over the f32 gradient of the head's table; the first pass only writes it."""
    return (2 * head_chunks(m, memory)[0] - 1) * 4 * m.V * m.C
