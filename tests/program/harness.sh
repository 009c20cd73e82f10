#!/usr/bin/env bash
# harness.sh -- tests scripts/run_tests.sh with fake test programs: it notices those that fail, crash, hang, run nothing or
# skip without a reason, and prints the reason of each skip. Also tests that scripts/test.sh refuses names that fit no test.
. "$(dirname "$0")/lib.sh"

# shellcheck disable=SC2154 # lib.sh sets it
run_tests=$here/../../scripts/run_tests.sh
unset RESULTS LABEL JOBS

# harness NAME CODE LAST STATEMENTS: runs run_tests.sh on a program (or, if NAME ends in .sh, a script) with these
# statements; expects the exit code CODE and the closing line LAST
harness() {
    printf '#!/bin/sh\n%s\n' "$4" >"./$1"
    chmod +x "./$1"
    expect_code "harness: run_tests.sh exits with code $2 for $1" "$2" env LIMIT="${LIMIT:-60}" "$run_tests" "./$1"
    check "harness: the last line for $1 is: $3" test "$(tail -n 1 output)" = "$3"
}
harness good 0 "2 passed, 0 failed, 0 skipped" 'echo "[  PASSED  ] 2 test(s)."'
harness bad 1 "1 passed, 1 failed, 0 skipped" 'echo "[  PASSED  ] 1 test(s)."; echo "[  FAILED  ] 1 test(s), listed below:"; exit 1'
harness crash 1 "2 passed, 1 failed, 0 skipped" 'echo "[  PASSED  ] 2 test(s)."; kill -SEGV $$'
harness silent 1 "0 passed, 1 failed, 0 skipped" 'exit 0'
LIMIT=1 harness hung 1 "0 passed, 1 failed, 0 skipped" 'exec sleep 60'
LIMIT=4 harness late 1 "0 passed, 1 failed, 0 skipped" 'printf "[ RUN      ] %s\n" test_a test_b; exec sleep 60'
check "harness: for a test program that is stopped, the test that began last is named" grep -qx "     stopped after 4 seconds, last begun: test_b" output
harness skips 0 "1 passed, 0 failed, 3 skipped" 'echo "skipped: no moon"; echo "skipped: no moon"; echo "skipped: no sun"
echo "[  PASSED  ] 1 test(s)."; echo "[  SKIPPED ] 3 test(s), listed below:"'
check "harness: each reason for a skip is printed with its count" \
    test "$(grep -cxE ' +skipped: no (moon \(2\)|sun \(1\))' output)" -eq 2
harness mute 1 "1 passed, 1 failed, 2 skipped" 'echo "skipped: no moon"
echo "[  PASSED  ] 1 test(s)."; echo "[  SKIPPED ] 2 test(s), listed below:"'
harness good.sh 0 "1 passed, 0 failed, 1 skipped" 'echo "ok one"; echo "ok two # SKIP no sun"'
check "harness: the reason for a skip in good.sh is printed" grep -qx ' *ok two # SKIP no sun' output
harness bad.sh 1 "1 passed, 1 failed, 0 skipped" 'echo "ok one"; echo "not ok two"; exit 1'
harness far.sh 1 "80 passed, 1 failed, 0 skipped" 'echo "not ok far: it is"; seq -f "ok %g" 80; exit 1'
check "harness: a failed test is named with its program's result" grep -qx "     not ok far: it is" output
check "harness: a failed test is named again before the last line" test "$(tail -n 4 output)" = "== failed
far.sh: exit code 1
far.sh: not ok far: it is
80 passed, 1 failed, 0 skipped"
harness short.sh 1 "1 passed, 1 failed, 0 skipped" 'echo "ok one"; exit 3'
expect_code "harness: run_tests.sh without a program exits with code 64" 64 "$run_tests"
expect_code "harness: a missing program exits with code 1" 1 "$run_tests" ./nobody
check "harness: a missing program counts as a failure" test "$(tail -n 1 output)" = "0 passed, 1 failed, 0 skipped"
expect_code "harness: programs can have settings of their own" 0 "$run_tests" "LABEL=here: TRAIN=/bin/true ORDER=back ./good" \
    ./good
check "harness: programs with settings are printed with label and values" \
    test "$(grep -cE '^ok +(here:good,back|good) ' output)" -eq 2
