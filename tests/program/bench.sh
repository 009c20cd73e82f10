#!/usr/bin/env bash
# bench.sh -- tests `./train bench comm`, which times every collective at every size, and `./train bench parallel`, which
# times every way to train, both with output for people and with --json.
. "$(dirname "$0")/lib.sh"

expect_code "bench comm: runs on the CPU" 0 "$TRAIN" bench comm --device cpu --repetitions 1
check "bench comm: prints the number of ranks" grep -q '^cpu: .* each, 2 ranks as threads' output
check "bench comm: prints the memory bandwidth" grep -qE '^memory, all ranks at once: [0-9.]+ GB/s$' output
for verb in all-reduce reduce-scatter all-gather broadcast 'send [+] receive' send; do
    for size in '1.0 KiB' '16.0 KiB' '256.0 KiB' '4.0 MiB' '64.0 MiB'; do
        check "bench comm: prints a row for $verb of $size" \
            grep -qE "^$verb +$size +[0-9]+\.[0-9] +[0-9]+\.[0-9]{3} +[0-9]+\.[0-9]$" output
    done
done
check "bench comm: no call is printed with a time of zero" test "$(grep -cE 'iB +0\.0 ' output)" -eq 0
check "bench comm: explains shares above 100 %" grep -qE '^Above 100 %: ' output
check "bench comm: the table has a column for the share of the memory bandwidth" grep -qE '^verb +size +us +GB/s +% memory$' \
    output
expect_code "bench comm --json: runs on three ranks" 0 "$TRAIN" bench comm --device cpu --repetitions 1 --ranks 3 --json
check "bench comm --json: prints one line" test "$(wc -l <output)" -eq 1
check "bench comm --json: gives the number of ranks and the memory bandwidth" \
    grep -q '^{"ranks":3,"memory_gb_per_s":[0-9.e+-]*[1-9]' output
check "bench comm --json: names the transport" grep -qF ',"transport":"local","calls":[' output
check "bench comm --json: no call has a time of zero" bash -c \
    "test \"\$(grep -oE '\"us\":[0-9.e+]+,\"gb_per_s\":[0-9.e+-]+,\"share\":[0-9.e+-]+\}' output | grep -cv '\"us\":0,')\" -eq 30"
# Checks rates and shares against the times. n is how often, with three ranks, a call of each collective reads or writes its
# data.
check "bench comm --json: rates and shares are consistent with the times" awk -v RS='{' -F '[:,}]' '
    BEGIN { n["all-reduce"] = n["send + receive"] = 6; n["send"] = 2; n["reduce-scatter"] = n["all-gather"] = n["broadcast"] = 4 }
    function off(x, y) { return x < 0.999 * y || x > 1.001 * y }
    $1 == "\"ranks\"" { memory = $4 }
    $1 == "\"verb\"" { gsub("\"", "", $2); rows++; wrong += off($8, 1e-3 * $4 / $6) || off($10, n[$2] * $8 / memory) }
    END { exit rows != 30 || wrong > 0 }' output
expect_code "bench comm: runs with the smallest sizes only" 0 "$TRAIN" bench comm --device cpu --repetitions 1 --sizes 2
check "bench comm: prints no row for the sizes left out" \
    test "$(grep -cE ' (1|16)\.0 KiB ' output) $(grep -cE '[KM]iB ' output)" = '12 12'
expect_code "bench comm: a sixth size is refused" 64 "$TRAIN" bench comm --sizes 6
expect_code "bench comm: an unknown device is refused" 64 "$TRAIN" bench comm --device gpu
check "bench comm: an unknown device is answered with the known ones" \
    grep -qF 'error[64] --device gpu: write auto, cuda or cpu' output
expect_code "bench comm: a missing CUDA device ends with 69" 69 env CUDA_VISIBLE_DEVICES= "$TRAIN" bench comm --device cuda
check "bench comm: a missing CUDA device is reported without a rank" grep -Eq '^error\[69\] [^r]' output
expect_code "bench comm: one rank is refused" 64 "$TRAIN" bench comm --ranks 1
expect_code "bench comm: more than 64 ranks are refused" 64 "$TRAIN" bench comm --ranks 65

expect_code "bench parallel: runs on the CPU" 0 "$TRAIN" bench parallel "$TINY" --rounds 1 --length 16 --set device=cpu
check "bench parallel: prints what it measures" grep -q 'steps of 8 x 16 random tokens in f32, medians of 1 round$' output
for way in 'one rank' DDP ZeRO-1 ZeRO-3 tensor 'tensor [+] SP' pipeline; do
    check "bench parallel: prints a row for $way" grep -qE "^$way +[0-9]+\.[0-9] +[0-9]+\.[0-9] +[0-9]+\.[0-9] %   cpu: " output
done
check "bench parallel: prints the sizes of the model" \
    grep -qF 'tiny.json, 2 blocks of hidden size 32, vocabulary 300: steps of ' output
expect_code "bench parallel: runs on processes" 0 "$TRAIN" bench parallel "$TINY" --rounds 1 --length 16 --set device=cpu \
    --processes --json
check "bench parallel: measures communication between processes" bash -c \
    'grep -q "\"one_communication_ms\":0," output && ! grep -qE "\"(ddp|zero[13]|tensor|tensor_sp)_communication_ms\":0," output'
expect_code "bench parallel: runs in the config's dtype" 0 "$TRAIN" bench parallel "$TINY" --rounds 1 --length 16 \
    --set device=cpu --set bf16.enabled=true
