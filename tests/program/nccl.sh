#!/usr/bin/env bash
# nccl.sh -- tests ranks with a GPU each, which communicate through NCCL: they are processes, unless --no-processes makes
# them threads; runs on four emulated GPUs are compared with a single rank; their checkpoints, the commands that open them, refused settings and failures are tested. Needs the program
# of the emulated build and its emulated NCCL.
. "$(dirname "$0")/lib.sh"
make_text
if ! EMU_DEVICES=4 "$TRAIN" doctor | grep -q 'emulated GPU'; then
    skip "nccl: four GPUs" "this is not the program of \`make CUDA=emu\`"
    finish
fi
library=$(dirname "$TRAIN")/libnccl.so.2
export EMU_DEVICES=4
steps=4
run=(--set device=cuda --set train_batch_size=8 --set train_micro_batch_size_per_gpu=2 --set gradient_accumulation_steps=auto
    --set parallel.timeout=60 --set "train_steps=$steps" --set eval.interval=4 --set eval.steps=2 --set eval.sample_interval=0
    --set checkpoint.save_interval=2 --set checkpoint.keep=0 --set cpu.threads=1 --set scheduler.type=Constant)

# near NAME A B: expects the same steps and evaluations, with losses that differ only by the rounding of f32
near() {
    figures "$2" >figures.a
    figures "$3" >figures.b
    paste -d ' ' figures.a figures.b | awk -v steps=$steps -v name="$1" '
        $1 != $4 || $2 != $5 || !($3 > 0) || ($3 > $6 ? $3 - $6 : $6 - $3) > 2e-5 * $3 { bad = bad "; " $0 }
        END { if (NR <= steps) bad = bad "; only " NR " figures"
              if (bad) { print "not ok " name bad; exit 1 } else print "ok " name }' || failures=$((failures + 1))
}

# failed_as NAME PATTERN: expects exactly one error message in the output, and that it matches the pattern
failed_as() {
    check "$1: one error message is printed" test "$(grep -Ec '^(error|bug)\[' output)" -eq 1
    check "$1: the error message names the cause" grep -Eq "$2" output
}

# Everything that a real driver and a real NCCL may do to ranks that are threads: calls that allocate memory or load kernels
# wait for all devices and keep other threads from enqueuing, hosts are delayed, NCCL's calls meet no more than they must. So
# a kernel that is loaded, or memory that is page-locked, after NCCL has connected may let the run hang; both are refused.
unkind=(env EMU_STREAMS=random EMU_MEMORY_CALLS=lock EMU_JITTER=$((${TEST_TURN:-0} % 1000)) EMU_SEED=$((${TEST_TURN:-0} % 1000))
    EMU_NCCL_CONNECT=ring EMU_NCCL_LEAVE=early EMU_NCCL_RESERVE=4096 EMU_LOADS=before)
# Such ranks must be threads: of another process the emulated driver knows nothing.
threads=(--ranks 4 --no-processes)

# ---- grids ---------------------------------------------------------------------------------------------------------------
EMU_STARTED=$PWD/started expect_code "nccl: a run on one GPU succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --out one
# The driver starts in the process that looks for devices, too.
check "nccl: the driver of one rank starts as it is" test "$(sort -u started)" = 'default connections'
rm -f started
while read -r name how options; do
    read -ra options <<<"$options"
    expect_code "nccl: a run with $name succeeds" 0 "${unkind[@]}" "$TRAIN" "$TINY" "${run[@]}" "${threads[@]}" "${options[@]}" --out "$name"
    check "nccl: a run with $name prints its grid and NCCL" \
        grep -q "^ranks   4 = ${how//_/ } (threads, NCCL 2.28.9, 1 thread each)" output
    near "nccl: a run with $name has the same losses as on one rank" one "$name"
done <<'ROWS'
ddp dp_4 --set zero_optimization.stage=0
zero3 dp_4 --set zero_optimization.stage=3
host dp_4 --set zero_optimization.stage=2 --set zero_optimization.offload_optimizer.device=cpu
cube pp_2_x_tp_2 --set parallel.pipeline=2 --set parallel.tensor=2 --set parallel.sequence_parallel=true
ROWS
ulimit -S -n 30 # fewer files than the ranks open
EMU_STARTED=$PWD/started EMU_STREAMS=deferred EMU_NCCL_COMMS=$PWD/comms expect_code "nccl: a run with streams that lag succeeds" 0 "$TRAIN" "$TINY" \
    "${run[@]}" --ranks 4 \
    --set parallel.pipeline=2 \
    --set parallel.tensor=2 --set parallel.sequence_parallel=true --out late
check "nccl: ranks with a GPU each are processes" grep -q '^ranks   4 = pp 2 x tp 2 (processes, NCCL 2.28.9, 1 thread each)' output
near "nccl: a run with streams that lag has the same losses as on one rank" one late
ulimit -S -n "$(ulimit -H -n)"
check "nccl: the driver starts with a queue for each stream" test "$(sort -u started)" = '32 connections'
# The stand-in refuses a communicator whose ranks have different limits.
check "nccl: each communicator has its limit of CTAs" test "$(sort -u comms | tr '\n' ';')" = \
    'pp of 2: at most 8 CTAs;tie of 2: at most 4 CTAs;tp of 2: at most 64 CTAs;'

