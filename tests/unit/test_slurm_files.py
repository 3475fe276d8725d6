# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The files of /etc/slurm that the role renders, compared with recorded settings.

`SLURM_RECORD=1 pytest tests/unit/test_slurm_files.py` records them anew; look at the difference before you commit it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from playbook import run_playbook

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests/fixtures/slurm/files.json"
LOCAL = yaml.safe_load((ROOT / "inventory/local/group_vars/all.yml").read_text())
HARDWARE = {"Boards": "1", "SocketsPerBoard": "1", "CoresPerSocket": "2", "ThreadsPerCore": "1", "RealMemory": "24105"}
TREE = {"switches": [{"name": "top", "switches": ["leaf"]}, {"name": "leaf", "nodegroups": ["compute"], "nodes": ["extra-1"]}]}
BLOCKS = {"blocks": [{"name": "b1", "nodegroups": ["compute"]}, {"name": "b2", "nodes": ["extra-[1-2]"]}], "block_sizes": [2, 4]}
GPUS = {"name": "gpu", "hosts": ["g-1.example.org", "g-2"], "instance_type": "p5.48xlarge", "features": ["fast", "az1"]}
DATABASE = {"host": "db-1", "password_env": "SLURM_TEST_PASSWORD"}
COMPUTE = {"name": "compute", "hosts": ["compute-1", "compute-2"]}
# The inventory groups of instance types.
TYPES = {"muster_type_p5_48xlarge": ["p5-1", "p5-2"], "muster_type_p6e_gb200_36xlarge": ["gb-1", "gb-2", "gb-3"]}
# Four nodes of which the inventory knows three's network nodes.
NETWORK = {
    "muster_layer1_nn_0a": ["net-1", "net-2", "net-3"],
    "muster_layer2_nn_0b": ["net-1", "net-2"],
    "muster_layer2_nn_0c": ["net-3"],
}
NET = {"slurm_compute_hosts": ["net-1", "net-2", "net-3", "net-4"]}
# The variables of each case; `version` is the controller's Slurm and `release` its Debian.
CASES: dict[str, dict] = {
    "the role's defaults": {},
    "the local fleet": {key: value for key, value in LOCAL.items() if key.startswith("slurm_")},
    "GPUs": {
        "slurm_nodegroups": [
            COMPUTE,
            GPUS,
            {"name": "later", "hosts": []},
            {**GPUS, "name": "own", "hosts": ["o-1"], "params": {"Gres": "gpu:8"}},
        ],
        "slurm_partitions": [
            {"name": "main", "nodegroups": ["compute", "later"], "params": {"Default": True, "MaxTime": "1-00:00:00"}},
            {"name": "gpu", "nodegroups": ["gpu", "own", "later"], "params": {"AllowQos": ["normal", "high"]}},
            {"name": "empty", "nodegroups": ["later"]},
        ],
        "slurm_gres": [
            {"params": {"AutoDetect": False}},
            {"nodegroups": ["own"], "params": {"Name": "gpu", "File": ["/dev/nvidia0", "/dev/nvidia1"]}},
            {"nodegroups": ["later"], "params": {"AutoDetect": "nvml"}},
        ],
        "slurm_memory_fraction": 0.5,
    },
    "GPUs of an instance type": {
        "slurm_nodegroups": [COMPUTE, GPUS],
        "slurm_gres": [{"nodegroups": ["compute"], "params": {"Name": "gpu", "Type": "null", "File": "/dev/null"}}],
    },
    "the site's own keys": {
        "slurm_config": {
            "slurmdtimeout": 20,
            "KillOnBadExit": "omit",
            "JobRequeue": False,
            "Include": ["one.conf", "two.conf"],
            "PropagateResourceLimits": "NONE",
        },
        "slurm_cgroup_config": {"constrainswapspace": False, "AllowedRAMSpace": 95},
        "slurm_dbd_config": {"PurgeJobAfter": "12months", "PidFile": "omit", "LogFile": "/var/log/dbd.log"},
    },
    "two controllers with slurmrestd": {
        "slurm_controller_hosts": ["controller-1", "controller-2"],
        "slurm_functions": ["controller", "accounting", "rest"],
        "slurm_config": {"StateSaveLocation": "/fsx/state", "AccountingStorageBackupHost": "controller-2"},
        "slurm_database": {**DATABASE, "tls": False, "name": "acct"},
        "slurm_rest": {"listen": "127.0.0.1:6820"},
    },
    "a database with TLS": {
        "slurm_functions": ["controller", "accounting"],
        "slurm_database": {
            "host": "db-1",
            "port": 3307,
            "user": "acct",
            "password_env": "SLURM_TEST_PASSWORD",
            "ca": "{{ script }}",
            "cert": "{{ script }}",
            "key": "{{ script }}",
        },
        "slurm_dbd_config": {"storageloc": "own"},
    },
    "scripts": {
        "slurm_scripts": [
            {"hook": "Prolog", "path": "{{ script }}"},
            {"hook": "HealthCheckProgram", "path": "{{ script }}"},
            {"hook": "TaskProlog", "path": "{{ script }}"},
        ],
        "slurm_licenses": {"solver": 3, "mesher": 1},
        "slurm_job_container": {"AutoBasePath": True, "BasePath": "/var/tmp/jobs", "Dirs": "/tmp"},
    },
    "a tree before 25.05": {"slurm_topology": TREE},
    "a tree from 25.05": {"slurm_topology": TREE, "version": "25.05.1"},
    "blocks before 25.05": {"slurm_topology": BLOCKS},
    "several topologies": {
        "slurm_topology": {"topologies": [{"name": "fabric", **TREE}, {"name": "nvlink", **BLOCKS}, {"name": "off"}]},
        "slurm_partitions": [{"name": "main", "nodegroups": ["compute"], "params": {"Topology": "nvlink"}}],
        "version": "26.05.5",
    },
    "an UltraServer": {"slurm_compute_hosts": TYPES["muster_type_p6e_gb200_36xlarge"]},
    "network nodes of the inventory before 25.05": NET,
    "network nodes of the inventory from 25.05": {**NET, "version": "25.05.1"},
    "a flat network by the site": {**NET, "slurm_topology": {}},
    "several instance types": {"slurm_compute_hosts": ["compute-1", "compute-2", *TYPES["muster_type_p5_48xlarge"]]},
    "Debian 12": {"release": "12", "version": "22.05.8"},
}
FILES = (
    "(__slurm_controller_files + lookup('ansible.builtin.vars', '__slurm_' ~ slurm_functions[1] ~ '_files') + [__slurm_dbd_file]) | flatten"
)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """{case: {path: its settings}}, of one play that has a host for each case."""
    folder = tmp_path_factory.mktemp("slurm-files")
    for kind in ("files", "templates"):  # where lookups of the role look when somebody else evaluates them
        (folder / kind).symlink_to(ROOT / "roles/slurm" / kind)
    (folder / "check.sh").write_text("#!/bin/sh\n")
    nodes = {f"{name}-{number}": {} for name in ("controller", "compute") for number in (1, 2)}
    nodes |= {name: {} for members in [*TYPES.values(), NET["slurm_compute_hosts"]] for name in members}
    nodes["controller-1"] = {"__slurm_hardware": {"compute": HARDWARE, "p5.48xlarge": HARDWARE}}
    nodes["compute-2"] = {"slurm_node_params": {"CPUSpecList": "0", "RealMemory": 2000}}
    play = []
    cases = {}
    for number, (_name, case) in enumerate(CASES.items()):
        variables = {
            "slurm_controller_hosts": ["controller-1"],
            "slurm_compute_hosts": ["compute-1", "compute-2"],
            "slurm_functions": ["controller", "database"],
            "slurm_cluster_name": "recorded",
            "slurm_secrets_dir": str(folder / "secrets"),
            "script": str(folder / "check.sh"),
            "__slurm_hardware_kept": {"stderr": f"slurm-wlm {case.get('version', '24.11.5')}"},
            "__slurm_nodes": "{{ __slurm_node_groups }}",
            "muster_phases": [],
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            **{key: value for key, value in case.items() if key.startswith("slurm_")},
        }
        cases[f"case{number}"] = variables
    facts = {"distribution": "Debian", "os_family": "Debian", "distribution_release": "trixie", "architecture": "x86_64"}
    releases = {f"case{number}": case.get("release", "13") for number, case in enumerate(CASES.values())}
    play = {
        "hosts": "case*",
        "gather_facts": False,
        "vars": {"releases": releases},
        "tasks": [
            {"ansible.builtin.set_fact": {**facts, "distribution_major_version": "{{ releases[inventory_hostname] }}", "cacheable": True}},
            {"ansible.builtin.include_role": {"name": "muster.fleet.slurm", "public": True}},
            {"ansible.builtin.copy": {"content": "{{ (%s) | to_json }}" % FILES, "dest": f"{folder}/{{{{ inventory_hostname }}}}.json"}},
        ],
    }
    (folder / "play.yml").write_text(json.dumps([play]))
    groups = {name: {"hosts": dict.fromkeys(members)} for name, members in (TYPES | NETWORK).items()}
    (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": {**nodes, **cases}, "children": groups}}))
    os.environ["SLURM_TEST_PASSWORD"] = "Zq8"
    done = run_playbook(folder, "-i", folder / "hosts.yml", folder / "play.yml")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return {
        name: {
            file["dest"]: settings(file["dest"], file["content"].replace(str(folder), "FOLDER"))
            for file in json.loads((folder / f"case{number}.json").read_text())
            if file["dest"].startswith("/etc/slurm/")
            and "content" in file
            and file.get("state") != "absent"
            and not file["dest"].endswith(".sh")
        }
        for number, name in enumerate(CASES)
    }


def settings(path: str, text: str) -> object:
    """{key: its values in order} of a file of Slurm, or what YAML reads; comments and the order of keys do not count."""
    if not path.endswith(".conf"):
        return yaml.safe_load(text)
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.split()
        if words and not line.startswith("#"):
            key, _equals, value = words[0].partition("=")
            found.setdefault(key.lower(), []).append(" ".join([value, *sorted(words[1:])]))
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_settings_are_those_recorded(rendered: dict[str, dict], case: str) -> None:
    if os.environ.get("SLURM_RECORD"):
        RECORDED.write_text(json.dumps(rendered, indent=1, sort_keys=True) + "\n")
    assert rendered[case] == json.loads(RECORDED.read_text())[case]
