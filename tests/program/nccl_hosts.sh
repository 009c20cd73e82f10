#!/usr/bin/env bash
# nccl_hosts.sh -- tests two ranks on two hosts over the emulated NCCL. The hosts are network namespaces with a virtual
# cable between them, which the script creates (as root, with ip) and removes. NCCL_SOCKET_IFNAME names the interface. Needs
# test_nccl_processes of the emulated build.
. "$(dirname "$0")/lib.sh"
program=$(dirname "$TRAIN")/tests/emu/nccl/test_nccl_processes
hosts=train-nccl-$$ cable=tnc$$

skip_all() {
    skip "nccl: ranks on two hosts communicate" "$1"
    finish
}

# Removes the network namespaces that killed runs of this script have left.
remove_leftovers() {
    local old pid
    for old in $(ip netns list 2>/dev/null | awk '$1 ~ /^train-nccl-/ { print $1 }'); do
        pid=${old#train-nccl-}
        kill -0 "${pid%-*}" 2>/dev/null || ip netns del "$old"
    done
}

# Removing the namespaces also removes the cable between them.
remove_hosts() {
    for child in "${children[@]}"; do kill -KILL "$child" 2>/dev/null; done
    wait 2>/dev/null
    for host in 0 1; do ip netns del "$hosts-$host" 2>/dev/null; done
    clean_up
}

make_hosts() {
    for host in 0 1; do
        ip netns add "$hosts-$host" && ip -n "$hosts-$host" link set lo up || return
    done
    ip link add "${cable}a" type veth peer name "${cable}b" || return
    ip link set "${cable}a" netns "$hosts-0" name cable && ip link set "${cable}b" netns "$hosts-1" name cable || return
    for host in 0 1; do
        ip -n "$hosts-$host" addr add "198.51.100.$((host + 1))/30" dev cable || return
        ip -n "$hosts-$host" addr add "fd00:7261:696e::$((host + 1))/64" dev cable nodad || return
        ip -n "$hosts-$host" link set cable up || return
    done
}

# on_host RANK SETTING...: runs the rank on its host
on_host() {
    local rank=$1
    shift
    ip netns exec "$hosts-$rank" env "$@" NCCL_TEST_RANK="$rank" NCCL_TEST_FOLDER="$PWD" NCCL_HOSTID="$hosts-$rank" \
        NCCL_LAUNCH_ORDER_IMPLICIT=1 timeout 60 "$program"
}

carried() { ip netns exec "$hosts-0" cat /sys/class/net/cable/statistics/tx_bytes; }

# two_ranks SETTING...: runs both ranks, with their output in the files rank0 and rank1; returns the exit code of the second
# rank, or of the first if the second succeeds. If the second fails, the first is killed, because it would wait for ever.
two_ranks() {
    rm -f ids.ready
    on_host 0 "$@" >rank0 2>&1 &
    children=($!)
    on_host 1 "$@" >rank1 2>&1
    local code=$?
    [ $code -eq 0 ] || kill "${children[0]}" 2>/dev/null
    wait "${children[0]}" || code=$((code ? code : 1))
    children=()
    return $code
}

EMU_DEVICES=1 "$TRAIN" doctor | grep -q 'emulated GPU' || skip_all "this is not the program of \`make CUDA=emu\`"
expect_code "nccl: the test program of the ranks is built" 0 test -x "$program"
[ -x "$program" ] || finish
command -v ip >/dev/null || skip_all "there is no ip (apt-get install iproute2)"
[ "$(id -u)" -eq 0 ] || skip_all "only root makes network namespaces"
trap remove_hosts EXIT
remove_leftovers
make_hosts 2>trouble || skip_all "no network namespaces here: $(tr '\n' ' ' <trouble)"

for family in AF_INET AF_INET6; do
    before=$(carried)
    check "nccl: two hosts communicate over $family" two_ranks NCCL_SOCKET_IFNAME=cable NCCL_SOCKET_FAMILY=$family
    check "nccl: two hosts over $family receive all data" test "$(cat rank0 rank1 | grep -c 'all carried')" -eq 2
    check "nccl: two hosts over $family send the data through their network interface" test $(($(carried) - before)) -gt 1000
done
# An interface that the other host cannot reach: the real library accepts it without a warning, too.
before=$(carried)
check "nccl: two hosts that use their loopbacks fail to connect" eval '! two_ranks NCCL_SOCKET_IFNAME=lo'
check "nccl: two hosts that use their loopbacks report the failed init" grep -q 'CommInitRankConfig' rank1
check "nccl: two hosts that use their loopbacks send nothing through the network" test $(($(carried) - before)) -lt 1000
expect_code "nccl: an interface that does not exist ends with an error" 99 on_host 0 NCCL_SOCKET_IFNAME=nosuch
check "nccl: an interface that does not exist is reported" grep -q 'no socket interface found' output
finish
