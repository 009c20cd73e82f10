# lib.sh -- helpers that the tests of launchers share: those of tests/program, hosts with a network of their own, and ranks that
# are started by torchrun's variables.
# shellcheck shell=bash source-path=SCRIPTDIR disable=SC2154,SC2034
source "$(dirname "${BASH_SOURCE[0]}")/../program/lib.sh"
repository=$(realpath "$here/../..")
full=${LAUNCH:-}
tables=${LAUNCH_TABLES:-}

# row TABLE CELL...: adds a row to a table that is kept in the folder $tables
row() {
    local table=$1
    shift
    [ -n "$tables" ] || return 0
    mkdir -p "$tables"
    (IFS='|' && echo "| $*" | sed 's/|/ | /g; s/^ *| */| /; s/$/ |/') >>"$tables/$table.md"
}

# free_ports N: prints N consecutive numbers of ports on which nobody listens
free_ports() {
    local first port try taken
    for try in {1..50}; do
        first=$((20000 + (RANDOM * 7 + $$ + try) % 12000)) taken=''
        for ((port = first; port < first + $1; port++)); do
            grep -qiE ": [0-9A-F]+:$(printf %04X "$port") " /proc/net/tcp && taken=yes
        done
        [ -n "$taken" ] || { seq "$first" $((first + $1 - 1)); return; }
    done
}

# eventually SECONDS COMMAND...: waits until the command succeeds, at most so many seconds
eventually() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}

# ---- hosts -----------------------------------------------------------------------------------------------------------------

# alone COMMAND...: runs the command in a network that has a loopback interface only, so that launchers that listen on all
# interfaces listen to nobody
alone() {
    # shellcheck disable=SC2016 # the inner shell's
    unshare --net sh -c 'ip link set lo up && exec "$@"' sh "$@"
}
can_be_alone() { [ "$(id -u)" -eq 0 ] && command -v ip >/dev/null && alone true 2>/dev/null; }

# The processes that hold the namespaces of the hosts, and the hosts' addresses.
host_pid=() ipv4=('' 198.51.100.1 198.51.100.2) ipv6=('' fd00:7261:696e::1 fd00:7261:696e::2)

# make_hosts: makes two hosts, h1 and h2, with host names and networks of their own that a cable connects, on the interface
# "wire". Otherwise sets $why. The hosts vanish with the processes that hold them.
make_hosts() {
    local i
    why=''
    [ "$(id -u)" -eq 0 ] || { why="only root can make networks"; return 1; }
    command -v ip >/dev/null || { why="ip is not installed (scripts/setup.sh --launch)"; return 1; }
    for i in 1 2; do
        # shellcheck disable=SC2016 # the inner shell's
        unshare --net --uts --mount sh -c 'hostname "h$1" && echo ready && exec sleep 1000' sh $i >host$i 2>&1 &
        host_pid[i]=$!
        children+=($!)
        disown
        until [ -s host$i ]; do kill -0 "${host_pid[i]}" 2>/dev/null || break; sleep 0.01; done
        grep -q ready host$i || { why="this system allows no network namespaces: $(head -n 1 host$i)"; return 1; }
        printf '127.0.0.1 localhost\n%s h1\n%s h2\n' "${ipv4[@]:1}" >hosts$i
        on $i mount --bind "$work/hosts$i" /etc/hosts 2>/dev/null
    done
    ip link add "wire" netns "${host_pid[1]}" type veth peer name wire netns "${host_pid[2]}" 2>err ||
        { why="this system makes no pair of network interfaces: $(head -n 1 err)"; return 1; }
    for i in 1 2; do
        on $i ip address add "${ipv4[i]}/24" dev wire
        on $i ip address add "${ipv6[i]}/64" dev wire nodad
        on $i ip link set lo up
        on $i ip link set wire up
    done
    eventually 5 cable_is_up || { why="the cable between the two hosts does not come up"; return 1; }
}
cable_is_up() { [ "$(for i in 1 2; do on $i ip -br link show wire; done | grep -c ' UP ')" -eq 2 ]; }

# on HOST COMMAND...: runs the command on a host of make_hosts, in this folder
on() { nsenter --net --uts --mount -t "${host_pid[$1]}" --wd="$PWD" "${@:2}"; }

# cut_off HOST: takes the host's cable away; joined HOST gives it back
cut_off() { on "$1" ip link set wire down; }
joined() {
    on "$1" ip link set wire up
    on "$1" ip address replace "${ipv6[$1]}/64" dev wire nodad
}

# made_steps RUN N: succeeds if the run has made so many steps
made_steps() {
    local steps
    steps=$(grep -c '"event": "train"' "$1/metrics.jsonl" 2>/dev/null)
    [ "${steps:-0}" -ge "$2" ]
}

# ---- ranks -----------------------------------------------------------------------------------------------------------------

# What the ranks get: the host of each (empty: this one), rank 0's address and port, more variables, their processes.
placed=() master=127.0.0.1 port='' variables=() rank_pid=() codes=()

# start_rank RANK SIZE COMMAND...: starts a rank in the background; its output goes to the file rank.RANK
start_rank() {
    local rank=$1 size=$2 r local_rank=0 local_size=0 where=()
    shift 2
    for ((r = 0; r < size; r++)); do
        [ "${placed[r]:-}" = "${placed[rank]:-}" ] || continue
        local_size=$((local_size + 1))
        [ "$r" -ge "$rank" ] || local_rank=$((local_rank + 1))
    done
    [ -z "${placed[rank]:-}" ] || where=(nsenter --net --uts --mount -t "${host_pid[${placed[rank]}]}" --wd="$PWD")
    env RANK="$rank" WORLD_SIZE="$size" LOCAL_RANK=$local_rank LOCAL_WORLD_SIZE=$local_size MASTER_ADDR="$master" \
        MASTER_PORT="$port" "${variables[@]}" "${where[@]}" "$@" >"rank.$rank" 2>&1 </dev/null &
    rank_pid[rank]=$!
    children+=($!)
}

# start_ranks SIZE COMMAND...: starts all ranks
start_ranks() {
    local size=$1 rank
    shift
    rank_pid=()
    port=$(free_ports 17 | head -n 1)
    for ((rank = 0; rank < size; rank++)); do start_rank $rank "$size" "$@"; done
}

# end_ranks SECONDS: waits for all ranks, and kills those that have not ended after so many seconds; stores their exit codes
# in $codes
end_ranks() {
    local rank end=$((SECONDS + $1))
    codes=()
    for rank in "${!rank_pid[@]}"; do
        while kill -0 "${rank_pid[rank]}" 2>/dev/null && [ $SECONDS -lt $end ]; do sleep 0.02; done
        kill -KILL "${rank_pid[rank]}" 2>/dev/null
    done
    for rank in "${!rank_pid[@]}"; do
        wait "${rank_pid[rank]}" 2>/dev/null
        codes[rank]=$?
    done
}

# join SIZE COMMAND...: starts all ranks and waits for them, at most a minute
join() {
    start_ranks "$@"
    end_ranks 60
}

# all_end NAME CODE: expects that all ranks have ended with the same code, which matches CODE
all_end() {
    local rank bad=''
    for rank in "${!codes[@]}"; do
        [[ ${codes[rank]} =~ ^($2)$ && ${codes[rank]} = "${codes[*]: -1}" ]] || bad+=" rank $rank: ${codes[rank]};"
    done
    check "$1 ends all ranks with $2:$bad" test -z "$bad"
    [ -z "$bad" ] || tail -qn 2 rank.[0-9]* | sed 's/^/    | /'
}
