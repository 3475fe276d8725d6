# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The alarms: each with its expression, its severity, what a person should do, and series on which it fires and on which it stays quiet.

`rules_file` gives the rules, `tests_file` the tests of promtool, `runbooks` the page docs/runbooks.md. A site may change `{value}`
in an expression, and `hold`. All expressions keep the labels `fleet` and `instance`, so that fleets may share one Prometheus.
"""

from __future__ import annotations

import dataclasses
import json
import re

SEVERITIES = ("critical", "warning", "info")
RUNBOOKS = "https://example.com/muster/muster/docs/runbooks.md"
DISKS = 'mountpoint!~"/(run|dev|sys|proc|boot/efi).*"'
NODE = 'fleet="f",instance="n1"'
RUNNING = "muster_training_running == 1"


@dataclasses.dataclass(frozen=True)
class Alarm:
    """One alarm. fires, quiet: {series: values} in promtool's notation, a value a minute; at: minutes after which the test looks."""

    name: str
    group: str
    severity: str
    expr: str
    summary: str
    remedy: str
    fires: dict
    quiet: dict
    hold: str = "0s"
    value: float | None = None
    at: int = 20

    def expression(self):
        """The expression with its value."""
        text = "" if self.value is None else ("%d" % self.value if self.value == int(self.value) else repr(self.value))
        return self.expr.replace("{value}", text)


class AlarmError(ValueError):
    """A site asks for what there is not; the text is one sentence for the user."""


def series(metric, labels="", node=NODE):
    """A series of a node."""
    return "%s{%s}" % (metric, ",".join(part for part in (node, labels) if part))


def training(metric):
    """A series of a training."""
    return series(metric, 'job_id="7",run="r"', 'fleet="f",instance="controller-1"')


def counted(metric, labels="", rises="0+10x30", rests="5x30"):
    """The series of a counter that rises, and of one that does not."""
    return {"fires": {series(metric, labels): rises}, "quiet": {series(metric, labels): rests}}


def over(metric, labels="", high="1x30", low="0x30"):
    """The series of a gauge that is too high, and of one that is not."""
    return {"fires": {series(metric, labels): high}, "quiet": {series(metric, labels): low}}


PORT = 'device="rdmap16s29",port="1"'
GPU = 'gpu="3"'

