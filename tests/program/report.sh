#!/usr/bin/env bash
# report.sh -- tests of `./train report`: the page and the table are well-formed and have the figures of the runs, and a browser
# shows the page without an error on wide and on narrow screens. Also tests that the TensorBoard events of a run have its
# figures, even if it was killed and resumed.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

make_text
short=(--set eval.interval=4 --set eval.sample_interval=6)
expect_code "report: a run succeeds" 0 "$TRAIN" "$TINY" "${short[@]}" --set train_steps=12 --set tensorboard.enabled=true --out run
expect_code "report: a run on two ranks succeeds" 0 "$TRAIN" "$TINY" "${short[@]}" --set train_steps=8 --set train_batch_size=16 \
    --set gradient_accumulation_steps=null --set wall_clock_breakdown=true --ranks 2 --out 'a <i>&"b",'

# ---- the table -------------------------------------------------------------------------------------------------------
expect_code "report: --csv succeeds" 0 "$TRAIN" report run/ 'a <i>&"b",' --csv
cp output table.csv
check "report: the table has the figures of metrics.jsonl" python3 - <<'END'
import csv, json
rows = list(csv.DictReader(open("table.csv", newline="")))
for run, steps in ("run", 12), ('a <i>&"b",', 8):
    own = {int(row["step"]): row for row in rows if row["run"] == run}
    assert sorted(own) == list(range(1, steps + 1)), own
    seen = set()
    for line in open(run + "/metrics.jsonl"):
        event = json.loads(line)
        names = {"train": {"loss": "loss", "lr": "lr", "grad_norm": "grad_norm", "samples": "samples", "tokens": "tokens"},
                 "val": {"val_loss": "loss"}, "speed": {"tokens_per_second": "tokens_per_second"}}.get(event["event"], {})
        for column, key in names.items():
            assert float(own[event["step"]][column]) == event[key], (event, column)
            seen.add(column)
    assert len(seen) == 7, seen
    assert all((row["exposed_communication"] != "") == (steps == 8) for row in own.values()), own
END

# ---- the page --------------------------------------------------------------------------------------------------------
for runs in 1 2; do
    both=(run 'a <i>&"b",')
    "$TRAIN" report "${both[@]:0:runs}" >"report$runs.html" 2>err
    check "report: a page of $runs runs is printed without a message" test $? -eq 0 -a ! -s err
    plots=$(python3 "$here/../support/files/check_report.py" "report$runs.html" $runs)
    check "report: a page of $runs runs is well-formed and has a plot of every figure" test "$plots" = $((4 + runs))
done

browser=$(command -v chromium-headless-shell || command -v chromium)
name="report: a browser shows every curve at 1280 and 400 pixels, with no error and no scrolling sideways"
if [ -z "$browser" ]; then
    skip "$name" "neither chromium-headless-shell nor chromium is installed"
else
    # Two frames have the widths of the screens. For each, a line is added to the page: the width of the frame and that of its
    # content, the number of curves that are visible, and the height of the smallest label in pixels.
    cat >frames.html <<'END'
<!DOCTYPE html><meta charset=utf-8><body>
<iframe src=report2.html width=1280 height=800></iframe><iframe src=report2.html width=400 height=800></iframe>
<script>
onload = () => {
    for (const frame of document.querySelectorAll("iframe")) {
        const inside = frame.contentDocument, line = document.createElement("p"), style = e => frame.contentWindow.getComputedStyle(e);
        const visible = e => e.getTotalLength() > 50 && e.getBoundingClientRect().width > 50 &&
            style(e).stroke !== style(inside.querySelector("figure")).backgroundColor && style(e).strokeWidth !== "0px";
        line.textContent = ["frame", frame.width, inside.documentElement.clientWidth >= inside.documentElement.scrollWidth,
            [...inside.querySelectorAll("figure .line")].filter(visible).length,
            Math.min(...[...inside.querySelectorAll("figure text")].map(e => e.getBoundingClientRect().height)) >= 10].join(" ");
        document.body.append(line);
    }
};
</script>
END
    timeout -k 1 60 "$browser" --no-sandbox --disable-gpu --user-data-dir="$work/browser" --allow-file-access-from-files \
        --enable-logging=stderr --dump-dom "file://$work/frames.html" >shown 2>browser.log
    grep -o '<p>frame [^<]*' shown >frames
    grep 'CONSOLE' browser.log >>frames
    printf '<p>frame %s true 11 true\n' 1280 400 >frames.expected
    check "$name" cmp -s frames frames.expected
    cmp -s frames frames.expected || { sed 's/^/    | /' frames; tail -n 3 browser.log; }
