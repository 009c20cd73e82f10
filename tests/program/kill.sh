#!/usr/bin/env bash
# kill.sh -- tests that a run that is killed by SIGKILL and restarted ends with the bits of an uninterrupted run, at twenty
# random points. Half of the points are a random write, fsync or rename (with strace), the others a random step; some runs
# are in fp16 with skipped steps. Each point is drawn from its own part of the run, so that kills during and between saves
# occur early and late. The points are the same every time, so that a failure can be repeated; SEED=n draws others.
. "$(dirname "$0")/lib.sh"
make_text
mkfifo lines
RANDOM=$((${SEED:-1} % 32768))
points=${POINTS:-20}
common=(--set train_steps=30 --set checkpoint.save_interval=5 --set checkpoint.keep=2 --set eval.interval=10)
fp16=(--set fp16.enabled=true --set fp16.initial_scale_power=40 --set fp16.loss_scale_window=8 --set fp16.hysteresis=1)

traced=no
strace -f -o /dev/null -e trace=write true 2>/dev/null && traced=yes

# calls KIND OPTION...: prints how often a whole run makes this system call, in the thread that makes it most often
calls() {
    local kind=$1
    shift
    strace -f -o trace -e "trace=$kind" "$TRAIN" "$TINY" "$@" --set data.cache=counted-corpora --out counted >/dev/null 2>&1 </dev/null
    rm -rf counted counted-corpora
    awk '{ n[$1]++ } END { for (i in n) if (n[i] > most) most = n[i]; print most + 0 }' trace
}

# draw_part I PARTS N: draws a number from the I-th (from 0) of PARTS equal parts of 1..N, into $n
draw_part() {
    local from=$(($1 * $3 / $2)) upto=$((($1 + 1) * $3 / $2))
    n=$((from + 1 + RANDOM % (upto > from ? upto - from : 1)))
}

killed=0 during=0
# count_killed FOLDER: after a run, counts whether it was killed (137) or had ended before, and whether a save was in
# progress
count_killed() {
    [ $? -eq 137 ] || return
    killed=$((killed + 1))
    [ -z "$(find "$1/checkpoints" -maxdepth 1 \( -name '*.tmp-*' -o -name '.trash-*' \) 2>/dev/null)" ] || during=$((during + 1))
}

# killed_at_call FOLDER KIND N OPTION...: starts a run and kills it at its N-th system call of this kind
killed_at_call() {
    local folder=$1 kind=$2 n=$3
    shift 3
    strace -f -o /dev/null -e "trace=$kind" -e "inject=$kind:signal=KILL:when=$n" "$TRAIN" "$TINY" "$@" --out "$folder" \
        >/dev/null 2>&1 </dev/null
    count_killed "$folder"
}

# killed_at_step FOLDER STEP OPTION...: starts a run and kills it after this step
killed_at_step() {
    local folder=$1 step=$2 child
    shift 2
    "$TRAIN" "$TINY" --json "$@" --out "$folder" >lines 2>/dev/null </dev/null &
    child=$!
    children+=("$child")
    exec 3<lines
    until_step "$step" <&3
    kill -KILL $child
    exec 3<&-
    wait $child 2>/dev/null
    count_killed "$folder"
}

"$TRAIN" "$TINY" "${common[@]}" --out whole-f32 >/dev/null 2>&1 </dev/null
"$TRAIN" "$TINY" "${common[@]}" "${fp16[@]}" --out whole-fp16 >/dev/null 2>&1 </dev/null
check "kill: the fp16 run skips steps" grep -q '"applied": false' whole-fp16/metrics.jsonl
kinds=(write fsync renameat)
counts=()
[ $traced = yes ] && for kind in "${kinds[@]}"; do counts+=("$(calls "$kind" "${common[@]}")"); done
[ $traced = yes ] && echo "calls in a whole run: write ${counts[0]}, fsync ${counts[1]}, renameat ${counts[2]}"

for ((i = 0; i < points; i++)); do
    dtype=f32
    options=("${common[@]}")
    if ((i % 3 == 2)); then
        dtype=fp16
        options+=("${fp16[@]}")
    fi
    folder=killed-$i
    kind=${kinds[i / 2 % 3]} n=0
    [ $traced = yes ] && n=${counts[i / 2 % 3]}
    if ((i % 2 == 0 && n > 0)); then
        draw_part $((i / 6)) $(((points + 5) / 6)) $n
        point="$kind $n"
        options+=(--set "data.cache=corpora-$i") # so that the run may also be killed while it prepares its data
        killed_at_call $folder "$kind" $n "${options[@]}" 2>/dev/null
    else
        draw_part $((i / 2)) $(((points + 1) / 2)) 29
        point="step $n"
        killed_at_step $folder $n "${options[@]}" 2>/dev/null
    fi
    if ! "$TRAIN" "$TINY" "${options[@]}" --out $folder >output 2>&1 </dev/null; then
        not_ok "kill: $dtype killed at $point: the run does not resume"
        tail -n 3 output | sed 's/^/    | /'
        continue
    fi
    same_run "kill: $dtype killed at $point resumes with the same bits" whole-$dtype $folder
    rm -rf $folder corpora-$i
done

# A chain: one run is killed again and again. Before every third start its newest checkpoint is damaged, so that the start goes
# back further than the last one did. Whatever happens, metrics.jsonl has each step once, in order, up to the last one.
before=$killed
steps_of() { figures "$1" | awk '$1 == "train" { printf "%s ", $2 }'; }
chain=0 newest=0
while ((newest < 24 && chain < 12)); do
    # A run may be some steps ahead of the line that is waited for, so the next one counts from its newest checkpoint.
    killed_at_step chain $((newest + 1 + chain * 5 % 6)) "${common[@]}" 2>/dev/null
    chain=$((chain + 1))
    newest=$(checkpoint_steps chain | tail -n 1)
    newest=$((10#${newest:-0}))
    if ((chain % 3 == 0)) && [ "$(checkpoint_steps chain | wc -l)" -gt 1 ]; then
        truncate -s 10 "$(printf 'chain/checkpoints/step_%08d/manifest.json' $newest)"
    fi
done
expect_code "kill: a run that was killed again and again resumes" 0 "$TRAIN" "$TINY" "${common[@]}" --out chain
check "kill: its metrics have each step once" test "$(steps_of chain)" = "$(seq -s ' ' 30) "
check "kill: it was killed $((killed - before)) of $chain times" test $((killed - before)) -ge 4
killed=$before
same_run "kill: it ends with the same bits as an uninterrupted run" whole-f32 chain
check "kill: $killed of $points runs were killed before their end" test $killed -ge $((points * 3 / 4))
[ $traced = no ] || check "kill: $during of the killed runs were saving" test $during -ge $((points / 10)) -a $during \
    -le $((killed - points / 5))
[ $traced = yes ] || skip "kill: runs are killed at system calls" "strace cannot trace here"
finish
