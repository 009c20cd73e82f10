#!/usr/bin/env bash
# gpu_check.sh -- tests scripts/gpu_check.sh: without a GPU it prints one error message. With fake programs in place of
# train, the tests and the toolkit, it prints one line per item and continues after an item that fails or hangs. The test
# runs a copy of the script, so it does not overwrite the results of a real run.
. "$(dirname "$0")/lib.sh"

# shellcheck disable=SC2154 # lib.sh sets it
root=$(realpath "$here/../..")
copy=$PWD/project
mkdir -p "$copy/tests" bin tests
cp -r "$root/scripts" "$copy/"
cp -r "$root"/tests/{program,probe} "$copy/tests/"
script=$copy/scripts/gpu_check.sh results=$copy/build/gpu_check/results.md
# stand_in NAME TEXT: writes a fake program, a shell script with this text
stand_in() { mkdir -p "$(dirname "$1")" && printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod +x "$1"; }

expect_code "gpu_check: an unknown item is refused" 64 "$script" nonsense
expect_code "gpu_check: --list succeeds" 0 "$script" --list
check "gpu_check: the probes of cuBLASLt are the second item" test "$(sed -n 2p output | cut -d ' ' -f 1)" = probe

# ---- the machine's GPU, toolkit and libraries
# bare COMMAND...: runs it with the fake programs in bin and a fake toolkit, without the variables that name built programs
bare() { env -u CHECK_TRAIN -u CHECK_TESTS -u CUDA_HOME PATH="$PWD/bin:$PATH" CHECK_LIMIT=5 "$@"; }
stand_in bin/nvidia-smi 'exit 9'
sed -i "s|/dev/nvidia\[0-9\]\*|$PWD/nodes/nvidia[0-9]*|" "$copy/scripts/cuda_lib.sh"
stand_in bin/nvcc 'exit 0'
expect_code "gpu_check: a machine without a GPU exits with code 69" 69 bare "$script"
check "gpu_check: a missing GPU is reported in one sentence" grep -qx 'gpu_check: there is no GPU here; nothing was checked' \
    output
stand_in bin/nvidia-smi 'echo 9.0'
# shellcheck disable=SC2016 # the stand-in expands it
stand_in bin/make 'case $* in *missing) echo "cmocka is missing: say so" ;; esac'
expect_code "gpu_check: a missing library exits with code 69" 69 bare "$script"
check "gpu_check: a missing library is named in one line" grep -qx 'gpu_check: cmocka is missing: say so; nothing was checked' \
    output
stand_in bin/make "echo \"\$@\" \"\$CUDA_HOME\" >>$PWD/made; case \$* in *missing) ;; *) echo 'x.cu: Error: no'; exit 2 ;; esac"
expect_code "gpu_check: a failed build exits with code 1" 1 bare "$script"
check "gpu_check: a failed build is printed" grep -q '^FAIL *build .*exit 2' output
check "gpu_check: a failed build is counted in the last line" test "$(tail -n 1 output)" = "0 passed, 1 failed, 0 skipped"
check "gpu_check: a failed build is kept in the results" grep -q '^FAIL *build .*exit 2' "$results"
# nvcc is reached through a link and nvidia-smi fails, but a device file exists: only Hopper's code is built.
mkdir -p toolkit/bin nodes
mv bin/nvcc toolkit/bin/ && ln -s "$PWD/toolkit/bin/nvcc" bin/nvcc
touch nodes/nvidia0
stand_in bin/nvidia-smi 'exit 9'
rm made
bare "$script" >output 2>&1
check "gpu_check: kernels are built for this machine's architecture only" grep -q 'ARCH=90a .*build/gpu/train' made
check "gpu_check: the toolkit's folder is passed to make" grep -q "build/gpu/train.* $PWD/toolkit$" made
for name in train tests/cuda/test_ptx tests/cuda/test_model_cuda tests/parallel/trainer/test_trainer; do
    check "gpu_check: $name is built" grep -q "build/gpu/$name " made
