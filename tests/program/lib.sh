# lib.sh -- helpers that all end-to-end tests share. Each test runs in a folder of its own, with the program in $TRAIN.
# shellcheck shell=bash
set -u

# As in scripts/run_tests.sh: also if a script is started by itself within a job.
unset "${!SLURM_@}" "${!OMPI_@}" "${!PMI_@}" "${!PMIX_@}" RANK WORLD_SIZE MASTER_ADDR MASTER_PORT LOCAL_RANK TRAIN_SECRET

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TRAIN=${TRAIN:-$here/../../train}
[ -x "$TRAIN" ] || { echo "not ok $(basename "$0" .sh): there is no program $TRAIN; say make, or set TRAIN"; exit 1; }
TRAIN=$(realpath "$TRAIN")
export TINY=$here/tiny.json
work=$(mktemp -d "${TMPDIR:-/tmp}/train-test.XXXXXX") || exit 71
children=()
clean_up() {
    for child in "${children[@]}"; do kill -KILL "$child" 2>/dev/null; done
    wait 2>/dev/null
    rm -rf "$work"
}
trap clean_up EXIT
cd "$work" || exit 71
failures=0

ok() { echo "ok $*"; }
skip() { echo "ok $1 # SKIP $2"; }
not_ok() {
    echo "not ok $*"
    failures=$((failures + 1))
}
finish() { exit $((failures > 0)); }

# check NAME COMMAND...: reports one test, which passes if the command succeeds
check() {
    local name=$1
    shift
    if "$@"; then ok "$name"; else not_ok "$name: $*"; fi
}

# expect_code NAME CODE COMMAND...: reports one test, which passes if the command exits with CODE; its output is left in the
# file "output"
expect_code() {
    local name=$1 code=$2 got
    shift 2
    "$@" >output 2>&1 </dev/null
    got=$?
    if [ $got -eq "$code" ]; then ok "$name"; return 0; fi
    not_ok "$name: exit code $got, not $code"
    tail -n 5 output | sed 's/^/    | /'
    return 1
}

# turn NUMBER: succeeds if this case is one to try. Slow builds (TEST_SAMPLE) try every second one: those of even numbers at one
# commit (TEST_TURN), those of odd numbers at the next.
turn() { [ -z "${TEST_SAMPLE:-}" ] || [ $((($1 + ${TEST_TURN:-0}) % 2)) -eq 0 ]; }

# without_speed FILE: prints what generate has printed without the line about its speed
without_speed() { sed -E '/^[0-9,]+ tokens?,.* after a prompt of [0-9,]+ tokens? in [0-9.]+ s$/d' "$1"; }

# Writes text.txt: sentences of a small grammar, the same ones every time.
make_text() {
    awk 'function draw(n) { seed = (seed * 16807) % 2147483647; return int(seed / 2147483647 * n) + 1 }
         BEGIN {
             seed = 4711
             split("the king,the servant,a prophet,the people of the land,my brother", who, ",")
             split("went unto,spake against,remembered,looked upon,hid from", did, ",")
             split("the city,the mountain,the house of his father,the river,the gates", what, ",")
             split("in the morning,with great joy,for many days,and was not afraid", how, ",")
             for (i = 0; i < 1500; i++)
                 printf "%s %s %s%s.\n", who[draw(5)], did[draw(5)], what[draw(5)], draw(2) == 1 ? " " how[draw(4)] : ""
         }' >text.txt
}

# losses FILE: prints the training lines of a metrics file without the fields that differ between any two runs
losses() { grep '"event": "train"' "$1" | sed -E 's/"attempt": [0-9]+, "t": [0-9.]+, //'; }

# figures RUN: prints the losses of the steps and of the evaluations of the whole validation set
figures() { sed -nE 's/.*"event": "(train|val)", "step": ([0-9]+),.*"loss": ([^,]*),.*/\1 \2 \3/p' "$1/metrics.jsonl"; }

