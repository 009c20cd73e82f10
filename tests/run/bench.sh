#!/usr/bin/env bash
# bench.sh -- `./train bench comm`: every verb at every size, for people and for programs.
. "$(dirname "$0")/lib.sh"

expect_code "bench comm" 0 "$TRAIN" bench comm --device cpu --repetitions 1
check "bench comm: how many ranks" grep -q '^cpu: .* each, 2 ranks as threads' output
check "bench comm: the memory's rate" grep -qE '^memory, all ranks at once: [0-9.]+ GB/s$' output
for verb in all-reduce reduce-scatter all-gather broadcast 'send [+] receive'; do
    for size in '1.0 KiB' '16.0 KiB' '256.0 KiB' '4.0 MiB' '64.0 MiB'; do
        check "bench comm: $verb of $size" grep -qE "^$verb +$size +[0-9]+\.[0-9] +[0-9]+\.[0-9]{3} +[0-9]+\.[0-9]$" output
    done
done
expect_code "bench comm for programs" 0 "$TRAIN" bench comm --device cpu --repetitions 1 --ranks 3 --json
check "bench comm for programs: one line" test "$(wc -l <output)" -eq 1
check "bench comm for programs: three ranks" grep -q '^{"ranks":3,"memory_gb_per_s":[1-9]' output
check "bench comm for programs: no call took no time" bash -c \
    "test \"\$(grep -oE '\"us\":[0-9.e+]+,\"gb_per_s\":[0-9.e+-]+,\"share\":[0-9.e+-]+\}' output | grep -cv '\"us\":0,')\" -eq 25"
expect_code "bench comm: one rank has nobody to call" 64 "$TRAIN" bench comm --ranks 1
expect_code "bench comm: more ranks than there may be" 64 "$TRAIN" bench comm --ranks 65
finish
