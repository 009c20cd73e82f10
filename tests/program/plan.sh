#!/usr/bin/env bash
# plan.sh -- tests `./train plan`: that the documented commands work, that its JSON says what its text says, that it fits or
# misses with the exit code of a run, and what it refuses.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"
root=$(realpath "$here/../..")
ln -s "$root/configs" configs

# says WORDS: the output has them, wherever its lines are folded
says() { tr '\n' ' ' <output | tr -s ' ' | grep -qF -- "$1"; }

# shown NAME ARGUMENT...: plans as text and as JSON, into the files text and json
shown() {
    local name=$1
    shift
    "$TRAIN" plan "$@" >text 2>err
    check "plan: $name is planned" test $? -eq 0
    "$TRAIN" plan "$@" --json >json 2>err
    check "plan: $name is planned as JSON" test $? -eq 0
    check "plan: $name: the JSON is valid" python3 -m json.tool json /dev/null
    check "plan: $name: its text and its JSON have the same numbers" python3 - <<'EOF'
import json, re
plan, text = json.load(open("json")), " ".join(open("text").read().split())
predicted, memory = plan["predicted"], plan["memory"]

def figure(pattern):
    return re.search(pattern, text).group(1)

def near(shown, value, digits=3):
    assert abs(float(shown) - value) <= 10 ** (1 - digits) * abs(value), (shown, value)

def seconds(shown):
    number, unit = shown.split()
    return float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit]

near(seconds(figure(r"step predicted ([\d.]+ [mu]?s);")), predicted["step_seconds"])
near(seconds(figure(r"half as fast: predicted ([\d.]+ [mu]?s) a step")), predicted["step_seconds_half_network"])
near(seconds(figure(r"matrix products ([\d.]+ [mu]?s)")), predicted["parts"]["products"])
near(figure(r"([\d.]+) % of (?:its|the node's) peak \(MFU6\)"), 100 * predicted["mfu6"], 2)
if predicted["days"] >= 1:
    near(figure(r"run predicted ([\d.,]+) days").replace(",", ""), predicted["days"])
assert figure(r"memory (FITS|MISSES) by") == ("FITS" if plan["fits"] else "MISSES")
parts = predicted["parts"]
waits = {"snapshots": r"snapshots of saves ([\d.]+ [mu]?s)", "saves": r"saves, training waits ([\d.]+ [mu]?s)"}
assert abs(sum(parts.values()) - sum(parts[key] for key in waits) - predicted["step_seconds"]) < 1e-12
each, saves = predicted["save_seconds"], plan["checkpoint"]["saves"]
in_run = {key: parts[key] * plan["train_steps"] for key in waits}
if memory["snapshot"] > 0:
    assert predicted["snapshot_seconds"] > 0 and memory["snapshot_missing"] == 0
    assert abs(in_run["snapshots"] - predicted["snapshot_seconds"] * (saves - 1)) < 1e-9
    assert each - 1e-9 <= in_run["saves"] <= each * saves + 1e-9
else:
    assert in_run["snapshots"] == predicted["snapshot_seconds"] == predicted["pending_seconds"] == 0
    assert abs(in_run["saves"] - each * saves) < 1e-9
for key, pattern in waits.items():
    if key == "saves" or parts[key] > 0:
        assert abs(seconds(figure(pattern)) - parts[key]) <= max(0.01 * parts[key], 0.5e-6), key
assert ("snapshots of saves" in text) == (memory["snapshot"] > 0 or memory["snapshot_missing"] > 0)
assert ("faster than the disk" in text) == (predicted["pending_seconds"] > 0)
share = float(figure(r"each[^%]*[:] ([\d.e-]+) % of the run"))
assert abs(share / 100 * predicted["days"] * 86400 / sum(in_run.values()) - 1) < 0.06, share
near(seconds(figure(r"memory-bound kernels ([\d.]+ [mu]?s)")), parts["memory_bound"])
for stage in predicted["stages"]:
    assert stage.keys() - {"stage"} == parts.keys() - waits.keys(), stage