# near_f32 NAME A B: expects that both runs have the same evaluations and steps, with losses that differ only by the rounding of f32
near_f32() {
    figures "$2" >figures.a
    figures "$3" >figures.b
    check "$1" awk 'NR == FNR { a[FNR] = $3; n = FNR; next }
        !($3 > 0) || ($3 > a[FNR] ? $3 - a[FNR] : a[FNR] - $3) > 2e-5 * $3 { bad = 1 }
        END { exit bad || n < 2 || FNR != n }' figures.a figures.b
}

# alike NAME A B: expects that both runs have the same evaluations and $steps steps, with losses in f64 that differ only by
# rounding
alike() {
    figures "$2" >figures.a
    figures "$3" >figures.b
    paste -d ' ' figures.a figures.b | awk -v steps="${steps:?}" -v name="$1" '
        $1 != $4 || $2 != $5 || !($3 > 0) || ($3 > $6 ? $3 - $6 : $6 - $3) > 1e-9 * $3 { bad = bad "; " $0 }
        END { if (NR <= steps) bad = bad "; only " NR " figures"
              if (bad) { print "not ok " name bad; exit 1 } else print "ok " name }' || failures=$((failures + 1))
}

# text RUN: prints the run's last sample
text() { grep '"event": "sample"' "$1/metrics.jsonl" | tail -n 1 | sed 's/.*"prompt"//'; }

# checkpoint_steps RUN: prints the step numbers of its checkpoints, oldest first
checkpoint_steps() { find "$1/checkpoints" -maxdepth 1 -name 'step_????????' 2>/dev/null | sed 's/.*step_0*//; s/^$/0/' | sort -n; }

# tensors FILE: prints the offset at which the tensor data of a safetensors file begin
tensors() { echo $((8 + $(od -An -t u8 -N 8 "$1"))); }

# same_run NAME A B: expects that the losses of all steps and the weights and optimizer state of the last checkpoint are the
# same, bit for bit. Prints the first difference.
same_run() {
    local name=$1 a=$2 b=$3 last file
    last=$(checkpoint_steps "$a" | tail -n 1)
    losses "$a/metrics.jsonl" >losses.a
    losses "$b/metrics.jsonl" >losses.b
    if ! [ -s losses.a ]; then not_ok "$name: $a has no losses"; return 1; fi
    if ! cmp -s losses.a losses.b; then
        not_ok "$name: the losses differ"
        diff losses.a losses.b | head -n 4
        return 1
    fi
    for file in model.safetensors optimizer.safetensors; do
        local x y
        x=$(printf '%s/checkpoints/step_%08d/%s' "$a" "$last" $file)
        y=$(printf '%s/checkpoints/step_%08d/%s' "$b" "$last" $file)
        if ! [ -f "$x" ] || ! [ -f "$y" ]; then not_ok "$name: $x or $y is missing"; return 1; fi
        if ! cmp -i "$(tensors "$x"):$(tensors "$y")" "$x" "$y"; then not_ok "$name: $file differs"; return 1; fi
    done
    ok "$name"
}

# until_step STEP: reads JSON lines from stdin until the training line of that step; returns 1 if it does not come
until_step() {
    local line
    while read -r line; do
        [[ $line == *'"event": "train", "step": '"$1,"* ]] && return 0
    done
    return 1
}

# fill_but BYTES: fills the pipe held.lines (open as descriptors 3 and 4) except for so many bytes, without blocking. The
# pipe may hold less than the usual 64 KiB, but at least three pages. A line goes into a page that has room for all of it.
fill_but() {
    local pages empty=$((($1 + 4095) / 4096))
    pages=$(LC_ALL=C dd if=/dev/zero of=held.lines oflag=nonblock bs=4096 2>&1 | sed -nE 's/^([0-9]+)\+.* records out$/\1/p')
    if [ "${pages:-0}" -le $empty ]; then
        not_ok "a pipe holds ${pages:-0} pages: this user has more pipes than /proc/sys/fs/pipe-user-pages-soft lets be larger"
        finish
    fi
    head -c $((empty * 4096)) <&3 >/dev/null
    head -c $((empty * 4096 - $1)) /dev/zero >&4
}

