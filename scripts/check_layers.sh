#!/usr/bin/env bash
# check_layers.sh -- checks that includes follow the layers of the program, and prints each violation on a line. Each folder
# belongs to a layer, called a floor and numbered from 0 (the lowest). A file may include files of lower floors, of its own
# folder and of other folders on its floor, but folders must not include each other in a cycle. A folder and its subfolders on
# the same floor count as one here. The model (3a) and the code that drives it (3b) must not include each other. model/ includes
# nothing from parallel/. Only tests (8) include the program (7), train.c. The transports (parallel/comm/local, socket and nccl) do not
# include each other. In model/, only the files ptx*.cuh contain inline assembly. Only
# model/core/progress.c forks.
#
#   scripts/check_layers.sh [--floors]
#
# --floors: only prints the folders and their floors.
set -u
cd "$(dirname "$0")/.." || exit 71
mapfile -t files < <(find . -path ./build -prune -o -path ./out -prune -o \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) -print | sed 's|^\./||' | sort)
only_floors=0
[ "${1:-}" = --floors ] && only_floors=1 files=()
awk -v only_floors=$only_floors '
    BEGIN {
        map = "model/core 0  model/kernels 1  model/kernels/cpu 1  model/kernels/cuda 1  configs 1  configs/reader 1  configs/machine_file 1" \
            "  data 1  data/text 1  data/tokenizer 1  data/tokens 1  parallel/comm 1  parallel/comm/local 1  parallel/comm/nccl 1  parallel/comm/socket 1  parallel/report 1" \
            "  model/param 2  model/weights 2  parallel/grid 2  parallel/meeting 2  parallel/flight 2" \
            "  model 3a  optim 3b  parallel/zero 3b  parallel/pipeline 3b  parallel/checkpoint 3b" \
            "  parallel/trainer 4  parallel/memory 5  parallel/plan 5  parallel/verify 5  parallel/run 5  parallel/commands 6  tests 8"
        n = split(map, words)
        for (i = 1; i < n; i += 2) {
            floors[words[i]] = words[i + 1]
            if (only_floors) print words[i], words[i + 1]
        }
        if (only_floors) exit 0
        for (i = 1; i < ARGC; i++) at_root[ARGV[i]] = ARGV[i] !~ /\//
    }
    function folder_of(file) { return sub(/\/[^\/]*$/, "", file) ? file : "" }
    function floor_of(file,   folder) {
        folder = folder_of(file)
        if (folder == "") return "7"
        if (folder ~ /^tests\//) folder = "tests"
        if (!(folder in floors)) { printf "%s: the folder %s is on no floor\n", file, folder; bad = 1; return "8" }
        return floors[folder]
    }
    function wrong(from, to) { return from + 0 < to + 0 || (from + 0 == 3 && to + 0 == 3 && from != to) }
    function inside(folder, room) { return index(folder "/", room "/") == 1 }
    # Stores that folder a includes folder b, which is on the same floor.
    function neighbour(a, b) {
        if (!inside(a, b) && !inside(b, a) && !((a, b) in edges)) edges[a, b] = FILENAME ":" FNR
    }
    # Repeatedly removes edges to folders that include no other folder of their floor. The remaining edges are in a cycle or
    # lead to one.
    function find_cycles(   edge, ends, more, going) {
        do {
            more = 0
            split("", going)
            for (edge in edges) { split(edge, ends, SUBSEP); going[ends[1]] }
            for (edge in edges) {
                split(edge, ends, SUBSEP)
                if (!(ends[2] in going)) { delete edges[edge]; more = 1 }
            }
        } while (more)
        for (edge in edges) {
            split(edge, ends, SUBSEP)
            printf "%s: %s includes %s, of its own floor, in a cycle\n", edges[edge], ends[1], ends[2]
            bad = 1
        }
    }
    /^#include "/ {
        split($0, part, "\"")
        from = folder_of(FILENAME)
        to = folder_of(part[2])
        if (from != to && floor_of(FILENAME) == floor_of(part[2]) && floor_of(FILENAME) < 7) neighbour(from, to)
        if (from ~ /^model/ && to ~ /^parallel/) {
            printf "%s:%d: model/ includes nothing of parallel/\n", FILENAME, FNR
            bad = 1
        }
        if (from ~ /^parallel\/comm\// && to ~ /^parallel\/comm\// && from != to) {
            printf "%s:%d: a transport includes another one, %s\n", FILENAME, FNR, part[2]
            bad = 1
        }
        if (wrong(floor_of(FILENAME), floor_of(part[2]))) {
            printf "%s:%d: floor %s includes %s of floor %s\n", FILENAME, FNR, floor_of(FILENAME), part[2], floor_of(part[2])
            bad = 1
        }
        if (to == "" && !(at_root[part[2]] && FILENAME ~ /^tests\//)) {
            printf "%s:%d: include %s from the root of the repository\n", FILENAME, FNR, part[2]
            bad = 1
        }
    }
    /^#include <(mpi|nccl|cuda|cublas)/ && FILENAME !~ /^(model\/kernels\/cuda|parallel\/comm|tests\/(probe|emu|cuda))\// {
        printf "%s:%d: a vendor header\n", FILENAME, FNR
        bad = 1
    }
    /(^|[^A-Za-z_])asm( volatile)?\(/ && FILENAME ~ /^model\// && FILENAME !~ /^model\/kernels\/cuda\/ptx[a-z_]*\.cuh$/ {
        printf "%s:%d: inline PTX outside of model/kernels/cuda/ptx*.cuh, which the emulated device replaces\n", FILENAME, FNR
        bad = 1
    }
    /(^|[^A-Za-z_])v?fork\((void)?\)/ && !/^ *(\/\*|\/\/|\* )/ && FILENAME !~ /^(tests\/|model\/core\/progress\.c$)/ {
        printf "%s:%d: fork outside of model/core/progress.c; call progress_fork, which stops the thread that prints\n", FILENAME, FNR
        bad = 1
    }
    # Only the folder configs may modify a Config. A command uses config_settle to add values that it finds out later.
    /(^|[^A-Za-z_])Config \*/ && !/const Config \*/ && FILENAME !~ /^(configs|tests)\// {
        printf "%s:%d: a Config that may be written; make it const\n", FILENAME, FNR
        bad = 1
    }
    END {
        find_cycles()
        exit bad
    }' "${files[@]}"