assert predicted["step_seconds_fast"] < predicted["step_seconds"] < predicted["step_seconds_slow"]
for stage in memory["rank_of_stage"]:
    # On GPUs, states on the host are no part of the total.
    beside = ("stage", "total", "host") + ("offloaded",) * plan["machine"]["cuda"]
    of = {key: stage[key] for key in stage if key not in beside}
    assert sum(of.values()) == stage["total"], stage
    assert all(isinstance(value, int) for value in stage.values())
assert len(memory["rank_of_stage"]) == len(predicted["stages"]) == plan["pp"]
for row in plan["wire"]:
    assert isinstance(row["bytes"], int) and row["ranks"] > 1 and row["calls"] > 0
    assert f'{row["group"]} {row["operation"]} {row["dtype"]}' in text, row
assert ("sequence parallel" in text) == plan["sequence_parallel"] and f'recomputation {plan["recompute"]}' in text
assert plan["pp"] == 1 or f', {plan["schedule"]}' in text
assert plan["ranks"] == plan["pp"] * plan["dp"] * plan["cp"] * plan["tp"]
groups = re.search(r" in groups of (\d+)", text)
assert plan["shard"] == (int(groups.group(1)) if groups else plan["dp"]), plan["shard"]
offload = memory["offload_optimizer"]
shown = re.search(r"([\d.]+ [KMGT]iB) of them are page-locked, ([\d.]+ [KMGT]iB) a rank, for ([\d.]+) % of its optimizer's states; each step moves them in and out in "
                  r"([\d.]+ [mu]?s) or more", text)
assert bool(shown) == (offload["device"] == "cpu" and plan["machine"]["cuda"] and offload["ratio"] > 0), offload
assert bool(shown) == (offload["seconds"] > 0)
if shown:
    def rounded(text, value):
        number, unit = text.split()
        last = 10 ** -len(number.partition(".")[2])
        assert abs(float(number) - value / 1024 ** "_KMGT".index(unit[0])) <= 0.501 * last, (text, value)
    rounded(shown.group(1), offload["node_bytes"])
    rounded(shown.group(2), max(stage["offloaded"] for stage in memory["rank_of_stage"]))
    near(shown.group(3), 100 * offload["share"], 2)
    near(seconds(shown.group(4)), offload["seconds"])
    if plan["pp"] == 1 and plan["machine"]["cuda"]:
        assert offload["node_bytes"] == memory["rank_of_stage"][0]["offloaded"] * min(plan["ranks"], 8), offload
    states = [stage["offloaded"] / (stage["offloaded"] + stage["optimizer"]) for stage in memory["rank_of_stage"]]
    assert any(abs(share - offload["share"]) < 1e-12 for share in states), states
EOF
}

shown "GPT-3 on 1,024 A100" configs/gpt3_175b.json --world 1024 --machine a100
check "plan: the hardware is named" grep -q '^machine *a100: NVIDIA A100 SXM 80 GB' text
check "plan: the reserve is an estimate" grep -q 'reserve, which NCCL takes, is an estimate' text
check "plan: a given vocabulary is not commented on" grep -q '"vocabulary": "known"' json
shown "Llama 405B on 16,384 H100" configs/llama_405b.json --world 16384 --machine h100
shown "Llama 70B on 512 H200" configs/llama_70b.json --world 512 --machine h200
shown "GPT-3 6.7B on 64 B200" configs/gpt3_6_7b.json --world 64 --machine b200
shown "the demo on 8 ranks" configs/demo.json --world 8 --machine cpu --set parallel.tensor=2 --set parallel.pipeline=2 \
    --set zero_optimization.stage=3
check "plan: a text that is not read has at most this vocabulary" grep -q 'vocabulary 1,024 at most, as the text has not' text
shown "states on the host, in shard groups" configs/gpt2_1558m.json --world 4 --machine h100 \
    --set zero_optimization.stage=3 --set parallel.shard=2 --set zero_optimization.offload_optimizer.device=cpu \
    --set zero_optimization.offload_optimizer.ratio=0.6
check "plan: the shard groups are those of the config" test "$(python3 -c 'import json
plan = json.load(open("json"))
print(plan["dp"], plan["shard"], plan["memory"]["offload_optimizer"]["ratio"])')" = "4 2 0.6"
shown "states on the host, on a CPU" configs/demo.json --world 2 --machine cpu \
    --set zero_optimization.offload_optimizer.device=cpu