ALARMS = (
    Alarm(
        "MusterNodeDown",
        "node",
        "critical",
        'up{job="node"} == 0',
        "Node {{ $labels.instance }} does not answer.",
        "Look at the machine's console and its power. If only the exporter is down, start prometheus-node-exporter. "
        "Slurm drains a node that is gone; "
        "reimage or replace it, then resume it.",
        **over("up", 'job="node"', "0x30", "1x30"),
        hold="2m",
    ),
    Alarm(
        "MusterTargetDown",
        "node",
        "warning",
        'up{job!="node"} == 0',
        "The {{ $labels.job }} endpoint of {{ $labels.instance }} cannot be scraped.",
        "Open the page of targets in Prometheus for the reason: 401 is a wrong password, a failed handshake another "
        "certificate. Read the exporter's "
        "journal on the node, and run the configure phase of role monitoring again.",
        **over("up", 'job="efa"', "0x30", "1x30"),
        hold="2m",
    ),
    Alarm(
        "MusterDiskFull",
        "node",
        "critical",
        "node_filesystem_avail_bytes{%s} / node_filesystem_size_bytes{%s} < {value}" % (DISKS, DISKS),
        "{{ $labels.mountpoint }} of {{ $labels.instance }} has {{ $value | humanizePercentage }} left.",
        "Find what grows with `du -xh --max-depth=2 MOUNTPOINT`. Old checkpoints, container images and logs are the usual reasons.",
        {series("node_filesystem_avail_bytes", 'mountpoint="/"'): "2x30", series("node_filesystem_size_bytes", 'mountpoint="/"'): "100x30"},
        {
            series("node_filesystem_avail_bytes", 'mountpoint="/"'): "20x30",
            series("node_filesystem_size_bytes", 'mountpoint="/"'): "100x30",
        },
        hold="1m",
        value=0.05,
    ),
    Alarm(
        "MusterDiskFilling",
        "node",
        "warning",
        "predict_linear(node_filesystem_avail_bytes{%s}[30m], {value}) < 0 and node_filesystem_avail_bytes / "
        "node_filesystem_size_bytes < 0.5" % DISKS,
        "{{ $labels.mountpoint }} of {{ $labels.instance }} is full in a few hours when it goes on like this.",
        "Find what writes with `du -xh --max-depth=2 MOUNTPOINT`; keep fewer checkpoints or rotate the log before the disk is full.",
        {
            series("node_filesystem_avail_bytes", 'mountpoint="/"'): "400-10x40",
            series("node_filesystem_size_bytes", 'mountpoint="/"'): "1000x40",
        },
        {
            series("node_filesystem_avail_bytes", 'mountpoint="/"'): "400x40",
            series("node_filesystem_size_bytes", 'mountpoint="/"'): "1000x40",
        },
        hold="10m",
        value=14400,
        at=30,
    ),
    Alarm(
        "MusterInodesLow",
        "node",
        "warning",
        "node_filesystem_files_free{%s} / (node_filesystem_files{%s} > 0) < {value}" % (DISKS, DISKS),
        "{{ $labels.mountpoint }} of {{ $labels.instance }} has few inodes left.",
        "Remove many small files, such as unpacked data sets and caches; keep data in large shards.",
        {series("node_filesystem_files_free", 'mountpoint="/"'): "2x30", series("node_filesystem_files", 'mountpoint="/"'): "100x30"},
        {series("node_filesystem_files_free", 'mountpoint="/"'): "20x30", series("node_filesystem_files", 'mountpoint="/"'): "100x30"},
        hold="5m",
        value=0.05,
    ),
    Alarm(
        "MusterMemoryLow",
        "node",
        "warning",
        "node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes < {value}",
        "{{ $labels.instance }} has {{ $value | humanizePercentage }} of its memory left.",
        "Look at the job's memory with `sstat`; a data loader with many workers is the usual reason. Ask for more "
        "memory or for fewer workers.",
        {series("node_memory_MemAvailable_bytes"): "2x30", series("node_memory_MemTotal_bytes"): "100x30"},
        {series("node_memory_MemAvailable_bytes"): "20x30", series("node_memory_MemTotal_bytes"): "100x30"},
        hold="5m",
        value=0.03,
    ),
    Alarm(
        "MusterOutOfMemory",
        "node",
        "warning",
        # The counter counts jobs that hit their own limit, too, which is not the node's fault.
        "increase(node_vmstat_oom_kill[10m]) > 0 and min_over_time(node_memory_MemAvailable_bytes[10m]) "
        "/ node_memory_MemTotal_bytes < {value}",
        "The kernel of {{ $labels.instance }} killed a process, and the node had hardly any memory left.",
        "The kernel's log names the process. If it was slurmd or the trainer, drain the node and restart it. "
        "A job that hits its own limit leaves the node its memory, and raises no alarm. A node whose memory was short for less than a "
        "scrape's interval raises none here: the check out_of_memory of muster-health reads the kernel's log.",
        {
            series("node_vmstat_oom_kill"): "0+10x30",
            series("node_memory_MemAvailable_bytes"): "50x9 2 50x20",
            series("node_memory_MemTotal_bytes"): "100x30",
        },
        {
            series("node_vmstat_oom_kill"): "0+10x30",
            series("node_memory_MemAvailable_bytes"): "50x30",
            series("node_memory_MemTotal_bytes"): "100x30",
        },
        value=0.05,
        at=15,
    ),
    Alarm(
        "MusterClockOff",
        "node",
        "warning",
        "abs(node_time_seconds - timestamp(node_time_seconds)) > {value}",
        "The clock of {{ $labels.instance }} is {{ $value | humanizeDuration }} off the monitoring host's.",
        "Run `chronyc tracking` on the node and on the monitoring host. Munge refuses credentials of a clock that is five minutes off.",
        {series("node_time_seconds"): "60+60x30"},
        {series("node_time_seconds"): "0+60x30"},
        hold="5m",
        value=5,
    ),
    Alarm(
        "MusterTextfileBroken",
        "node",
        "warning",
        "node_textfile_scrape_error == 1",
        "Node exporter cannot read a metrics file of {{ $labels.instance }}.",
        "Read journalctl -u prometheus-node-exporter; it names the file in /var/lib/prometheus/node-exporter.",
        **over("node_textfile_scrape_error"),
        hold="2m",
    ),
    Alarm(
        "MusterCheckFailed",
        "health",
        "critical",
        'muster_health_check{check!~"drift.*"} == 0',
        "Health check {{ $labels.check }} of {{ $labels.instance }} failed.",
        "Run `playbooks/validate.yml` with the node as limit; the failed check names its own remedy. Drain the node if jobs fail on it.",
        **over("muster_health_check", 'check="xid"', "0x30", "1x30"),
    ),
    Alarm(
        "MusterDrift",
        "health",
        "warning",
        'muster_health_check{check=~"drift.*"} == 0',
        "{{ $labels.instance }} has another {{ $labels.check }} than its manifest says.",
        "Somebody or an upgrade changed the node. Run `playbooks/provision.yml` with the component in "
        "muster_install_again, or reimage the node.",
        **over("muster_health_check", 'check="drift_cuda"', "0x30", "1x30"),
    ),
    Alarm(
        "MusterHealthOld",
        "health",
        "warning",
        "time() - muster_health_run_timestamp_seconds > {value}",
        "The health checks of {{ $labels.instance }} have not run for {{ $value | humanizeDuration }}.",
        "Run `systemctl list-timers` and read the journal of the health timer on the node.",
        {series("muster_health_run_timestamp_seconds", 'level="light"'): "0x200"},
        {series("muster_health_run_timestamp_seconds", 'level="light"'): "0+60x200"},
        value=7200,
        at=180,
    ),
    Alarm(
        "MusterSlurmctldDown",
        "slurm",
        "critical",
        "muster_slurm_up == 0",
        "slurmctld does not answer on {{ $labels.instance }}.",
        "Run `scontrol ping` and read journalctl -u slurmctld there. Running jobs go on; nothing new starts.",
        **over("muster_slurm_up", "", "0x30", "1x30"),
        hold="1m",
    ),
    Alarm(
        "MusterSlurmNodeDown",
        "slurm",
        "critical",
        "muster_slurm_node_down == 1",
        "Slurm cannot use node {{ $labels.node }}: {{ $labels.reason }}.",
        "Run `scontrol show node` for the reason. Mend the node, validate it with `playbooks/validate.yml`, then resume it.",
        **over("muster_slurm_node_down", 'node="compute-1",reason="Not responding"'),
        hold="5m",
    ),
    Alarm(
        "MusterSlurmAgentQueue",
        "slurm",
        "warning",
        "muster_slurm_agent_queue_size > {value}",
        "slurmctld of {{ $labels.instance }} has {{ $value }} messages to nodes that it could not send.",
        "Many nodes do not answer. Look at MusterNodeDown, and at the network between the controller and the nodes.",
        **over("muster_slurm_agent_queue_size", "", "2000x30", "3x30"),
        hold="5m",
        value=1000,
    ),
    Alarm(
        "MusterSlurmAccountingQueue",
        "slurm",
        "warning",
        "muster_slurm_dbd_queue_size > {value}",
        "slurmctld of {{ $labels.instance }} keeps {{ $value }} records that slurmdbd does not take.",
        "Start slurmdbd and its database; past its limit slurmctld drops records of jobs.",
        **over("muster_slurm_dbd_queue_size", "", "2000x30", "3x30"),
        hold="5m",
        value=1000,
    ),
    Alarm(
        "MusterJobStuck",
        "training",
        "critical",
        "(time() - muster_training_last_record_time_seconds > {value}) and %s" % RUNNING,
        "Job {{ $labels.job_id }} ({{ $labels.run }}) has made no step for {{ $value | humanizeDuration }}.",
        "Read the end of the job's output: the trainer's watch names the rank and the phase that it hangs in. Drain "
        "the node of that rank and requeue the job.",
        {training("muster_training_last_record_time_seconds"): "60x60", training("muster_training_running"): "1x60"},
        {training("muster_training_last_record_time_seconds"): "60x60", training("muster_training_running"): "0x60"},
        value=900,
        at=40,
    ),
    Alarm(
        "MusterLossNotFinite",
        "training",
        "critical",
        "muster_training_loss_finite == 0",
        "The loss of job {{ $labels.job_id }} ({{ $labels.run }}) is not a number at its last step.",
        "Resume from a checkpoint before that step with a lower learning rate, and look for ECC errors on the job's GPUs.",
        {training("muster_training_loss_finite"): "0x30"},
        {training("muster_training_loss_finite"): "1x30"},
    ),
    Alarm(
        "MusterNoCheckpoint",
        "training",
        "warning",
        "(time() - muster_training_last_checkpoint_time_seconds > {value}) and %s" % RUNNING,
        "Job {{ $labels.job_id }} ({{ $labels.run }}) has written no checkpoint for {{ $value | humanizeDuration }}.",
        "A failure now costs all steps since then. Look at the space of the checkpoints' file system, and set --checkpoint_freq lower.",
        {training("muster_training_last_checkpoint_time_seconds"): "0x100", training("muster_training_running"): "1x100"},
        {training("muster_training_last_checkpoint_time_seconds"): "0+60x100", training("muster_training_running"): "1x100"},
        value=3600,
        at=80,
    ),
    Alarm(
        "MusterGoodputLow",
        "training",
        "warning",
        "(muster_training_goodput < {value}) and muster_training_wall_seconds > 3600 and %s" % RUNNING,
        "Job {{ $labels.job_id }} ({{ $labels.run }}) spends only {{ $value | humanizePercentage }} of its time on steps that count.",
        "goodput.json beside the checkpoints says where the time goes: restarts, data, checkpoints or validation.",
        {
            training("muster_training_goodput"): "0.5x30",
            training("muster_training_wall_seconds"): "7200x30",
            training("muster_training_running"): "1x30",
        },
        {
            training("muster_training_goodput"): "0.5x30",
            training("muster_training_wall_seconds"): "60x30",
            training("muster_training_running"): "1x30",
        },
        hold="5m",
        value=0.8,
    ),
    Alarm(
        "MusterEfaDeviceLost",
        "efa",
        "critical",
        "node_amazonefa_devices < max_over_time(node_amazonefa_devices[1d])",
        "{{ $labels.instance }} has only {{ $value }} of its EFA devices.",
        "Drain the node. Restart it, and replace the instance if a device stays away.",
        **over("node_amazonefa_devices", "", "32x10 31x20", "32x30"),
        hold="2m",
    ),
    Alarm(
        "MusterEfaPortDown",
        "efa",
        "critical",
        "node_amazonefa_port_up == 0",
        "Port {{ $labels.port }} of {{ $labels.device }} on {{ $labels.instance }} is not active.",
        "Drain the node. Read the kernel's log for efa, and replace the instance if the port stays down.",
        **over("node_amazonefa_port_up", PORT, "0x30", "1x30"),
        hold="1m",
    ),
    Alarm(
        "MusterEfaRetransmits",
        "efa",
        "warning",
        "rate(node_amazonefa_retrans_pkts[5m]) / (rate(node_amazonefa_tx_pkts[5m]) > 0) > {value}",
        "{{ $labels.device }} of {{ $labels.instance }} sends {{ $value | humanizePercentage }} of its packets again.",
        "A congested or failing path. Compare the devices of the job's nodes: one bad device points at its instance, "
        "all of them at the placement.",
        {series("node_amazonefa_retrans_pkts", PORT): "0+600x30", series("node_amazonefa_tx_pkts", PORT): "0+6000x30"},
        {series("node_amazonefa_retrans_pkts", PORT): "0+6x30", series("node_amazonefa_tx_pkts", PORT): "0+60000x30"},
        hold="5m",
        value=0.01,
    ),
    Alarm(
        "MusterEfaRetransmitTimeouts",
        "efa",
        "warning",
        "increase(node_amazonefa_retrans_timeout_events[10m]) > {value}",
        "{{ $labels.device }} of {{ $labels.instance }} waited in vain for {{ $value }} answers in ten minutes.",
        "Look for nodes that stopped answering (MusterEfaRemoteUnresponsive) and for a congested path.",
        **counted("node_amazonefa_retrans_timeout_events", PORT),
        value=10,
    ),
    Alarm(
        "MusterEfaRemoteUnresponsive",
        "efa",
        "critical",
        "increase(node_amazonefa_unresponsive_remote_events[10m]) > 0",
        "{{ $labels.device }} of {{ $labels.instance }} lost a remote that does not respond.",
        "Look which node of the job is down or hangs; the collective fails or times out. Drain that node and requeue the job.",
        **counted("node_amazonefa_unresponsive_remote_events", PORT),
    ),
    Alarm(
        "MusterEfaImpairedConnections",
        "efa",
        "warning",
        "increase(node_amazonefa_impaired_remote_conn_events[10m]) > 0",
        "{{ $labels.device }} of {{ $labels.instance }} has impaired connections.",
        "Run the pairwise collectives over the job's nodes; the slow pair names the instance to replace.",
        **counted("node_amazonefa_impaired_remote_conn_events", PORT),
    ),
    Alarm(
        "MusterEfaDrops",
        "efa",
        "warning",
        "rate(node_amazonefa_rx_drops[5m]) > {value}",
        "{{ $labels.device }} of {{ $labels.instance }} drops {{ $value | humanize }} packets a second.",
        "The receiver is too slow: look for a job that takes too few CPUs, and for huge pages that are missing.",
        **counted("node_amazonefa_rx_drops", PORT, "0+6000x30"),
        hold="2m",
        value=1,
    ),
    Alarm(
        "MusterEfaRdmaErrors",
        "efa",
        "warning",
        "increase(node_amazonefa_rdma_read_wr_err[10m]) + increase(node_amazonefa_rdma_write_wr_err[10m]) > 0",
        "RDMA operations of {{ $labels.device }} on {{ $labels.instance }} end with errors.",
        "Read the job's output for errors of libfabric, and the kernel's log for efa.",
        {series("node_amazonefa_rdma_read_wr_err", PORT): "0+1x30", series("node_amazonefa_rdma_write_wr_err", PORT): "0x30"},
        {series("node_amazonefa_rdma_read_wr_err", PORT): "1x30", series("node_amazonefa_rdma_write_wr_err", PORT): "0x30"},
    ),
    Alarm(
        "MusterEfaCommandErrors",
        "efa",
        "warning",
        "increase(node_amazonefa_cmds_err[10m]) + increase(node_amazonefa_no_completion_cmds[10m]) > 0",
        "{{ $labels.device }} of {{ $labels.instance }} fails or does not answer commands of its driver.",
        "Read the kernel's log for efa. Drain and restart the node; replace the instance when it comes back.",
        {series("node_amazonefa_cmds_err", 'device="d"'): "0+1x30", series("node_amazonefa_no_completion_cmds", 'device="d"'): "0x30"},
        {series("node_amazonefa_cmds_err", 'device="d"'): "1x30", series("node_amazonefa_no_completion_cmds", 'device="d"'): "0x30"},
    ),
    Alarm(
        "MusterEfaUnreadable",
        "efa",
        "warning",
        "increase(node_amazonefa_read_errors_total[10m]) > {value}",
        "Counters of {{ $labels.device }} on {{ $labels.instance }} cannot be read.",
        "Compare `ls /sys/class/infiniband/DEVICE/ports/1/hw_counters` with the driver's version; the device may be going.",
        **counted("node_amazonefa_read_errors_total", 'device="d"'),
        value=5,
    ),
    Alarm(
        "MusterGpuXid",
        "gpu",
        "critical",
        "DCGM_FI_DEV_XID_ERRORS > 0",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} reported XID {{ $value }}.",
        "Look the XID up in NVIDIA's catalogue: 48, 64, 74, 79, 94 and 95 need a drain and a reset or a restart; 13 "
        "and 31 are errors of the program.",
        **over("DCGM_FI_DEV_XID_ERRORS", GPU, "79x30", "0x30"),
    ),
    Alarm(
        "MusterGpuEcc",
        "gpu",
        "critical",
        "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[10m]) > 0",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} has double-bit memory errors.",
        "Drain the node and reset the GPU, which remaps the row. Replace the instance when errors come back.",
        **counted("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", GPU),
    ),
    Alarm(
        "MusterGpuRowRemap",
        "gpu",
        "critical",
        "DCGM_FI_DEV_ROW_REMAP_FAILURE > 0",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} cannot remap a bad row of memory.",
        "Drain the node and replace the instance; the GPU has no spare rows.",
        **over("DCGM_FI_DEV_ROW_REMAP_FAILURE", GPU),
    ),
    Alarm(
        "MusterGpuThrottled",
        "gpu",
        "warning",
        "rate(DCGM_FI_DEV_THERMAL_VIOLATION[5m]) + rate(DCGM_FI_DEV_POWER_VIOLATION[5m]) > {value}",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} lowers its clock for heat or power.",
        "One slow GPU slows the whole job. Compare its temperature with its neighbours; drain the node and replace the "
        "instance if only it is hot.",
        {series("DCGM_FI_DEV_THERMAL_VIOLATION", GPU): "0+60000000000x30", series("DCGM_FI_DEV_POWER_VIOLATION", GPU): "0x30"},
        {series("DCGM_FI_DEV_THERMAL_VIOLATION", GPU): "5x30", series("DCGM_FI_DEV_POWER_VIOLATION", GPU): "0x30"},
        hold="5m",
        value=10000000,
    ),
    Alarm(
        "MusterGpuHot",
        "gpu",
        "warning",
        "DCGM_FI_DEV_GPU_TEMP > {value}",
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} has {{ $value }} degrees.",
        "Compare it with its neighbours. Drain the node and replace the instance if it stays hot.",
        **over("DCGM_FI_DEV_GPU_TEMP", GPU, "91x30", "60x30"),
        hold="5m",
        value=87,
    ),
    Alarm(
        "MusterGpuNvlink",
        "gpu",
        "warning",
        "increase(DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL[10m]) > {value}",
        "NVLink of GPU {{ $labels.gpu }} on {{ $labels.instance }} has CRC errors.",
        "Run `dcgmi diag -r 2` on the drained node; replace the instance when it fails.",
        **counted("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", GPU, "0+1000x30"),
        value=100,
    ),
    Alarm(
        "MusterGpuPcieReplays",
        "gpu",
        "warning",
        "increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[10m]) > {value}",
        "PCIe of GPU {{ $labels.gpu }} on {{ $labels.instance }} repeats transfers.",
        "Run `dcgmi diag -r 2` on the drained node; replace the instance when transfers are slow.",
        **counted("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", GPU, "0+100x30"),
        value=100,
    ),
    Alarm(
        "MusterNotificationsFail",
        "monitoring",
        "critical",
        "rate(alertmanager_notifications_failed_total[5m]) > 0",
        "Alertmanager cannot deliver to {{ $labels.integration }}.",
        "Read journalctl -u prometheus-alertmanager on {{ $labels.instance }}, and correct monitoring_receivers.",
        **counted("alertmanager_notifications_failed_total", 'integration="webhook"'),
        hold="2m",
    ),
    Alarm(
        "MusterPrometheusCannotWrite",
        "monitoring",
        "critical",
        "increase(prometheus_tsdb_wal_writes_failed_total[10m]) + increase(prometheus_tsdb_compactions_failed_total[10m]) > 0",
        "Prometheus on {{ $labels.instance }} cannot write its data.",
        "Its disk is full or broken. Make room, or set monitoring_retention_size to less than the disk has.",
        {series("prometheus_tsdb_wal_writes_failed_total"): "0+1x30", series("prometheus_tsdb_compactions_failed_total"): "0x30"},
        {series("prometheus_tsdb_wal_writes_failed_total"): "0x30", series("prometheus_tsdb_compactions_failed_total"): "0x30"},
    ),
    # A Prometheus that cannot write stores no sample, so its counters of failures stand still for the rules, and all other alarms end.
    Alarm(
        "MusterPrometheusStoresNothing",
        "monitoring",
        "critical",
        "time() - max_over_time(timestamp(prometheus_tsdb_head_series)[6h:15s]) > {value}",
        "Prometheus on {{ $labels.instance }} has stored nothing for {{ $value | humanizeDuration }}, so no other alarm can fire.",
        "Its disk is full or broken: `df -h /var/lib/prometheus` and journalctl -u prometheus say which. "
        "Make room; Prometheus goes on by itself. Set monitoring_retention_size to less than the disk has.",
        {series("prometheus_tsdb_head_series"): "7x15"},
        {series("prometheus_tsdb_head_series"): "7x30"},
        hold="1m",
        value=120,
    ),
    Alarm(
        "MusterDiscoveryStale",
        "monitoring",
        "warning",
        "time() - muster_discovery_last_success_time_seconds > {value}",
        "The targets of Prometheus on {{ $labels.instance }} have not followed Slurm's nodes for {{ $value | humanizeDuration }}.",
        "Nodes that came since are not watched, and nodes that went are still targets. Read journalctl -u muster-discovery on the "
        "monitoring host for the reason, and run `scontrol ping` on the controller.",
        {series("muster_discovery_last_success_time_seconds"): "0x30"},
        {series("muster_discovery_last_success_time_seconds"): "0+60x30"},
        value=600,
    ),
    Alarm(
        "MusterNodesUnwatched",
        "monitoring",
        "info",
        "muster_discovery_unwatched_nodes > {value}",
        "{{ $value }} nodes of Slurm run without node exporter, so nobody watches them.",
        "The journal of muster-discovery names five of them. Add the nodes to the inventory and run "
        "`playbooks/provision.yml` over them. For nodes that live for a job only, raise the alarm's value.",
        **over("muster_discovery_unwatched_nodes", "", "2x30"),
        hold="15m",
        value=0,
    ),
    Alarm(
        "MusterRetentionBySize",
        "monitoring",
        "info",
        "increase(prometheus_tsdb_size_retentions_total[1h]) > 0",
        "Prometheus on {{ $labels.instance }} deletes data before its time because it reached its size.",
        "Give it a larger disk and monitoring_retention_size, or accept a shorter history.",
        **counted("prometheus_tsdb_size_retentions_total"),
    ),
)
HOLD = re.compile(r"(\d+(ms|[smhd]))+")


