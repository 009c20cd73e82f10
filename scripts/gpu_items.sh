# gpu_items.sh -- the items of gpu_check.sh: their names, time limits and commands. Sourced by that script.
# shellcheck shell=bash

# Grids of ranks that must train like one rank. nccl.GPUS.NAME runs this number of ranks on GPUS GPUs, with these config keys.
# nccl.hosts.RANKS.NAME runs processes on one GPU, which NCCL takes for ranks on different machines.
grids=( # item | ranks | keys
    "nccl.1.ddp|2|"
    "nccl.1.zero1|2|zero_optimization.stage=1"
    "nccl.1.zero2|2|zero_optimization.stage=2"
    "nccl.1.zero3|2|zero_optimization.stage=3"
    "nccl.1.shard|4|zero_optimization.stage=3 parallel.shard=2"
    "nccl.1.host|2|zero_optimization.stage=2 zero_optimization.offload_optimizer.device=cpu"
    "nccl.1.tp2|2|parallel.tensor=2"
    "nccl.1.pp2|2|parallel.pipeline=2"
    "nccl.1.tp2pp2|4|parallel.tensor=2 parallel.pipeline=2"
    "nccl.2.ddp|2|"
    "nccl.2.zero1|2|zero_optimization.stage=1"
    "nccl.2.zero2|2|zero_optimization.stage=2"
    "nccl.2.zero3|2|zero_optimization.stage=3"
    "nccl.2.tp2|2|parallel.tensor=2"
    "nccl.2.pp2|2|parallel.pipeline=2"
    "nccl.4.ddp|4|"
    "nccl.4.zero1|4|zero_optimization.stage=1"
    "nccl.4.zero2|4|zero_optimization.stage=2"
    "nccl.4.zero3|4|zero_optimization.stage=3"
    "nccl.4.tp2|4|parallel.tensor=2"
    "nccl.4.pp2|4|parallel.pipeline=2"
    "nccl.4.tp2pp2|4|parallel.tensor=2 parallel.pipeline=2"
    "nccl.hosts.2.ddp|2|"
    "nccl.hosts.2.zero3|2|zero_optimization.stage=3"
    "nccl.hosts.2.tp2|2|parallel.tensor=2"
    "nccl.hosts.2.pp2|2|parallel.pipeline=2"
    "nccl.hosts.2.zero1|2|zero_optimization.stage=1"
    "nccl.hosts.4.tp2|4|parallel.tensor=2"
    "nccl.hosts.4.pp2|4|parallel.pipeline=2"
    "nccl.hosts.4.zero3|4|zero_optimization.stage=3"
    "nccl.hosts.4.ddp|4|"
    "nccl.hosts.4.zero1|4|zero_optimization.stage=1"
)
# add_grids PATTERN: adds the items of the grids whose names fit the pattern
add_grids() {
    local line name ranks keys gpus ways limit
    for line in "${grids[@]}"; do
        IFS='|' read -r name ranks keys <<<"$line"
        # shellcheck disable=SC2053 # a pattern
        [[ $name == $1 ]] || continue
        gpus=${name#nccl.} gpus=${gpus%%.*} limit=60
        case $gpus in
        hosts) ways="processes on one GPU, by NCCL over the loopback" limit=40 ;;
        1) ways="ranks that share one GPU" ;;
        *) ways="ranks, a GPU each, by NCCL" ;;
        esac
        items+=("$name|$limit|grid $gpus $ranks $keys|$ranks $ways${keys:+, }$keys: the losses of one rank")
    done
}

# The probes of the maps that attention for Hopper (hopper_*.cu) assumes, and those of their verdicts that must be "match". The
# others are about what no kernel uses, such as other swizzles, or columns of B along K beside A in registers.
maps=fragments_wgmma,fragments_wgmma_registers,fragments_tma,ring_tma
verdicts=$(printf '%s\n' \
    wgmma.d.m64n{64,128}k16.expected \
    wgmma.{a,b}.k.sw128{,.start_plus_{32,64,96}}.expected \
    wgmma.b.mn.sw128.expected \
    wgmma.a.registers.{bf16,f16}.expected \
    wgmma.product.{bf16,f16}.{shared.n{64,128}.k,registers.n{64,128}.mn} \
    tma.sw128.expected \
    tma.heads.{16,64,128}.{inside,past_last_token,before_first_token,outside} \
    ring.sums.{1,2,3,32,35} | paste -sd ,)

