# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Settings of role slurm with a fault, each with the sentence that reports it; and settings without one."""

from __future__ import annotations

import pytest

from ansible_collections.muster.fleet.plugins.filter.slurm import FilterModule

CONFIG = {"AccountingStorageType": "accounting_storage/slurmdbd", "GresTypes": "gpu"}
NONE = {"AccountingStorageType": "accounting_storage/none"}
CONTAINED = {**CONFIG, "PrologFlags": "Alloc,Contain", "proctracktype": "proctrack/cgroup", "TaskPlugin": "task/cgroup,task/affinity"}
GPUS = {"name": "gpu", "hosts": ["g1", "g2"], "params": {"Gres": "gpu:h100:8"}}
TYPED = {"name": "gpu", "hosts": ["g1", "g2"], "instance_type": "p5.48xlarge"}
DATA = {
    "nodegroups": [{"name": "compute", "hosts": ["c1", "c2"]}],
    "partitions": [{"name": "main", "nodegroups": ["compute"], "params": {"Default": "YES"}}],
    "qos": [],
    "accounts": [{"name": "muster"}],
    "users": [{"name": "muster", "uid": 2000, "account": "muster"}],
    "gres_lines": [],
    "topology": {},
    "job_container": {},
    "scripts": [],
}
SWITCHES = [{"name": "top", "switches": ["leaf"]}, {"name": "leaf", "nodegroups": ["compute"]}]


def told(config: dict | None = None, **data) -> list[str]:
    return FilterModule().filters()["slurm_faults"](CONFIG if config is None else config, **{**DATA, **data})


def with_gpus(*lines: dict) -> dict:
    return {"nodegroups": [*DATA["nodegroups"], GPUS], "gres_lines": list(lines)}


SEVERAL = [
    {"name": "fabric", "switches": SWITCHES},
    {"name": "nvlink", "blocks": [{"name": "b", "nodegroups": ["compute"]}], "block_sizes": [2]},
    {"name": "none"},
]


def own(topology: str) -> dict:
    """The partition with a topology of its own."""
    return {**DATA["partitions"][0], "params": {"Topology": topology}}