done
stand_in "$copy/build/gpu/train" 'echo "ok    cuda          cuda: a stand-in"'
stand_in bin/make 'exit 0'
expect_code "gpu_check: a test that the build did not produce exits with code 1" 1 bare "$script" goldens
check "gpu_check: a test that the build did not produce is a failed item" grep -q '^FAIL *goldens ' output
rm -r "$copy/build/gpu"
# A skipped test fails its item. These tests may therefore skip only where there is no GPU (cuda_needed, pair_needed) or no
# second GPU; without a second GPU the script does not run the item at all. Nor does it run those of Hopper's kernels without
# them; their tests also skip sweeps.
mapfile -t sources < <(grep -o 'gpu/tests/[a-z/]*/test_[a-z_]*' made | sort -u | sed "s|gpu/|$root/|; s|\$|.c|")
for source in "${sources[@]}"; do [ -f "$source" ] || echo "${source}u"; done >cu
mapfile -t sources < <(printf '%s\n' "${sources[@]}" | grep -vxFf <(sed 's/u$//' cu); cat cu)
grep -nE 'skip\(\)|skip_because\(' "${sources[@]}" | grep -vE 'if \(gpus < 2\) skip_because|/test_hopper_[a-z]*\.c:' >skips
check "gpu_check: the items' tests skip only if GPUs are missing: $(head -n 1 skips)" test "${#sources[@]}" -gt 10 -a ! -s skips

# Left out are tests of the CPU alone, and those that need an emulated library or several GPUs.
mapfile -t tests < <(cd "$root/tests" && find kernels cuda -name 'test_*.c*' | sed 's/\.cu*$//' | grep -vE '/test_(vmath|ops_grad|nccl_grids|nccl_replicas|nccl_streams)$')
for name in "${tests[@]}"; do grep -qE " ${name}[ |]" "$copy/scripts/gpu_items.sh" || echo "$name"; done >without
check "gpu_check: every test of kernels belongs to an item: $(head -n 1 without)" test "${#tests[@]}" -gt 20 -a ! -s without

check "gpu_check: no item may take longer than a minute" test "$("$script" --list | awk '$2 > 60' | wc -l)" -eq 0

# ---- items
good='case $1 in doctor) echo "ok    cuda          cuda: a stand-in" ;; esac'
stand_in train "$good"
stand_in tests/kernels/test_ops 'echo "[       OK ] one"; exit 1'
# shellcheck disable=SC2016 # the stand-in expands it
stand_in tests/model/test_golden 'echo "[       OK ] one"; echo "[       OK ] two"; test "$TEST_DEVICE" = cuda && test "${LD_LIBRARY_PATH%%:*}" = /toolkit/lib64'
export CHECK_TRAIN=$PWD/train CHECK_TESTS=$PWD/tests CUDA_HOME=/toolkit
expect_code "gpu_check: a failing item exits with code 1" 1 "$script" ops goldens
# From here on no package of Python has libraries of CUDA, because the search for them takes longer than the rest of the script.
stand_in without_wheels/python3 'exit 1'
export PATH=$PWD/without_wheels:$PATH
check "gpu_check: a failing item is printed with its exit code" grep -q '^FAIL *ops .*exit 1' output
check "gpu_check: the item after a failing one runs" grep -q '^ok *goldens .*2 tests' output
check "gpu_check: the device is printed" grep -q '^ok *doctor .* cuda: a stand-in$' output
check "gpu_check: each line of output belongs to an item" test "$(grep -cvE '^(ok|FAIL|skip) |^      \|' output)" -eq 1
check "gpu_check: the last line counts a failing, two passing and two skipped items" test "$(tail -n 1 output)" = \
    "2 passed, 1 failed, 2 skipped"
check "gpu_check: results outside a checkout say so" grep -q ', commit unknown\.$' "$results"
check "gpu_check: the results of passing items are kept" grep -q '^ok *goldens .*2 tests' "$results"
# Without git, the commit is read from the checkout's own files.
mkdir -p "$copy/.git/refs/heads"
echo 'ref: refs/heads/main' >"$copy/.git/HEAD"
echo 1a2b3c4d5e6f7a8b >"$copy/.git/refs/heads/main"
stand_in bin/git 'exit 127'
PATH=$PWD/bin:$PATH "$script" goldens >output 2>&1
check "gpu_check: results name the commit without git, too" grep -q ', commit 1a2b3c4d5e\.$' "$results"
rm -r "$copy/.git" bin/git
expect_code "gpu_check: --out needs a folder" 64 "$script" ops --out
expect_code "gpu_check: --out keeps the results although an item fails" 1 "$script" --out kept/here ops goldens
check "gpu_check: --out keeps two files" test "$(find kept/here -type f | sort | paste -sd ' ')" = "kept/here/gpu_check.md kept/here/gpu_check.tar.gz"
check "gpu_check: the results that are kept have the line of each item" \
    test "$(grep -cE '^(ok *doctor|FAIL *ops|ok *goldens) ' kept/here/gpu_check.md)" -eq 3
