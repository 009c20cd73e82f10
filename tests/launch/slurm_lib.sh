# slurm_lib.sh -- a private SLURM with two nodes, n1 and n2, on this machine: its own daemons, key, ports and folders, on
# loopback only. Each node has a host name of its own.
# shellcheck shell=bash disable=SC2034 # callers read why

slurm_daemons=()

# slurm_can: succeeds if a SLURM can be started here; otherwise sets $why
slurm_can() {
    local tool
    why=''
    for tool in munged slurmctld slurmd sbatch srun scontrol unshare; do
        PATH=$PATH:/usr/sbin command -v $tool >/dev/null || { why="$tool is not installed (scripts/setup.sh --launch)"; return 1; }
    done
    [ "$(id -u)" -eq 0 ] || { why="only root can start a private SLURM"; return 1; }
    unshare --uts --mount true 2>/dev/null || { why="this system allows no namespaces of host names"; return 1; }
    # slurmd 22.05 does not start otherwise.
    grep -q ' /sys/fs/cgroup ' /proc/mounts || { why="nothing is mounted on /sys/fs/cgroup, which slurmd needs"; return 1; }
}

# daemon NAME COMMAND...: starts a daemon in the foreground of a background process
daemon() {
    local name=$1
    shift
    "$@" >"$slurm/log/$name.out" 2>&1 </dev/null &
    slurm_daemons+=($!)
    eval "pid_$name=$!"
}

# node NAME: starts the node's daemon, with a host name of its own
node() {
    # shellcheck disable=SC2016 # the inner shell's
    daemon "$1" unshare --uts --mount sh -c 'hostname "$1" && mount --bind "$2" /etc/hosts && exec /usr/sbin/slurmd -D -c -N "$1" -f "$3"' \
        sh "$1" "$slurm/hosts" "$SLURM_CONF"
}

# slurm_conf PORT...: prints the configuration
slurm_conf() {
    local host=$HOSTNAME cpus=8 # more than there are: tasks of several jobs run at the same time
    cat <<CONF
ClusterName=ci
SlurmctldHost=${host%%.*}(127.0.0.1)
SlurmctldPort=$1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$slurm/mrun/munge.sock
CredType=cred/munge
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool-%n
SlurmctldPidFile=$slurm/run/slurmctld.pid
SlurmdPidFile=$slurm/run/slurmd-%n.pid
SlurmctldLogFile=$slurm/log/slurmctld.log
SlurmdLogFile=$slurm/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TmpFS=$slurm/tmp-%n
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,sched_min_interval=100000,bf_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmdTimeout=15
SlurmctldTimeout=15
MessageTimeout=10
InactiveLimit=0
KillWait=5
UnkillableStepTimeout=30
MinJobAge=300
JobRequeue=1
TCPTimeout=2
MailProg=/bin/true
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
NodeName=n1 NodeHostname=n1 NodeAddr=127.0.0.1 Port=$2 CPUs=$cpus RealMemory=2000 Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname=n2 NodeAddr=127.0.0.1 Port=$3 CPUs=$cpus RealMemory=2000 Gres=gpu:2 State=UNKNOWN
PartitionName=ci Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20 PreemptMode=REQUEUE
PartitionName=hi Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
CONF
}

# slurm_up: starts the daemons and waits until both nodes are idle; otherwise sets $why
slurm_up() {
    local i ports host=$HOSTNAME
    slurm_can || return
    slurm=$(mktemp -d /tmp/slurm.XXXXXX) || exit 71
    export SLURM_CONF=$slurm/slurm.conf
    mkdir -p "$slurm"/{munge,mrun,state,spool-n1,spool-n2,tmp-n1,tmp-n2,log,run}
    chmod 0755 "$slurm" "$slurm/mrun"
    chmod 0700 "$slurm/munge"
    (umask 077 && head -c 128 /dev/urandom >"$slurm/munge/key")
    echo "127.0.0.1 localhost n1 n2 ${host%%.*} $host" >"$slurm/hosts"
    mapfile -t ports < <(free_ports 3)
    slurm_conf "${ports[@]}" >"$SLURM_CONF"
    echo 'NodeName=n[1-2] Name=gpu File=/dev/tty[0-1]' >"$slurm/gres.conf"
    daemon munged /usr/sbin/munged --foreground --key-file="$slurm/munge/key" --socket="$slurm/mrun/munge.sock" \
        --pid-file="$slurm/mrun/munged.pid" --seed-file="$slurm/munge/seed" --log-file="$slurm/munge/munged.log" --force
    for ((i = 0; i < 100; i++)); do [ -S "$slurm/mrun/munge.sock" ] && break; sleep 0.05; done
    daemon slurmctld /usr/sbin/slurmctld -D -c -f "$SLURM_CONF"
    node n1
    node n2
    for ((i = 0; i < 60; i++)); do
        [ "$(sinfo -h -o '%D %t' 2>/dev/null)" != "2 idle" ] || return 0
        sleep 0.25
    done
    why="its daemons do not start: $(tail -qn 1 "$slurm"/log/* | tr '\n' ' ')"
    slurm_down
    return 1
}

# slurm_down: ends the jobs and the daemons, and removes their folders
slurm_down() {
    local pid i
    [ -n "${slurm:-}" ] || return 0
    if [ ${#slurm_daemons[@]} -gt 0 ]; then
        timeout 10 scancel --state=PENDING,RUNNING -u "$(id -un)" 2>/dev/null
        for ((i = 0; i < 40; i++)); do [ -z "$(timeout 5 squeue -h -t running,completing 2>/dev/null)" ] && break; sleep 0.25; done
    fi
    for ((i = ${#slurm_daemons[@]} - 1; i >= 0; i--)); do
        pid=${slurm_daemons[i]}
        kill "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    slurm_daemons=()
    rm -rf "$slurm"
    slurm=''
}