def user(name: str = "ada", **more) -> dict:
    return {"name": name, "uid": 2001, "account": "muster", **more}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"config": NONE},
        {"qos": [{"name": "high", "params": {"priority": 1}}], "partitions": [{**DATA["partitions"][0], "params": {"QOS": "high"}}]},
        {"accounts": [{"name": "b", "parent": "a"}, {"name": "a"}, *DATA["accounts"]], "users": [user(account="b")]},
        {"users": [user(params={"QOS": "+normal"}, associations=[{"account": "muster", "partition": "main"}])]},
        {"partitions": [{**DATA["partitions"][0], "params": {"AllowQos": "ALL"}}]},
        with_gpus({"params": {"AutoDetect": "nvidia"}}),
        with_gpus({"nodegroups": ["gpu"], "params": {"Name": "gpu", "File": "/dev/nvidia[0-7]"}}),
        {"topology": {"switches": SWITCHES}, "job_container": {"AutoBasePath": True, "basepath": "/scratch"}},
        {"topology": {"blocks": [{"name": "b", "nodegroups": ["compute"]}], "block_sizes": [2]}},
        {"topology": {"topologies": SEVERAL}, "partitions": [own("nvlink")]},
        {"topology": {"switches": SWITCHES}, "partitions": [own("default")]},
        {"scripts": [{"hook": "Prolog", "path": __file__}]},
        {"config": CONTAINED, "pam_adopt": {"admins": ["sudo"]}},
        {"config": CONTAINED, "pam_adopt": {"admins": []}},
    ],
)
def test_what_can_be(data):
    assert told(**data) == []


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"partitions": [{"name": "main", "nodegroups": ["comptue"]}]},
            "The partition main names the node group comptue, which slurm_nodegroups does not have; did you mean compute?",
        ),
        (
            {"nodegroups": [*DATA["nodegroups"], {"name": "big", "hosts": ["c2"]}]},
            "The host c2 is in the node groups compute and big; a node has one node line, so leave it in one of them.",
        ),
        ({"nodegroups": DATA["nodegroups"] * 2}, "The node group compute is there twice; leave one of them in slurm_nodegroups."),
        (
            {"config": NONE, "qos": [{"name": "high"}]},
            "AccountingStorageType is accounting_storage/none, and without slurmdbd Slurm has no QOS and no limits: remove the QOS high "
            "(slurm_qos), or leave accounting on.",
        ),
        (
            {"config": {}, "users": [user(params={"MaxJobs": 1})]},
            "AccountingStorageType is not set, and without slurmdbd Slurm has no QOS and no limits: remove the limits of the user ada, or "
            "leave accounting on.",
        ),
        (
            {"config": NONE, "partitions": [{**DATA["partitions"][0], "params": {"qos": "normal"}}]},
            "AccountingStorageType is accounting_storage/none, and without slurmdbd Slurm has no QOS and no limits: remove the QOS of "
            "partition main, or leave accounting on.",
        ),
        (
            {"partitions": [{**DATA["partitions"][0], "params": {"QOS": "hihg"}}], "qos": [{"name": "high"}]},
            "The partition main names the QOS hihg, which slurm_qos does not have; did you mean high?",
        ),
        (
            {"users": [user(params={"DefaultQOS": "hihg"})], "qos": [{"name": "high"}]},
            "The user ada names the QOS hihg, which slurm_qos does not have; did you mean high?",
        ),
        ({"qos": [{"name": "high", "params": {"Prioriti": 1}}]}, "The QOS high has the unknown option Prioriti; did you mean Priority?"),
        (
            {"accounts": [{"name": "muster", "params": {"MaxJob": 1}}]},
            "The account muster has the unknown option MaxJob; did you mean MaxJobs?",
        ),
        (
            {"accounts": [{"name": "muster"}, {"name": "lab", "parent": "phisics"}, {"name": "physics"}]},
            "The account lab has the parent phisics, which slurm_accounts does not have; did you mean physics?",
        ),
        (
            {"accounts": [{"name": "muster", "parent": "muster"}]},
            "The account muster is its own parent (muster - muster); give one of them another parent.",
        ),
        (
            {"users": [user(account="mustre")]},
            "The user ada has the account mustre, which slurm_accounts does not have; did you mean muster?",
        ),
        (
            {"users": [user(associations=[{"account": "muster", "partition": "mian"}])]},
            "The user ada has an association in the partition mian, which slurm_partitions does not have; did you mean main?",
        ),
        ({"users": [user(), user(uid=2002)]}, "The user ada is there twice; leave one of them in slurm_users."),
        (
            with_gpus(),
            "The node group gpu has the gres gpu and no device for it: add a line to slurm_gres with AutoDetect, or with Name and File "
            "(Count alone, for what has no device).",
        ),
        (
            with_gpus({"nodegroups": ["compute"], "params": {"AutoDetect": "nvml"}}),
            "The node group gpu has the gres gpu and no device for it: add a line to slurm_gres with AutoDetect, or with Name and File "
            "(Count alone, for what has no device).",
        ),
        (
            {"config": {**CONFIG, "GresTypes": "shard"}, **with_gpus({"params": {"AutoDetect": "nvml"}})},
            "The node group gpu has the gres gpu, which is not in GresTypes; add it to slurm_config.",
        ),
        (with_gpus({"params": {"AutoDetect": "nvlm"}}), "slurm_gres has AutoDetect nvlm, which Slurm does not know; did you mean nvml?"),
        (
            with_gpus({"params": {"AutoDetect": "nvml"}}, {"params": {"Name": "gpu", "Fiel": "/dev/x"}}),
            "A line of slurm_gres has the unknown option Fiel; did you mean File?",
        ),
        (
            {"gres_lines": [{"nodegroups": ["gpus"], "params": {"AutoDetect": False}}]},
            "slurm_gres names the node group gpus, which slurm_nodegroups does not have; known are compute.",
        ),
        (
            {"topology": {"switches": [SWITCHES[0]]}},
            "slurm_topology has top above leaf, which slurm_topology does not have; known are top.",
        ),
        (
            {"topology": {"blocks": [{"name": "b", "nodegroups": ["comptue"]}], "block_sizes": [1]}},
            "slurm_topology has b above comptue, which slurm_nodegroups does not have; did you mean compute?",
        ),
        (
            {"topology": {"blocks": [{"name": "b", "nodegroups": ["compute"]}]}},
            "slurm_topology has blocks and no block_sizes; name the number of nodes that one block has.",
        ),
        (
            {"topology": {"switches": SWITCHES, "blocks": [{"name": "b", "nodegroups": ["compute"]}], "block_sizes": [2]}},
            "slurm_topology has switches and blocks; Slurm sees a network as one of them, so leave one out.",
        ),
        (
            {"topology": {"topologies": SEVERAL, "switches": SWITCHES}},
            "slurm_topology has topologies and, beside them, switches; move that into one of them.",
        ),
        (
            {"topology": {"topologies": [*SEVERAL, SEVERAL[0]]}},
            "The topology fabric is there twice; give each of slurm_topology.topologies a name of its own.",
        ),
        (
            {"topology": {"topologies": [{"name": "fabric", "switches": [SWITCHES[0]]}]}},
            "The topology fabric of slurm_topology has top above leaf, which slurm_topology does not have; known are top.",
        ),
        (
            {"topology": {"topologies": SEVERAL}, "partitions": [own("nvlnk")]},
            "The partition main names the topology nvlnk, which slurm_topology does not have; did you mean nvlink?",
        ),
        ({"job_container": {"BasePth": "/x"}}, "slurm_job_container has the unknown option BasePth; did you mean BasePath?"),
        (
            {"scripts": [{"hook": "Prolog", "path": "prolog.sh"}]},
            "slurm_scripts names prolog.sh, which is not a file on this machine; give its whole path.",
        ),
        (
            {"config": CONTAINED, "pam_adopt": {"action_no_jobs": "ignore"}},
            "slurm_pam_adopt has no admins; name the groups that come in by ssh without a job, or [] for root alone.",
        ),
        (
            {"config": CONTAINED, "pam_adopt": {"admins": ["sudo, adm"]}},
            "slurm_pam_adopt.admins has 'sudo, adm', which is not the name of a group; name one group in each entry.",
        ),
        (
            {"config": {**CONTAINED, "PrologFlags": "Alloc"}, "pam_adopt": {"admins": []}},
            "slurm_pam_adopt needs Contain in PrologFlags, or a job has no processes to add to; add it to slurm_config.",
        ),
    ],
)
def test_what_cannot_be(data, sentence):
    assert told(**data) == [sentence]