fi

# ---- refusals --------------------------------------------------------------------------------------------------------
# refused NAME CODE MESSAGE ARGUMENT...: expects this exit code and this error message, and nothing on stdout
refused() {
    local name=$1 code=$2 message=$3 got
    shift 3
    "$TRAIN" report "$@" >printed 2>err </dev/null
    got=$?
    check "report: $name" test "$got: $(cat printed err)" = "$code: error[$code] $message"
}
refused "a folder that does not exist is refused" 66 "there is no folder nowhere" run nowhere
mkdir empty
refused "a folder that is no run is refused" 66 "empty has no metrics.jsonl; it is not the folder of a run" empty
refused "a file is refused" 66 "text.txt has no metrics.jsonl; it is not the folder of a run" text.txt
head -n 1 run/metrics.jsonl >empty/metrics.jsonl
refused "a run without a step is refused" 66 "empty/metrics.jsonl has no step yet" empty
refused "too many runs on a page are refused" 64 "./train report: a page shows at most 16 runs, not 17; --csv takes any number" \
    run run run run run run run run run run run run run run run run run
# A message is folded on a terminal.
script -qec "'$TRAIN' report run" /dev/null </dev/null | tr -s '\r\n ' ' ' >printed
check "report: the page is not printed to a terminal" grep -q 'write it to a file: ./train report run > report.html' printed
{ echo nonsense; cat run/metrics.jsonl; } >empty/metrics.jsonl
expect_code "report: a line that cannot be read is left out" 0 "$TRAIN" report empty
check "report: a line that cannot be read is reported" \
    grep -q '^warning: empty/metrics.jsonl: 1 of its lines cannot be read and are left out$' output

# ---- TensorBoard events ----------------------------------------------------------------------------------------------
logs=(--set tensorboard.enabled=true --set tensorboard.output_path=logs/ --set tensorboard.job_name=job)
few=(--set train_steps=14 --set checkpoint.save_interval=4 --set eval.interval=8 --set eval.sample_interval=8)
held 7 events "${few[@]}" "${logs[@]}"
kill -KILL "$child"
let_go 2>/dev/null
check "report: a killed run has a file of events in output_path/job_name" test "$(find logs/job -name 'events.out.tfevents.*' | wc -l)" -eq 1
truncate -s -3 logs/job/* # as if the last record had been written only in part
expect_code "report: a killed run with events resumes" 0 "$TRAIN" "$TINY" "${few[@]}" "${logs[@]}" --out events
check "report: the events of a resumed run have every figure and sample once" \
    test "$(python3 "$here/../support/files/check_events.py" logs/job events/metrics.jsonl)" = "60 figures and 2 samples in 2 files"
tbparse=${XDG_CACHE_HOME:-${HOME:-}/.cache}/train.c-tbparse
name="report: tbparse reads every figure and sample once"
if [ -e "$tbparse/complete" ]; then
    check "$name" test "$("$tbparse/bin/python" "$here/../support/files/check_events.py" logs/job events/metrics.jsonl tbparse)" = \
        "60 figures and 2 samples in 2 files"
else
    skip "$name" "scripts/setup.sh has not installed tbparse"
fi
expect_code "report: a folder of events that cannot be created exits with code 74" 74 "$TRAIN" "$TINY" --set tensorboard.enabled=true \
    --set tensorboard.output_path=text.txt --out no-events
check "report: a folder of events that cannot be made is named" grep -q \
    '^error\[74\] the TensorBoard events cannot be written: cannot create the folder text.txt/DeepSpeedJobName: ' output
mkdir linked away && ln -s ../away linked/tensorboard
expect_code "report: a run exits with code 74 if the tensorboard folder is a symbolic link" 74 "$TRAIN" "$TINY" --set tensorboard.enabled=true --out linked
check "report: a link instead of the folder tensorboard is named and not followed" test -z "$(ls away)" -a \
    "$(grep -c 'written: linked/tensorboard is a symbolic link and not followed; remove it$' output)" = 1
check "report: without output_path the events are in the run folder" compgen -G 'run/tensorboard/DeepSpeedJobName/events.out.tfevents.*' >/dev/null
finish
