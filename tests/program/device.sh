#!/usr/bin/env bash
# device.sh -- tests runs whose config asks for a GPU: without a GPU, or in a program without CUDA, they end with an error
# message and exit code 69. With "auto" they continue on the CPU, with a warning if a GPU exists but cannot be used; doctor
# tells which. A plan that does not fit a GPU's memory is refused before anything is written. The program starts without
# loading any CUDA library.
. "$(dirname "$0")/lib.sh"

make_text
"$TRAIN" doctor >doctor 2>&1
emulated=
case $(grep -E '^(ok|--|!!)  cuda ' doctor) in
*"emulated GPU"*) state=present emulated=yes ;;
"ok"*) state=present ;;
*"not built into this program"*) state=absent sentence='device "cuda" is not built into this program' ;;
*"built in; no device"*"the CPU path is ready"*) state=idle sentence='NVIDIA' ;;
"!!"*"built in; trouble"*) state=idle sentence='GPU' ;;
*) state=unknown sentence='?' ;;
esac
check "device: doctor reports whether CUDA is built in and has a device" test $state != unknown
if [ $state = absent ]; then
    check "device: doctor does not look for the libraries of GPUs in a build without CUDA" bash \
        -c "! grep -qE '^(ok|--|!!)  (gpus|peers|nccl) ' doctor"
else
    check "device: doctor reports whether NCCL was found" grep -qE '^(ok|--|!!)  nccl ' doctor
    [ $state = present ] || check "device: doctor does not report NCCL as a problem without a GPU" grep -qE '^(ok|--)  nccl ' \
        doctor
fi

# refused NAME CODE WORDS COMMAND...: expects this exit code and an error message with WORDS
refused() {
    local name=$1 code=$2 words=$3
    shift 3
    expect_code "device: $name" "$code" "$@" && check "device: $name with the right error message" grep -qF "$words" output
}

short=(--set device=auto --set train_steps=6 --set eval.interval=0 --set eval.sample_interval=0)
expect_code "device: device=auto trains" 0 "$TRAIN" "$TINY" "${short[@]}" --out auto
if [ $state = present ]; then
    skip "device: device=cuda is refused without a GPU" "there is one"
else
    refused "device=cuda is refused without a GPU" 69 "$sentence" "$TRAIN" "$TINY" --set device=cuda --out missing
    check "device: the message about a missing GPU says what to write" grep -qF 'write device "cpu" or "auto"' output
    refused "a dry run with device=cuda is refused without a GPU" 69 "$sentence" "$TRAIN" "$TINY" --set device=cuda --dry-run
    refused "generate with device=cuda is refused without a GPU" 69 "$sentence" "$TRAIN" generate auto --prompt x \
        --set device=cuda
    refused "eval with device=cuda is refused without a GPU" 69 "$sentence" "$TRAIN" eval auto --set device=cuda
    check "device: a refused run leaves no run folder" test ! -e missing
fi
expect_code "device: a config for a GPU can be shown anywhere" 0 "$TRAIN" config show "$TINY" --set device=cuda \
    --set bf16.enabled=auto
check "device: with device=cuda, auto has the values of a GPU" bash -c "grep -A1 '\"bf16\"' output | grep -q '\"enabled\": true'"