def test_an_instance_type_brings_its_gres_and_their_devices():
    assert told(nodegroups=[*DATA["nodegroups"], TYPED]) == []
    assert told({**CONFIG, "GresTypes": "shard"}, nodegroups=[*DATA["nodegroups"], TYPED]) == [
        "The node group gpu has the gres gpu, which is not in GresTypes; add it to slurm_config."
    ]
    assert told(nodegroups=[*DATA["nodegroups"], {**TYPED, "instance_type": "p5.48xlage"}]) == [
        "The node group gpu (slurm_nodegroups) has an unknown instance_type. The catalogue has no instance type p5.48xlage; "
        "the nearest are p5.48xlarge, p5e.48xlarge, p5.4xlarge."
    ]


VERSIONED = {"topology": {"topologies": SEVERAL}, "partitions": [own("nvlink")]}
NEEDS = "needs Slurm 25.05 or newer and this controller has 24.11; give one topology for all, or upgrade Slurm first."


@pytest.mark.parametrize(
    ("version", "data", "sentences"),
    [
        ("slurm-wlm 24.11.5", {"topology": {"switches": SWITCHES}}, []),
        ("slurm-wlm 25.05.0", VERSIONED, []),
        ("slurm 26.05.5", VERSIONED, []),
        # Check mode on a node that has no Slurm yet.
        ("sh: 1: slurmctld: not found", VERSIONED, []),
        ("slurm-wlm 24.11.5", VERSIONED, [f"slurm_topology.topologies {NEEDS}"]),
        ("slurm-wlm 24.11.5", {"partitions": [own("nvl")]}, [f"The Topology of partition main (slurm_partitions) {NEEDS}"]),
        ("slurm-wlm 24.11.5", {"scripts": [{"hook": "Prolog", "path": "/srv/check.sh"}]}, []),
        ("slurm-wlm 22.05.8", {"scripts": [{"hook": "TaskProlog", "path": "/srv/check.sh"}]}, []),
        (
            "slurm-wlm 22.05.8",
            {"scripts": [{"hook": "Prolog", "path": "/srv/check.sh"}]},
            [
                "This Slurm runs only one Prolog, the role's own; /srv/check.sh needs Slurm 23.11 or newer, or slurm_config with a Prolog "
                "of yours."
            ],
        ),
    ],
)
def test_settings_that_need_a_newer_slurm(version, data, sentences):
    assert told(**data, version=version) == sentences