check "plan: a CPU's states do not cross a link" grep -qE '"seconds": 0(\.0*)?,' json
"$TRAIN" plan configs/gpt2_1558m.json --machine rtx4090 --world 8 --set zero_optimization.stage=3 --set parallel.shard=2 >text 2>&1
check "plan: shard groups across nodes are warned of" \
    grep -qE 'groups of 2 ranks are on several' text
"$TRAIN" plan configs/gpt2_1558m.json --machine rtx4090 --world 8 --set zero_optimization.stage=3 >text 2>&1
check "plan: all ranks together are not warned of" test "$(grep -c 'grid' text) $(grep -c 'on several' text)" = "1 0"
often=(configs/demo.json --world 2 --machine cpu --set checkpoint.save_interval=10)
shown "asynchronous saves" "${often[@]}"
check "plan: asynchronous saves: training waits for the snapshots and the last save" grep -q '^ *snapshots of saves ' text
check "plan: asynchronous saves: training does not wait for most saves" python3 -c 'import json
p = json.load(open("json"))["predicted"]
assert p["parts"]["snapshots"] + p["parts"]["saves"] < p["save_seconds"] / 50, p'
shown "synchronous saves" "${often[@]}" --set checkpoint.async=false
check "plan: synchronous saves: no snapshot is named" test "$(grep -c snapshot text)" -eq 0
sed -E 's/"host_bytes": [0-9]+/"host_bytes": 100000000/' configs/machines/cpu.json >small.json
shown "a node without room for snapshots" "${often[@]}" --machine small.json --set memory_margin=0.1
check "plan: without room for snapshots the plan says how much is missing" python3 - <<'EOF'
import json, re
memory, text = json.load(open("json"))["memory"], " ".join(open("text").read().split())
missing = re.search(r"no room for snapshots of saves \(checkpoint.async\): ([\d.]+) MiB of a node's memory are missing;", text)
assert memory["snapshot"] == 0 < memory["snapshot_missing"]
assert abs(float(missing.group(1)) * 2**20 - memory["snapshot_missing"]) < 2**17, memory
EOF
sed -E 's/"(node_)?disk_bandwidth": [0-9.e]+/"\1disk_bandwidth": 10e6/' configs/machines/cpu.json >slow.json
shown "a disk that is slower than the saves" "${often[@]}" --machine slow.json
check "plan: a slow disk: saves wait for each other" grep -q 'saves follow each other faster than the disk' text
"$TRAIN" plan configs/demo.json >text 2>&1
check "plan: without --machine the plan says which machine it uses, or that there is none" \
    grep -qE '^machine +(cpu|[abh][0-9]+00): |^error\[69\] there is no machine file for this GPU' text

"$TRAIN" plan configs/demo.json --machine cpu --world 8 >text 2>&1
check "plan: the plan says why a plan for CPUs has several nodes" \
    grep -qE '^machine .* 4 nodes, because a node takes 2 ranks;' text
check "plan: the plan says what each node does" grep -q 'of each node,' text
"$TRAIN" plan configs/demo.json --machine cpu --world 1 >text 2>&1
check "plan: one rank is not said to be one of several" test "$(grep -cE 'of each node|because a node' text)" -eq 0
check "plan: one rank has no network" test "$(grep -c '^network' text)" -eq 0
"$TRAIN" plan configs/gpt3_175b.json --machine a100 --world 8 --set parallel.pipeline=1 \
    --set parallel.pipeline_chunks=1 >text 2>&1
check "plan: minutes and seconds have their units" grep -qE '^step +predicted [0-9]+ min [0-9]+ s;' text

