#!/usr/bin/env bash
# machines.sh -- tests what ranks on several machines do not share. Four ranks that a launcher has started are on two machines:
# a machine is a name of the host, in a namespace of its own (unshare --uts).
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"
make_text
if ! unshare --uts true 2>err; then
    skip "machines: ranks on two machines" "this user may not change the name of a host: $(cat err)"
    finish
fi
run=(--set train_batch_size=8 --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=auto --set fp64.enabled=true
    --set parallel.timeout=60 --set train_steps=6 --set eval.interval=3 --set eval.sample_interval=6
    --set checkpoint.writers=4 --set parallel.rendezvous="$work/met")

# Where the ranks of host-b start, a command before each rank, and settings NAME=VALUE for it.
folder_b=.
prefix() { :; }
before() { :; }
# start ARGUMENT...: starts ranks 0 and 1 on host-a, 2 and 3 on host-b, and stores their process numbers in the array ranks.
# Rank R's output goes to the file rank.R.
start() {
    local r host settings command
    ranks=()
    for r in 0 1 2 3; do
        host='host-a'
        [ "$r" -lt 2 ] || host='host-b'
        mapfile -t settings < <(before "$r")
        mapfile -t command < <(prefix "$r")
        (
            [ $host = host-a ] || cd $folder_b || exit 1
            exec env RANK="$r" LOCAL_RANK=$((r % 2)) WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 OMP_NUM_THREADS=1 \
                "${settings[@]}" unshare --uts "${command[@]}" sh -c 'hostname "$0" && exec "$@"' $host "$TRAIN" "$@"
        ) >"rank.$r" 2>&1 </dev/null &
        ranks+=($!)
        children+=($!)
    done
}
# hosts_end NAME CODE ARGUMENT...: starts ranks, and expects that all end with this code
hosts_end() {
    start "${@:3}"
    ranks_end "$1" "$2"
}
# said_once NAME PATTERN: expects that the ranks together have printed one line of an error, and that it is this one
said_once() {
    check "$1: one rank says it" test "$(cat rank.? | grep -c '^error')" -eq 1
    check "$1: the sentence" grep -qE "$2" rank.0 rank.1 rank.2 rank.3
}

# ---- a run ---------------------------------------------------------------------------------------------------------------
grid=(--set parallel.tensor=2 --set zero_optimization.stage=1)
expect_code "machines: a run on threads succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" "${grid[@]}" --set cpu.threads=1 --ranks 4 --out threads
hosts_end "machines: a run succeeds" 0 "$TINY" "${run[@]}" "${grid[@]}" --set cpu.threads=1 --out two
check "machines: the start says on how many machines the ranks are" \
    bash -c "tr -s ' \n' ' ' <output | grep -q 'ranks 4 = dp 2 x tp 2 (processes on 2 machines, 2 each, 1 thread each), ZeRO 1 hosts host-a, host-b '"
check "machines: the plan is that of a machine" bash -c "tr -s ' \n' ' ' <output | grep -q ' for the 2 ranks on host-[ab]: weights '"
for file in model optimizer; do
    for rank in 1 2 3 4; do
        check "machines: rank $rank of 4 writes $file" test -s "two/checkpoints/step_00000006/$file-0000$rank-of-00004.safetensors"
    done