def test_two_scripts_for_one_hook():
    scripts = [{"hook": hook, "path": __file__} for hook in ("Prolog", "Prolog", "TaskProlog", "TaskProlog")]
    assert told(scripts=scripts) == ["slurm_scripts has two scripts for TaskProlog, and Slurm runs one; leave one of them."]


def test_the_default_state_folder_is_not_shared_by_two_controllers():
    merged = {"StateSaveLocation": "/var/lib/slurm/slurmctld"}
    [said] = told(merged, own={}, controllers=["c-1", "c-2"])
    assert said.startswith("The controllers c-1 and c-2 need one folder for their state")
    assert told(merged, own=merged, controllers=["c-1", "c-2"]) == []


P5, G5 = {"g1": "p5.48xlarge", "g2": "p5.48xlarge"}, {"g1": "p5.48xlarge", "g2": "g5.xlarge"}


@pytest.mark.parametrize(
    ("group", "types", "gpu_hosts", "sentence"),
    [
        (GPUS, G5, [], "has hosts of several instance types (g5.xlarge: g2, p5.48xlarge: g1); give each type a node group of its own."),
        (
            TYPED,
            {"g1": "g5.xlarge", "g2": ""},
            [],
            "has the instance_type p5.48xlarge and its host g1 is a g5.xlarge; correct one of them.",
        ),
        ({"name": "gpu", "hosts": ["c9", "g1"]}, P5, ["g1"], "has the GPU node g1 and no GPUs, so no job would see one; put the node into"),
    ],
)
def test_node_groups_that_contradict_the_types_of_their_hosts(group, types, gpu_hosts, sentence):
    lines = [] if "instance_type" in group else [{"nodegroups": ["gpu"], "params": {"Name": "gpu", "File": "/dev/nvidia[0-7]"}}]
    [said] = told(nodegroups=[*DATA["nodegroups"], group], gres_lines=lines, types=types, gpu_hosts=gpu_hosts)
    assert sentence in said


@pytest.mark.parametrize("group", [GPUS, TYPED, {**TYPED, "measured": True}])
def test_node_groups_that_agree_with_the_types_of_their_hosts(group):
    lines = [] if "instance_type" in group else [{"nodegroups": ["gpu"], "params": {"Name": "gpu", "File": "/dev/nvidia[0-7]"}}]
    assert told(nodegroups=[*DATA["nodegroups"], group], gres_lines=lines, types=P5, gpu_hosts=["g1", "g2"]) == []
