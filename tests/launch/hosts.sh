#!/usr/bin/env bash
# hosts.sh -- four ranks on two hosts, which are networks with host names of their own on this machine: by a file in a common
# folder and by rank 0's address and a secret, over IPv4 and IPv6; nothing listens but on the chosen interface; a signal to one
# rank stops all, and the run goes on with the bits of threads.
# shellcheck source-path=SCRIPTDIR disable=SC2154,SC2034
source "$(dirname "$0")/lib.sh"
if ! make_hosts; then
    skip "hosts: ranks on two hosts" "$why"
    finish
fi
make_text
run=(--set train_batch_size=16 --set train_micro_batch_size_per_gpu=4 --set gradient_accumulation_steps=auto --set train_steps=8
    --set eval.interval=4 --set eval.sample_interval=8 --set checkpoint.save_interval=4 --set parallel.timeout=60
    --set parallel.tensor=2 --set cpu.threads=1)
expect_code "hosts: threads train" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 4 --out threads
placed=(1 1 2 2)

# trains NAME RUN OPTION...: expects that four ranks on two hosts train with the bits of threads
trains() {
    local name=$1 out=$2 begun=$EPOCHREALTIME
    join 4 "$TRAIN" "$TINY" "${run[@]}" "${@:3}" --out "$out"
    all_end "hosts: $name: the end" 0
    same_run "hosts: $name has the same bits as with threads" threads "$out"
    check "hosts: $name: only rank 0 prints" test ! -s rank.1 -a ! -s rank.2 -a ! -s rank.3
    row launchers "two hosts: $name" "tensor 2, data 2" "4 ranks" \
        "$(awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }')" "bits of threads"
}
master=${ipv4[1]}
trains "a common folder" folder
trains "a common folder, with an interface" wire --set parallel.interface=wire
variables=(TRAIN_SECRET=a-secret-of-sixteen-bytes-or-more)
trains "an IPv4 address and a secret" ipv4
master=${ipv6[1]}
trains "an IPv6 address and a secret" ipv6
variables=()
placed=(1 2 1 2)
master=h1
trains "ranks in another order" order
placed=(1 1 2 2)

# ---- where ranks listen --------------------------------------------------------------------------------------------------
# listening PROCESS...: prints the addresses on which these processes listen, as the kernel writes them
listening() {
    local process
    for process in "$@"; do
        readlink "/proc/$process/fd/"* | sed -nE 's/^socket:\[([0-9]+)\]$/\1/p' >inodes
        awk 'FILENAME == "inodes" { own[$1]; next } $4 == "0A" && $10 in own { sub(":.*", "", $2); print $2 }' inodes \
            "/proc/$process/net/tcp" "/proc/$process/net/tcp6"
    done | sort -u | tr '\n' ' '
}
long=("${run[@]}" --set train_steps=1000000 --set eval.interval=0 --set eval.sample_interval=0 --set checkpoint.save_interval=1000000)
# only_on NAME ADDRESSES: expects that the ranks which run listen on no other than these addresses
only_on() {
    local name=$1 allowed=$2 found address odd=''
    found=$(listening "${rank_pid[@]}")
    for address in $found; do [[ " $allowed " == *" $address "* ]] || odd+=" $address"; done
    check "hosts: $name: ranks listen" test -n "$found"
    check "hosts: $name: nothing listens elsewhere:$odd" test -z "$odd"
}
# shellcheck disable=SC2329 # called by eventually
rank_0_listens() { [ -n "$(listening "${rank_pid[0]}")" ]; }
# listens NAME OUT ADDRESSES OPTION...: starts a run and expects that its ranks listen on no other than these addresses, while
# they wait for the last one to come, and when they train
listens() {
    local name=$1 out=$2 allowed=$3 rank
    local run=("$TRAIN" "$TINY" "${long[@]}" "${@:4}" --out "$out")
    rank_pid=()
    port=$(free_ports 17 | head -n 1)
    for rank in 0 1 2; do start_rank $rank 4 "${run[@]}"; done
    eventually 30 rank_0_listens
    only_on "$name, while they meet" "$allowed"
    start_rank 3 4 "${run[@]}"
    eventually 30 made_steps "$out" 3
    only_on "$name" "$allowed"
}
# 198.51.100.1 and .2, and the same for IPv6, in the kernel's order of bytes
wire="016433C6 026433C6 617200FD00006E690000000001000000 617200FD00006E690000000002000000"
master=${ipv4[1]}
listens "two hosts" two "$wire"
kill -TERM "${rank_pid[1]}"
end_ranks 60
all_end "hosts: a signal to rank 1" 85
listens "parallel.interface=wire" stopped "$wire" --set parallel.interface=wire

# ---- a signal to one rank ------------------------------------------------------------------------------------------------
kill -USR1 "${rank_pid[3]}"
end_ranks 60
all_end "hosts: a signal to rank 3 on the other host" 85
step=$(checkpoint_steps stopped | tail -n 1)
check "hosts: the signal's stop is saved" test "${step:-0}" -ge 3

placed=()
master=127.0.0.1
listens "one machine" here "0100007F 00000000000000000000000001000000"
kill -TERM "${rank_pid[0]}"
end_ranks 60
all_end "hosts: a signal to rank 0 on one machine" 85
finish