# ---- defaults of ranks with a GPU each: config show prints them, and runs have them
shown() { "$TRAIN" config show "$TINY" --set device=cuda --world 4 | grep -Eo '"(overlap_comm|writers)": [a-z0-9]+' | tr '\n' ' '; }
check "nccl: ranks with a GPU each overlap communication and write checkpoints together" \
    test "$(shown)" = '"overlap_comm": true "writers": 4 '
check "nccl: ranks that share a GPU do not" test "$(EMU_DEVICES=1 shown)" = '"overlap_comm": false "writers": 1 '
check "nccl: four ranks have written the checkpoints of four GPUs" \
    test "$(find ddp/checkpoints/step_00000004 -name '*-of-00004.safetensors' | wc -l)" -eq 8
expect_code "nccl: a run without overlap and with one writer succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 4 --out apart \
    --set zero_optimization.overlap_comm=false --set checkpoint.writers=1
figures ddp >figures.a
figures apart >figures.b
check "nccl: neither overlap nor processes change a bit of the losses" cmp -s figures.a figures.b

# ---- checkpoints, and the commands that open them
# -------------------------------------------------------------------------
mkdir -p moves/checkpoints
cp zero3/config.json zero3/metrics.jsonl zero3/tokenizer.json moves/
cp -r zero3/checkpoints/step_00000002 moves/checkpoints/
expect_code "nccl: a run of four GPUs resumes on one" 0 "$TRAIN" "$TINY" "${run[@]}" --set zero_optimization.stage=3 --out moves
check "nccl: a run of four GPUs resumes on one from its checkpoint" grep -q '^resume  step 2 from moves/checkpoints' output
near "nccl: a run resumed on one GPU has the same losses as on one rank" one moves
expect_code "nccl: eval runs on four GPUs" 0 "${unkind[@]}" "$TRAIN" eval cube "${threads[@]}"
one=$("$TRAIN" eval one | grep -Eo 'loss +[0-9]+\.[0-9]{3}' | head -n 1)
check "nccl: eval on four GPUs gives the same loss as on one rank, $one" grep -qF "$one" output
expect_code "nccl: generate runs on four GPUs" 0 "${unkind[@]}" "$TRAIN" generate cube "${threads[@]}" --prompt "the king" --tokens 4 --temperature 0
expect_code "nccl: ckpt verify accepts a checkpoint of four GPUs" 0 "$TRAIN" ckpt verify cube
# Rank 0 also trains the single rank, and loads its kernels, while the other hosts wait between steps.
expect_code "nccl: verify runs on four GPUs" 0 "${unkind[@]}" env -u EMU_LOADS "$TRAIN" verify "$TINY" "${threads[@]}" --set device=cuda --set parallel.pipeline=2
check "nccl: verify finds four GPUs equal to one rank" grep -q '^equal ' output
check "nccl: verify prints that ranks use NCCL" grep -qx 'ranks      NCCL 2.28.9, a GPU each' output
EMU_DEVICES=1 expect_code "nccl: verify on one GPU compares in f32 although cuda.tf32 is set" 0 "$TRAIN" verify "$TINY" \
    --ranks 2 --set device=cuda \
    --set parallel.tensor=2 --set cuda.tf32=true
check "nccl: verify prints that ranks share one GPU" \
    grep -qx 'ranks      share the GPU, and reach each other through its memory' output

# ---- assignment of GPUs to ranks
# ------------------------------------------------------------------------------------------
EMU_DEVICES=1 expect_code "nccl: two ranks on one GPU succeed" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 2 --out shared
check "nccl: two ranks on one GPU print once that they share it" \
    test "$(grep -c 'ranks share the GPU, and reach each other through its memory' output)" -eq 1
check "nccl: two ranks on one GPU use no NCCL, and are threads" grep -q '^ranks   2 = dp 2 (threads, 1 thread each)' output
expect_code "nccl: two ranks on CPUs succeed on a machine with GPUs" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 2 --set device=cpu --dry-run
check "nccl: two ranks on CPUs are threads" grep -q '^ranks   2 = dp 2 (threads, 1 thread each)' output
EMU_DEVICES=3 expect_code "nccl: four ranks on three GPUs end with 78" 78 "$TRAIN" "$TINY" "${run[@]}" --ranks 4 --out none
failed_as "nccl: four ranks on three GPUs" '^error\[78\] 4 ranks cannot be shared out to 3 GPUs: .* write --ranks 3 or less'
EMU_DEVICES=3 expect_code "nccl: eval refuses four ranks on three GPUs" 78 "$TRAIN" eval cube --ranks 4
EMU_DEVICES=3 expect_code "nccl: verify refuses four ranks on three GPUs" 78 "$TRAIN" verify "$TINY" --ranks 4 --set device=cuda
EMU_DEVICES=3 expect_code "nccl: bench comm refuses four ranks on three GPUs" 78 "$TRAIN" bench comm --ranks 4 --device cuda \
    --repetitions 1
