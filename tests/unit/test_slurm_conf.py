# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""slurm.conf from data: keys that a site changes or takes away, node lines, partitions, and what cannot be made."""

from __future__ import annotations

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.filter.slurm_conf import FilterModule
from ansible_collections.muster.fleet.plugins.module_utils import slurm_conf as logic

# The first line of `slurmd -C` of Slurm 24.11.5 in a container; the second is UpTime.
SLURMD = "NodeName=compute-1 CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=24105\nUpTime=0-01:20:11\n"
HARDWARE = {"Boards": "1", "SocketsPerBoard": "1", "CoresPerSocket": "2", "ThreadsPerCore": "1", "RealMemory": "24105"}
LINE = "Boards=1 CoresPerSocket=2 RealMemory=24105 SocketsPerBoard=1 ThreadsPerCore=1"


def group(name: str = "compute", hosts: tuple[str, ...] = ("compute-1", "compute-2"), **more) -> dict:
    return {"name": name, "hosts": list(hosts), **more}


def nodes(*groups: dict, hardware: dict | None = None, fraction: float = 1.0, own: dict | None = None) -> list[str]:
    return logic.node_lines(groups, {"compute": HARDWARE} if hardware is None else hardware, fraction, own)


def test_hardware_from_slurmd():
    assert logic.parse_hardware(SLURMD) == HARDWARE


@pytest.mark.parametrize("text", ["", "slurmd: fatal: Unable to determine this slurmd's NodeName", "NodeName=x CPUs=2"])
def test_no_hardware_from_slurmd(text):
    with pytest.raises(logic.SlurmConfError, match="printed no node line"):
        logic.parse_hardware(text)


@pytest.mark.parametrize(
    ("own", "merged"),
    [
        ({}, {"SlurmdTimeout": 180, "Prolog": "p.sh"}),
        ({"SlurmdTimeout": 20}, {"SlurmdTimeout": 20, "Prolog": "p.sh"}),
        ({"slurmdtimeout": 20}, {"slurmdtimeout": 20, "Prolog": "p.sh"}),
        ({"Prolog": "omit"}, {"SlurmdTimeout": 180}),
        ({"PROLOG": "omit"}, {"SlurmdTimeout": 180}),
        ({"Never": "omit"}, {"SlurmdTimeout": 180, "Prolog": "p.sh"}),
        ({"Epilog": "e.sh"}, {"SlurmdTimeout": 180, "Prolog": "p.sh", "Epilog": "e.sh"}),
    ],
)
def test_a_sites_keys_over_the_defaults(own, merged):
    defaults = {"SlurmdTimeout": 180, "Prolog": "p.sh"}
    assert logic.merge(defaults, own) == merged
    assert defaults == {"SlurmdTimeout": 180, "Prolog": "p.sh"}


def test_values_as_slurm_reads_them():
    config = {"A": True, "B": False, "C": 1, "D": "x,y", "Include": ["one.conf", "two.conf"]}
    assert logic.lines(config) == ["A=yes", "B=no", "C=1", "D=x,y", "Include=one.conf", "Include=two.conf"]


def test_alike_nodes_share_a_line():
    assert nodes(group()) == [f"NodeName=compute-1,compute-2 {LINE}", "NodeSet=compute Nodes=compute-1,compute-2"]


def test_full_names_become_node_names():
    assert nodes(group(hosts=("a.example.org", "b.example.org")))[1] == "NodeSet=compute Nodes=a,b"


def test_a_line_is_the_same_whatever_the_order_of_the_hardware():
    assert nodes(group(), hardware={"compute": dict(reversed(HARDWARE.items()))}) == nodes(group())


@pytest.mark.parametrize(
    ("params", "memory"),
    [({}, "RealMemory=22899"), ({"RealMemory": 2672}, "RealMemory=2672"), ({"realmemory": 2672}, "realmemory=2672")],
)
def test_memory_is_scaled_for_what_was_asked_and_not_for_what_was_given(params, memory):
    line = nodes(group(params=params), fraction=0.95)[0]
    assert [word for word in line.split() if "memory" in word.lower()] == [memory]


