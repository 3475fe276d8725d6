# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Prometheus scrapes: its configuration, and the files of targets that follow from the inventory.

Where Slurm's nodes are discovered, the inventory's files leave them out, and muster_discovery.py writes theirs.
"""

from __future__ import annotations

import json

from ansible_collections.muster.fleet.plugins.module_utils.observe.muster_discovery import endpoint

USER = "muster"
SECRETS = "/etc/prometheus/muster"
TARGETS = "/etc/prometheus/muster/targets"
SETTINGS = "/etc/prometheus/muster/discovery.json"
DISCOVERED = "/var/lib/prometheus/muster-targets"
# What a job scrapes: port, path, whether it has TLS and the password.
JOBS = {
    "node": (9100, "/metrics", True),
    "muster": (9341, "/metrics", True),
    "efa": (9109, "/metrics", True),
    "dcgm": (9400, "/metrics", True),
    "slurm_jobs": (6817, "/metrics/jobs", False),
    "slurm_nodes": (6817, "/metrics/nodes", False),
    "slurm_partitions": (6817, "/metrics/partitions", False),
    "slurm_scheduler": (6817, "/metrics/scheduler", False),
}
OWN = ("slurm_jobs", "slurm_nodes", "slurm_partitions", "slurm_scheduler")  # Slurm's own metrics, from 25.11
OF_NODES = ("node", "efa", "dcgm")  # what a node of Slurm may have


def hosts(hostvars, groups, openmetrics=False, slurm_nodes=()):
    """[{name, address, groups, ...}] of the fleet's hosts, as `targets` takes them. slurm_nodes: hosts that are nodes of Slurm."""
    first = (groups.get("muster_controller") or [""])[0]
    out = []
    for name in groups["all"]:
        if name == "localhost":
            continue
        known = hostvars[name]
        # With Session Manager, ansible_host is an instance's id.
        address = known.get("private_ip_address") or known.get("ansible_host") or name
        of = [group for group, members in groups.items() if name in members]
        # A host that is more than a node of Slurm stays a target whatever Slurm says of it.
        node = name in slurm_nodes and not {"muster_controller", "muster_login", "muster_monitoring", "muster_storage"} & set(of)
        host = {"name": name, "address": str(address), "groups": of, "first_controller": name == first, "openmetrics": openmetrics}
        more = {"instance_type": known.get("instance_type"), "rehearses": bool(known.get("muster_rehearsal")), "slurm_node": node}
        out.append({**host, **more})
    return out


def jobs_of(groups, first_controller=False, openmetrics=False, rehearses=False):
    """The jobs that scrape a host. One that rehearses its type has no GPU for DCGM exporter."""
    out = ["node"]
    if first_controller:
        out += ["muster", *(OWN if openmetrics else ())]
    return out + (["efa"] if "muster_efa" in groups else []) + (["dcgm"] if "muster_gpu" in groups and not rehearses else [])


def labels_of(host, fleet):
    """The labels of a host's targets."""
    kind = host.get("instance_type")
    return {"fleet": fleet, "instance": host["name"], **({"instance_type": kind} if kind else {})}


def jobs_of_host(host):
    """The jobs that scrape what `hosts` gives."""
    return jobs_of(host["groups"], host["first_controller"], host["openmetrics"], host["rehearses"])


def targets(hosts, fleet):
    """{job: [file_sd entries]}. hosts: what `hosts` gives."""
    out: dict = {job: [] for job in JOBS}
    for host in sorted(hosts, key=lambda each: each["name"]):
        for job in jobs_of_host(host):
            out[job].append({"targets": [endpoint(host["address"], JOBS[job][0])], "labels": labels_of(host, fleet)})
    return out


def discovery(hosts, fleet, types):
    """The settings of muster_discovery.py: what the inventory knows of Slurm's nodes, and how it would scrape a node of each type.

    types: {name: entry} of the catalogue.
    """
    known = {
        # NodeName, as role slurm makes it.
        host["name"].split(".")[0]: {"address": host["address"], "jobs": jobs_of_host(host), "labels": labels_of(host, fleet)}
        for host in hosts
        if host["slurm_node"]
    }
    kinds = {
        name: jobs_of([*(["muster_efa"] if have["efa"] else []), *(["muster_gpu"] if have["accelerator"] == "nvidia" else [])])
        for name, have in types.items()
    }
    return {
        "fleet": fleet,
        "folder": DISCOVERED,
        "ports": {job: JOBS[job][0] for job in OF_NODES},
        "nodes": known,
        "others": sorted(host["name"].split(".")[0] for host in hosts if not host["slurm_node"]),
        "types": kinds,
    }


def target_files(hosts, fleet):
    """[{dest, content}] of the files that Prometheus reads again when they change."""
    return [
        {"dest": "%s/%s-%s.json" % (TARGETS, fleet, job), "content": json.dumps(entries, indent=1) + "\n"}
        for job, entries in targets(hosts, fleet).items()
    ]


def secured(server_name):
    """How to reach an endpoint with the fleet's certificate and password."""
    return {
        "scheme": "https",
        "basic_auth": {"username": USER, "password_file": SECRETS + "/password"},
        "tls_config": {"ca_file": SECRETS + "/cert.pem", "server_name": server_name},
    }


def configuration(fleet, server_name, name, interval="15s", remote_write=None, *, discovers=False):
    """The text of prometheus.yml of the monitoring host `name`. discovers: whether Slurm's nodes have files of their own."""
    local = {"fleet": fleet, "instance": name}
    scrapes = []
    for job, (_port, path, tls) in JOBS.items():
        folders = [TARGETS, DISCOVERED] if discovers and job in OF_NODES else [TARGETS]
        scrape = {
            "job_name": job,
            "metrics_path": path,
            # Another fleet's file beside these has its own certificate, so a fleet reads only its own.
            "file_sd_configs": [{"files": ["%s/%s-%s.json" % (folder, fleet, job) for folder in folders]}],
        }
        scrapes.append({**scrape, **(secured(server_name) if tls else {})})
    for job, port in (("prometheus", 9090), ("alertmanager", 9093)):
        static = [{"targets": ["127.0.0.1:%d" % port], "labels": local}]
        scrapes.append({"job_name": job, "static_configs": static, **secured(server_name)})
    document = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval, "external_labels": {"fleet": fleet}},
        "rule_files": ["/etc/prometheus/muster/*.rules.yml", "/etc/prometheus/site/*.rules.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": ["127.0.0.1:9093"]}], **secured(server_name)}]},
        "scrape_configs": scrapes,
    }
    if remote_write:
        document["remote_write"] = remote_write
    return json.dumps(document, indent=1) + "\n"
