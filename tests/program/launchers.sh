#!/usr/bin/env bash
# launchers.sh -- tests the program in the environments of launchers: mpirun, mpiexec, srun, torchrun and a batch script. The
# values were recorded from Open MPI 4.1.4, MPICH 4.0.2 and SLURM 22.05.8.
# shellcheck source-path=SCRIPTDIR disable=SC2154
source "$(dirname "$0")/lib.sh"
make_text
short=(--set train_steps=6 --set eval.interval=0 --set eval.sample_interval=0)

job=(SLURM_JOB_ID=7 SLURM_NTASKS=4)
# of SIZE NAME: stores the environment of rank 0 of so many ranks in the array `of`
of() {
    case $2 in
    mpirun) of=(OMPI_COMM_WORLD_RANK=0 "OMPI_COMM_WORLD_SIZE=$1" OMPI_COMM_WORLD_LOCAL_RANK=0 "OMPI_COMM_WORLD_LOCAL_SIZE=$1"
        PMIX_RANK=0 OMPI_MCA_ess_base_jobid=12345) ;;
    mpiexec) of=(PMI_RANK=0 "PMI_SIZE=$1" MPI_LOCALRANKID=0 "MPI_LOCALNRANKS=$1" PMI_FD=6) ;;
    srun) of=("${job[@]}" SLURM_STEP_ID=0 SLURM_PROCID=0 "SLURM_STEP_NUM_TASKS=$1" SLURM_LOCALID=0 SLURM_NODEID=0
        "SLURM_STEP_TASKS_PER_NODE=$1") ;;
    srun-pmi2) of "$1" srun && of+=(PMI_RANK=0 "PMI_SIZE=$1" PMI_FD=6) ;;
    srun-pmix) of "$1" srun && of+=(PMIX_RANK=0) ;;
    salloc-mpirun) of 2 srun && of+=(OMPI_COMM_WORLD_RANK=0 "OMPI_COMM_WORLD_SIZE=$1" PMIX_RANK=0 OMPI_MCA_ess_base_jobid=12345) ;;
    torchrun) of=(RANK=0 "WORLD_SIZE=$1" LOCAL_RANK=0 "LOCAL_WORLD_SIZE=$1" MASTER_ADDR=n1 MASTER_PORT=29400
        TORCHELASTIC_RUN_ID=none) ;;
    esac
}
# under NAME=VALUE... -- ARGUMENT...: runs the program in this environment
under() {
    local set=()
    while [ "$1" != -- ]; do set+=("$1") && shift; done
    shift
    env "${set[@]}" "$TRAIN" "$@"
}

# ---- several processes are ranks -----------------------------------------------------------------------------------------
# Rank 0 of four waits for the others, which do not come (joined.sh starts all). MPICH's mpiexec tells nothing by which they could
# meet.
declare -A size_of=([mpirun]=OMPI_COMM_WORLD_SIZE [mpiexec]=PMI_SIZE [srun]=SLURM_STEP_NUM_TASKS [srun-pmi2]=PMI_SIZE
    [srun-pmix]=SLURM_STEP_NUM_TASKS [salloc-mpirun]=OMPI_COMM_WORLD_SIZE [torchrun]=WORLD_SIZE)
soon=(--set parallel.timeout=0.2)
for launcher in mpirun mpiexec srun srun-pmi2 srun-pmix salloc-mpirun torchrun; do
    of 4 $launcher
    code=69 says='^error\[69\] .*ranks? 1'
    [ $launcher != mpiexec ] || code=78 says='^error\[78\] PMI gives its ranks no number .*: set parallel.rendezvous'
    expect_code "launchers: under $launcher of four a rank waits for the others" $code under "${of[@]}" -- "$TINY" "${short[@]}" \
        "${soon[@]}" --out refused
    check "launchers: under $launcher the message says which rank is missing, or where the ranks find each other" grep -qE "$says" output
    expect_code "launchers: --ranks under $launcher of four is refused" 64 under "${of[@]}" -- "$TINY" "${short[@]}" --ranks 4 \
        --out refused
    check "launchers: the refusal under $launcher says who has started how many, and what to do instead" grep -qE \
        "^error\[64\] [A-Za-z ]+ has started 4 processes \(${size_of[$launcher]}=4\), .*: leave out --ranks 4, or start " output
    of 1 $launcher
    expect_code "launchers: a run under $launcher of one trains" 0 under "${of[@]}" -- "$TINY" "${short[@]}" --out "$launcher"
done
check "launchers: a refused run leaves no folder" test ! -e refused
expect_code "launchers: a run without a launcher trains" 0 "$TRAIN" "$TINY" "${short[@]}" --out alone
for launcher in mpirun srun torchrun; do
    same_run "launchers: a run under $launcher of one has the same bits as a run without" alone $launcher