# held STEP RUN OPTION...: starts a run of $TINY in the background, stores its process number in $child, and returns after
# that step. The run's console is a pipe that nobody reads before `let_go`; it has room for the JSON lines up to this step
# and one or two more. So the run cannot get further, however long the test takes to disturb it. If the run has not made the
# step after $HELD_SECONDS, the test fails: the run prints more than fits into the pipe, or it hangs. $from: the step from which
# the run goes on (default 0).
held() {
    local step=$1 run=$2 end=$((SECONDS + ${HELD_SECONDS:-180}))
    shift 2
    [ -p held.lines ] || mkfifo held.lines
    exec 4<>held.lines
    exec 3<held.lines
    fill_but $((700 + 500 * (step - ${from:-0}))) # a run prints 490 bytes at its start, 440 for each step and 190 for each save
    "$TRAIN" "$TINY" --json "$@" --out "$run" >&4 2>err </dev/null 3<&- 4>&- &
    child=$!
    children+=("$child")
    exec 4>&-
    until grep -qs '"event": "train", "step": '"$step," "$run/metrics.jsonl"; do
        kill -0 "$child" 2>/dev/null || return 1
        if [ $SECONDS -ge $end ]; then
            not_ok "the held run $run has not made step $step: it hangs, or prints more than held expects: $(tail -n 1 err)"
            finish
        fi
        sleep 0.02
    done
}

# let_go: waits until the held run ends; stores its exit code in $code
let_go() {
    cat <&3 >/dev/null
    wait "$child" 2>/dev/null
    code=$?
    exec 3<&-
}

# start_clock: starts a clock with one byte in the file "clock" for each tenth of a second. It runs slow on a busy machine, so
# that time in which the machine runs nothing of this test does not count.
start_clock() {
    mkfifo nobody
    : >clock
    while :; do
        read -rt 0.1 -u 5
        printf . >>clock
    done 5<>nobody &
    children+=($!)
    disown # the shell must print no message when it ends
}

# now: prints the seconds on that clock
now() { awk -v n="$(stat -c %s clock)" 'BEGIN { print n / 10 }'; }

# since TIME: prints the seconds on that clock since then
since() { awk -v from="$1" -v to="$(now)" 'BEGIN { printf "%.1f", to - from }'; }

# in_time NAME SECONDS DEADLINE: expects that something has ended at most two seconds after its deadline
in_time() {
    check "$1 within two seconds after the deadline ($2 s with a deadline of $3)" awk "BEGIN { exit !($2 <= $3 + 2) }"
}

# ranks_of LAUNCHER: prints the process numbers of its ranks, in their order
ranks_of() { pgrep -P "$1" | sort -n; }

# can_attach: succeeds if strace can attach to processes that it has not started
can_attach() {
    local process own code=1 end=$((SECONDS + 3))
    sleep 9 &
    process=$!
    : >attached
    strace -o /dev/null -p $process 2>attached &
    own=$!
    while [ $code -ne 0 ] && kill -0 $own 2>/dev/null && [ $SECONDS -lt $end ]; do
        sleep 0.01
        ! grep -q ' attached' attached || code=0
    done
    kill $process
    wait $process $own 2>/dev/null
    return $code
}

# trace PROCESS ARGUMENT...: starts strace on the process's first thread. When the process ends, writes the time to the file
# "died". Stores the number of what it has started in $tracer.
trace() {
    : >attached
    { strace "${@:2}" -p "$1" 2>attached; now >died; } &
    tracer=$!
    children+=("$tracer")
    until grep -q attached attached; do
        kill -0 "$tracer" 2>/dev/null || { not_ok "strace: $(cat attached)"; finish; }
        sleep 0.01
    done
}

