#!/usr/bin/env bash
# save_stall.sh -- measures for how long a save stops training if checkpoint.async is on, and if it is off. A model whose
# checkpoints have about 500 MB is trained both ways, in turn, on a file system where fsync reaches a disk. The exit code is 1 if the
# median stall of the asynchronous saves is more than a quarter of that of the synchronous ones. Needs 3 GB of memory and 2 GB of disk,
# and takes minutes. What else uses the cores or the disk meanwhile moves the figures: an asynchronous save waits for
# cores, a synchronous one for the disk.
#
#   scripts/save_stall.sh [--pairs N] [--folder DIR] [-- OPTION...]    default: 3 pairs of runs, in out/
#
# TRAIN: the program (default ./train). OPTION...: further options of all runs, such as --ranks 2.
set -u
cd "$(dirname "$0")/.." || exit 71
pairs=3 folder=out
while [ $# -gt 1 ]; do
    case $1 in
    --pairs) pairs=$2 ;;
    --folder) folder=$2 ;;
    *) break ;;
    esac
    shift 2
done
[ "${1:-}" = -- ] && shift || [ $# -eq 0 ] || { echo "save_stall.sh: unknown option $1"; exit 64; }
train=$(realpath "${TRAIN:-./train}") || exit 66
config=$PWD/tests/program/tiny.json
mkdir -p "$folder" && work=$(mktemp -d "$folder/save_stall.XXXXXX") || exit 73
trap 'rm -rf "$work"' EXIT
case $(stat -f -c %T "$work") in
tmpfs | ramfs) echo "save_stall.sh: $folder is in memory, where fsync does nothing; --folder DIR names another"; exit 64 ;;
esac
cd "$work" || exit 71
awk 'BEGIN { srand(3); for (i = 0; i < 20000; i++) printf "%s%s", substr("the king of words and days said unto them all ", int(rand() * 40) + 1, 5), i % 12 ? " " : "\n" }' >text.txt
# 42 million parameters: weights and AdamW's states take 12 bytes each. Between two saves there are enough steps for the disk.
shape=(--set model.num_layers=6 --set model.hidden_size=768 --set model.num_attention_heads=12 --set model.num_key_value_heads=12)
run=(--set train_steps=75 --set checkpoint.save_interval=25 --set checkpoint.keep=1 --set eval.interval=0 --set eval.sample_interval=0
    --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=1 --set steps_per_print=0 --set optimizer.params.lr=1e-5
    --set scheduler.type=Constant)

# save ASYNC: trains once, and adds a line "ASYNC stall seconds" to the file saves for each save but the last one, for which every
# run waits
save() {
    "$train" "$config" "${shape[@]}" "${run[@]}" "${@:2}" --set checkpoint.async="$1" --out run >log 2>&1 ||
        { echo "save_stall.sh: the run has failed:"; tail -5 log; exit 1; }
    local bytes
    bytes=$(du -sb run/checkpoints/step_* | cut -f1)
    sed -nE 's/.*"event": "ckpt".*"seconds": ([^,]*), "stall": ([^,]*),.*/\2 \1/p' run/metrics.jsonl | head -n -1 >new
    awk -v async="$1" -v bytes="$bytes" '{
        printf "checkpoint.async=%s, %.0f MB: training waits %.3f s for a save of %.3f s\n", async, bytes / 1e6, $1, $2 }' new
    sed "s/^/$1 /" new >>saves
    rm -rf run
}
# median ASYNC: prints the median stall
median() {
    awk -v async="$1" '$1 == async { print $2 }' saves | sort -g |
        awk '{ stall[NR] = $1 } END { if (NR == 0) exit 1; print (stall[int((NR + 1) / 2)] + stall[int(NR / 2) + 1]) / 2 }'
}
for ((pair = 1; pair <= pairs; pair++)); do
    save true "$@"
    save false "$@"
done
async=$(median true) sync=$(median false) || { echo "save_stall.sh: no save was found in metrics.jsonl"; exit 1; }
awk -v async="$async" -v sync="$sync" 'BEGIN {
    printf "median stall: %.3f s asynchronous, %.3f s synchronous: %.1f %%\n", async, sync, 100 * async / sync
    exit async > sync / 4
}'
