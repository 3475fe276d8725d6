# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The dashboards: rows of panels with their queries. `grafana` gives Grafana's JSON; the report of a run draws `REPORTED`.

Queries contain the variables $fleet and $instance, which `plain` replaces, and $__rate_interval.
"""

from __future__ import annotations

import dataclasses
import datetime
import json

RATE = "$__rate_interval"
OF = 'fleet="$fleet"'
ON = OF + ',instance=~"$instance"'
DISKS = 'mountpoint!~"/(run|dev|sys|proc|boot/efi).*"'
SCHEMA = 39
WIDTH, HEIGHT = 24, 8
UNITS = {
    "share": "percentunit",
    "bytes": "bytes",
    "Bps": "Bps",
    "s": "s",
    "ops": "ops",
    "count": "short",
    "celsius": "celsius",
    "watt": "watt",
}
GPU = "a GPU with DCGM exporter"
# What the hardware of a test cannot have: the beginning of a metric's name, and what would give it.
ABSENT = {"DCGM_": GPU}


@dataclasses.dataclass(frozen=True)
class Panel:
    """One panel. queries: [(expression, legend)]; kind: timeseries, stat or table; width: of 24; empty: whether no data is a good sign."""

    title: str
    unit: str
    queries: tuple
    kind: str = "timeseries"
    width: int = 12
    empty: bool = False


@dataclasses.dataclass(frozen=True)
class Board:
    """One dashboard; `instances` tells whether it has the variable of that name, from the label of this metric."""

    uid: str
    title: str
    panels: tuple
    instances: str = ""


def panel(title, unit, *queries, **more):
    """A panel from (expression, legend) pairs."""
    return Panel(title, unit, queries, **more)


def stat(title, unit, expression, **more):
    """A number."""
    return Panel(title, unit, ((expression, ""),), kind="stat", width=6, **more)


BOARDS = (
    Board(
        "muster-fleet",
        "Muster: fleet",
        (
            stat("Nodes that answer", "count", 'sum(up{job="node",%s})' % OF),
            stat("Endpoints that do not answer", "count", "count(up{%s} == 0) or vector(0)" % OF),
            stat("Alarms", "count", 'count(ALERTS{alertstate="firing",%s}) or vector(0)' % OF),
            stat("Jobs in progress", "count", 'sum(muster_slurm_jobs{state="running",%s}) or vector(0)' % OF),
            panel(
                "CPU in use",
                "share",
                ('1 - avg by (instance) (rate(node_cpu_seconds_total{mode="idle",%s}[%s]))' % (OF, RATE), "{{instance}}"),
            ),
            panel(
                "Memory in use",
                "share",
                ("1 - node_memory_MemAvailable_bytes{%s} / node_memory_MemTotal_bytes{%s}" % (OF, OF), "{{instance}}"),
            ),
            panel(
                "Network received",
                "Bps",
                ('sum by (instance) (rate(node_network_receive_bytes_total{device!="lo",%s}[%s]))' % (OF, RATE), "{{instance}}"),
            ),
            panel(
                "Network sent",
                "Bps",
                ('sum by (instance) (rate(node_network_transmit_bytes_total{device!="lo",%s}[%s]))' % (OF, RATE), "{{instance}}"),
            ),
            panel(
                "Firing alarms",
                "count",
                ('ALERTS{alertstate="firing",%s}' % OF, "{{alertname}} {{instance}}"),
                kind="table",
                width=24,
                empty=True,
            ),
        ),
    ),
    Board(
        "muster-node",
        "Muster: node",
        (
            stat("Uptime", "s", "max(node_time_seconds{%s} - node_boot_time_seconds{%s})" % (ON, ON)),
            stat("Load", "count", "max(node_load1{%s})" % ON),
            stat("Memory", "bytes", "sum(node_memory_MemTotal_bytes{%s})" % ON),
            stat("Clock", "s", "max(abs(node_timex_offset_seconds{%s}))" % ON),
            panel("CPU by mode", "count", ("sum by (mode) (rate(node_cpu_seconds_total{%s}[%s]))" % (ON, RATE), "{{mode}}")),
            panel(
                "Memory", "bytes", ("node_memory_MemAvailable_bytes{%s}" % ON, "available"), ("node_memory_Cached_bytes{%s}" % ON, "cache")
            ),
            panel(
                "Disk space",
                "share",
                ("1 - node_filesystem_avail_bytes{%s,%s} / node_filesystem_size_bytes{%s,%s}" % (DISKS, ON, DISKS, ON), "{{mountpoint}}"),
            ),
            panel(
                "Disk traffic",
                "Bps",
                ("sum by (device) (rate(node_disk_read_bytes_total{%s}[%s]))" % (ON, RATE), "read {{device}}"),
                ("sum by (device) (rate(node_disk_written_bytes_total{%s}[%s]))" % (ON, RATE), "written {{device}}"),
            ),
            panel("Processes that wait", "count", ("node_procs_blocked{%s}" % ON, "for I/O"), ("node_procs_running{%s}" % ON, "for a CPU")),
            panel("Processes killed for memory", "count", ("increase(node_vmstat_oom_kill{%s}[1h])" % ON, "{{instance}}")),
        ),
        instances="node_time_seconds",
    ),
    Board(
        "muster-gpu",
        "Muster: GPU",
        (
            stat("GPUs", "count", "count(DCGM_FI_DEV_GPU_TEMP{%s})" % ON),
            stat("Power", "watt", "sum(DCGM_FI_DEV_POWER_USAGE{%s})" % ON),
            stat("XIDs", "count", "count(DCGM_FI_DEV_XID_ERRORS{%s} > 0) or vector(0)" % ON),
            stat("Hottest", "celsius", "max(DCGM_FI_DEV_GPU_TEMP{%s})" % ON),
            panel("Tensor cores in use", "share", ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{%s}" % ON, "{{instance}} {{gpu}}")),
            panel("SMs in use", "share", ("DCGM_FI_PROF_SM_ACTIVE{%s}" % ON, "{{instance}} {{gpu}}")),
            panel("Temperature", "celsius", ("DCGM_FI_DEV_GPU_TEMP{%s}" % ON, "{{instance}} {{gpu}}")),
            panel("Power", "watt", ("DCGM_FI_DEV_POWER_USAGE{%s}" % ON, "{{instance}} {{gpu}}")),
            panel("Memory in use", "bytes", ("DCGM_FI_DEV_FB_USED{%s} * 1048576" % ON, "{{instance}} {{gpu}}")),
            panel("Clock of the SMs", "count", ("DCGM_FI_DEV_SM_CLOCK{%s}" % ON, "{{instance}} {{gpu}}")),
            panel(
                "Time throttled",
                "share",
                ("rate(DCGM_FI_DEV_THERMAL_VIOLATION{%s}[%s]) / 1e9" % (ON, RATE), "heat {{instance}} {{gpu}}"),
                ("rate(DCGM_FI_DEV_POWER_VIOLATION{%s}[%s]) / 1e9" % (ON, RATE), "power {{instance}} {{gpu}}"),
            ),
            panel("NVLink", "Bps", ("rate(DCGM_FI_PROF_NVLINK_TX_BYTES{%s}[%s])" % (ON, RATE), "{{instance}} {{gpu}}")),
        ),
        instances="DCGM_FI_DEV_GPU_TEMP",
    ),
    Board(
        "muster-efa",
        "Muster: EFA",
        (
            stat("Devices", "count", "sum(node_amazonefa_devices{%s})" % ON),
            stat("Ports down", "count", "count(node_amazonefa_port_up{%s} == 0) or vector(0)" % ON),
            stat("Unresponsive remotes in an hour", "count", "sum(increase(node_amazonefa_unresponsive_remote_events{%s}[1h]))" % ON),
            stat("Counters that cannot be read", "count", "sum(increase(node_amazonefa_read_errors_total{%s}[1h]))" % ON),
            panel("Sent", "Bps", ("sum by (instance) (rate(node_amazonefa_tx_bytes{%s}[%s]))" % (ON, RATE), "{{instance}}")),
            panel("Received", "Bps", ("sum by (instance) (rate(node_amazonefa_rx_bytes{%s}[%s]))" % (ON, RATE), "{{instance}}")),
            panel(
                "RDMA",
                "Bps",
                ("sum by (instance) (rate(node_amazonefa_rdma_read_bytes{%s}[%s]))" % (ON, RATE), "read {{instance}}"),
                ("sum by (instance) (rate(node_amazonefa_rdma_write_bytes{%s}[%s]))" % (ON, RATE), "written {{instance}}"),
            ),
            panel(
                "Packets sent again", "ops", ("sum by (instance) (rate(node_amazonefa_retrans_pkts{%s}[%s]))" % (ON, RATE), "{{instance}}")
            ),
            panel(
                "Timeouts", "ops", ("sum by (instance) (rate(node_amazonefa_retrans_timeout_events{%s}[%s]))" % (ON, RATE), "{{instance}}")
            ),
            panel("Packets dropped", "ops", ("sum by (instance) (rate(node_amazonefa_rx_drops{%s}[%s]))" % (ON, RATE), "{{instance}}")),
            panel(
                "Errors of RDMA",
                "ops",
                ("sum by (instance) (rate(node_amazonefa_rdma_read_wr_err{%s}[%s]))" % (ON, RATE), "read {{instance}}"),
                ("sum by (instance) (rate(node_amazonefa_rdma_write_wr_err{%s}[%s]))" % (ON, RATE), "written {{instance}}"),
            ),
            panel(
                "Commands that failed", "ops", ("sum by (instance) (rate(node_amazonefa_cmds_err{%s}[%s]))" % (ON, RATE), "{{instance}}")
            ),
        ),
        instances="node_amazonefa_devices",
    ),
    Board(
        "muster-slurm",
        "Muster: Slurm",
        (
            stat("slurmctld answers", "count", "min(muster_slurm_up{%s})" % OF),
            stat("CPUs in jobs", "share", "sum(muster_slurm_node_cpus_allocated{%s}) / sum(muster_slurm_node_cpus{%s})" % (OF, OF)),
            stat("GPUs in jobs", "count", "sum(muster_slurm_node_gpus_allocated{%s})" % OF),
            stat("Longest wait", "s", "max(muster_slurm_oldest_pending_seconds{%s})" % OF),
            panel("Nodes by state", "count", ("sum by (state) (muster_slurm_nodes{%s})" % OF, "{{state}}")),
            panel("Jobs by state", "count", ("sum by (state) (muster_slurm_jobs{%s})" % OF, "{{state}}")),
            panel(
                "Scheduling cycles",
                "s",
                ("muster_slurm_schedule_cycle_microseconds{%s} / 1e6" % OF, "main"),
                ("muster_slurm_backfill_cycle_microseconds{%s} / 1e6" % OF, "backfill"),
            ),
            panel(
                "Queues of slurmctld",
                "count",
                ("muster_slurm_agent_queue_size{%s}" % OF, "messages to nodes"),
                ("muster_slurm_dbd_queue_size{%s}" % OF, "records for slurmdbd"),
                ("muster_slurm_server_threads{%s}" % OF, "threads"),
            ),
            panel(
                "Jobs an hour",
                "count",
                ("increase(muster_slurm_jobs_started_total{%s}[1h])" % OF, "started"),
                ("increase(muster_slurm_jobs_completed_total{%s}[1h])" % OF, "completed"),
                ("increase(muster_slurm_jobs_failed_total{%s}[1h])" % OF, "failed"),
            ),
            panel(
                "Nodes that are drained or down",
                "count",
                ("muster_slurm_node_drained{%s} + muster_slurm_node_down{%s}" % (OF, OF), "{{node}}"),
            ),
        ),
    ),
    Board(
        "muster-job",
        "Muster: job",
        (
            panel("Running jobs", "count", ("muster_slurm_job_info{%s}" % OF, "{{job_id}} {{name}} {{user}}"), kind="table", width=24),
            panel("Time that jobs have run", "s", ("time() - muster_slurm_job_start_time_seconds{%s}" % OF, "{{job_id}}")),
            panel("Ranks of trainings", "count", ("muster_training_world_size{%s}" % OF, "{{job_id}} {{run}}")),
            panel(
                "Since the last step",
                "s",
                ("(time() - muster_training_last_record_time_seconds{%s}) and muster_training_running == 1" % OF, "{{job_id}} {{run}}"),
            ),
            panel(
                "Since the last checkpoint",
                "s",
                ("(time() - muster_training_last_checkpoint_time_seconds{%s}) and muster_training_running == 1" % OF, "{{job_id}} {{run}}"),
            ),
            panel("Restarts", "count", ("muster_training_resumes{%s}" % OF, "{{job_id}} {{run}}")),
        ),
    ),
    Board(
        "muster-training",
        "Muster: training",
        (
            panel("Loss", "count", ("muster_training_loss{%s}" % OF, "{{job_id}} {{run}}")),
            panel("Speed in tokens a second", "count", ("muster_training_tokens_per_second{%s}" % OF, "{{job_id}} {{run}}")),
            panel("Model FLOPs utilisation", "share", ("muster_training_mfu{%s}" % OF, "{{job_id}} {{run}}")),
            panel("Goodput", "share", ("muster_training_goodput{%s}" % OF, "{{job_id}} {{run}}")),
            panel("Norm of the gradient", "count", ("muster_training_gradient_norm{%s}" % OF, "{{job_id}} {{run}}")),
            panel("Waiting for data", "share", ("muster_training_data_share{%s}" % OF, "{{job_id}} {{run}}")),
            panel("Step", "count", ("muster_training_step{%s}" % OF, "{{job_id}} {{run}}")),
            panel("Length of a checkpoint", "s", ("muster_training_checkpoint_seconds{%s}" % OF, "{{job_id}} {{run}}")),
        ),
    ),
    Board(
        "muster-health",
        "Muster: health",
        (
            stat("Checks that passed", "count", "count(muster_health_check{%s} == 1) or vector(0)" % OF),
            stat("Checks that failed", "count", "count(muster_health_check{%s} == 0) or vector(0)" % OF),
            stat("Checks that could not run", "count", "count(muster_health_check{%s} == -1) or vector(0)" % OF),
            stat("Oldest run", "s", "max(time() - muster_health_run_timestamp_seconds{%s})" % OF),
            panel(
                "Failed checks",
                "count",
                ("muster_health_check{%s} == 0" % OF, "{{instance}} {{check}}"),
                kind="table",
                width=24,
                empty=True,
            ),
            panel("Length of checks", "s", ("max by (check) (muster_health_check_seconds{%s})" % OF, "{{check}}")),
        ),
    ),
)
# The dashboards that the report of a run draws, and of which it asks only for trainings that wrote a step in the run.
REPORTED, OF_TRAININGS = ("muster-fleet", "muster-training"), "muster-training"


def queries():
    """[(board, panel, expression)] of all panels."""
    return [(board, each, expression) for board in BOARDS for each in board.panels for expression, _legend in each.queries]


def plain(expression, fleet, interval="1m", instance=".*"):
    """A query without variables."""
    return expression.replace("$fleet", fleet).replace("$instance", instance).replace(RATE, interval)


def absent(expression):
    """What would give the data of an expression where this hardware cannot have it, or ""."""
    return next((what for start, what in ABSENT.items() if start in expression), "")


def charts(fleet, begun, step):
    """[{board, title, unit, kind, empty, queries: [{expr, legend}]}] of the dashboards that the report of a run draws.

    begun: when the run began, in seconds since 1970; step: seconds between two values.
    """
    out = []
    for board in (each for each in BOARDS if each.uid in REPORTED):
        wanted = "%s"
        if board.uid == OF_TRAININGS:
            seen = "muster_training_last_record_time_seconds{%s} >= %d" % (OF, begun)
            wanted = "(%s) and on (fleet, job_id, run) (" + seen + ")"
        for each in board.panels:
            # A rate needs two scrapes, and no scrape may be between two of its windows.
            asked = [
                {"expr": plain(wanted % expression, fleet, "%ds" % max(60, step + 15)), "legend": legend}
                for expression, legend in each.queries
            ]
            kept = {key: getattr(each, key) for key in ("title", "unit", "kind", "empty")}
            out.append({"board": board.title.partition(": ")[2], **kept, "queries": asked})
    return out


def grafana(board):
    """The JSON of a dashboard as text."""
    source = {"type": "prometheus", "uid": "$source"}
    drawn, x, y = [], 0, 0
    for number, each in enumerate(board.panels, 1):
        if x + each.width > WIDTH:
            x, y = 0, y + HEIGHT
        targets = [
            {"refId": chr(ord("A") + place), "datasource": source, "expr": expression, "legendFormat": legend or "__auto", **_form(each)}
            for place, (expression, legend) in enumerate(each.queries)
        ]
        drawn.append(
            {
                "id": number,
                "type": each.kind,
                "title": each.title,
                "datasource": source,
                "gridPos": {"x": x, "y": y, "w": each.width, "h": HEIGHT},
                "fieldConfig": {"defaults": {"unit": UNITS[each.unit]}, "overrides": []},
                "targets": targets,
                "options": {},
            }
        )
        x += each.width
    document = {
        "uid": board.uid,
        "title": board.title,
        "tags": ["muster"],
        "schemaVersion": SCHEMA,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables(board)},
        "panels": drawn,
    }
    return json.dumps(document, indent=1) + "\n"


def _form(each):
    return {"format": "table", "instant": True} if each.kind == "table" else {}


def _variables(board):
    source = {"type": "prometheus", "uid": "$source"}
    out = [
        {
            "name": "source",
            "type": "datasource",
            "query": "prometheus",
            "hide": 2,
            "current": {"text": "Prometheus", "value": "muster-prometheus"},
        },
        {"name": "fleet", "type": "query", "datasource": source, "query": "label_values(up, fleet)", "refresh": 2},
    ]
    if board.instances:
        asked = "label_values(%s{%s}, instance)" % (board.instances, OF)
        every = {"multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}
        out.append({"name": "instance", "type": "query", "datasource": source, "query": asked, "refresh": 2, **every})
    return out


def run_charts(name, fleet, now):
    """What to ask for the report of the run whose folder has this name: {start, end, step, charts}."""
    begun = datetime.datetime.strptime(name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc).timestamp()
    # A drawing of 520 pixels shows a hundred values. A run that is younger than a minute has no rates yet.
    step = max(5, int((now - begun) / 100))
    return {"start": begun, "end": now, "step": step, "charts": charts(fleet, begun, step)}