check "gpu_check: the logs that are kept have each item's output" \
    test "$(tar -xzOf kept/here/gpu_check.tar.gz ./ops.log ./goldens.log | grep -c 'OK')" -eq 3
stand_in tests/model/test_golden "touch $PWD/begun; exec sleep 3"
"$script" --out killed ops goldens >output 2>&1 &
until [ -e begun ]; do sleep 0.05; done
kill -KILL $!
wait $! 2>/dev/null
check "gpu_check: a check that is killed has kept the items before" grep -q '^FAIL *ops ' killed/gpu_check.md
# The items of the kernels for Hopper run only where doctor says that the program has them.
expect_code "gpu_check: items for Hopper are skipped without its kernels" 0 "$script" hopper
check "gpu_check: a skipped item for Hopper says why" grep -q '^skip *hopper.speed .*no attention for Hopper: doctor says nothing' output
stand_in train 'case $1 in
doctor) echo "ok    cuda          cuda: a stand-in"; echo "ok    attention     kernels portable and hopper; auto takes portable" ;;
bench) for way in forward backward; do for kind in portable hopper; do echo "attention_$way B64 Tq1024 D64 off0, $kind  1.5 1 1 1 1"; done; done ;;
esac'
PYTHON=false "$script" hopper.speed >output 2>&1
check "gpu_check: a PyTorch that fails is a failed item" grep -q '^FAIL *hopper.speed ' output
stand_in bin/no_torch 'exit 69'
PYTHON=$PWD/bin/no_torch "$script" hopper.speed >output 2>&1
check "gpu_check: without PyTorch, attention is timed by the program alone" \
    grep -q '^ok *hopper.speed .*forward 1.5, 1.5; backward 1.5, 1.5' output
# Fake probes print the verdicts in the files NAME.says and end with 0, as the real ones do whatever they find.
printf '%s = match\n' wgmma.d.m64n{64,128}k16.expected wgmma.{a,b}.k.sw128{,.start_plus_{32,64,96}}.expected \
    wgmma.b.mn.sw128.expected >fragments_wgmma.says
printf '%s = match\n' wgmma.a.registers.{bf16,f16}.expected \
    wgmma.product.{bf16,f16}.{shared.n{64,128}.k,registers.n{64,128}.mn} >fragments_wgmma_registers.says
