#!/usr/bin/env bash
# launchers.sh -- the same run, started by each launcher on this machine, has the bits of ranks that are threads. The launchers
# of MPI run in a network of their own, because they listen on all interfaces. SLURM's srun is tested by slurm.sh.
# shellcheck source-path=SCRIPTDIR disable=SC2154
source "$(dirname "$0")/lib.sh"
make_text
run=(--set train_batch_size=16 --set train_micro_batch_size_per_gpu=4 --set gradient_accumulation_steps=auto --set train_steps=8
    --set eval.interval=4 --set eval.sample_interval=8 --set checkpoint.save_interval=4 --set parallel.timeout=60 --set cpu.threads=1)
grids=("" "--set parallel.tensor=2" "--set parallel.pipeline=2 --set gradient_accumulation_steps=4 --set train_micro_batch_size_per_gpu=2"
    "--set zero_optimization.stage=3 --set fp64.enabled=true")
for i in "${!grids[@]}"; do
    read -ra grid <<<"${grids[i]}"
    expect_code "launchers: threads train on grid $i" 0 "$TRAIN" "$TINY" "${run[@]}" "${grid[@]}" --ranks 4 --out threads$i
    cp output threads$i.out
done

# same NAME LAUNCHER GRID RUN: expects that the run in the folder RUN has the bits of threads, and says the same, once
same() {
    same_run "launchers: $1 on grid $3 has the same bits as with threads" threads"$3" "$4"
    check "launchers: $1 on grid $3 prints what threads print, once" test "$(grep -cE '^(train|model|batch|update|done|val) ' output)" \
        -eq "$(grep -cE '^(train|model|batch|update|done|val) ' threads"$3".out)"
    check "launchers: $1 on grid $3 leaves no rendezvous file" test -z "$(find out/.rendezvous -mindepth 1 2>/dev/null)"
}
started() {
    local name=$1 i=$2 out=$3 begun=$EPOCHREALTIME
    read -ra grid <<<"${grids[i]}"
    expect_code "launchers: $name on grid $i trains" 0 timeout 100 "${@:4}" "$TINY" "${run[@]}" "${grid[@]}" --out "$out"
    same "$name" "$2" "$i" "$out"
    row launchers "$name" "${grids[i]:-data 4}" "4 ranks" "$(awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }')" "bits of threads"
}

# ---- MPI -------------------------------------------------------------------------------------------------------------------
export TRAIN
for launcher in mpirun.openmpi mpiexec.hydra; do
    name="Open MPI's mpirun"
    [ $launcher = mpirun.openmpi ] || name="MPICH's mpiexec"
    if ! command -v $launcher >/dev/null; then
        skip "launchers: $name" "$launcher is not installed (scripts/setup.sh --launch)"
    elif ! can_be_alone; then
        skip "launchers: $name" "it would listen on all interfaces, and this system allows no network namespaces"
    else
        for i in "${!grids[@]}"; do
            started "$name" $i "${launcher%%.*}$i" env MPIRUN=$launcher \
                unshare --net sh -c 'ip link set lo up && exec "$@"' sh "$repository/scripts/train_mpi.sh" 4
        done
        read -ra grid <<<"${grids[1]}"
        expect_code "launchers: $name passes the run's exit code on" 85 timeout 100 env MPIRUN=$launcher unshare --net sh -c \
            'ip link set lo up && exec "$@"' sh "$repository/scripts/train_mpi.sh" 4 "$TINY" "${run[@]}" "${grid[@]}" \
            --set max_time=1e-6 --out "${launcher%%.*}-stopped"
        check "launchers: $name: the stopped run is saved" test "$(checkpoint_steps "${launcher%%.*}-stopped" | tail -n 1)" -ge 1
    fi
done

# ---- torchrun's variables ---------------------------------------------------------------------------------------------------
for i in "${!grids[@]}"; do
    read -ra grid <<<"${grids[i]}"
    begun=$EPOCHREALTIME
    join 4 "$TRAIN" "$TINY" "${run[@]}" "${grid[@]}" --out torchrun$i
    all_end "launchers: torchrun's variables on grid $i: the end" 0
    cat rank.0 rank.1 rank.2 rank.3 >output
    same "torchrun's variables" torchrun $i torchrun$i
    row launchers "torchrun's variables" "${grids[i]:-data 4}" "4 ranks" \
        "$(awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }')" "bits of threads"
done
finish
