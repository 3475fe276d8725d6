#!/bin/sh
# Written by Muster (role slurm): checks whether slurmctld would start with a folder of configuration, and reports the faults if not.
#   sh would-slurmctld-start.sh COPY FOLDER     COPY is a copy of the configuration FOLDER; the script changes it
# slurmctld has no option to test its configuration. Every command of Slurm parses slurm.conf, but only a start of slurmctld checks the rest
# (nodes, partitions, licenses, topology, cgroup.conf, plugins). So the script starts slurmctld isolated: without network, state and database,
# with its own munge, and with COPY mounted over FOLDER.
copy=$1 folder=$2
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
# A dry run on a node that has no Slurm yet.
command -v slurmctld >/dev/null || exit 0

refuse() {
    why=$(sed -nE 's/^[a-z]+: (error|fatal): (_[a-z_]+: )?//p' "$copy/.said" |
        grep -vE 'MailProg|Job accounting information|Unable to process conf|Parse error in file|state file|NOTE: Trying|specified more than once|glob parsing|^"Include" failed|_xgetaddrinfo|Even though we are|High latency' |
        awk '!seen[$0]++' | head -n 3 | sed "s|$copy|$folder|g; s/\.\$//" | paste -sd ';' | sed 's/;/; /g')
    echo "${why:-$(tail -n 1 "$copy/.said")}. Correct it in the inventory (slurm_config, slurm_nodegroups, slurm_partitions ...)." >&2
    exit 1
}

SLURM_CONF=$copy/slurm.conf scontrol show hostnames muster >"$copy/.said" 2>&1 || refuse

if ! unshare --net --mount --pid --fork true 2>"$copy/.said"; then
    echo "slurm.conf parses, but slurmctld cannot be tried here: $(cat "$copy/.said")"
    exit 0
fi
mkdir "$copy/.state"
chown slurm "$copy/.state"
# These settings belong to the real slurmctld: its name, state and database, and programs that would act on nodes.
sed -i -E '/^[ \t]*(SlurmctldHost|StateSaveLocation|SlurmctldPidFile|SlurmctldLogFile|SlurmctldPort|SlurmctldPrimaryO[a-z]*Prog|AccountingStorage[a-z]*|AuthInfo|AuthAlt[a-z]*|JobComp[a-z]*|Suspend[a-z]*|Resume[a-z]*)[ \t]*=/Id' "$copy/slurm.conf"
cat >>"$copy/slurm.conf" <<CONF
SlurmctldHost=$(hostname -s)
StateSaveLocation=$folder/.state
SlurmctldPidFile=$folder/.state/pid
CONF
# There is no DNS here, and slurmctld spends ten seconds on each node whose name it cannot resolve.
names() { grep -oiE 'Node(Name|Hostname|Addr)=[^[:space:]]+' "$copy/slurm.conf" | cut -d= -f2; }
{
    cat /etc/hosts
    { names | grep -v '\[' | tr , '\n'; names | grep '\[' | SLURM_CONF=$copy/slurm.conf xargs -r -n 1 scontrol show hostnames; } | sed 's/^/192.0.2.1 /'
} >"$copy/.hosts"
# lo needs another address: without one glibc returns none, and slurmctld opens no port.
# shellcheck disable=SC2016 # the inner shell expands them
timeout --kill-after=1 30 unshare --net --mount --pid --fork --kill-child sh -c '
    ip address add 192.0.2.1/32 dev lo && ip link set lo up && mount --bind "$0/.hosts" /etc/hosts &&
        mount --bind "$0" "$1" && mount -t tmpfs -o mode=755 run /run || exit 1
    mkdir -m 755 /run/munge
    (umask 077 && head -c 128 /dev/urandom >/run/munge/key)
    munged --force --key-file=/run/munge/key --log-file=/run/munge/log --pid-file=/run/munge/pid --seed-file=/run/munge/seed 2>/dev/null
    exec slurmctld -D -c' "$copy" "$folder" >"$copy/.said" 2>&1 &
tried=$!
while kill -0 $tried 2>/dev/null; do
    if grep -q 'Running as primary controller' "$copy/.said"; then
        kill $tried
        # It must not write into the copy while the caller removes it. The shell says so when it had to be killed.
        wait $tried 2>/dev/null
        echo 'slurmctld would start'
        exit 0
    fi
    sleep 0.1
done
refuse