def test_given_hardware_goes_before_asked():
    given = {"CPUs": 192, "RealMemory": 2000000}
    assert nodes(group(hardware=given), fraction=0.5)[0] == "NodeName=compute-1,compute-2 CPUs=192 RealMemory=1000000"


def test_a_node_with_keys_of_its_own_has_a_line_of_its_own():
    own = {"compute-1": {"CPUSpecList": "1"}, "compute-2": {"CPUSpecList": "0"}, "compute-3": {"CPUSpecList": "1"}}
    assert nodes(group(hosts=("compute-1", "compute-2", "compute-3")), own=own) == [
        f"NodeName=compute-1,compute-3 {LINE} CPUSpecList=1",
        f"NodeName=compute-2 {LINE} CPUSpecList=0",
        "NodeSet=compute Nodes=compute-1,compute-2,compute-3",
    ]


def test_an_empty_group_beside_a_filled_one():
    groups = [group(), group("gpu", ())]
    text = logic.slurm_conf(
        {"ClusterName": "local"},
        groups=groups,
        partitions=[
            {"name": "main", "nodegroups": ["compute", "gpu"], "params": {"Default": True}},
            {"name": "gpu", "nodegroups": ["gpu"]},
        ],
        hardware={"compute": HARDWARE},
        memory_fraction=1,
    )
    assert text.splitlines() == [
        "# Written by Muster (role slurm); change slurm_config, slurm_nodegroups or slurm_partitions instead.",
        "ClusterName=local",
        f"NodeName=compute-1,compute-2 {LINE}",
        "NodeSet=compute Nodes=compute-1,compute-2",
        "PartitionName=main Nodes=compute Default=yes",
    ]


@pytest.mark.parametrize(
    ("groups", "hardware", "says"),
    [
        ([group("compute", ())], None, "The fleet has no compute nodes; put at least one host into the group muster_compute."),
        ([group(), group("gpu", ("compute-2",))], None, r"Two nodes have the NodeName compute-2 \(node groups compute and gpu\)"),
        ([group(hosts=("a.one.org", "a.two.org"))], None, "Two nodes have the NodeName a "),
        ([group()], {}, "The node group compute has no hardware"),
    ],
)
def test_nodes_that_cannot_be(groups, hardware, says):
    with pytest.raises(logic.SlurmConfError, match=says):
        nodes(*groups, hardware=hardware)


def test_a_partition_of_an_unknown_group():
    with pytest.raises(
        logic.SlurmConfError, match="The partition main names the node group gpus, but slurm_nodegroups has only compute, gpu"
    ):
        logic.partition_lines([{"name": "main", "nodegroups": ["gpus"]}], [group(), group("gpu", ())])


def test_filters_give_one_sentence():
    filters = FilterModule().filters()
    with pytest.raises(AnsibleFilterError, match="no compute nodes"):
        filters["slurm_conf"]({}, groups=[], partitions=[], hardware={}, memory_fraction=1)
    with pytest.raises(AnsibleFilterError, match="printed no node line"):
        filters["slurm_hardware"]("")
    assert filters["slurm_lines"]({"ConstrainCores": True, "CgroupPlugin": "autodetect"}) == "ConstrainCores=yes\nCgroupPlugin=autodetect\n"


def test_features_and_lists_on_a_line():
    line = nodes(group(features=["fast", "az1"], params={"Gres": ["gpu:h100:8", "shard:16"]}))[0]
    assert line == f"NodeName=compute-1,compute-2 {LINE} Features=fast,az1 Gres=gpu:h100:8,shard:16"
    partition = {"name": "main", "nodegroups": ["compute"], "params": {"AllowQos": ["normal", "high"], "Default": True}}
    assert logic.partition_lines([partition], [group()]) == ["PartitionName=main Nodes=compute AllowQos=normal,high Default=yes"]