check "bench parallel: prints the config's dtype" grep -q 'random tokens in bf16, medians of 1 round$' output
expect_code "bench parallel: runs GPT-2 124M with changed sizes" 0 "$TRAIN" bench parallel --rounds 1 --length 8 --batch 2 \
    --set device=cpu \
    --set model.num_layers=1 --set model.hidden_size=48
check "bench parallel: a changed GPT-2 124M is not called by that name" \
    grep -qE '^GPT-2, 1 block of hidden size 48, vocabulary 50257: ' output
expect_code "bench ops: runs for some ops" 0 "$TRAIN" bench ops --device cpu --tokens 64 --repetitions 3 --only sq_norm
check "bench ops: has a line for each of these, with its rate, and no other" bash -c \
    'tail -n +4 output | grep -qE "^sq_norm .* [0-9.]*[1-9][0-9.]* +[0-9.]+ +[0-9.]+$" && ! tail -n +4 output | grep -v "^sq_norm "'
expect_code "bench step: more than one rank is refused" 78 "$TRAIN" bench step "$TINY" --set parallel.data=2
check "bench step: more than one rank is answered with what to write" \
    grep -qF 'parallel.data: 2, but there is 1 rank here; leave the key out' output
expect_code "bench step: runs with states on the host" 0 "$TRAIN" bench step "$TINY" --set device=cpu --steps 1 \
    --set zero_optimization.offload_optimizer.device=cpu
check "bench step: has a row of the update on the host, beside a loop over as many bytes" bash -c \
    'grep -qE "^ *adamw +[0-9.]*[1-9]" output && grep -q "^optimizer " output && ! grep -q inf output'
expect_code "bench parallel --json: runs on four ranks" 0 "$TRAIN" bench parallel "$TINY" --rounds 1 --length 16 --ranks 4 \
    --set device=cpu --json --set pipeline.stages=2
check "bench parallel --json: prints one line" test "$(wc -l <output)" -eq 1
check "bench parallel --json: gives the ratio of each way" \
    grep \
    -qE \
    '^\{"ranks":4,"rounds":1,.*"one_ratio":1,.*"ddp_ratio":[0-9.e-]+,.*"zero1_ratio":[0-9.e-]+,.*"zero3_ratio":[0-9.e-]+,.*"tensor_ratio":[0-9.e-]+,.*"tensor_sp_ratio":[0-9.e-]+\}$' \
    output
check "bench parallel --json: several ranks communicate, one rank does not" bash -c \
    'grep -q "\"one_communication_ms\":0," output && ! grep -qE "\"(ddp|zero[13]|tensor|tensor_sp)_communication_ms\":0," output'
check "bench parallel --json: omits four stages if the model has two blocks" test "$(grep -c pipeline_ output)" -eq 0
expect_code "bench parallel: runs with more ranks than the model can be split into" 0 "$TRAIN" bench parallel "$TINY" \
    --rounds 1 --length 16 --ranks 8 --set device=cpu
for way in tensor pipeline; do
    check "bench parallel: explains that 8 ranks cannot split the model by $way" \
        grep -qE "^$way +-   \(8 ranks do not divide the model so\)$" output
done
# With sequence_parallel on, activations sent in bf16 are refused if weights are f32. The row tensor turns it off.
sed 's/"seed": 7,/"seed": 7, "seq_parallel_communication_data_type": "bf16", "parallel": { "data": 2, "tensor": 2, "pipeline": 2, "pipeline_chunks": 1, "pipeline_split": [1, 1],\n  "schedule": "gpipe", "sequence_parallel": true },/' "$TINY" >grid.json
check "bench parallel: the test's config has a grid" grep -q pipeline_split grid.json
expect_code "bench parallel: accepts a config that has a grid" 0 "$TRAIN" bench parallel grid.json --rounds 1 --length 15 \
    --batch 2 --set device=cpu
for way in 'one rank' DDP ZeRO-3 tensor pipeline; do
    check "bench parallel: measures $way although the config has a grid" grep -qE "^$way +[0-9]+\.[0-9] " output
done

expect_code "bench machine: measures the CPU" 0 "$TRAIN" bench machine --device cpu --size 1 --repetitions 1
check "bench machine: prints a machine file" grep -q '^  "peak_f32": [0-9.e+]*,$' output
check "bench machine: the file says what one machine does not show" grep -q '"between_bandwidth": "assumed, ' output
cp output machine.json
expect_code "bench machine: plan accepts its file" 0 "$TRAIN" plan "$TINY" --machine machine.json --world 2 --set device=cpu
check "bench machine: plan names the file" grep -q '^machine  *machine.json: cpu: ' output
sed 's/"launch": [0-9].*/"launch": 7,/' machine.json >wrong.json
expect_code "bench machine: plan refuses an impossible number" 78 "$TRAIN" plan "$TINY" --machine wrong.json
check "bench machine: plan names the place of the number" grep -q 'wrong.json:[0-9]*:13: launch: 7 does not fit; write seconds' output
check "bench machine: leaves no file on the disk" test -z "$(find . -name 'bench_machine*')"
expect_code "bench machine: a folder that is not there is refused" 74 "$TRAIN" bench machine --device cpu --size 1 \
    --repetitions 1 --disk no/such
check "bench machine: names the folder" grep -q '^error\[74\] --disk no/such: .*No such file' output
expect_code "bench machine: a launcher is refused" 64 env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 \
    OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2 "$TRAIN" bench machine
expect_code "bench parallel: a batch that the ranks cannot share is refused" 64 "$TRAIN" bench parallel "$TINY" --ranks 3
finish
