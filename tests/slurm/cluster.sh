#!/usr/bin/env bash
# A Slurm cluster of one node on loopback, for tests: cluster.sh start DIR | stop DIR
# Everything it needs or writes is in DIR; `export SLURM_CONF=DIR/slurm.conf` is how squeue and sbatch find it.
# Needs root and Debian's packages slurm-wlm and munge.
set -euo pipefail

what=${1:?start or stop} dir=$(realpath -m "${2:?a directory}")
export PATH=$PATH:/usr/sbin SLURM_CONF=$dir/slurm.conf
node=$(hostname -s)

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

start() {
    mkdir -p "$dir"/{state,spool,munge}
    chmod 755 "$dir" "$dir/munge"
    head -c 128 /dev/urandom > "$dir/munge/key"
    chmod 400 "$dir/munge/key"
    munged --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
        --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" --num-threads=2 2> "$dir/munge/warnings"
    cat > "$SLURM_CONF" <<CONF
ClusterName=equipoise
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_interval=2
MinJobAge=30
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
NodeName=$node NodeAddr=127.0.0.1 CPUs=4 RealMemory=16000 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    slurmctld
    slurmd
    for _ in $(seq 100); do
        if sinfo --noheader --format=%t 2> /dev/null | grep -q idle; then return; fi
        sleep 0.2
    done
    echo "the node did not come up:" >&2
    tail -n 20 "$dir"/slurmctld.log "$dir"/slurmd.log >&2
    exit 1
}

stop() {
    scancel --user=root 2> /dev/null || true
    for name in slurmd slurmctld munge/pid; do
        file=$dir/$name
        [ "$name" = munge/pid ] || file=$dir/$name.pid
        if [ -s "$file" ]; then kill "$(cat "$file")" 2> /dev/null || true; fi
    done
}

case $what in
    start) start ;;
    stop) stop ;;
    *) echo "usage: cluster.sh start|stop DIR" >&2 && exit 2 ;;
esac