def test_lines_of_gres_conf():
    groups = [group(), group("gpu", ("g1.example.org", "g2")), group("later", ())]
    devices = [
        {"params": {"AutoDetect": False}},
        {"nodegroups": ["gpu"], "params": {"Name": "gpu", "Type": "h100", "File": "/dev/nvidia[0-7]"}},
        {"nodegroups": ["later"], "params": {"AutoDetect": "nvidia"}},
    ]
    assert logic.gres_conf(devices, groups).splitlines()[1:] == [
        "AutoDetect=off",
        "NodeName=g1,g2 Name=gpu Type=h100 File=/dev/nvidia[0-7]",
    ]


TREE = {
    "switches": [{"name": "top", "switches": ["l1", "l2"]}, {"name": "l1", "nodegroups": ["compute"]}, {"name": "l2", "nodes": ["x[1-2]"]}]
}
BLOCKS = {"blocks": [{"name": "b1", "nodegroups": ["compute"]}], "block_sizes": [2, 4]}


def test_topology_before_25_05():
    assert logic.topology_conf(TREE, [group()]).splitlines()[1:] == [
        "SwitchName=top Switches=l1,l2",
        "SwitchName=l1 Nodes=compute-1,compute-2",
        "SwitchName=l2 Nodes=x[1-2]",
    ]
    assert logic.topology_conf(BLOCKS, [group()]).splitlines()[1:] == ["BlockName=b1 Nodes=compute-1,compute-2", "BlockSizes=2,4"]


def test_topology_from_25_05():
    """As Slurm's topology.yaml(5) has it."""
    [tree] = yaml.safe_load(logic.topology_yaml(TREE, [group()]))
    assert tree == {
        "topology": "default",
        "cluster_default": True,
        "tree": {
            "switches": [
                {"switch": "top", "children": "l1,l2"},
                {"switch": "l1", "nodes": "compute-1,compute-2"},
                {"switch": "l2", "nodes": "x[1-2]"},
            ]
        },
    }
    [blocks] = yaml.safe_load(logic.topology_yaml(BLOCKS, [group()]))
    assert blocks["block"] == {"block_sizes": [2, 4], "blocks": [{"block": "b1", "nodes": "compute-1,compute-2"}]}


# What YAML would read as another type than text stays text.
SEVERAL = {"topologies": [{"name": "fabric", **TREE}, {"name": "nvlink", **BLOCKS}, {"name": "off"}]}


def test_several_topologies_from_25_05():
    tree, blocks, flat = yaml.safe_load(logic.topology_yaml(SEVERAL, [group()]))
    [alone] = yaml.safe_load(logic.topology_yaml(TREE, [group()]))
    assert tree == {**alone, "topology": "fabric"}
    assert blocks == {
        "topology": "nvlink",
        "cluster_default": False,
        "block": {"block_sizes": [2, 4], "blocks": [{"block": "b1", "nodes": "compute-1,compute-2"}]},
    }
    assert flat == {"topology": "off", "cluster_default": False, "flat": True}


OWN = [{"name": "nvl", "nodegroups": ["compute"], "params": {"topology": "nvlink"}}]


@pytest.mark.parametrize(
    ("said", "topology", "partitions", "sentence"),
    [
        ("slurm-wlm 24.11.5", TREE, [], ""),
        ("slurm-wlm 25.05.0", SEVERAL, OWN, ""),
        ("slurm 26.05.5", SEVERAL, OWN, ""),
        # Check mode on a node that has no Slurm yet.
        ("sh: 1: slurmctld: not found", SEVERAL, OWN, ""),
        (
            "slurm-wlm 24.11.5",
            SEVERAL,
            OWN,
            "slurm_topology.topologies needs Slurm 25.05 or newer and this controller has 24.11; "
            "give one topology for all, or upgrade Slurm first.",
        ),
        (
            "slurm-wlm 24.11.5",
            TREE,
            OWN,
            "The Topology of partition nvl (slurm_partitions) needs Slurm 25.05 or newer and this controller has 24.11; "
            "give one topology for all, or upgrade Slurm first.",
        ),
    ],
)
def test_what_topology_conf_cannot_say(said, topology, partitions, sentence):
    assert logic.topology_refusal(said, topology, partitions) == sentence