printf '%s = match\n' tma.sw128.expected tma.heads.{16,64,128}.{inside,past_last_token,before_first_token,outside} >fragments_tma.says
printf '%s = match\n' ring.sums.{1,2,3,32,35} >ring_tma.says
for name in *.says; do stand_in "$copy/build/probe/${name%.says}" "cat $PWD/$name"; done
verdicts=$(cat ./*.says | wc -l)
expect_code "gpu_check: maps that all match exit with code 0" 0 "$script" hopper.maps
check "gpu_check: maps that match are counted" grep -qx "ok *hopper.maps .* s  $verdicts verdicts match" output
# maps_complain NAME EDIT COMPLAINT: expects this complaint when a fake probe's verdicts are edited by sed
maps_complain() {
    cp -- "$1.says" whole
    sed -i "$2" "$1.says"
    "$script" hopper.maps >output 2>&1
    mv whole "$1.says"
    check "gpu_check: maps fail with: $3" grep -q "^ *| gpu_probe: ERROR: $3 of $verdicts verdicts do not match" output
}
maps_complain fragments_wgmma '/^wgmma.b.k/s/match/differs in 3 elements/' 'wgmma.b.k.sw128.expected = differs in 3 elements (4'
maps_complain fragments_wgmma '/b.mn/s/$/ with leading and stride offset exchanged/' 'wgmma.b.mn.sw128.expected = match with .* exchanged (1'
maps_complain ring_tma '/35/d' 'ring.sums.35 is missing (1'
check "gpu_check: a missing map counts as a failed check" grep -q '^FAIL *hopper.maps .*exit 1' output
for name in *.says; do : >"$name"; done
maps_complain ring_tma '' "wgmma.d.m64n64k16.expected is missing ($verdicts"
rm -r "$copy/build/probe"
for name in $(grep -oE 'cuda/test_hopper_[a-z]+' "$copy/scripts/gpu_items.sh"); do
    stand_in "tests/$name" 'echo "[       OK ] one"; echo "skipped: runs with HOPPER_SWEEP=1"; echo "[  SKIPPED ] two"'
done
HOPPER_SWEEP='' "$script" hopper.cases >output 2>&1
check "gpu_check: a sweep that is skipped is no failure" grep -q '^ok *hopper.cases ' output
for name in $(grep -oE 'cuda/test_hopper_[a-z]+' "$copy/scripts/gpu_items.sh"); do
    stand_in "tests/$name" '[ "${HOPPER_SWEEP:-}" = 1 ] && echo "[       OK ] one"'
done
"$script" hopper.cases >output 2>&1
check "gpu_check: a GPU is given the whole sweep" grep -q '^ok *hopper.cases ' output
stand_in train "$good"
stand_in tests/model/test_golden 'echo "[  SKIPPED ] one"'
expect_code "gpu_check: a test that skips on a GPU exits with code 1" 1 "$script" goldens
check "gpu_check: a test that skips on a GPU is named" grep -q 'test_golden did not use the GPU' output
rm tests/model/test_golden
expect_code "gpu_check: a test program that is not built is skipped" 0 "$script" goldens
check "gpu_check: a skipped item names the command that builds its test" \
    grep -q "^skip *goldens .* $PWD/tests/model/test_golden is not built: make CUDA=emu test-programs$" output
stand_in tests/model/test_golden 'echo "[       OK ] one"; sleep 2'
expect_code "gpu_check: items for which no time is left exit with code 0" 0 env CHECK_WHOLE=6 "$script" goldens ranks
check "gpu_check: items for which no time is left are skipped" grep -q '^skip *ranks .* the 6 s for everything were over$' output
stand_in tests/model/test_golden 'sleep 60'
expect_code "gpu_check: an item that hangs is stopped" 1 env CHECK_LIMIT=5 "$script" goldens
check "gpu_check: an item that hangs is reported with its time limit" grep -q '^FAIL *goldens .*stopped after 5 s' output

# ---- grids of ranks, with a fake train. trains GPUS WORDS FACTOR: writes it. Its doctor reports GPUS devices; with --ranks
# it prints WORDS about the ranks, and its last loss is FACTOR times that of one rank. With --processes it prints other words,
# and runs the commands in the file hosts.
trains() {
    stand_in train "
        case \$1 in doctor) echo 'ok    cuda          cuda: a stand-in'; echo 'ok    gpus          $1: a, b, c'; exit ;; esac
        factor=1
        case \$* in
        *--processes*) factor=$3; echo 'ranks   2 = dp 2 (processes, NCCL 2.28.9, 1 thread each)'; . $PWD/hosts ;;
        *--ranks*) factor=$3; echo 'ranks   $2' ;;
        esac
        case \$* in *--out*) while [ \$# -gt 1 ]; do shift; done ;; esac
        echo \"\$CUDA_VISIBLE_DEVICES\" >>$PWD/visible
        mkdir -p \$1
        for i in 1 2 3 4 5 6; do
            [ \$i -lt 6 ] || f=\$factor
            echo \"{\\\"event\\\": \\\"train\\\", \\\"step\\\": \$i, \\\"loss\\\": \${f:-1}}\"
        done >\$1/metrics.jsonl"
}
trains 2 '2 = dp 2 (threads, NCCL 2.28.9, 1 thread each)' 1.000001
expect_code "gpu_check: a grid on two GPUs passes" 0 "$script" nccl.2.ddp
check "gpu_check: a grid's line has the deviation of its losses" \
    grep -qx "ok *nccl.2.ddp .* 6 steps' losses within 1.0e-06 of one rank's; NCCL 2.28.9" output
expect_code "gpu_check: grids that need more GPUs exit with code 0" 0 "$script" nccl.4
check "gpu_check: each grid that needs more GPUs is skipped with a reason" \
    test "$(grep -c 'skip *nccl\.4\.[a-z0-9]* .* it takes 4 GPUs, and there are 2$' output)" -eq 7 -a "$(tail -n 1 output)" = "1 passed, 0 failed, 7 skipped"
rm -f visible
expect_code "gpu_check: a grid uses the first of the chosen GPUs" 0 env CUDA_VISIBLE_DEVICES=7,5,3 "$script" nccl.2.tp2
check "gpu_check: a grid sees as many GPUs as it has ranks" test "$(sort -u visible)" = 7,5
trains 2 '2 = dp 2 (threads, NCCL 2.28.9, 1 thread each)' 1.0001
expect_code "gpu_check: a grid with other losses exits with code 1" 1 "$script" nccl.2.ddp
check "gpu_check: a grid with other losses is reported with the deviation" \
    grep -q "^ *| ERROR: in 6 steps losses are off one rank's by 1.0e-04" output
trains 2 '2 = dp 2 (threads, NCCL 2.28.9, 1 thread each)' nan
expect_code "gpu_check: a grid with a NaN loss exits with code 1" 1 "$script" nccl.2.ddp
trains 2 '2 = dp 2 (threads, 1 thread each)' 1
expect_code "gpu_check: a grid that should use NCCL and does not exits with code 1" 1 "$script" nccl.2.zero3
check "gpu_check: a grid that does not use NCCL is reported" grep -q '^ *| ERROR: the run does not say: NCCL' output
trains 1 'ranks share the GPU, and reach each other through its memory' 1
: >hosts
expect_code "gpu_check: on one GPU all grids of one GPU pass" 0 "$script" nccl
check "gpu_check: ranks that share a GPU are reported as such" \
    grep -qE "^ok *nccl.1.tp2pp2 .* of one rank's; ranks share the GPU$" output
check "gpu_check: on one GPU 19 grids run and the others are skipped, as is the test of NCCL that is not built" \
    test "$(tail -n 1 output)" = "20 passed, 0 failed, 15 skipped"
check "gpu_check: the test of NCCL comes before all grids, and the grids of processes come after the others" \
    test "$(sed -nE 's/^(ok|skip) *nccl\.([a-z0-9]*).*/\2/p' output | uniq | paste -sd ' ')" = 'self 1 2 4 2 hosts'
# shellcheck disable=SC2016 # the fake train expands it
echo 'env | grep ^NCCL_ >>'"$PWD/settings" >hosts
expect_code "gpu_check: a grid of processes on one GPU passes" 0 "$script" nccl.hosts.4.pp2
check "gpu_check: a grid of processes reports how NCCL was used" \
    grep -q "^ok *nccl.hosts.4.pp2 .* of one rank's; processes, NCCL 2.28.9$" output
check "gpu_check: processes on one GPU count as different hosts, connected by the loopback" \
    test "$(grep -cxE 'NCCL_(HOSTID=each|SOCKET_IFNAME=lo|IB_DISABLE=1|NET=Socket|P2P_DISABLE=1)' settings)" -eq 5
trains 1 unasked 1.0001
expect_code "gpu_check: a grid of processes with other losses exits with code 1" 1 "$script" nccl.hosts.2.ddp
trains 1 unasked 1
echo "echo 'error[86] group dp, call 0, connect: rank 0 has waited 20 s'; exit 86" >hosts
expect_code "gpu_check: grids of processes that hang exit with code 1" 1 "$script" nccl.hosts
check "gpu_check: after two grids that hang no other grid of processes is tried" \
    test "$(tail -n 1 output)" = "1 passed, 2 failed, 8 skipped"
check "gpu_check: the grids that hang are named" grep -q \
    '^skip *nccl.hosts.2.tp2 .* not tried, because 2 ranks,2 ranks with zero_optimization.stage=3 hang$' output
check "gpu_check: a grid that hangs is reported with the rank that waits" grep -q '^ *| error\[86\] group dp' output
echo 'exit 71' >hosts
expect_code "gpu_check: exits with code 1 if a multi-process grid fails" 1 "$script" nccl.hosts.2
check "gpu_check: grids of processes that fail are all tried" test "$(tail -n 1 output)" = "1 passed, 5 failed, 0 skipped"
echo 'sleep 60' >hosts
expect_code "gpu_check: a grid of processes that is stopped exits with code 1" 1 env CHECK_LIMIT=5 "$script" nccl.hosts.2.ddp
check "gpu_check: a grid of processes that is stopped counts as one that hangs" \
    grep -qx '2 ranks' "$copy/build/gpu_check/grids/hang"

# An item that is not about several GPUs sees only one.
# shellcheck disable=SC2016 # the stand-in expands it
stand_in tests/model/test_golden 'echo "[       OK ] one"; test "$CUDA_VISIBLE_DEVICES" = 7'
expect_code "gpu_check: other items see one of the chosen GPUs" 0 env CUDA_VISIBLE_DEVICES=7,5,3 "$script" goldens
# shellcheck disable=SC2016 # the stand-in expands it
stand_in tests/cuda/test_cuda_gpus 'echo "[       OK ] one"; test "$CUDA_VISIBLE_DEVICES" = 7,5'
trains 3 unasked 1
expect_code "gpu_check: a test that needs two GPUs sees two" 0 env CUDA_VISIBLE_DEVICES=7,5,3 "$script" nccl.2.streams

# ---- the sanitizer tries few cases first, and more while there is time
# shellcheck disable=SC2016 # the stand-ins expand it
{
    stand_in bin/compute-sanitizer 'while [ "${1#*/tests/}" = "$1" ]; do shift; done; exec "$@"'
    stand_in tests/kernels/test_ops 'echo "[       OK ] op $TEST_EVERY"; test "$TEST_EVERY" -gt "$SLOW" || exec sleep 60'
}
# checked SLOW CODE: expects exit code CODE from memcheck with tests that hang when more than every SLOW-th case is tried
checked() {
    expect_code "gpu_check: memcheck exits with code $2 if its test hangs at TEST_EVERY=$1 and below" "$2" \
        env SLOW="$1" PATH="$PWD/bin:$PATH" CHECK_LIMIT=6 "$script" memcheck
}
checked 0 0
check "gpu_check: memcheck reports how many cases it has checked" \
    grep -q '^ok *memcheck .* no complaint over one case in 3 of every op$' output
checked 8 0
check "gpu_check: a stopped memcheck counts the cases that it has checked" \
    grep -q '^ok *memcheck .* one case in 24 of every op; no complaint over one case in 8 of the first 1 ops' output
checked 24 0
check "gpu_check: a memcheck stopped in its first part is skipped with a reason" \
    grep -q '^skip *memcheck .* one case in 24 of the first 1 ops, then the time was over$' output
stand_in tests/kernels/test_ops "trap '' TERM; echo '[       OK ] op'; sleep 60"
checked 24 0
check "gpu_check: a memcheck that must be killed is skipped" grep -q '^skip *memcheck .* first 1 ops' output
stand_in tests/kernels/test_ops "echo '========= Invalid __global__ read of size 4'; exec sleep 60"
checked 24 1
check "gpu_check: an error that memcheck found before its time limit is reported" \
    grep -q '^ *| ========= Invalid __global__ read' output

# ---- a device that is present but cannot be used
stand_in train 'echo "--    cuda          built in; no device: none here"'
expect_code "gpu_check: a program that finds no GPU exits with code 69" 69 "$script" ops
check "gpu_check: a program that finds no GPU is quoted" \
    grep -qx 'gpu_check: built in; no device: none here; nothing was checked' output
stand_in train 'echo "!!    cuda          built in; trouble: no cuBLASLt; the CPU path is ready"'
expect_code "gpu_check: a program that finds an unusable GPU exits with code 1" 1 "$script" ops
check "gpu_check: an unusable GPU is a failed item" grep -q '^FAIL *doctor ' output
check "gpu_check: the error message about an unusable GPU is printed" grep -q '^ *| ERROR: built in; trouble: no cuBLASLt' \
    output
check "gpu_check: an unusable GPU is counted in the last line" test "$(tail -n 1 output)" = "0 passed, 1 failed, 0 skipped"
stand_in train 'echo "--    cuda          not built into this program"'
expect_code "gpu_check: a build without CUDA exits with code 1 and not with 69" 1 "$script" ops
finish