done
of 1 srun
expect_code "launchers: --ranks under srun of one starts ranks" 0 under "${of[@]}" -- "$TINY" "${short[@]}" --ranks 2 --out two
check "launchers: --ranks under srun of one prints its ranks" grep -q '^ranks   2 = dp 2' output

# ---- which commands join -------------------------------------------------------------------------------------------------
of 4 srun
joins() { expect_code "launchers: under srun of four $1 waits for the others" 69 under "${of[@]}" -- "${@:2}"; }
read_only() { expect_code "launchers: under srun of four $1 is not refused" 0 under "${of[@]}" -- "${@:2}"; }
joins "going on with a run" alone "${soon[@]}"
joins "a dry run" "$TINY" --dry-run "${soon[@]}"
joins "eval" eval alone "${soon[@]}"
joins "generate" generate alone "${soon[@]}"
joins "verify" verify "$TINY" "${soon[@]}"
joins "bench comm" bench comm --repetitions 1 --timeout 1
joins "bench parallel" bench parallel --rounds 1 --batch 4 --length 8 "${soon[@]}"
expect_code "launchers: under srun of four --no-processes is refused" 64 under "${of[@]}" -- "$TINY" --no-processes
read_only "the help" --help train
read_only "the version" --version
read_only "config check" config check "$TINY" --world 2
read_only "config show" config show alone
read_only "ckpt list" ckpt list alone
read_only "report" report alone
read_only "doctor" doctor

# ---- a job without srun --------------------------------------------------------------------------------------------------
batch=("${job[@]}" SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=4)
# idle WHERE NAME=VALUE...: expects that a run is refused in this environment
idle() {
    expect_code "launchers: a run in $1 of four tasks is refused" 64 under "${@:2}" -- "$TINY" "${short[@]}" --out refused
    check "launchers: the refusal in $1 says what to write" grep -qE \
        '^error\[64\] this job has 4 tasks \(SLURM_NTASKS=4\), .*: put srun before \./train, or --ranks N after it' output
}
idle "a batch script" "${batch[@]}"
idle "the shell of salloc on a machine of the job" "${batch[@]}" SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1 \
    SLURM_STEP_TASKS_PER_NODE=1
expect_code "launchers: --ranks 1 in a job without srun trains" 0 under "${batch[@]}" -- "$TINY" "${short[@]}" --ranks 1 --out given
same_run "launchers: --ranks 1 in a job without srun has the same bits as a run without a job" alone given
expect_code "launchers: --ranks 2 in a job without srun trains" 0 under "${batch[@]}" -- "$TINY" "${short[@]}" --ranks 2 --out two
expect_code "launchers: a run of two ranks resumes in a job without srun" 0 under "${batch[@]}" -- two
expect_code "launchers: a run of one rank does not resume in a job without srun" 64 under "${batch[@]}" -- given
expect_code "launchers: eval in a job without srun works on one rank" 0 under "${batch[@]}" -- eval alone
expect_code "launchers: a job of one task needs no srun" 0 under "${batch[@]}" SLURM_NTASKS=1 -- "$TINY" "${short[@]}" --out single

# ---- mistakes ------------------------------------------------------------------------------------------------------------
expect_code "launchers: a rank that is not a number is refused" 64 under RANK=junk WORLD_SIZE=4 MASTER_ADDR=n1 -- "$TINY"
check "launchers: a rank that is not a number is named" grep -qE '^error\[64\] RANK=junk is not a whole number' output
expect_code "launchers: a missing size is refused" 64 under RANK=0 MASTER_ADDR=n1 -- "$TINY"
check "launchers: a missing size is named" grep -qE '^error\[64\] WORLD_SIZE is not set, but MASTER_ADDR=n1, RANK=0 says' output
expect_code "launchers: a value with control characters is refused" 64 under PMI_RANK=$'\e[2J\n1' PMI_SIZE=4 -- "$TINY"
check "launchers: control characters in a value are escaped" grep -qF 'error[64] PMI_RANK=\x1b[2J' output
expect_code "launchers: PMIX_RANK alone starts a run" 0 under PMIX_RANK=3 -- "$TINY" "${short[@]}" --out pmix
check "launchers: PMIX_RANK alone is a warning" grep -qE '^warning: PMIX_RANK=3 is set, but no variable tells' output

# ---- doctor --------------------------------------------------------------------------------------------------------------
# doctor NAME PATTERN NAME=VALUE...: expects a line of doctor in this environment
doctor() {
    under "${@:3}" -- doctor >output 2>&1
    check "launchers: doctor reports $1" grep -qE "$2" output
}
doctor "no launcher" '^ok  launcher +none: a run works alone, or starts its ranks itself \(--ranks\)$' TERM=dumb
of 1 srun
doctor "srun of one" \
    '^ok  launcher +SLURM: rank 0 of 1, local rank 0 of 1 \(SLURM_STEP_ID=0, SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=1, SLURM_LOCALID=0, .*\); a run works alone, or starts its ranks itself \(--ranks\)$' "${of[@]}"