# shellcheck disable=SC2016 # the program expands it
SLURM_JOB_ID=7 SLURM_NTASKS=4 PMI_SIZE=4 RANK=1 harness in_a_job 0 "1 passed, 0 failed, 0 skipped" \
    '[ -z "$SLURM_JOB_ID$SLURM_NTASKS$PMI_SIZE$RANK" ] && echo "[  PASSED  ] 1 test(s)."'
# Where python3 is the script of a version manager, it runs once, to find the interpreter.
mkdir shim
printf '#!/bin/sh\necho asked >>"%s/asked"\nexec "%s" "$@"\n' "$PWD" "$(python3 -c 'import sys; print(sys.executable)')" >shim/python3
chmod +x shim/python3
PATH=$PWD/shim:$PATH harness snake.sh 0 "2 passed, 0 failed, 0 skipped" \
    'python3 -c "print(\"ok one\")"; python3 -c "import sys; print(\"ok\", sys.argv[1])" "two words"'
check "harness: a script in place of python3 is asked once" test "$(wc -l <asked)" -eq 1
# A program that mostly waits does not count as one of the JOBS: it starts beside the one computing job, which waits for its
# end.
stand_in=./waits
printf '#!/bin/sh\ntouch begun; echo "[  PASSED  ] 1 test(s)."\n' >$stand_in && chmod +x $stand_in
printf '#!/bin/sh\nfor i in $(seq 200); do [ -e begun ] && break; sleep 0.05; done\n[ -e begun ] && echo "[  PASSED  ] 1 test(s)."\n' >computes
chmod +x computes
expect_code "harness: a program that waits runs at the same time as one that computes" 0 env JOBS=1 "$run_tests" ./computes \
    "WAITS=yes ORDER=back $stand_in"
check "harness: a program that waits is counted" test "$(tail -n 1 output)" = "2 passed, 0 failed, 0 skipped"
check "harness: a program that waits is printed under its own name" grep -qE '^ok +waits,back ' output
printf '#!/bin/sh\necho "[  FAILED  ] 1 test(s)"; exit 1\n' >$stand_in
expect_code "harness: a program that waits can fail" 1 "$run_tests" "WAITS=yes $stand_in"

# A run that prints more than `held` expects blocks; this fails its test instead of waiting for ever.
printf '#!/bin/sh\nexec yes\n' >prints && chmod +x prints
# shellcheck disable=SC2016 # the inner shell expands it
expect_code "harness: a held run that prints too much fails its test" 1 timeout 20 env TRAIN="$PWD/prints" HELD_SECONDS=0 \
    bash -c '. "$0"; held 2 run' "$here/lib.sh"
check "harness: a held run that prints too much is named" grep -q '^not ok the held run run has not made step 2: ' output

# ---- the choice of tests
# shellcheck disable=SC2154
root=$(realpath "$here/../..")
expect_code "harness: every name in test.sh is that of a test" 0 "$root/scripts/test.sh" --list
sed 's/.* //' output >listed
(cd "$root" && find tests -name 'test_*.c' -o -name 'test_*.c[cu]' -o -path 'tests/program/*.sh') | sed -E 's/\.(c|cc|cu)$//' | grep -v '/lib\.sh$' >there
check "harness: test.sh runs every test: $(grep -vxFf listed there | head -n 1)" test "$(grep -cvxFf listed there)" -eq 0
expect_code "harness: test.sh accepts the name of a folder" 0 "$root/scripts/test.sh" --list tests/core
check "harness: the name of a folder selects only its tests" test "$(grep -c ' tests/core/test_args$' output)" -ge 2 \
    -a "$(grep -vc ' tests/core/test_' output)" -eq 0
mv output folder
expect_code "harness: test.sh accepts a folder without tests/ before it" 0 "$root/scripts/test.sh" core/ --list
check "harness: a folder without tests/ before it selects the same tests" cmp -s folder output
expect_code "harness: test.sh refuses an unknown option" 64 "$root/scripts/test.sh" --quick
expect_code "harness: test.sh quick lists its tests" 0 "$root/scripts/test.sh" --list quick
check "harness: test.sh quick needs one build" test "$(cut -d : -f 1 output | sort -u)" = cpu
rooms_of() { sed -nE 's|.* (tests/.*)/[^/]*$|\1|p' "$1" | grep -vE '^tests/(cuda|emu)\b' | sort -u; }
sed 's|^|- |' there >rooms
check "harness: test.sh quick has tests of every folder but those of the emulated device" test "$(rooms_of output)" = \
    "$(rooms_of rooms)"
