#!/usr/bin/env bash
# harness.sh -- scripts/run_tests.sh itself, with stand-ins for programs: what fails, crashes, hangs, runs nothing or skips
# without saying why is seen, and what is skipped is said with its reason.
. "$(dirname "$0")/lib.sh"

# shellcheck disable=SC2154 # lib.sh says where
run_tests=$here/../../scripts/run_tests.sh
unset RESULTS LABEL JOBS

# harness NAME CODE LAST STATEMENTS: a program (or, with a name that ends in .sh, a script) that does this ends the run with CODE,
# and LAST is the closing line
harness() {
    printf '#!/bin/sh\n%s\n' "$4" >"./$1"
    chmod +x "./$1"
    expect_code "harness: $1" "$2" env LIMIT="${LIMIT:-60}" "$run_tests" "./$1"
    check "harness: $1: $3" test "$(tail -n 1 output)" = "$3"
}
harness good 0 "2 passed, 0 failed, 0 skipped" 'echo "[  PASSED  ] 2 test(s)."'
harness bad 1 "1 passed, 1 failed, 0 skipped" 'echo "[  PASSED  ] 1 test(s)."; echo "[  FAILED  ] 1 test(s), listed below:"; exit 1'
harness crash 1 "2 passed, 1 failed, 0 skipped" 'echo "[  PASSED  ] 2 test(s)."; kill -SEGV $$'
harness silent 1 "0 passed, 1 failed, 0 skipped" 'exit 0'
LIMIT=1 harness hung 1 "0 passed, 1 failed, 0 skipped" 'exec sleep 60'
harness skips 0 "1 passed, 0 failed, 3 skipped" 'echo "skipped: no moon"; echo "skipped: no moon"; echo "skipped: no sun"
echo "[  PASSED  ] 1 test(s)."; echo "[  SKIPPED ] 3 test(s), listed below:"'
check "harness: skips: each reason with its count" test "$(grep -cxE ' +skipped: no (moon \(2\)|sun \(1\))' output)" -eq 2
harness mute 1 "1 passed, 1 failed, 2 skipped" 'echo "skipped: no moon"
echo "[  PASSED  ] 1 test(s)."; echo "[  SKIPPED ] 2 test(s), listed below:"'
harness good.sh 0 "1 passed, 0 failed, 1 skipped" 'echo "ok one"; echo "ok two # SKIP no sun"'
check "harness: good.sh: the reason" grep -qx ' *ok two # SKIP no sun' output
harness bad.sh 1 "1 passed, 1 failed, 0 skipped" 'echo "ok one"; echo "not ok two"; exit 1'
harness short.sh 1 "1 passed, 1 failed, 0 skipped" 'echo "ok one"; exit 3'
finish
