#!/usr/bin/env bash
# gpu_probe.sh -- tests scripts/gpu_probe.sh without a GPU. The probes are fake scripts: one fails, one hangs, one finds no
# GPU. The test checks the table of their answers and, where nvcc is installed, that every real probe compiles.
. "$(dirname "$0")/lib.sh"
root=$(realpath "$(dirname "$TINY")/../..")
copy=$PWD/project # gpu_probe.sh writes into the tree that it is part of
mkdir -p "$copy/scripts" "$copy/tests" bin
cp "$root"/scripts/{gpu_probe,cuda_lib}.sh "$copy/scripts/"
cp -r "$root/tests/probe" "$copy/tests/"
cp -r "$root/model" "$copy/"
notes=$copy/model/kernels/cuda/NOTES.md

# fake NAME LINE...: writes a probe that prints the lines and then runs the commands in the file NAME.then
fake() {
    local name=$1
    shift
    { echo '#!/bin/sh'; printf "echo '%s'\n" "$@"; cat "$name.then" 2>/dev/null; } >"bin/$name"
    chmod +x "bin/$name"
}

fake bits "device.name = a card | of paper" "philox.mismatches = 0" "copy.1MiB = 3.91e+12 B/s" "map.a.lane0 = r0:(0,0)"
echo 'echo "the last word" >&2; exit 1' >other.then
fake other "before.the.end = 1 ms"
expect_code "gpu_probe: a failing probe ends the script with exit code 1" 1 env PROBE_BIN="$PWD/bin" "$copy/scripts/gpu_probe.sh" \
    --out "$PWD/a.md" --notes
check "gpu_probe: probes that answered and failed are counted" \
    grep -Eq '^1 answered, 1 failed, [01] skipped$|^1 answered, 2 failed' output
check "gpu_probe: a measured number is printed with its unit" grep -qxF '| copy.1MiB | 3.91e+12 | B/s |' a.md
check "gpu_probe: a bar in a text value is escaped" grep -qxF '| device.name | a card \| of paper |  |' a.md
check "gpu_probe: lines of maps are listed apart from the table" grep -qx 'map.a.lane0 = r0:(0,0)' a.md
check "gpu_probe: values of a failing probe are kept" grep -qxF '| before.the.end | 1 | ms |' a.md
check "gpu_probe: the last line of a failing probe is kept" grep -qx 'the last word' a.md
check "gpu_probe: --notes copies the table into NOTES.md" grep -qxF '| copy.1MiB | 3.91e+12 | B/s |' "$notes"
check "gpu_probe: --notes keeps the markers in NOTES.md" test "$(grep -c '^<!-- probe:\(begin\|end\) -->$' "$notes")" -eq 2
fake other "a.map = match"
expect_code "gpu_probe: --match fails with a failing probe, though its verdict is there" 1 env PROBE_BIN="$PWD/bin" "$copy/scripts/gpu_probe.sh" \
    --out "$PWD/m.md" --match a.map
rm bin/other
fake bits "a.value = 1"
expect_code "gpu_probe: probes that all answer exit with code 0" 0 env PROBE_BIN="$PWD/bin" "$copy/scripts/gpu_probe.sh" \
    --out "$PWD/b.md" --notes
check "gpu_probe: --notes removes the old table" test "$(grep -c 'copy.1MiB' "$notes")" -eq 0

rm other.then
fake other "b.value = 2"
expect_code "gpu_probe: --only succeeds" 0 env PROBE_BIN="$PWD/bin" "$copy/scripts/gpu_probe.sh" --out "$PWD/b.md" --only other
check "gpu_probe: --only runs only the named probe" grep -q '^1 answered, 0 failed, 0 skipped' output
rm bin/other
# shellcheck disable=SC2016 # the probe expands it
echo 'echo "told.share = $PROBE_SHARE s"' >told.then
fake told
expect_code "gpu_probe: a probe that ends within its time limit answers" 0 env PROBE_BIN="$PWD/bin" \
    "$copy/scripts/gpu_probe.sh" --out "$PWD/d.md"
check "gpu_probe: a probe is given its time limit" grep -qxF '| told.share | 20 | s |' d.md
rm bin/told
echo 'sleep 60' >slow.then
fake slow "begun.value = 1"
expect_code "gpu_probe: a probe that hangs is stopped" 1 env PROBE_BIN="$PWD/bin" PROBE_SHARE=1 "$copy/scripts/gpu_probe.sh" \
    --out "$PWD/c.md"
check "gpu_probe: a probe that hangs is named" grep -q 'slow failed: stopped after its 1 s' output
rm bin/slow
echo 'echo "no GPU to ask: none is visible" >&2; exit 69' >bits.then
fake bits "nothing = 0"
expect_code "gpu_probe: a missing GPU exits with code 69" 69 env PROBE_BIN="$PWD/bin" "$copy/scripts/gpu_probe.sh"
check "gpu_probe: a missing GPU is reported" grep -q 'no GPU to ask' output
expect_code "gpu_probe: an unknown option is refused" 64 "$copy/scripts/gpu_probe.sh" --fast
expect_code "gpu_probe: --match without names is refused" 64 "$copy/scripts/gpu_probe.sh" --match

if command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
    # Compiles the probes whose sources the last ten commits have changed, and a sixth of the others, chosen by the commit's
    # number; all of them if the commands that compile them (not only a comment) have changed.
    # unchanged FILE...: succeeds if the last ten commits have changed none of these files of the project
    unchanged() { git -C "$root" diff --quiet HEAD~10 -- "$@" 2>/dev/null; }
    # due: prints the probes to compile, one per line
    due() {
        local file used number=0
        for file in tests/probe/*.cu; do
            # The headers of the toolkit may be missing here, and do not matter.
            mapfile -t used < <(g++ -x c++ -D__CUDACC__ -MM -MG -I. "$file" 2>/dev/null | grep -oE '(tests|model|parallel)/[^ ]*')
            if [ ${#used[@]} -eq 0 ] || [ $((number++ % 6)) -eq $((TEST_TURN % 6)) ] || ! unchanged "${used[@]}"; then
                basename "$file" .cu
            fi
        done
    }
    only=()
    if [ -n "${TEST_TURN:-}" ] && commands=$(git -C "$root" diff -G'^[^#]*(nvcc|options=|-Xcompiler)' HEAD~10 -- scripts/gpu_probe.sh scripts/cuda_lib.sh 2>&1) &&
        [ -z "$commands" ]; then
        only=(--only "$(cd "$root" && due | paste -sd ,)")
    fi
    "$copy/scripts/gpu_probe.sh" "${only[@]}" >output 2>&1 </dev/null
    code=$?
    # 0 or 1 where there is a GPU to answer
    check "gpu_probe: every probe compiles" test $code -ne 1 -o -s "$copy/build/probe/probe.md"
else
    skip "gpu_probe: every probe compiles" "there is no nvcc"
    expect_code "gpu_probe: a missing nvcc exits with code 69" 69 "$copy/scripts/gpu_probe.sh"
fi
finish