def test_scripts_of_the_site():
    scripts = [{"hook": "Prolog", "path": "/srv/check.sh"}, {"hook": "TaskProlog", "path": "/srv/task.sh"}]
    defaults = {"Prolog": "muster-prolog.sh"}
    assert logic.hooks(scripts, defaults, "") == {"Prolog": ["muster-prolog.sh", "site-check.sh"], "TaskProlog": "/etc/slurm/site-task.sh"}
    assert logic.script_files(scripts[:1], ["#!/bin/sh\n"]) == [
        {"dest": "/etc/slurm/site-check.sh", "content": "#!/bin/sh\n", "mode": "0755"}
    ]
    with pytest.raises(logic.SlurmConfError, match=r"knows one Prolog only, and the role has it; /srv/check.sh needs Slurm 23.11"):
        logic.hooks(scripts, defaults, "/etc/slurm/")
    with pytest.raises(logic.SlurmConfError, match="two scripts for TaskProlog"):
        logic.hooks([scripts[1], scripts[1]], defaults, "")


P5 = "Boards=1 CoresPerSocket=48 RealMemory=2097152 SocketsPerBoard=2 ThreadsPerCore=2"


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, f"{P5} Gres=gpu:h100:8"),
        ({"params": {"Weight": 10}}, f"{P5} Weight=10 Gres=gpu:h100:8"),
        # What the group says itself goes before the catalogue.
        ({"params": {"gres": "gpu:4"}}, f"{P5} gres=gpu:4"),
        ({"params": {"Gres": "omit"}}, P5),
        ({"params": {"ThreadsPerCore": 1}}, P5.replace("ThreadsPerCore=2", "Gres=gpu:h100:8 ThreadsPerCore=1")),
        ({"hardware": HARDWARE}, f"{LINE} Gres=gpu:h100:8"),
    ],
)
def test_a_node_line_from_the_instance_type(more, line):
    # Nothing was asked from a member, and what was is not used.
    written = nodes(group(instance_type="p5.48xlarge", **more), hardware={"compute": {"RealMemory": "1"}})[0]
    assert sorted(written.split()) == sorted(f"NodeName=compute-1,compute-2 {line}".split())


@pytest.mark.parametrize(
    ("instance_type", "params", "devices", "lines"),
    [
        ("p5.48xlarge", {}, [], ["NodeName=compute-1,compute-2 Name=gpu Type=h100 File=/dev/nvidia[0-7]"]),
        ("g7e.2xlarge", {}, [], ["NodeName=compute-1,compute-2 Name=gpu Type=rtx_pro_6000 File=/dev/nvidia0"]),
        ("trn2.48xlarge", {}, [], []),
        # The site's own lines and its own Gres stand alone.
        ("p5.48xlarge", {}, [{"params": {"AutoDetect": "nvml"}}], ["AutoDetect=nvml"]),
        (
            "p5.48xlarge",
            {},
            [{"nodegroups": ["other"], "params": {"AutoDetect": "nvml"}}],
            ["NodeName=compute-1,compute-2 Name=gpu Type=h100 File=/dev/nvidia[0-7]"],
        ),
        ("p5.48xlarge", {"Gres": "gpu:8"}, [], []),
    ],
)
def test_gres_conf_from_the_instance_type(instance_type, params, devices, lines):
    text = logic.gres_conf(devices, [group(instance_type=instance_type, params=params)])
    assert text.splitlines()[1:] == lines
    assert bool(text) == bool(lines)


def test_an_unknown_instance_type_of_a_node_group():
    says = "The node group compute .slurm_nodegroups. has an unknown instance_type. The catalogue has no instance type p5.48; the nearest "
    for ask in (lambda: nodes(group(instance_type="p5.48")), lambda: logic.gres_conf([], [group(instance_type="p5.48")])):
        with pytest.raises(logic.SlurmConfError, match=says):
            ask()
