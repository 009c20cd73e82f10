#!/usr/bin/env bash
# environment.sh -- tests the program when the caller has closed its standard streams or limited its address space.
. "$(dirname "$0")/lib.sh"
make_text
short=(--set train_steps=6 --set eval.interval=0 --set eval.sample_interval=0 --set steps_per_print=1)

# ---- closed streams: their descriptors must not be reused for the run's own files, or console output would be written into
# them
# closed NAME STREAM...: starts a run with these streams closed
closed() {
    local name=$1 fd code
    shift
    (
        for fd; do
            case $fd in 0) exec <&- ;; 1) exec >&- ;; 2) exec 2>&- ;; esac
        done
        exec "$TRAIN" "$TINY" "${short[@]}" --out "$name"
    ) >console 2>err </dev/null
    code=$?
    check "environment: $name: the run exits with code 0 (exit code $code)" test $code -eq 0
    check "environment: $name: metrics.jsonl contains only events" \
        test "$(grep -cE '^\{"event": .*\}$' "$name/metrics.jsonl")" = "$(wc -l <"$name/metrics.jsonl")"
    check "environment: $name: metrics.jsonl has an event for every step" test "$(losses "$name/metrics.jsonl" | wc -l)" -eq 6
    check "environment: $name: the lock file contains its record" grep -qxE 'attempt 0, process [0-9]+ on .*' "$name/lock"
    check "environment: $name: the lock file contains nothing else" test "$(wc -c <"$name/lock")" -eq 160
}
closed stdin 0
check "environment: a closed stdin does not affect the console" grep -q '^done' console
closed stdout 1
closed stderr 2
check "environment: a closed stderr does not affect the console" grep -q '^done' console
closed all 0 1 2
for name in stdout stderr all; do same_run "environment: $name: the run has the same bits as the other runs" stdin $name; done
"$TRAIN" "$TINY" --set train_steps=0 >&- 2>err
check "environment: with a closed stdout an error still gives its exit code" test $? -eq 78 -a -s err
"$TRAIN" - <&- >console 2>&1
check "environment: with a closed stdin a config from - is empty" test $? -eq 78

# ---- torchrun sets OMP_NUM_THREADS=1 for every rank; it says nothing about this program's threads, and changes no bit
if [ "$(nproc)" -ge 2 ]; then
    OMP_NUM_THREADS=1 "$TRAIN" "$TINY" "${short[@]}" --set cpu.threads=0 --out omp >console
    check "environment: OMP_NUM_THREADS leaves a rank its cores" grep -qE '^device +cpu: .*, ([2-9]|[1-9][0-9]+) threads$' console
    "$TRAIN" "$TINY" "${short[@]}" --set cpu.threads=0 --out free >console
    same_run "environment: OMP_NUM_THREADS changes no bit" free omp
else
    skip "environment: OMP_NUM_THREADS leaves a rank its cores" "it needs two cores"
fi

# ---- limits on address space (ulimit -v, in KiB), from too small to large enough: a run trains or reports why not. A
# thread needs 256 MiB, OpenBLAS another 128 MiB per thread; in between, the built-in matrix multiplication is used.
unlimited=$(losses all/metrics.jsonl | sed -E 's/.*"loss": ([0-9.e+-]+).*/\1/')
served=0
for size in 100000 280000 300000 360000 440000 2000000; do
    limited() { (ulimit -v $size && exec timeout -k 1 120 "$TRAIN" "$TINY" "${short[@]}" --set cpu.threads=1 --out "limit-$size"); }
    limited >output 2>err </dev/null
    code=$?
    if [ $code -eq 90 ]; then
        check "environment: a limit of $size KiB is reported with an error message" \
            grep -qE '^error\[90\] .*(bytes|memory|[KM]iB of address space)' err
    else
        check "environment: a limit of $size KiB lets the run train (exit code $code)" test $code -eq 0
        losses "limit-$size/metrics.jsonl" | sed -E 's/.*"loss": ([0-9.e+-]+).*/\1/' >limited.losses
        check "environment: a limit of $size KiB changes losses only by rounding" awk -v all="$unlimited" 'BEGIN { split(all, a, "\n") }
            { n++; d = $1 / a[n] - 1; if (!($1 > 0) || d > 1e-5 || d < -1e-5) bad = 1 } END { exit bad || n != 6 }' limited.losses
        grep -q 'warning: OpenBLAS does not get its memory' err && grep -q '^device .*built-in products' output && served=1
    fi
    [ $size -ne 100000 ] || check "environment: a limit of $size KiB is too small for any run" test $code -eq 90
    [ $size -ne 2000000 ] || check "environment: a limit of $size KiB is enough without a warning" test $code -eq 0 -a ! -s err
done
if "$TRAIN" doctor | grep -q '^ok  blas '; then
    check "environment: a run without memory for OpenBLAS warns and uses the built-in matrix multiplication" test $served -eq 1
else
    skip "environment: a run without memory for OpenBLAS warns" "there is no OpenBLAS"
fi

# ---- limits on the stack (ulimit -s, in KiB) and on open files (ulimit -n) -----------------------------------------------
# A limit that may be raised is raised: verify on four ranks needs more in the main thread and in each rank's.
on_small_stack() { (ulimit "$1" -s 64 && exec "$TRAIN" verify "$TINY" --ranks 4 --set parallel.tensor=2 "${short[@]:2}"); }
expect_code "environment: a low limit on the stack is raised" 0 on_small_stack -S
expect_code "environment: a low limit on the stack that cannot be raised is refused" 71 on_small_stack -SH
check "environment: a low limit on the stack is named" grep -qxF \
    'error[71] the limit on the stack is 64.0 KiB, and 1.0 MiB are needed; raise ulimit -s to 1024' output
for files in 6 8 10; do
    few_files() { (ulimit -n $files && exec "$TRAIN" "$TINY" "${short[@]}" --out "files-$files"); }
    expect_code "environment: $files open files are too few" 71 few_files
    check "environment: $files open files: the error message names the limit" grep -qE \
        '^error\[71\] .*(: Too many open files; raise ulimit -n|see the warning above)' output
done

# ---- SIGCHLD is ignored, as some callers leave it, with limited address space: the trial process's exit status must still
# be seen
ignored() {
    timeout -k 1 20 python3 -c 'import resource, signal, subprocess, sys
def before():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (2000000 * 1024,) * 2)
sys.exit(subprocess.call(sys.argv[1:], preexec_fn=before))' "$TRAIN" "$TINY" "${short[@]}" --set cpu.threads=1 --out ignored 2>err
}
if command -v python3 >/dev/null; then
    expect_code "environment: a run with SIGCHLD ignored and a limit on address space exits with code 0" 0 ignored
    same_run "environment: an ignored SIGCHLD changes no bit" limit-2000000 ignored
else
    skip "environment: a run with SIGCHLD ignored exits with code 0" "there is no python3"
fi

# ---- doctor reports what a limit on address space prevents, and continues
(ulimit -v 100000 && exec "$TRAIN" doctor) >output 2>err </dev/null
check "environment: doctor runs within 100000 KiB" test $? -eq 0 -a ! -s err
check "environment: doctor reports that a device cannot be opened" \
    grep -qE '^!!  device  +the system refused .* of address space for .*; raise ulimit -v' output
check "environment: doctor reports the levels, in MiB, with one thread" \
    grep -qE '^!!  levels  +the system refused 256\.0 MiB of address space for 1 thread; raise ulimit -v$' output
check "environment: doctor continues to its last check" grep -qE '^(ok|--)  python3 ' output
finish