EMU_BUS=same expect_code "nccl: a GPU that is listed twice ends with 78" 78 "$TRAIN" "$TINY" "${run[@]}" --ranks 2 --out none
failed_as "nccl: a GPU that is listed twice" '^error\[78\] ranks 0 and 1 have the same GPU, 0000:01:00.0; name each GPU once'
EMU_BUS=same "$TRAIN" verify "$TINY" --ranks 2 --set device=cuda >output 2>&1
check "nccl: verify prints that its ranks are processes" grep -q '^grid       2 ranks = dp 2 (processes), ZeRO 0$' output
# drivers WORD...: prints how many processes of this command have called the driver, before it is refused
drivers() {
    rm -f started
    EMU_BUS=same EMU_STARTED=$PWD/started "$TRAIN" "$@" --ranks 2 >output 2>&1
    grep -c . started
}
for command in "eval cube" "generate cube"; do
    read -ra words <<<"$command"
    check "nccl: ${command% cube} starts a process for each GPU" \
        test "$(drivers "${words[@]}")" -eq $(($(drivers "${words[@]}" --no-processes) + 1))
done
EMU_BUS=same "$TRAIN" doctor >output
check "nccl: doctor reports a GPU that is listed twice" grep -qE \
    '^!!  gpus +0 and 1 are the same GPU, 0000:01:00.0; name each GPU once in CUDA_VISIBLE_DEVICES$' output
check "nccl: doctor lists four different GPUs" test "$("$TRAIN" doctor | grep gpus)" = \
    "ok  gpus          4: 0000:01:00.0, 0000:02:00.0, 0000:03:00.0, 0000:04:00.0"
EMU_BUS=same NCCL_MULTI_RANK_GPU_ENABLE=1 expect_code "nccl: a GPU that is listed twice is accepted if NCCL allows it" 0 \
    "$TRAIN" "$TINY" "${run[@]}" \
    --set train_steps=1 --ranks 2 --out twice
rm -f comms started
CUDA_DEVICE_MAX_CONNECTIONS=4 EMU_STARTED=$PWD/started NCCL_MAX_CTAS=6 EMU_NCCL_COMMS=$PWD/comms \
    expect_code "nccl: a run with more GPUs than ranks succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --set train_steps=1 --ranks 2 \
    --out two \
    --set parallel.pipeline=2 --set wall_clock_breakdown=true
check "nccl: the user's CUDA_DEVICE_MAX_CONNECTIONS is kept" test "$(sort -u started)" = '4 connections'
check "nccl: NCCL_MAX_CTAS replaces the limits of the config" test \
    "$(sort -u comms | tr '\n' ';')" = 'pp of 2: at most 6 CTAs;tie of 2: at most 6 CTAs;'
check "nccl: wall_clock_breakdown prints exposed communication" grep -Eq \
    '^ +exposed communication, ms a step, the most of a rank:  pp ([1-9]|0\.0*[1-9])' output
check "nccl: metrics.jsonl contains exposed communication" grep -Eq '"event": "speed".*, "exposed_pp": [0-9.e-]*[1-9]' \
    two/metrics.jsonl

# ---- the library ---------------------------------------------------------------------------------------------------------
mkdir bare
cp "$TRAIN" bare/train
: >bare/libnccl.so.2 # it is found before any other NCCL of this machine
expect_code "nccl: an unusable NCCL library exits with code 69" 69 bare/train "$TINY" "${run[@]}" --ranks 4 --out none
failed_as "nccl: an unusable NCCL library" \
    '^error\[69\] .*NCCL.*cannot be opened: .*libnccl.so.2: file too short; install NCCL 2.28.9 or newer'
EMU_DEVICES=1 expect_code "nccl: an unusable NCCL library is ignored if NCCL is not needed" 0 bare/train "$TINY" "${run[@]}" \
    --set train_steps=1 --ranks 2 --out bare/run
EMU_NCCL_FAULT=version=21805 expect_code "nccl: an old NCCL library ends with 69" 69 "$TRAIN" "$TINY" "${run[@]}" --ranks 4 \
    --out none
failed_as "nccl: an old NCCL library" '^error\[69\] NCCL here is 2.18.5 \(.*/libnccl.so.2\); install NCCL 2.28.9 or newer'
EMU_NCCL_FAULT=missing=ncclGroupEnd expect_code "nccl: an NCCL library without a function ends with 69" 69 "$TRAIN" "$TINY" \
    "${run[@]}" --ranks 4 --out none
failed_as "nccl: an NCCL library without a function" '^error\[69\] NCCL here \(.*/libnccl.so.2\) has no ncclGroupEnd; install'
check "nccl: the emulated NCCL lies next to the program" test -f "$library"
finish