# ---- how long a plan takes -------------------------------------------------------------------------------------------------
# quick SECONDS ARGUMENT...: the least processor time of at most three plans, which other processes hardly change
quick() {
    check "plan: $2 on $4 ranks takes less than $1 s of processor time" python3 - "$TRAIN" "$@" <<'EOF'
import os, subprocess, sys
train, most, arguments = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
least = most
for _ in range(3):
    child = subprocess.Popen([train, "plan", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    usage = os.wait4(child.pid, 0)[2]
    least = min(least, usage.ru_utime + usage.ru_stime)
    if least < most:
        break
assert least < most, least
EOF
}
quick 1 configs/gpt3_175b.json --world 1024 --machine a100
quick 1 configs/llama_70b.json --world 512 --machine h100
quick 1 configs/llama_405b.json --world 16384 --machine h100
quick 4 configs/gpt3_175b.json --world 1024 --machine a100 --set parallel.pipeline=32 --set parallel.pipeline_chunks=3

# ---- the vocabulary ------------------------------------------------------------------------------------------------------
# vocabulary NAME SIZE WORDS ARGUMENT...: the JSON of the plan has this vocabulary, with words that begin like this
vocabulary() {
    expect_code "plan: $1: is planned" 0 "$TRAIN" plan "${@:4}" --json --machine cpu
    check "plan: $1: has a vocabulary of $2" grep -q "\"vocab_size\": $2,$" output
    check "plan: $1: says \"$3\"" grep -q "\"vocabulary\": \"$3" output
}
make_text
expect_code "plan: a run leaves a tokenizer" 0 "$TRAIN" "$TINY" --set data.cache=cache --set train_steps=5 \
    --set data.tokenizer_vocab_size=300 --out trained
read -ra shards < <(echo cache/*/*.bin)
missing=(--set data.text=null --set "data.train=none/*.bin" --set data.tokenizer_vocab_size=null)
vocabulary "a text whose tokenizer is not trained yet" 1024 "at most, as the text" configs/demo.json
vocabulary "a tokenizer that is there" 300 known configs/demo.json --set data.tokenizer=trained/tokenizer.json \
    --set data.tokenizer_vocab_size=null
vocabulary "the folder of a run" 300 known trained
vocabulary "a tokenizer beside token files" 300 known configs/demo.json "${missing[@]}" --set "data.train=${shards[0]}"
vocabulary "token files that are not there" 65536 "at most, if a token id has 16 bits" configs/demo.json "${missing[@]}"
vocabulary "a tokenizer that is not there" 65536 "at most, if a token id has 16 bits" configs/demo.json \
    --set data.tokenizer=none.json --set data.tokenizer_vocab_size=null
vocabulary "a vocabulary in the config" 500 known configs/demo.json "${missing[@]}" --set model.vocab_size=500
echo "{}" >damaged.json
expect_code "plan: a damaged tokenizer" 65 "$TRAIN" plan configs/demo.json --machine cpu --set data.tokenizer=damaged.json
check "plan: a damaged tokenizer is named" grep -q 'damaged.json' output
expect_code "plan: another vocabulary than that of the tokenizer" 78 "$TRAIN" plan configs/demo.json --machine cpu \
    --set data.tokenizer=trained/tokenizer.json --set model.vocab_size=500
check "plan: says what was written, and what to write instead" says "--set model.vocab_size=500: model.vocab_size: 500, but \
trained/tokenizer.json has 300 tokens; write 300, or leave the key out"
python3 -c 'import struct; open("wide.bin", "wb").write(struct.pack("<256i", 20240801, 7, 200, *[0] * 253) + bytes(800))'
expect_code "plan: ids of 32 bits without a tokenizer" 78 "$TRAIN" plan configs/demo.json --machine cpu "${missing[@]}" \
    --set data.train=wide.bin
check "plan: says what to set" grep -q 'wide.bin has ids of 32 bits, .* set model.vocab_size' output

# ---- fits or misses ------------------------------------------------------------------------------------------------------
expect_code "plan: a model that does not fit exits with code 90" 90 "$TRAIN" plan configs/gpt3_175b.json --world 8 --machine h100 \
    --set parallel.pipeline=1 --set parallel.pipeline_chunks=1
check "plan: the message says how much memory is missing" grep -q '^memory *MISSES by [0-9.]* [GT]iB' output
check "plan: a plan that does not fit still predicts the rest" grep -q '^run *predicted' output
expect_code "plan: half of the memory as margin" 0 "$TRAIN" plan configs/gpt3_175b.json --world 1024 --machine a100 \
    --set memory_margin=0.5
expect_code "plan: two thirds of the memory as margin" 90 "$TRAIN" plan configs/gpt3_175b.json --world 1024 --machine a100 \
    --set memory_margin=0.66

card=(configs/gpt2_1558m.json --machine configs/machines/rtx4090.json --set zero_optimization.stage=3)
expect_code "plan: GPT-2 1558M fits a card of 24 GB with states on the host" 0 "$TRAIN" plan "${card[@]}" \
    --set zero_optimization.offload_optimizer.device=cpu
check "plan: the card and its host both fit" test "$(grep -cE '^(memory|host) +FITS by' output)" -eq 2
expect_code "plan: without states in host memory it does not fit" 90 "$TRAIN" plan "${card[@]}"
read -ra remedy < <(tr -s ' \n' ' ' <output | sed -nE 's/.* remedy (--set .*) fits: .*/\1/p')
check "plan: the remedy is a ratio: ${remedy[*]}" test ${#remedy[@]} -eq 4
expect_code "plan: the proposed setting fits" 0 "$TRAIN" plan "${card[@]}" "${remedy[@]}"

"$TRAIN" plan --help >output 2>&1
for preset in configs/machines/*.json; do
    check "plan: the help names the preset $(basename "$preset" .json)" grep -qE "\b$(basename "$preset" .json)[, ]" output
done

# ---- the search ----------------------------------------------------------------------------------------------------------
# best_command FILE: the command that plans the best layout of a search, in one line, without its ./train
best_command() {
    sed -n '/^ 1\. /,/^ 2\. /p' "$1" | sed '1d;$d' | sed 's/\\$//' | tr -d '\n' | sed 's|^ *\./train||'
}
"$TRAIN" plan configs/demo.json --world 8 --machine cpu --set seed=3 --search >found 2>err
check "plan: the best layouts are found" test $? -eq 0
check "plan: each line of the search begins with its label, and all texts in one column" \
    test "$(sed -n '/^ 1\./q; s/^\([a-z ]\{12\}\)[^ ].*/\1/p' found | tr -s ' ' '.')" = $'search.\n.\nspace.\n.'
check "plan: their lines are no wider than others" test "$(awk 'length > 79' found | wc -l)" -eq 0
read -ra best < <(best_command found)
check "plan: the command of the best layout has the own settings" grep -q -- '--set seed=3' <(echo "${best[*]}")
"$TRAIN" "${best[@]}" --json >json 2>err
check "plan: the command of the best layout can be pasted" test $? -eq 0 -a ${#best[@]} -ge 8
"$TRAIN" plan configs/demo.json --world 8 --machine cpu --set seed=3 --search --json >search 2>err
check "plan: a search is printed as JSON" test $? -eq 0
check "plan: and it gives the step that the search has printed, in both forms" python3 - <<'EOF'
import json, re
given, search = json.load(open("json")), json.load(open("search"))
plan = given["predicted"]
shown = re.search(r"^ 1\. predicted ([\d.]+) ms a step, ([\d,]+) tokens/s$", open("found").read(), re.M)
assert abs(float(shown.group(1)) / 1e3 / plan["step_seconds"] - 1) < 5e-3, shown
assert abs(int(shown.group(2).replace(",", "")) - plan["tokens_per_second"]) <= 0.5, shown
best = search["layouts"][0]
for key in ("tp", "pp", "pipeline_chunks", "micro_batch_size", "zero_stage", "recompute", "sequence_parallel"):
    assert best[key] == given[key], (key, best)
assert best["predicted"]["step_seconds"] == plan["step_seconds"] and "seed=3" in best["set"], best
space = search["space"]
assert space["planned"] + space["unproven"] <= space["legal"] and len(search["layouts"]) == 10, space
EOF
"$TRAIN" plan configs/demo.json --world 6 --machine cpu --set parallel.tensor=4 --set train_batch_size=12 --search >found 2>err
check "plan: a grid that is impossible does not stop the search" test $? -eq 0
read -ra best < <(best_command found)
check "plan: the command of this search can be pasted" "$TRAIN" "${best[@]}"
"$TRAIN" plan configs/gpt2_1558m.json --world 1 --machine rtx4090 --set train_batch_size=2 --search >found 2>err
check "plan: a model that fits no GPU alone is searched with states on the host" test $? -eq 0
tr -s ' \n' ' ' <found >output
check "plan: the search says that it tried states in host memory" says "states no layout fits with all states on the GPUs, so each layout has the least part of the optimizer's \
states on the host with which it fits"
check "plan: the figures of each layout have the part" test "$(grep -cE 'tokens/s; [0-9]+ % of the states on the host$' found)" -gt 3
read -ra best < <(best_command found)
check "plan: the command of such a layout can be pasted" "$TRAIN" "${best[@]}"
check "plan: the layout has the smallest ratio that fits" grep -qE -- '--set zero_optimization.offload_optimizer.ratio=0\.[0-9]+ ' <(echo "${best[*]} ")
expect_code "plan: so many ranks that no layout is legal" 90 "$TRAIN" plan configs/gpt3_175b.json --world 1000 \
    --machine a100 --search
check "plan: the message says why no layout is legal, and what to write instead" says "no layout is legal, because the data-parallel ranks must divide \
train_batch_size 1536; the nearest, parallel.tensor 8 and parallel.pipeline 25, leaves 5 data-parallel ranks; write \
train_batch_size 1535 or 1540, or --world 996 or 1008"
check "plan: such a search counts no layouts" test "$(grep -cE '^space|best$' output)" -eq 0
large=(configs/llama_70b.json --world 17 --machine h100 --set zero_optimization.offload_optimizer.device=none --search)
expect_code "plan: a model that no layout has room for" 90 "$TRAIN" plan "${large[@]}"
check "plan: the output of this search begins with its label" grep -q '^none        no layout fits' output
check "plan: the message says what the smallest layout needs" says "pipeline 17 with ZeRO stage 0, needs 90.1 GiB of the 76.6 GiB"
check "plan: the smallest layout is not called the best" test "$(grep -cE 'certainly slower|the best$' output)" -eq 0
"$TRAIN" plan "${large[@]}" --json >search 2>err
check "plan: the JSON does not call the smallest layout the best either" python3 - <<'EOF'
import json
search = json.load(open("search"))
assert search["layouts"] == [] and "needs 90.1 GiB" in search["none"], search
EOF

# ---- what is refused -----------------------------------------------------------------------------------------------------
# refused NAME CODE SENTENCE ARGUMENT...
refused() {
    expect_code "plan: $1" "$2" "$TRAIN" plan "${@:4}"
    check "plan: $1: says so" grep -qF -- "$3" output
}
refused "an unknown preset" 66 'did you mean "h100"?' configs/demo.json --machine h10
refused "a config with a mistake" 78 'did you mean "lr"?' configs/demo.json --set optimizer.params.lrr=1
refused "a grid that does not fit the ranks" 78 "1 error; nothing was started" configs/gpt3_175b.json --world 1000
attention=(configs/gpt2_124m.json --set bf16.enabled=true --set cuda.attention=hopper)
expect_code "plan: attention for Hopper is planned for an H100" 0 "$TRAIN" plan "${attention[@]}" --machine h100
check "plan: the plan says how attention for Hopper is counted" grep -q "attention counted at the machine's one rate" output
refused "attention for Hopper on another GPU" 78 'a GPU here has 8.0; write "portable"' "${attention[@]}" --machine a100
refused "a config for CPUs on GPUs" 78 '--set device=cpu: device: "cpu", but' configs/demo.json --machine h100 --set device=cpu
refused "a config for GPUs on CPUs" 78 '--set device=cuda: device: "cuda", but' configs/demo.json --machine cpu --set device=cuda
refused "f64 on GPUs" 78 "--set fp64.enabled=true: fp64.enabled: only CPUs compute in f64" configs/demo.json --machine h100 \
    --set fp64.enabled=true
refused "too many ranks" 64 "--world" configs/demo.json --world 65537
echo '{"name": "x"}' >bad.json
refused "a machine file with mistakes" 78 "bad.json:1:1: sources: the key is missing" configs/demo.json --machine bad.json
refused "a search with a mistake" 78 'did you mean "lr"?' configs/demo.json --search --set optimizer.params.lrr=1
refused "a search of standard input" 64 "name a file" - --search
refused "no config" 64 "which config? ./train plan configs/gpt3_175b.json --world 1024 --machine a100"

finish
