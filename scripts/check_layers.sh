#!/usr/bin/env bash
# check_layers.sh -- who may include whom: a folder is a floor. A file includes files of lower floors, of its own folder and of
# other folders of its floor; the model (3a) and the strategy (3b) do not see each other, nobody includes the program (7).
set -u
cd "$(dirname "$0")/.." || exit 71
find . -path ./build -prune -o -path ./out -prune -o \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) -print | sed 's|^\./||' | sort | xargs awk '
    BEGIN {
        map = "model/core 0  model/kernels 1  model/kernels/cpu 1  model/kernels/cuda 1  configs 1  configs/reader 1" \
            "  data 1  data/text 1  data/tokenizer 1  data/tokens 1  parallel/comm 1  parallel/report 1" \
            "  model/param 2  model/weights 2  parallel/grid 2" \
            "  model 3a  optim 3b  parallel/zero 3b  parallel/pipeline 3b  parallel/checkpoint 3b" \
            "  parallel/trainer 4  parallel/plan 5  parallel/run 5  parallel/commands 6"
        n = split(map, words)
        for (i = 1; i < n; i += 2) floors[words[i]] = words[i + 1]
        # Includes that still go the wrong way.
        known["model/core/files.h configs/config.h"]
        known["model/gpt.h parallel/pipeline/pipeline.h"]
    }
    function folder_of(file) { return sub(/\/[^\/]*$/, "", file) ? file : "" }
    function floor_of(file,   folder) {
        folder = folder_of(file)
        if (folder == "" || folder ~ /^tests/) return "7"
        if (!(folder in floors)) { printf "%s: the folder %s is on no floor\n", file, folder; bad = 1; return "7" }
        return floors[folder]
    }
    function wrong(from, to) { return from + 0 < to + 0 || (from + 0 == 3 && to + 0 == 3 && from != to) }
    /^#include "/ {
        split($0, part, "\"")
        # The CPU backend hands out the table of ops, which it knows as a type only.
        if (FILENAME == "model/core/device_cpu.c" && part[2] == "model/kernels/ops.h") next
        if (wrong(floor_of(FILENAME), floor_of(part[2])) && !((FILENAME " " part[2]) in known)) {
            printf "%s:%d: floor %s includes %s of floor %s\n", FILENAME, FNR, floor_of(FILENAME), part[2], floor_of(part[2])
            bad = 1
        }
        if (part[2] !~ /\// && !(part[2] == "train.c" && FILENAME ~ /^tests\/support\/train_child/)) { printf "%s:%d: include %s from the root of the repository\n", FILENAME, FNR, part[2]; bad = 1 }
    }
    /^#include <(mpi|nccl|cuda|cublas)/ && FILENAME !~ /^(model\/kernels\/cuda|parallel\/comm|tests\/(probe|emu|cuda))\// {
        printf "%s:%d: a vendor header\n", FILENAME, FNR
        bad = 1
    }
    # A config is written in its own room alone; config_settle is how a command adds what it finds out.
    /(^|[^A-Za-z_])Config \*/ && !/const Config \*/ && FILENAME !~ /^(configs|tests)\// {
        printf "%s:%d: a Config that may be written; make it const\n", FILENAME, FNR
        bad = 1
    }
    END { exit bad }'