def chosen(changes=None):
    """The alarms with a site's changes: {name: {value, hold, severity, off}}."""
    known = {alarm.name: alarm for alarm in ALARMS}
    out = dict(known)
    for name, change in (changes or {}).items():
        if name not in known:
            raise AlarmError("There is no alarm %s (monitoring_alarms); docs/runbooks.md lists the alarms." % name)
        unknown = sorted(set(change) - {"value", "hold", "severity", "off"})
        if unknown:
            raise AlarmError("Alarm %s has no %s (monitoring_alarms); it has value, hold, severity and off." % (name, unknown[0]))
        if "value" in change and known[name].value is None:
            raise AlarmError("Alarm %s has no value to change (monitoring_alarms)." % name)
        if "hold" in change and not HOLD.fullmatch(str(change["hold"])):
            raise AlarmError("Alarm %s cannot hold %s (monitoring_alarms); give a time such as 5m." % (name, change["hold"]))
        if change.get("severity", "info") not in SEVERITIES:
            raise AlarmError(
                "Alarm %s cannot have severity %s (monitoring_alarms); choose one of %s."
                % (name, change["severity"], ", ".join(SEVERITIES))
            )
        if change.get("off"):
            del out[name]
        else:
            kept = {key: value for key, value in change.items() if key != "off"}
            if "value" in kept:
                kept["value"] = float(kept["value"])
            out[name] = dataclasses.replace(known[name], **kept)
    return list(out.values())