# The emulated device can be removed, made to fail, or given too little memory.
if [ -n "$emulated" ]; then
    EMU_DEVICES=0 refused "device=cuda is refused if the driver shows no GPU" 69 "shows no GPU" "$TRAIN" "$TINY" \
        --set device=cuda --out missing
    EMU_DEVICES=0 expect_code "device: device=auto trains without a GPU" 0 "$TRAIN" "$TINY" "${short[@]}" --out plain
    check "device: device=auto gives no warning without a GPU" bash -c "grep -q '^done' output && ! grep -i warning output"
    EMU_CAPABILITY=75 expect_code "device: device=auto trains with a GPU that is too old" 0 "$TRAIN" "$TINY" "${short[@]}" \
        --out old
    check "device: device=auto warns about a GPU that is too old" grep -q 'warning.* going on with the CPU: .*capability 7.5' \
        output
    # bf16.enabled=auto follows from the device that is opened, not from the config's name for it.
    expect_code "device: bf16.enabled=auto is accepted with a GPU" 0 "$TRAIN" config show "$TINY" --set device=auto \
        --set bf16.enabled=auto
    check "device: bf16.enabled=auto means true with a GPU" grep -qF '"enabled": true,' output
    EMU_DEVICES=0 expect_code "device: bf16.enabled=auto is accepted without a GPU" 0 "$TRAIN" config show "$TINY" \
        --set device=auto --set bf16.enabled=auto
    check "device: bf16.enabled=auto means false without a GPU" bash -c "! grep -qF '\"enabled\": true,' output"
    EMU_CAPABILITY=75 expect_code "device: bf16.enabled=auto is accepted with a GPU that is too old" 0 "$TRAIN" "$TINY" \
        "${short[@]}" --set bf16.enabled=auto --dry-run
    check "device: bf16.enabled=auto means f32 with a GPU that is too old" grep -q ', f32: ' output
    EMU_CAPABILITY=75 expect_code "device: bench ops runs on the CPU if the GPU is too old" 0 "$TRAIN" bench ops --tokens 1 \
        --repetitions 1
    check "device: bench ops warns about a GPU that is too old" grep -q 'warning.* going on with the CPU: .*capability 7.5' \
        output
    check "device: doctor reports a cuBLASLt that cannot start" bash \
        -c "EMU_LT=broken '$TRAIN' doctor | grep -q '^!!  cuda .*cuBLASLt cannot start'"
    # What doctor prints about several GPUs: their addresses, and which of them can access each other's memory.
    # found NAME LINE: expects this line in doctor's output, where repeated blanks count as one
    found() { check "device: doctor prints $1" grep -qxF -- "$2" findings; }
    # findings SETTING...: writes doctor's output with these settings to the file "findings"
    findings() { env "$@" "$TRAIN" doctor | sed 's/  */ /g' >findings; }
    findings EMU_DEVICES=1
    found "the address of one GPU" "ok gpus 1: 0000:01:00.0"
    check "device: doctor lists no peers of a single GPU" bash -c "! grep -q ' peers ' findings"
    findings EMU_DEVICES=2
    found "the addresses of two GPUs" "ok gpus 2: 0000:01:00.0, 0000:02:00.0"
    found "that two GPUs see each other" "ok peers all GPUs see each other"
    findings EMU_DEVICES=4
    found "the addresses of four GPUs" "ok gpus 4: 0000:01:00.0, 0000:02:00.0, 0000:03:00.0, 0000:04:00.0"
    found "that four GPUs see each other" "ok peers all GPUs see each other"
    findings EMU_DEVICES=4 EMU_PEERS=none
    found "that no GPU sees another" "-- peers no GPU sees another: NCCL goes through the host's memory"
    findings EMU_DEVICES=4 EMU_PEERS=pairs
    found "which pairs of GPUs see each other" \
        "-- peers GPUs see these, others through the host's memory: 0: 1; 1: 0; 2: 3; 3: 2"
    findings EMU_DEVICES=3 EMU_PEERS=later
    found "which GPUs see another one in one direction only" \
        "-- peers GPUs see these, others through the host's memory: 0: 1 2; 1: 2; 2:"
    findings EMU_DRIVER=none
    check "device: doctor lists no GPUs without a driver" bash \
        -c "grep -q '^-- cuda .*no NVIDIA driver' findings && ! grep -qE ' (gpus|peers) ' findings"
    # One program has NCCL next to it, the other a file that cannot be opened as a library.
    findings EMU_DEVICES=2
    check "device: doctor prints NCCL's version and path" \
        grep -qxE "ok nccl NCCL [0-9]+\.[0-9]+\.[0-9]+, $(dirname "$TRAIN")/libnccl\.so\.2" findings
    mkdir -p alone broken
    cp "$TRAIN" alone/train
    : >broken/libnccl.so.2
    for count in 0 1 2; do
        EMU_DEVICES=$count LD_LIBRARY_PATH=$PWD/broken alone/train doctor | sed 's/  */ /g' >findings.$count
    done
    for count in 0 1; do
        check "device: doctor says that $count GPUs need no NCCL" grep -qx -- \
            '-- nccl none that can be used, and none needed: only several GPUs reach each other through it' findings.$count
    done
    check "device: doctor reports a damaged NCCL if there are two GPUs" \
        grep -q '^!! nccl .*libnccl.so.2: file too short; install NCCL 2.28.9 or newer' findings.2
    # The packages of a virtual environment hold NCCL and cuBLASLt where PyTorch is installed.
    packages=venv/lib/python3.11/site-packages/nvidia/nccl/lib
    mkdir -p $packages
    ln -s "$(dirname "$TRAIN")/libnccl.so.2" $packages/
    # This machine may have another NCCL in the loader's cache, which is hidden in a name space of mounts.
    : >empty
    if unshare -rm sh -c "mount --bind empty /etc/ld.so.cache" 2>/dev/null; then
        # shellcheck disable=SC2016 # the inner shell expands it
        EMU_DEVICES=2 VIRTUAL_ENV=$PWD/venv unshare -rm sh -c \
            'mount --bind empty /etc/ld.so.cache && exec alone/train doctor' | sed 's/  */ /g' >findings
        check "device: NCCL is found in the packages of a virtual environment" \
            grep -qE "^ok nccl NCCL .*, $PWD/$packages/libnccl.so.2" findings
    else
        skip "device: NCCL is found in the packages of a virtual environment" "no name space of mounts can be made here"
    fi
    EMU_DEVICES=2 VIRTUAL_ENV=$PWD/venv LD_LIBRARY_PATH=$PWD/broken alone/train doctor | sed 's/  */ /g' >findings
    check "device: a damaged NCCL is reported although a package has another one" \
        grep -q '^!! nccl .*libnccl.so.2: file too short' findings
    EMU_DRIVER=old refused "a driver that is too old is refused" 69 "update the driver" "$TRAIN" "$TINY" --set device=cuda \
        --out missing
    EMU_MEMORY=300 refused "a GPU that is too small for any model is refused" 90 \
        "0 bytes of GPU 0's memory are available for it; no model fits" \
        "$TRAIN" "$TINY" --set device=cuda --out missing
    EMU_MEMORY=500 refused "a batch that is too large for a GPU is refused" 90 \
        "of GPU 0's memory are available for it; lower train_micro_batch" \
        "$TRAIN" "$TINY" --set device=cuda --set train_batch_size=4096 --set train_micro_batch_size_per_gpu=4096 \
        --set gradient_accumulation_steps=1 --out missing
    EMU_MEMORY=100 refused "a GPU whose memory other programs use is refused" 90 \
        "before any model: another program holds its memory" "$TRAIN" "$TINY" --set device=cuda --out missing
    EMU_MEMORY=280 refused "a GPU that is too small for all ranks that share it is refused" 90 \
        "128 MiB are needed before any model by each rank that shares it: write fewer --ranks, wait for other programs" \
        "$TRAIN" "$TINY" --ranks 4 --set train_batch_size=4 --set train_micro_batch_size_per_gpu=1 \
        --set gradient_accumulation_steps=1 --set device=cuda --out missing
    EMU_MEMORY=100 expect_code "device: config check does not depend on a GPU's free memory" 0 "$TRAIN" config check "$TINY" \
        --set device=auto --set bf16.enabled=auto
    EMU_LT=full refused "a GPU that fills up in the first matrix multiplications is refused" 90 "CUBLAS_STATUS_ALLOC_FAILED" \
        "$TRAIN" "$TINY" --set device=cuda --dry-run
    check "device: the message about a full GPU says which key to lower" grep -q 'lower train_micro_batch_size_per_gpu' output
    # Defaults that depend on the device are those of the least device of the ranks, and a run keeps what it began with.
    gelu=(--set device=auto --set model.activation=gelu --set bf16.enabled=true --set model.vocab_size=300)
    # settled NAME ROWS FUSED SETTING...: expects these values of two ranks with these settings
    settled() {
        local name=$1 rows=$2 fused=$3
        shift 3
        env "$@" "$TRAIN" config show "$TINY" "${gelu[@]}" --world 2 >shown 2>&1
        check "device: $name" grep -qzP "\"fused_gelu\": $fused,(?s:.*)\"head_chunk_rows\": $rows," shown
    }
    settled "two Hopper GPUs fuse GELU" 16384 true EMU_DEVICES=2
    settled "the smaller of two GPUs decides about the head's chunks" 8192 true EMU_DEVICES=2 EMU_MEMORY=8192,300
    settled "the older of two GPUs decides about GELU" 16384 false EMU_DEVICES=2 EMU_CAPABILITY=90,80
    settled "ranks that share a GPU share its memory" 8192 true EMU_MEMORY=500
    settled "without a GPU, the values are those of a CPU" 0 false EMU_DEVICES=0
    EMU_CAPABILITY=80 EMU_MEMORY=450 expect_code "device: a run begins on a small, older GPU" 85 "$TRAIN" "$TINY" "${short[@]}" \
        "${gelu[@]}" --set max_time=1e-9 --out kept
    for config in "$TINY" kept; do
        words=("${short[@]}" "${gelu[@]}" --out kept)
        [ "$config" = "$TINY" ] || words=()
        expect_code "device: the run resumes on another GPU with $config" 85 "$TRAIN" "$config" "${words[@]}" --set max_time=1e-9
        check "device: resuming with $config keeps the values that depend on the device" bash \
            -c "grep -q '\"head_chunk_rows\": 8192' kept/config.json && grep -q '\"fused_gelu\": false' kept/config.json"
        check "device: resuming with $config reports no change" bash -c "! grep -q 'model\.' output"
    done
    expect_code "device: the run resumes with other chunks" 0 "$TRAIN" kept --set model.head_chunk_rows=64 --set max_time=0
    check "device: other chunks are reported" grep -q 'model.head_chunk_rows was 8192, is 64: changes rounding only' output
    for line in "90 portable and hopper; cuda.attention auto takes portable" "80 portable; cuda.attention auto takes portable (those for Hopper need" \
        "100 portable; cuda.attention auto takes portable (those for Hopper need"; do
        check "device: doctor says which attention a GPU of capability ${line%% *} has" \
            bash -c "EMU_CAPABILITY=${line%% *} '$TRAIN' doctor | tr -s ' ' | grep -qF 'ok attention kernels ${line#* }'"
    done
    # Attention by the kernels for Hopper: a run keeps them, says what changes, and is refused where they are missing.
    wide=(--set device=cuda --set bf16.enabled=true --set model.hidden_size=128 --set model.num_attention_heads=2
        --set model.num_layers=1 --set max_time=1e-9)
    expect_code "device: a run begins with attention for Hopper" 85 "$TRAIN" "$TINY" "${short[@]}" "${wide[@]}" \
        --set cuda.attention=hopper --out hopper
    expect_code "device: a run with attention for Hopper resumes without the key" 85 "$TRAIN" "$TINY" "${short[@]}" "${wide[@]}" --out hopper
    check "device: resuming without the key keeps attention for Hopper" grep -q '"attention": "hopper"' hopper/config.json
    check "device: resuming without the key reports no change" bash -c "! grep -q 'cuda.attention' output"
    EMU_CAPABILITY=80 expect_code "device: a run with attention for Hopper does not resume on another GPU" 78 "$TRAIN" "$TINY" "${short[@]}" "${wide[@]}" --out hopper
    check "device: the message says what the run began with" \
        grep -q 'cuda.attention: the run began with "hopper"; .* a GPU here has 8.0; write "portable", which changes rounding only' output
    EMU_CAPABILITY=80 expect_code "device: it does not resume there with its own config either" 78 "$TRAIN" hopper
    # It can be read on every device.
    read_elsewhere="attention: by the portable kernels; training took those for Hopper, which are not here. That changes rounding only"
    expect_code "device: generate uses the attention of the run" 0 "$TRAIN" generate hopper --prompt x --tokens 3
    check "device: generate prints no note if it uses the attention of the run" bash -c "! grep -q 'attention' output"
    for command in "generate hopper --prompt x --tokens 3" "eval hopper"; do
        # shellcheck disable=SC2086 # words
        EMU_CAPABILITY=80 expect_code "device: ${command%% *} of such a run works on another GPU" 0 "$TRAIN" $command
        check "device: ${command%% *} says which attention it uses" grep -qF "$read_elsewhere" output
        # shellcheck disable=SC2086 # words
        expect_code "device: ${command%% *} of such a run works on a CPU" 0 "$TRAIN" $command --set device=cpu
        check "device: ${command%% *} on a CPU prints no note about attention" bash -c "! grep -q '^attention:' output"
        # shellcheck disable=SC2086 # words
        EMU_CAPABILITY=80 refused "${command%% *} with the key is refused on another GPU" 78 \
            'set cuda.attention=hopper: cuda.attention: "hopper" is for GPUs of compute capability 9.0' \
            "$TRAIN" $command --set cuda.attention=hopper
    done
    # A program without code for sm_90a, which make links next to the emulated one if it is named.
    bare=${TRAIN}_without_90a
    if [ -x "$bare" ]; then
        "$bare" doctor | tr -s ' ' >findings
        found "that a program has no code for sm_90a" \
            "ok attention kernels portable; cuda.attention auto takes portable (this program is built without 90a in ARCH)"
        lacking='and this program was built without 90a in ARCH; write "portable"'
        refused "without sm_90a, attention for Hopper is refused" 78 "with code for sm_90a, $lacking" "$bare" "$TINY" "${short[@]}" "${wide[@]}" \
            --set cuda.attention=hopper --out missing
        refused "without sm_90a, a run with attention for Hopper does not go on" 78 "$lacking, which changes rounding only" \
            "$bare" hopper
        expect_code "device: without sm_90a, such a run can be read" 0 "$bare" generate hopper --prompt x --tokens 3
        check "device: without sm_90a, generate says which attention it uses" grep -qF "$read_elsewhere" output
        expect_code "device: without sm_90a, auto trains" 85 "$bare" "$TINY" "${short[@]}" "${wide[@]}" --set cuda.attention=auto \
            --out bare
        check "device: without sm_90a, auto uses portable attention" grep -q '"attention": "portable"' bare/config.json
    else
        skip "device: without sm_90a, attention for Hopper is refused" "there is no $(basename "$bare"): name it to make"
    fi
    expect_code "device: a run with attention for Hopper resumes with portable attention" 0 "$TRAIN" hopper --set cuda.attention=portable --set max_time=0
    check "device: portable attention is reported" grep -q 'cuda.attention was "hopper", is "portable": changes rounding only' output
    two=("${wide[@]}" --set cuda.attention=hopper --ranks 2 --set train_batch_size=2 --set train_micro_batch_size_per_gpu=1
        --set gradient_accumulation_steps=null)
    expect_code "device: verify uses portable attention for its small model" 0 "$TRAIN" verify "$TINY" "${two[@]}"
    expect_code "device: verify --full uses attention for Hopper on both sides" 0 "$TRAIN" verify "$TINY" --full "${two[@]}"
    # Streams that run late change neither the recorded events nor their order.
    head -c 20000 text.txt >short.txt
    for streams in strict deferred random; do
        EMU_STREAMS=$streams expect_code "device: a run with $streams streams ends with 0" 0 "$TRAIN" "$TINY" \
            --set device=cuda --set data.text=short.txt \
            --set train_steps=5 --set steps_per_print=4 --set model.num_layers=1 --set train_micro_batch_size_per_gpu=1 \
            --set eval.sample_interval=2 --set eval.sample_tokens=2 --set eval.interval=3 --set eval.steps=1 --out $streams
        sed -E 's/, "(t|seconds|stall|tokens_per_second|gflops|eta|path)": ("[^"]*"|[0-9.e+-]+)//g' $streams/metrics.jsonl >$streams.records
    done
    check "device: streams that lag give the same records" diff strict.records deferred.records
    check "device: streams in random order give the same records" diff strict.records random.records
    check "device: the sample after a step is printed after the step's line" \
        bash -c "grep -oE '\"(train|sample)\", \"step\": [0-9]+' strict.records | grep -B1 sample | grep -q 'train.* 2$'"
    check "device: refused runs leave no run folder" test ! -e missing
fi

# No device library or BLAS library may be opened before it is needed: the program's start would wait for it.
LD_DEBUG=files "$TRAIN" --version >version 2>opened
check "device: LD_DEBUG=files lists the libraries that are loaded" grep -q 'file=libc\.so' opened
libraries=$(grep -oE 'file=[^ ]*(cuda|cublas|nvidia|nccl|blas)[^ ]*' opened | sort -u)
check "device: no CUDA library is loaded at the start: ${libraries//$'\n'/ }" test -z "$libraries"
LD_DEBUG=files "$TRAIN" "$TINY" "${short[@]}" --set cpu.blas=builtin --out builtin >output 2>opened
libraries=$(grep -oE 'file=[^ ]*blas[^ ]*' opened | sort -u)
check "device: OpenBLAS is not loaded with cpu.blas=builtin: ${libraries//$'\n'/ }" test -s builtin/result.json \
    -a -z "$libraries"
finish