expect_code "harness: test.sh quick accepts the name of a folder" 0 "$root/scripts/test.sh" quick --list parallel/zero
check "harness: test.sh quick with the name of a folder selects only its tests" \
    test "$(grep -c '^cpu: .* tests/parallel/zero/test_' output)" -ge 5 -a "$(grep -vc ' tests/parallel/zero/test_' output)" \
    -eq 0
# A test that one row of the table in test.sh leaves out is in another row.
check "harness: tests that a release row excludes run in another release row" \
    test "$(grep -c '^release: TEST_EVERY=[57] ' <("$root/scripts/test.sh" --list equivalence parallel/verify kernels configs))" -eq 6
expect_code "harness: a name that matches no test exits with code 64" 64 "$root/scripts/test.sh" tests/nowhere
check "harness: a name that matches no test is printed" grep -qx 'test.sh: no test is named tests/nowhere' output
mkdir -p project/tests
cp -r "$root"/{Makefile,scripts} project/
for room in "$root"/tests/*/; do
    [ "$(basename "$room")" = parallel ] || cp -r "$room" project/tests/
done
expect_code "harness: a row of test.sh without a matching test exits with code 70" 70 project/scripts/test.sh --list
check "harness: a row of test.sh without a matching test is printed" \
    grep -qx 'test.sh: emu: no test is named tests/parallel/trainer/test_trainer' output
# On a bare machine make may be missing until setup.sh has run.
mkdir bin
for tool in bin/make project/scripts/setup.sh; do
    printf '#!/bin/sh\necho "%s" >>"%s"\nexit 9\n' "$(basename "$tool")" "$PWD/called" >"$tool" && chmod +x "$tool"
done
expect_code "harness: test.sh exits with code 70 if make does not work" 70 env PATH="$PWD/bin:$PATH" project/scripts/test.sh
check "harness: test.sh calls setup.sh before make" test "$(head -n 1 called)" = setup.sh

# ---- packages that cannot be installed -----------------------------------------------------------------------------------
# All programs of this machine but those of Open MPI, and an apt-get that has no network.
mkdir tools
ln -sf /usr/bin/* /bin/* tools/ 2>/dev/null
rm -f tools/mpirun* tools/apt-get tools/id tools/python3
printf '#!/bin/sh\necho "$*" >>"%s"\nexit 100\n' "$PWD/called" >tools/apt-get
printf '#!/bin/sh\necho 0\n' >tools/id
printf '#!/bin/sh\nexit 1\n' >tools/python3
chmod +x tools/apt-get tools/id tools/python3
rm -f called
expect_code "harness: setup.sh --launch continues if a launcher cannot be installed" 0 env PATH="$PWD/tools" \
    "$root/scripts/setup.sh" --run --launch
check "harness: setup.sh --launch tries to install the launcher" grep -q 'install .*openmpi-bin' called
check "harness: setup.sh --launch says what is skipped" grep -qE '^setup: not installed: .*openmpi-bin.*skipped$' output
rm -f tools/make
expect_code "harness: setup.sh --launch exits with code 75 if a needed package cannot be installed" 75 env PATH="$PWD/tools" \
    "$root/scripts/setup.sh" --run --launch

# ---- the numbers in tests' names -------------------------------------------------------------------------------------
# Collects pairs "NUMBER FILE": from the table, each number of a row with each file that the row names; from the tests, each
# number in a test's name with the test's file.
sed -nE 's/^\| ([0-9, ]+) \|.*\|(.*)\|$/\1|\2/p' "$root/tests/README.md" | while IFS='|' read -r numbers files; do
    for number in ${numbers//,/ }; do for file in ${files//[,\`]/ }; do echo "$number $file"; done; done
done | sort -u >told
(cd "$root/tests" && grep -roHE --include='test_*.c' --include='test_*.c[cu]' --include='*.sh' 'bug(_[0-9]+)+|"[a-z]+: bug [0-9]+' .) | sed -E 's/^\.\///; s/\.cc?:/:/' |
    while IFS=: read -r file name; do for number in ${name//[^0-9]/ }; do echo "$number $file"; done; done | sort -u >named
check "harness: the table of mistakes in tests/README.md matches the names of tests: $(comm -3 told named | xargs)" cmp \
    -s told named
finish
