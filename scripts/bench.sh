#!/usr/bin/env bash
# bench.sh -- `make bench`: measures matrix products, ops and a whole training step, and writes text, CSV and Markdown to
# out/bench. CONFIG: the config of the training step (default configs/gpt2_124m.json). OPTIONS: further options of `bench step`.
set -u
cd "$(dirname "$0")/.." || exit 71
config=${CONFIG:-configs/gpt2_124m.json}
read -ra options <<<"${OPTIONS:---set train_micro_batch_size_per_gpu=4 --set data.seq_length=64}"
folder=out/bench/$(date +%Y%m%d-%H%M%S)
mkdir -p "$folder" || exit 73

# run NAME ARGUMENT...: runs ./train, prints its output, and stores it as text, CSV (columns are separated by two spaces) and
# Markdown
run() {
    local name=$1 code
    shift
    echo "== ./train $*"
    ./train "$@" </dev/null | tee "$folder/$name.txt"
    code=${PIPESTATUS[0]}
    sed -E 's/^ +//; s/,//g; s/ {2,}/,/g' "$folder/$name.txt" >"$folder/$name.csv"
    { echo "## ./train $*"; echo; echo '```'; cat "$folder/$name.txt"; echo '```'; echo; } >>"$folder/bench.md"
    return "$code"
}

bad=0
{ echo "# Benchmark"; echo; echo '```'; ./train doctor; echo '```'; echo; } >"$folder/bench.md"
run gemm bench gemm || bad=1
run ops bench ops || bad=1
run step bench step "$config" "${options[@]}" || bad=1
echo "kept in $folder"
exit $bad
