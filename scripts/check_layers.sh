#!/usr/bin/env bash
# check_layers.sh -- who may include whom. A file stands on a floor and includes files of lower floors and of its own; the
# model (3a) and the strategy (3b) do not see each other, and nobody includes the program (4).
set -u
cd "$(dirname "$0")/.." || exit 71
find . -path ./build -prune -o -path ./out -prune -o \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) -print | sed 's|^\./||' | sort | xargs awk '
    # "0" core, "1" words, "2" structure, "3a" model, "3b" strategy, "4" program
    function floor_of(file,   base) {
        base = file
        sub(/^.*\//, "", base)
        sub(/\.(c|h|cu|cuh|cc)$/, "", base)
        if (file ~ /^tests\// || base ~ /^(train|cmd_.*|commands|run|run_[a-z]+|session|feed.*|trainer.*)$/)
            return base == "run_folder" ? "3b" : "4"
        if (file ~ /^model\/core\//) return "0"
        if (file ~ /^(model\/kernels|parallel\/comm|configs|data)\//) return "1"
        if (file ~ /^model\/param/ || file ~ /^parallel\/(launch|control|grid|tp|safetensors|json_text)[._]/) return "2"
        if (file ~ /^parallel\/(pipeline|schedule)\.h$/) return "2" # the contract between a model and its schedule
        if (file ~ /^model\//) return "3a"
        return "3b"
    }
    function wrong(from, to) {
        if (from == "4") return 0
        if (to == "4") return 1
        return from + 0 < to + 0 || (from + 0 == 3 && to + 0 == 3 && from != to)
    }
    /^#include "/ {
        split($0, part, "\"")
        # The CPU backend hands out the table of ops, which it knows as a type only.
        if (FILENAME == "model/core/device_cpu.c" && part[2] == "model/kernels/ops.h") next
        if (wrong(floor_of(FILENAME), floor_of(part[2]))) {
            printf "%s:%d: floor %s includes %s of floor %s\n", FILENAME, FNR, floor_of(FILENAME), part[2], floor_of(part[2])
            bad = 1
        }
        if (part[2] !~ /\// && !(part[2] == "train.c" && FILENAME ~ /^tests\/train_child/)) { printf "%s:%d: include %s from the root of the repository\n", FILENAME, FNR, part[2]; bad = 1 }
    }
    /^#include <(mpi|nccl|cuda|cublas)/ && FILENAME !~ /(kernels\/cuda\/|comm_nccl|comm_mpi|^tests\/(probe|emu)\/|^tests\/test_(emu|cuda_))/ {
        printf "%s:%d: a vendor header\n", FILENAME, FNR
        bad = 1
    }
    END { exit bad }'