def page(name):
    """The anchor of an alarm in docs/runbooks.md."""
    return name.lower()


def groups(changes=None, runbooks=RUNBOOKS):
    """Prometheus' rule groups."""
    alarms = chosen(changes)
    names = list(dict.fromkeys(alarm.group for alarm in alarms))
    return [{"name": "muster-" + name, "rules": [_rule(alarm, runbooks) for alarm in alarms if alarm.group == name]} for name in names]


def _rule(alarm, runbooks):
    rule = {"alert": alarm.name, "expr": alarm.expression()}
    if alarm.hold != "0s":
        rule["for"] = alarm.hold
    rule["labels"] = {"severity": alarm.severity}
    rule["annotations"] = {"summary": alarm.summary, "remedy": alarm.remedy, "runbook_url": "%s#%s" % (runbooks, page(alarm.name))}
    return rule


def rules_file(changes=None, runbooks=RUNBOOKS):
    """The text of Prometheus' rules file. JSON is YAML."""
    return json.dumps({"groups": groups(changes, runbooks)}, indent=1) + "\n"


def tests_file(rules="muster.rules.yml"):
    """The text of promtool's tests: every alarm fires on its series and is quiet on the others."""
    cases = []
    for alarm in ALARMS:
        for given, count in ((alarm.fires, 1), (alarm.quiet, 0)):
            asked = 'count(ALERTS{alertname="%s",alertstate="firing"})' % alarm.name
            cases.append(
                {
                    "name": "%s %s" % (alarm.name, "fires" if count else "is quiet"),
                    "interval": "1m",
                    "input_series": [{"series": name, "values": values} for name, values in given.items()],
                    "promql_expr_test": [
                        {"expr": asked, "eval_time": "%dm" % alarm.at, "exp_samples": [{"labels": "{}", "value": count}] if count else []}
                    ],
                }
            )
    return json.dumps({"rule_files": [rules], "evaluation_interval": "1m", "tests": cases}, indent=1) + "\n"


def runbooks():
    """The page docs/runbooks.md."""
    lines = [
        "# Runbooks",
        "",
        "What each alarm means and what to do. `make docs` writes this page from the alarms in `plugins/module_utils/observe/alarms.py`.",
        "A site changes values with `monitoring_alarms` ([metrics and alarms](observe.md)).",
        "",
        "| Alarm | Severity | Area |",
        "| --- | --- | --- |",
    ]
    lines += ["| [%s](#%s) | %s | %s |" % (alarm.name, page(alarm.name), alarm.severity, alarm.group) for alarm in ALARMS]
    for alarm in ALARMS:
        text = re.sub(r"\{\{ \$(labels\.)?(\w+)[^}]*\}\}", r"`\2`", alarm.summary)
        held = "" if alarm.hold == "0s" else " for %s" % alarm.hold
        lines += ["", "## " + alarm.name, "", text, "", alarm.remedy.replace("{{ $labels.instance }}", "the host"), ""]
        lines += ["Fires when this holds%s:" % held, "", "```promql", alarm.expression(), "```"]
    return "\n".join(lines) + "\n"