# The cheapest and most informative items come first. The limits, in seconds, are several times the expected time on 16 cores
# and one H100, and at most 60, so an item that hangs costs a minute. Their sum and the build exceed the total limit. Items for
# which no time is left are skipped, and their lines say so.
small_probes=cublaslt_gelu,cublaslt_bias_gradient,cublaslt_operands,cublaslt_splitk,cublaslt_repeat
items=( # name | limit | command | what
    "ptx|15|programs cuda/test_ptx cuda/test_ptx_memory cuda/test_activations|every PTX wrapper: which thread holds which element, copies, arithmetic; activations before rounding"
    "probe|60|probes cublaslt|cuBLASLt's epilogues and plans: which exist, their kernels' names and times"
    "hopper.maps|30|hopper probes $maps $verdicts|attention for Hopper, first: the maps of wgmma, of its operands in registers and of TMA's boxes, and a ring of stages; fails if one that its kernels use differs or is missing"
    "hopper.cases|60|hopper sweep cuda/test_hopper_forward cuda/test_hopper_backward cuda/test_hopper_biases|attention for Hopper against the portable kernels and the oracle: odd lengths, groups of heads, documents, offsets"
    "hopper.models|30|hopper programs cuda/test_hopper_choice|gradients of whole models with attention for Hopper; recomputation, reruns and resumed runs bit for bit"
    "nccl.self|20|programs cuda/test_nccl_self|NCCL's functions as the program declares them: three communicators of one rank, each verb, groups, streams"
    "bits|20|programs kernels/test_ops_step kernels/test_ops_spikes kernels/test_ops_rounding cuda/test_ops_cuda cuda/test_ops_cuda_updates cuda/test_ops_cuda_tables|optimizers, initial weights and step decisions equal the CPU's bit for bit"
    "ops|60|programs kernels/test_ops|every op, dtype and odd shape against the oracle"
    "ops.more|40|programs kernels/test_ops_gelu kernels/test_ops_residual kernels/test_ops_loss kernels/test_ops_named kernels/test_ops_normal kernels/test_ops_doors kernels/test_ops_attention kernels/test_ops_copy kernels/test_ops_sum kernels/test_ops_maximum kernels/test_ops_loss_cut kernels/test_ops_slices kernels/test_ops_hash kernels/test_ops_wide kernels/test_op_record|GELU epilogues, residuals, losses with one large logit, initial weights, sums and maxima of several tensors, losses cut by columns, slices of tensors, hashes, tables of more than 65,536 rows, what ops are recorded with"
    "ops.shapes|30|programs cuda/test_ops_cuda_attention cuda/test_ops_cuda_portions|attention at the borders of tiles; ops that work in several portions"
    "gradients|40|programs cuda/test_model_cuda model/test_recompute|the whole model's gradients beside the CPU's, f32 and 16 bits; recompute"
    "goldens|20|programs model/test_golden|logits, gradients and 20 losses against PyTorch's"
    "offload|40|programs parallel/trainer/test_offload parallel/trainer/test_async_device|optimizer states on the host: the bits of states on the device, what is held, saves"
    "trainer|40|programs parallel/trainer/test_trainer parallel/trainer/test_device cuda/test_cuda_ahead|resume at every step bit for bit; a step neither waits nor allocates"
    "ranks|40|programs cuda/test_cuda_ranks cuda/test_cuda_streams cuda/test_cuda_flight|ranks as threads that share the GPU: dp 2, tp 2, pp 2 and more train: reruns bit for bit, the CPU's losses"
)
add_grids 'nccl.[0-9]*'
items+=(
    "nccl.2.streams|40|each 2 programs cuda/test_cuda_gpus|collectives and messages on three streams at once, ranks with a GPU each"
    "hopper.speed|60|hopper speed|attention for Hopper, last: its time beside the portable kernels' and PyTorch's"
    "runs|60|runs|300 steps beside the CPU's curve; three reruns, resumed runs and recompute bit for bit"
)
add_grids 'nccl.hosts.*'
items+=(
    "host.states|30|probes host_states|page-locked memory of the host: rates of kernels by number of blocks and of copies, what an update costs products"
    "epilogues|60|probes $small_probes|cuBLASLt's GELU, bias gradients, operands, split sums, repeats: what they compute"
    "memcheck|60|sanitizer memcheck --report-api-errors no|compute-sanitizer memcheck over cases of every op, as many as time allows"
    "racecheck|60|sanitizer racecheck|compute-sanitizer racecheck over cases of every op, as many as time allows"
)