done
losses threads/metrics.jsonl >losses.a
losses two/metrics.jsonl >losses.b
check "machines: the losses have the same bits as with threads" cmp losses.a losses.b
for file in "$work"/met/* ./.train-sees-*; do
    [ ! -e "$file" ] || not_ok "machines: $file is not changed"
done

# ---- who writes ----------------------------------------------------------------------------------------------------------
if strace -f -o /dev/null -e trace=openat true 2>err; then
    prefix() { printf '%s\n' strace -f -o "trace.$1" -e trace=openat,rename,renameat,mkdir,mkdirat; }
    before() { echo ASAN_OPTIONS=detect_leaks=0; } # LeakSanitizer does not work under strace
    hosts_end "machines: a traced run succeeds" 0 "$TINY" "${run[@]}" --set cpu.threads=1 --set checkpoint.writers=2 --out traced
    prefix() { :; }
    before() { :; }
    grep -hE 'O_WRONLY|O_RDWR|rename|mkdir' trace.[123] | grep -v ' = -1 ' | sed -nE 's|^[^"]*"([^"]*)".*|\1|p' | grep -vE '^/(dev|proc)/' |
        sort -u >written
    check "machines: other ranks than 0 write only their files of checkpoints" \
        test "$(tr '\n' ' ' <written)" = 'model-00002-of-00002.safetensors optimizer-00002-of-00002.safetensors '
else
    skip "machines: other ranks than 0 write only their files of checkpoints" "strace: $(head -n 1 err)"
fi

# ---- file systems --------------------------------------------------------------------------------------------------------
# Another working folder is like a file system of the machine's own.
mkdir b
cp text.txt b
folder_b=b
hosts_end "machines: a machine that does not see the run folder ends all ranks with exit code 73" 73 "$TINY" "${run[@]}" --out unseen
said_once "machines: the run folder" \
    '^error\[73\] rank 2 on host-b does not see the file \./\.train-sees-[0-9a-f]{16}, which rank 0 on host-a has written where the run folder will be \(No such file or directory, in .*/b\); give --out a folder'
hosts_end "machines: a machine may have its own text" 0 "$TINY" "${run[@]}" --set cpu.threads=1 --out "$work/own"
check "machines: it prepares the text by itself" test "$(find out/corpora b/out/corpora -name meta.json | wc -l)" -eq 2
# Network file systems may show a folder to another machine some time later.
start "$TINY" "${run[@]}" --set cpu.threads=1 --resume two --out "$work/later"
sleep 2
ln -s ../two b/two
ranks_end "machines: all ranks wait for the run that --resume names" 0
check "machines: the run begins at its checkpoint" grep -q '^resume  step 6 from two/checkpoints/step_00000006$' output
cp text.txt set.txt
tr k q <text.txt >b/set.txt
hosts_end "machines: a machine with another set of eval.sets ends all ranks with exit code 78" 78 "$TINY" "${run[@]}" \
    --set 'eval.sets={"named": {"text": "set.txt"}}' --out "$work/other"
said_once "machines: the other set" \
    '^error\[78\] rank 2 on host-b has other data than rank 0: named [0-9]+ tokens [0-9a-f]+ -> named [0-9]+ tokens [0-9a-f]+; give all'
tr k q <text.txt >b/text.txt
hosts_end "machines: a machine with another text ends all ranks with exit code 78" 78 "$TINY" "${run[@]}" --out "$work/other"
said_once "machines: the other text" '^error\[78\] rank 2 on host-b has other data than rank 0: .*; give all machines the same files$'
rm b/text.txt
hosts_end "machines: a machine without the text ends all ranks with exit code 66" 66 "$TINY" "${run[@]}" --out "$work/other"
said_once "machines: no text" '^error\[66\] rank 2 on host-b: .*text\.txt'
python3 "$here/../golden/make_hf.py" hf
cp hf/choices.bin .
cp hf/choices.bin b
hosts_end "machines: eval --multiple-choice needs no text" 0 eval two --multiple-choice choices.bin
printf '\001' | dd of=b/choices.bin bs=1 seek=1036 conv=notrunc 2>err
hosts_end "machines: a machine with other questions ends all ranks with exit code 78" 78 eval two --multiple-choice choices.bin
said_once "machines: the other questions" \
    '^error\[78\] ranks differ: rank 0 on host-a scores a file with the hash [0-9a-f]+, rank 2 on host-b scores .*; give all machines the same file$'
folder_b=.

# ---- other commands ------------------------------------------------------------------------------------------------------
rm -rf out/corpora
hosts_end "machines: eval succeeds where no text is prepared yet" 0 eval two
check "machines: eval has prepared it" test "$(find out/corpora -name meta.json | wc -l)" -eq 1

