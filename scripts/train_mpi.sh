#!/usr/bin/env bash
# train_mpi.sh -- trains on N ranks that Open MPI's mpirun or MPICH's mpiexec starts: a worked example.
#
#   scripts/train_mpi.sh N CONFIG.json [OPTION OF ./train]...
#
# MPI only starts the ranks and tells each its number; they exchange data by their own sockets. HOSTS=n1:8,n2:8 starts eight
# ranks on each of two machines; otherwise all are on this one. MPIRUN=/path names the launcher; otherwise the first one of
# mpirun and mpiexec is taken. TRAIN=/path names the program; it, the config and the run folder must be the same on all machines.
# The exit code is that of the run (9 or a signal's from MPICH if a rank was killed).
set -u
here=$(dirname "$0")
train=${TRAIN:-$here/../train}
case ${1:-} in
'' | *[!0-9]*) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 64 ;;
esac
[ $# -ge 2 ] || { echo "train_mpi.sh: which config? scripts/train_mpi.sh $1 configs/demo.json" >&2; exit 64; }
[ -x "$train" ] || { echo "train_mpi.sh: there is no program $train; say make, or set TRAIN" >&2; exit 66; }
ranks=$1 folder=''
shift

launcher=${MPIRUN:-$(command -v mpirun || command -v mpirun.openmpi || command -v mpiexec || command -v mpiexec.hydra)}
[ -n "$launcher" ] || { echo "train_mpi.sh: there is neither mpirun nor mpiexec here (scripts/setup.sh --launch)" >&2; exit 69; }
kind=$("$launcher" --version 2>&1)
# The ranks divide the cores of their machine among themselves (cpu.threads), so the launcher must not bind them to fewer.
case $kind in
*"Open MPI"* | *OpenRTE*)
    words=(--oversubscribe --bind-to none -np "$ranks")
    if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
    if [ -n "${HOSTS:-}" ]; then words+=(--host "$HOSTS"); else export OMPI_MCA_oob_tcp_if_include=lo; fi
    # By these the ranks meet where the machines share no folder. Open MPI passes on no variable by itself; MPICH passes on all.
    for name in MASTER_ADDR MASTER_PORT TRAIN_SECRET; do [ -z "${!name:-}" ] || words+=(-x "$name"); done
    ;;
*HYDRA* | *hydra* | *MPICH*)
    words=(-bind-to none -n "$ranks")
    if [ -n "${HOSTS:-}" ]; then words+=(-hosts "$HOSTS"); else words+=(-iface lo -launcher fork); fi
    # MPICH does not number its starts, so the ranks of this one need a folder of their own to find each other.
    if [[ " $* " != *" parallel.rendezvous="* ]]; then
        folder=out/.rendezvous/mpi-${HOSTNAME%%.*}-$$
        set -- "$@" --set "parallel.rendezvous=$folder"
    fi
    ;;
*)
    echo "train_mpi.sh: $launcher is neither Open MPI's mpirun nor MPICH's mpiexec; set MPIRUN" >&2
    exit 69
    ;;
esac
[ -n "$folder" ] || exec "$launcher" "${words[@]}" "$train" "$@"
"$launcher" "${words[@]}" "$train" "$@" </dev/null &
child=$!
trap 'kill -TERM $child 2>/dev/null' INT TERM HUP USR1
wait $child
code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done # a signal ends the first wait
rmdir "$folder" 2>/dev/null
exit $code
