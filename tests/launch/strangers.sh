#!/usr/bin/env bash
# strangers.sh -- somebody else connects to rank 0 while it waits for its ranks: with silence, garbage, half a greeting, another
# job's secret, or the bytes of an earlier meeting. None becomes a rank, and none delays the meeting by a second.
# shellcheck source-path=SCRIPTDIR disable=SC2154,SC2034
source "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { skip "strangers: connections of strangers" "python3 is not installed"; finish; }
make_text
start_clock
run=(--set train_batch_size=16 --set train_micro_batch_size_per_gpu=4 --set gradient_accumulation_steps=auto --set train_steps=6
    --set eval.interval=0 --set eval.sample_interval=0 --set parallel.timeout=30 --set cpu.threads=1)
variables=(TRAIN_SECRET=the-secret-of-this-job-is-long-enough)
expect_code "strangers: threads train" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 2 --out threads

# stranger.py KIND PORT: connects to the port in one of these ways, and says "there" when it has; "proxy PORT ADDRESS":
# passes connections to this address on to 127.0.0.1, and keeps the client's first bytes in the file "recorded"
cat >stranger.py <<'END'
import os, socket, sys, threading, time
kind, port = sys.argv[1], int(sys.argv[2])
connect = lambda: socket.create_connection(("127.0.0.1", port))
held = []
def proxy():
    server = socket.create_server((sys.argv[3], port))
    print("there", flush=True)
    while True:
        client, _ = server.accept()
        rank0 = connect()
        def copy(a, b, keep):
            try:
                while data := a.recv(65536):
                    if keep: keep.write(data); keep.flush()
                    b.sendall(data)
                b.shutdown(socket.SHUT_WR)
            except OSError: pass
        threading.Thread(target=copy, args=(client, rank0, open("recorded", "ab")), daemon=True).start()
        threading.Thread(target=copy, args=(rank0, client, None), daemon=True).start()
if kind == "proxy": proxy()
for i in range({"silent": 50, "garbage": 50, "half": 50, "closed": 300, "replay": 20}[kind]):
    s = connect()
    try:
        if kind == "garbage": s.sendall(os.urandom(400))
        if kind == "half": s.sendall(bytes(8))
        if kind == "replay": s.sendall(open("recorded", "rb").read())
    except OSError: pass
    if kind == "closed": s.close()
    else: held.append(s)
print("there", flush=True)
time.sleep(60)
END

# listens PORT: succeeds if somebody listens there on loopback
listens() { grep -q " 0100007F:$(printf %04X "$1") 00000000:0000 0A " /proc/net/tcp; }
# wait_for_rank_0: starts rank 0, and stores the port at which it waits in $at
wait_for_rank_0() {
    rank_pid=() port=$(free_ports 17 | head -n 1)
    start_rank 0 2 "$TRAIN" "$TINY" "${run[@]}" --out "$1"
    eventually 20 listens_somewhere || { not_ok "strangers: rank 0 does not listen: $(tail -n 1 rank.0)"; finish; }
}
listens_somewhere() {
    for ((at = port + 1; at <= port + 16; at++)); do ! listens $at || return 0; done
    return 1
}
# meet NAME RUN [COMMAND...]: starts rank 1, by this command, and expects that the run ends with the bits of threads; stores its seconds in $took
meet() {
    local begun
    begun=$(now)
    start_rank 1 2 "${@:3}" "$TRAIN" "$TINY" "${run[@]}" --out "$2"
    end_ranks 60
    took=$(since "$begun")
    all_end "strangers: $1: the end" 0
    same_run "strangers: $1: the bits are those of threads" threads "$2"
}
# there COMMAND...: starts a stranger and waits until it has connected; stores its process in $stranger
there() {
    rm -f said
    "$@" >said 2>&1 </dev/null &
    stranger=$!
    children+=("$stranger")
    disown
    eventually 20 grep -qs there said || not_ok "strangers: $*: $(tail -n 1 said)"
}

wait_for_rank_0 none
meet "nobody else" none
least=$took
kinds=(silent garbage half closed)
# A meeting whose bytes are recorded: for rank 1, rank 0's name means an address at which a proxy listens.
if [ "$(id -u)" -eq 0 ] && unshare --mount true 2>/dev/null; then
    master=localhost
    wait_for_rank_0 proxy
    there python3 stranger.py proxy "$at" 127.0.0.2
    echo "127.0.0.2 localhost" >proxy.hosts
    # shellcheck disable=SC2016 # the inner shell's
    meet "a proxy" proxy unshare --mount sh -c 'mount --bind "$1" /etc/hosts && shift && exec "$@"' sh "$work/proxy.hosts"
    kill "$stranger" 2>/dev/null
    master=127.0.0.1
    check "strangers: the greeting of rank 1 is recorded" test -s recorded
    kinds+=(replay)
else
    skip "strangers: the bytes of an earlier meeting" "this system allows no namespaces to record them"
fi

# soon: succeeds if the last meeting took less than a second longer than one without strangers
soon() { awk "BEGIN { exit !($took < $least + 1) }"; }
# disturbed NAME COMMAND...: expects that a meeting is not delayed by a second by what the command starts. What delays it in each of
# three attempts is no other work of this machine.
disturbed() {
    local name=$1 attempt
    shift
    for attempt in 1 2 3; do
        wait_for_rank_0 "run-$name-$attempt"
        "$@"
        meet "$name" "run-$name-$attempt"
        ! soon || break
        end_stranger
    done
    check "strangers: $name: the meeting is not delayed by a second ($took s, $least s without)" soon
    row strangers "$name" "$(grep -oE '^warning: .*' rank.0 | tail -n 1 | tr '|' ' ')" "0 admitted" "$took s, $least s without"
}
end_stranger() { [ -z "$stranger" ] || kill "$stranger" 2>/dev/null || not_ok "strangers: the stranger has ended: $(tail -n 1 said)"; }

connects() { there python3 stranger.py "$1" "$at"; }
for kind in "${kinds[@]}"; do
    disturbed "$kind" connects "$kind"
    check "strangers: $kind: rank 0 warns of the first one and tells how many there were, at most" \
        test "$(grep -c '^warning: ' rank.0)" -le 2
    end_stranger
done

# A rank of another job, which has another secret.
other_rank() {
    stranger=''
    rm -f other.code
    (variables=(TRAIN_SECRET=the-secret-of-another-job-is-as-long) && start_rank 1 2 "$TRAIN" "$TINY" "${run[@]}" \
        --set parallel.timeout=3 --out elsewhere && mv rank.1 rank.other && wait "${rank_pid[1]}"; echo $? >other.code) &
    sleep 1
}
disturbed "another job's secret" other_rank
eventually 20 test -s other.code
check "strangers: another job's rank exits with code 76: $(tail -n 1 rank.other)" test "$(cat other.code)" = 76
finish