# ---- cores ---------------------------------------------------------------------------------------------------------------
cores=$(nproc)
# threads_are NAME N: expects that each rank has so many threads
threads_are() {
    check "machines: $1" bash -c "tr -s ' \n' ' ' <output | grep -qE ' 2 each, $2 threads? each\)'"
}
if [ "$cores" -ge 2 ] && [ "$cores" -lt 64 ]; then
    hosts_end "machines: ranks that are not bound" 0 "$TINY" "${run[@]}" --set cpu.threads=0 --dry-run
    threads_are "ranks that are not bound share the cores of their machine" $((cores / 2))
    prefix() { if [ "$1" = 0 ]; then printf '%s\n' taskset -c 0; else printf '%s\n' taskset -c "0-$((cores - 1))"; fi; }
    hosts_end "machines: a rank that is bound to a core" 0 "$TINY" "${run[@]}" --set cpu.threads=0 --dry-run
    threads_are "all ranks have as many threads as the rank with the fewest cores" 1
    prefix() { printf '%s\n' taskset -c "$(($1 % 2))"; }
    hosts_end "machines: ranks that are bound to a core each" 0 "$TINY" "${run[@]}" --set cpu.threads=0 --dry-run
    threads_are "ranks that are bound do not share" 1
    check "machines: ranks that are bound do not take turns" bash -c '! grep -q "take turns" output'
    prefix() { :; }
else
    skip "machines: shares of cores" "this machine has $cores"
fi

# ---- stops ---------------------------------------------------------------------------------------------------------------
start "$TINY" "${run[@]}" --set cpu.threads=1 --set train_steps=1000000 --set scheduler.type=Constant --set eval.interval=0 \
    --set eval.sample_interval=0 --set parallel.stop_interval=5 --out stopped
until grep -qs '"step": 2,' stopped/metrics.jsonl || ! kill -0 "${ranks[0]}" 2>/dev/null; do sleep 0.02; done
kill -USR1 "${ranks[3]}"
ranks_end "machines: a signal to a rank of the other machine ends all with exit code 85" 85
check "machines: the ranks stop after a multiple of parallel.stop_interval" test $(($(checkpoint_steps stopped | tail -n 1) % 5)) -eq 0
check "machines: rank 3 prints nothing" test ! -s rank.3

# ---- GPUs ----------------------------------------------------------------------------------------------------------------
if EMU_DEVICES=4 "$TRAIN" doctor | grep -q 'emulated GPU'; then
    gpus=(--set device=cuda --set fp64.enabled=false --set train_steps=1 --set scheduler.type=Constant --set eval.interval=0 --set cpu.threads=1)
    before() { echo EMU_DEVICES=2; }
    hosts_end "machines: each rank has a GPU of its machine" 0 "$TINY" "${run[@]}" "${gpus[@]}" --out gpus
    check "machines: NCCL connects them" bash -c "tr -s ' \n' ' ' <output | grep -q 'processes on 2 machines, 2 each, NCCL'"
    # With 8 GiB the head would compute 16,384 rows at a time.
    before() { printf '%s\n' EMU_DEVICES=2 EMU_MEMORY=$(($1 == 3 ? 1100 : 8192)); }
    hosts_end "machines: GPUs of different sizes" 0 "$TINY" "${run[@]}" "${gpus[@]}" --set data.tokenizer_vocab_size=387 --out sizes
    check "machines: the smallest memory decides for all ranks" grep -q '"head_chunk_rows": 8192' sizes/config.json
    before() { printf '%s\n' EMU_DEVICES=1 EMU_BUS=$(($1 % 2)); }
    hosts_end "machines: a launcher may show each rank one GPU" 0 "$TINY" "${run[@]}" "${gpus[@]}" --out shown
    before() { echo EMU_DEVICES=1; }
    hosts_end "machines: two ranks with the same GPU end all with exit code 78" 78 "$TINY" "${run[@]}" "${gpus[@]}" --out same
    said_once "machines: the same GPU" '^error\[78\] ranks 0 and 1 on host-a have the same GPU, 0000:01:00\.0; start as many ranks'
fi
finish