# descriptors PROCESS SHELL: prints how many of which descriptors the process has open besides those of the process SHELL, for
# example "2 socket, 1 run/lock", and which of them a program that it executed would inherit
descriptors() {
    local fd n name flags
    for fd in "/proc/$1/fd/"*; do
        n=${fd##*/}
        [ ! -e "/proc/$2/fd/$n" ] || continue
        name=$(readlink "$fd" | sed -E "s|^$PWD/||; s|^(.*):\[.*|\1|; s|.*corpora/[^/]*/||")
        flags=$(awk '$1 == "flags:" { print $2 }' "/proc/$1/fdinfo/$n")
        ((flags & 02000000)) || name+=' (inherited)' # O_CLOEXEC
        echo "$name"
    done | LC_ALL=C sort | uniq -c | awk '{ printf "%s%s", sep, $0; sep = "," }' | tr -s ' ' | sed 's/^ //'
}

# nothing_left NAME PROCESS...: expects that these processes end within two seconds
nothing_left() {
    local name=$1 i process state left=''
    shift
    for ((i = 0; i < 100; i++)); do
        left=''
        for process in "$@"; do
            state=''
            { read -r state <"/proc/$process/stat"; } 2>/dev/null
            state=${state##*) }
            # A process that nobody has waited for yet has ended, too.
            [[ $state =~ ^([ZX].*)?$ ]] || left+=" $process"
        done
        [ -n "$left" ] || break
        sleep 0.02
    done
    check "$name leaves no process" test -z "$left"
}

# ---- a signal that has come ------------------------------------------------------------------------------------------------

# with_signal PROGRAM ARGUMENTS...: starts the program with a SIGTERM that has come, and is held back
with_signal() {
    python3 -c 'import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getpid(), signal.SIGTERM)
os.execv(sys.argv[1], sys.argv[1:])' "$@"
}

# ---- a small disk ----------------------------------------------------------------------------------------------------------

# small KIB COMMAND: runs the command with a tmpfs of KIB KiB in the folder "small"; fails on systems that mount none for us
small() {
    unshare --mount --propagation private bash -c "mkdir -p small && mount -t tmpfs -o size=${1}k none small && { $2; }"
}

# ---- ranks that a launcher has started -------------------------------------------------------------------------------------

# start_ranks N ARGUMENT...: starts so many ranks as a launcher does, by torchrun's variables; stores their process numbers in the
# array ranks. Rank R's output goes to the file rank.R. before R: may print settings NAME=VALUE for this rank; options R: may
# print options. program[R]: another program than $TRAIN.
# Other tests may run at the same time.
ranks=() program=() port=$((10000 + $$ % 20000))
before() { :; }
options() { :; }
start_ranks() {
    local n=$1 r set more
    shift
    ranks=()
    rm -f rank.?
    for ((r = 0; r < n; r++)); do
        mapfile -t set < <(before "$r")
        mapfile -t more < <(options "$r")
        env RANK="$r" LOCAL_RANK="$r" WORLD_SIZE="$n" MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "${set[@]}" \
            "${program[r]:-$TRAIN}" "$@" "${more[@]}" >"rank.$r" 2>&1 </dev/null &
        ranks+=($!)
        children+=($!)
    done
}
# ranks_end NAME CODE: waits for the ranks, and expects that all end with this code
ranks_end() {
    local r code bad=''
    for r in "${!ranks[@]}"; do
        wait "${ranks[r]}"
        code=$?
        [ $code -eq "$2" ] || bad+=" rank $r ends with $code: $(tail -n 1 "rank.$r");"
    done
    cp rank.0 output
    if [ -z "$bad" ]; then ok "$1"; else not_ok "$1:$bad"; fi
}
# all_end NAME CODE N ARGUMENT...: starts ranks, and expects that all end with this code
all_end() {
    start_ranks "${@:3}"
    ranks_end "$1" "$2"
}
