#!/bin/sh
# Installs, configures and starts on one node what the roles common and slurm do, as a person would type it: no checks, no manifest, no second run.
# bare.sh NODE CONTROLLER COMPUTE1 COMPUTE2  (run on the node; the munge key comes on standard input)
set -eu
node=$1 controller=$2 first=$3 second=$4
export DEBIAN_FRONTEND=noninteractive
cat > /tmp/munge.key
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
mkdir -p /etc/apt/apt.conf.d
echo 'APT::Install-Recommends "false";' > /etc/apt/apt.conf.d/90bare
apt-get update -q > /dev/null
apt-get install -y -q ca-certificates curl jq numactl pciutils tzdata > /dev/null
if [ "$node" = "$controller" ]; then
    apt-get install -y -q munge logrotate libpmix2t64 slurm-client slurm-wlm-basic-plugins slurm-wlm-jwt-plugin slurmctld slurmdbd mariadb-server > /dev/null
else
    apt-get install -y -q munge logrotate libpmix2t64 libpam-slurm-adopt slurm-client slurm-wlm-basic-plugins slurmd > /dev/null
fi
rm /usr/sbin/policy-rc.d
printf '* - memlock unlimited\n* - nofile 1048576\n' > /etc/security/limits.d/90-bare.conf
mkdir -p /etc/systemd/system.conf.d
printf '[Manager]\nDefaultLimitMEMLOCK=infinity\nDefaultLimitNOFILE=1048576\n' > /etc/systemd/system.conf.d/90-bare.conf
for unit in slurmctld slurmdbd slurmd; do
    mkdir -p /etc/systemd/system/$unit.service.d
    printf '[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=on-failure\nRestartSec=5\n' > /etc/systemd/system/$unit.service.d/bare.conf
done
systemctl daemon-reexec
install -o munge -g munge -m 0400 /tmp/munge.key /etc/munge/munge.key
rm /tmp/munge.key
systemctl enable --now munge
systemctl restart munge
if [ "$node" = "$controller" ]; then
    cat > /etc/slurm/slurm.conf <<EOF
ClusterName=bare
SlurmctldHost=$controller
SlurmUser=slurm
SlurmctldParameters=enable_configless
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
TaskPlugin=task/cgroup,task/affinity
ProctrackType=proctrack/cgroup
JobAcctGatherType=jobacct_gather/cgroup
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=$controller
MpiDefault=pmix
NodeName=$first,$second CPUs=2 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES
EOF
    printf 'ConstrainCores=yes\nConstrainRAMSpace=yes\nConstrainDevices=yes\n' > /etc/slurm/cgroup.conf
    cat > /etc/slurm/slurmdbd.conf <<EOF
AuthType=auth/munge
DbdHost=localhost
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
LogFile=/var/log/slurm/slurmdbd.log
EOF
    chown slurm:slurm /etc/slurm/slurmdbd.conf
    chmod 0600 /etc/slurm/slurmdbd.conf
    printf '[mysqld]\ninnodb_buffer_pool_size=128M\ninnodb_lock_wait_timeout=900\n' > /etc/mysql/mariadb.conf.d/60-bare.cnf
    systemctl enable --now mariadb
    mariadb -e "CREATE DATABASE slurm_acct_db; CREATE USER slurm@localhost IDENTIFIED VIA unix_socket; GRANT ALL ON slurm_acct_db.* TO slurm@localhost"
    systemctl enable --now slurmdbd
    until sacctmgr -n show cluster > /dev/null 2>&1; do sleep 0.2; done
    systemctl enable --now slurmctld
    # This fails when slurmctld has not registered its cluster yet; a person would type it again.
    { sacctmgr -i add account muster && sacctmgr -i add user muster account=muster; } > /dev/null 2>&1 || true
else
    echo "SLURMD_OPTIONS=\"--conf-server $controller\"" > /etc/default/slurmd
    until python3 -c "import socket; socket.create_connection(('$controller', 6817), 1)" 2> /dev/null; do sleep 0.2; done
    systemctl enable --now slurmd
fi
useradd -u 2000 -M -d /fsx/home/muster muster