of 4 salloc-mpirun
doctor "mpirun within a job" \
    '^ok  launcher +Open MPI: rank 0 of 4 \(OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=4\); .* by the file openmpi-12345 ' "${of[@]}"
of 4 srun-pmi2
doctor "srun --mpi=pmi2, with SLURM's local rank" \
    '^ok  launcher +PMI: rank 0 of 4, local rank 0 of 4 \(PMI_RANK=0, PMI_SIZE=4\); .* by the file slurm-7-0 ' "${of[@]}"
of 4 mpiexec
doctor "a launcher without a name for its start" \
    '^--  launcher +PMI: rank 0 of 4, .*; no number of this start: .* only if parallel.rendezvous is a folder of its own$' "${of[@]}"
doctor "a secret" '^ok  launcher +PMI: .*; a run joins the other ranks at n1, with the secret of TRAIN_SECRET$' "${of[@]}" MASTER_ADDR=n1 \
    TRAIN_SECRET=0123456789abcdef
check "launchers: doctor does not print the secret" bash -c "! grep -q 0123456789abcdef output"
doctor "a launcher without a local size" '^ok  launcher +torchrun: rank 0 of 1, local rank 0 \(MASTER_ADDR=n1, RANK=0,' RANK=0 \
    WORLD_SIZE=1 MASTER_ADDR=n1 LOCAL_RANK=0
doctor "a job without srun" '^!!  launcher +none \(SLURM_JOB_ID=7, SLURM_NTASKS=4\); a run is refused: this job has 4 tasks' "${batch[@]}"
doctor "a mistake" '^!!  launcher +RANK=9 is not below WORLD_SIZE=4' RANK=9 WORLD_SIZE=4 MASTER_ADDR=n1
doctor "PMIX_RANK alone" '^!!  launcher +none that tells how many ranks there are \(PMIX_RANK alone\)' PMIX_RANK=3
doctor "the limits" '^ok  open files +[0-9,]+(; several ranks raise it to [0-9a-z, ]+)?$' TERM=dumb
check "launchers: doctor reports locked memory" grep -qE '^(ok|--)  locked memory +(no limit|at most [0-9.]+ [KMGT]?i?B)' output
check "launchers: doctor reports /dev/shm" grep -qE '^(ok|--)  /dev/shm +([0-9.]+ [KMGT]iB, [0-9.]+ .* free|not there)' output
limited() { (ulimit -n "$1" && ulimit -l 64 && exec "$TRAIN" doctor); }
limited 300 >output 2>&1
check "launchers: doctor hints at few open files" grep -qE \
    '^--  open files +at most 300, which may be too few for several ranks; raise ulimit -Hn to 1024' output
check "launchers: doctor hints at little locked memory" grep -qE '^--  locked memory +at most 64\.0 KiB: .* ulimit -l unlimited' output
limited 100 >output 2>&1
check "launchers: doctor reports too few open files as a problem" grep -qE '^!!  open files +at most 100,' output
# shellcheck disable=SC2016 # expanded by the inner shell
if unshare -rm sh -c 'mount -t tmpfs -o size=64m none /dev/shm' 2>/dev/null; then
    unshare -rm sh -c 'mount -t tmpfs -o size=64m none /dev/shm && exec "$0" doctor' "$TRAIN" >output 2>&1
    check "launchers: doctor hints at a small /dev/shm" grep -qE '^--  /dev/shm +64\.0 MiB, 64\.0 MiB free: .* --shm-size=1g' output
else
    skip "launchers: doctor hints at a small /dev/shm" "nothing can be mounted here"
fi

# ---- scripts/train_mpi.sh ----------------------------------------------------------------------------------------------------
# A stand-in for mpirun, which prints what it would start.
printf '#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1.4" || echo "$@"\n' >stand_in
chmod +x stand_in
HOSTS=n1:2,n2:2 MASTER_ADDR=n1 TRAIN_SECRET=sixteen-bytes-or-more MPIRUN=$PWD/stand_in "$here/../../scripts/train_mpi.sh" 4 "$TINY" >words 2>&1
check "launchers: train_mpi.sh passes the rendezvous variables to Open MPI" grep -q -- '--host n1:2,n2:2 -x MASTER_ADDR -x TRAIN_SECRET ' words
check "launchers: train_mpi.sh shows no secret" test "$(grep -c sixteen words)" -eq 0
env -u MASTER_ADDR -u MASTER_PORT -u TRAIN_SECRET MPIRUN="$PWD/stand_in" "$here/../../scripts/train_mpi.sh" 4 "$TINY" >words 2>&1
check "launchers: train_mpi.sh names no variable that is not set" test "$(grep -c -- ' -x ' words)" -eq 0
finish
