# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The logic behind the templates of role slurm: settings of a site over defaults, node lines, and data that makes no configuration.

test_slurm_files.py renders the templates themselves."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.filter.slurm import FilterModule
from ansible_collections.muster.fleet.plugins.module_utils.slurm import conf as logic

# The first line of `slurmd -C` of Slurm 24.11.5 in a container; the second is UpTime.
SLURMD = "NodeName=compute-1 CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=24105\nUpTime=0-01:20:11\n"
HARDWARE = {"Boards": "1", "SocketsPerBoard": "1", "CoresPerSocket": "2", "ThreadsPerCore": "1", "RealMemory": "24105"}
LINE = "Boards=1 CoresPerSocket=2 RealMemory=24105 SocketsPerBoard=1 ThreadsPerCore=1"


def group(name: str = "compute", hosts: tuple[str, ...] = ("compute-1", "compute-2"), **more) -> dict:
    return {"name": name, "hosts": list(hosts), **more}


def nodes(*groups: dict, hardware: dict | None = None, fraction: float = 1.0, own: dict | None = None) -> list[str]:
    made = logic.node_groups(groups, {"compute": HARDWARE} if hardware is None else hardware, fraction, own)
    return [f"NodeName={','.join(line['nodes'])} {line['keys']}" for each in made for line in each["lines"]]


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
        ({"slurmdtimeout": 20}, {"SlurmdTimeout": 20, "Prolog": "p.sh"}),
        ({"Prolog": "omit"}, {"SlurmdTimeout": 180}),
        ({"PROLOG": "omit"}, {"SlurmdTimeout": 180}),
        ({"Never": "omit"}, {"SlurmdTimeout": 180, "Prolog": "p.sh"}),
        ({"Epilog": "e.sh"}, {"SlurmdTimeout": 180, "Prolog": "p.sh", "Epilog": "e.sh"}),
    ],
)
def test_a_sites_keys_over_the_defaults(own, merged):
    defaults = {"SlurmdTimeout": 180, "Prolog": "p.sh"}
    assert logic.settings(defaults, own) == merged
    assert defaults == {"SlurmdTimeout": 180, "Prolog": "p.sh"}


def test_settings_over_the_lines_of_a_file():
    text = "# Head\nClusterName=a\nProlog=x\nProlog=y\n\nSlurmdTimeout = 3\n"
    site = {"prolog": ["p", "q"], "SLURMDTIMEOUT": "omit", "A": True, "B": False, "C": 1, "D": "x,y"}
    lines = logic.slurm_conf(text, {"A": 2}, site).splitlines()
    assert lines == ["# Head", "ClusterName=a", "", "prolog=p", "prolog=q", "A=yes", "B=no", "C=1", "D=x,y"]
    assert logic.slurm_conf("# Head", {}) == "# Head\n"


def test_alike_nodes_share_a_line():
    assert nodes(group()) == [f"NodeName=compute-1,compute-2 {LINE}"]


def test_full_names_become_node_names():
    [made] = logic.node_groups([group(hosts=("a.example.org", "b.example.org"))], {"compute": HARDWARE}, 1)
    assert made["nodes"] == made["lines"][0]["nodes"] == ["a", "b"]


def test_a_line_is_the_same_whatever_the_order_of_the_hardware():
    assert nodes(group(), hardware={"compute": dict(reversed(HARDWARE.items()))}) == nodes(group())


@pytest.mark.parametrize(
    ("params", "memory"),
    [({}, "RealMemory=22899"), ({"RealMemory": 2672}, "RealMemory=2672"), ({"realmemory": 2672}, "RealMemory=2672")],
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
    ]


def test_a_group_without_members_is_left_out():
    assert [each["name"] for each in logic.node_groups([group("gpu", ()), group()], {"compute": HARDWARE}, 1)] == ["compute"]


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


def test_filters_give_one_sentence():
    filters = FilterModule().filters()
    with pytest.raises(AnsibleFilterError, match="no compute nodes"):
        filters["slurm_nodes"]([], {}, 1)
    with pytest.raises(AnsibleFilterError, match="printed no node line"):
        filters["slurm_hardware"]("")


def test_features_and_lists_on_a_line():
    line = nodes(group(features=["fast", "az1"], params={"Gres": ["gpu:h100:8", "shard:16"]}))[0]
    assert line == f"NodeName=compute-1,compute-2 {LINE} Features=fast,az1 Gres=gpu:h100:8,shard:16"


OF_TYPE = "Features=p5.48xlarge"
P5 = f"Boards=1 CoresPerSocket=48 RealMemory=2097152 SocketsPerBoard=2 ThreadsPerCore=2 {OF_TYPE}"


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, f"{P5} Gres=gpu:h100:8"),
        ({"params": {"Weight": 10}}, f"{P5} Weight=10 Gres=gpu:h100:8"),
        # The group's own values override the catalogue.
        ({"params": {"gres": "gpu:4"}}, f"{P5} gres=gpu:4"),
        ({"params": {"Gres": "omit"}}, P5),
        ({"params": {"ThreadsPerCore": 1}}, P5.replace("ThreadsPerCore=2", "Gres=gpu:h100:8 ThreadsPerCore=1")),
        ({"hardware": HARDWARE}, f"{LINE} {OF_TYPE} Gres=gpu:h100:8"),
        # Jobs and the discovery of targets find the type among the group's own features.
        ({"features": ["fast", "p5.48xlarge"]}, f"{P5.replace(OF_TYPE, OF_TYPE + ',fast')} Gres=gpu:h100:8"),
        ({"params": {"Features": "own"}}, f"{P5.replace(OF_TYPE, 'Features=own')} Gres=gpu:h100:8"),
    ],
)
def test_a_node_line_from_the_instance_type(more, line):
    # The catalogue replaces what a member reported.
    written = nodes(group(instance_type="p5.48xlarge", **more), hardware={"compute": {"RealMemory": "1"}})[0]
    assert sorted(written.split()) == sorted(f"NodeName=compute-1,compute-2 {line}".split())


@pytest.mark.parametrize(
    ("instance_type", "params", "devices", "line"),
    [
        ("p5.48xlarge", {}, [], "Name=gpu Type=h100 File=/dev/nvidia[0-7]"),
        ("g7e.2xlarge", {}, [], "Name=gpu Type=rtx_pro_6000 File=/dev/nvidia0"),
        ("trn2.48xlarge", {}, [], ""),
        # The site's own lines and its own Gres stand alone.
        ("p5.48xlarge", {}, [{"params": {"AutoDetect": "nvml"}}], ""),
        ("p5.48xlarge", {}, [{"nodegroups": ["other"], "params": {"AutoDetect": "nvml"}}], "Name=gpu Type=h100 File=/dev/nvidia[0-7]"),
        ("p5.48xlarge", {"Gres": "gpu:8"}, [], ""),
    ],
)
def test_gres_line_from_the_instance_type(instance_type, params, devices, line):
    [made] = logic.node_groups([group(instance_type=instance_type, params=params)], {"compute": HARDWARE}, 1, devices=devices)
    assert logic.on_a_line(made["gres"]) == line


def test_an_unknown_instance_type_of_a_node_group():
    says = "The node group compute .slurm_nodegroups. has an unknown instance_type. The catalogue has no instance type p5.48; the nearest "
    with pytest.raises(logic.SlurmConfError, match=says):
        nodes(group(instance_type="p5.48"))


GROUPS = {
    "muster_compute": ["a", "b", "c", "d", "e"],
    "muster_type_p5_48xlarge": ["c", "a"],
    "muster_type_c7i_large": ["d"],
    "muster_type_p6e_gb200_36xlarge": ["g1", "g2", "g3"],
}


def test_compute_hosts_of_one_type_are_one_group():
    assert logic.compute_groups(["e", "x"], GROUPS) == [{"name": "compute", "hosts": ["e", "x"]}]
    assert logic.compute_groups([], GROUPS) == [{"name": "compute", "hosts": []}]
    typed = {"name": "compute", "hosts": ["a", "c"], "features": ["p5.48xlarge"], "instance_type": "p5.48xlarge", "measured": True}
    assert logic.compute_groups(["a", "c"], GROUPS) == [typed]
    # The catalogue has no types without accelerators.
    assert logic.compute_groups(["d"], GROUPS) == [{"name": "compute", "hosts": ["d"], "features": ["c7i_large"]}]


def test_compute_hosts_of_several_types_are_a_group_each():
    groups = logic.compute_groups(GROUPS["muster_compute"], GROUPS)
    assert [(each["name"], each["hosts"]) for each in groups] == [
        ("p5.48xlarge", ["a", "c"]),
        ("compute", ["b", "e"]),
        ("c7i_large", ["d"]),
    ]
    assert logic.compute_partitions(groups, {"OverSubscribe": "NO"}) == [
        {"name": "main", "nodegroups": ["p5.48xlarge", "compute", "c7i_large"], "params": {"Default": "YES", "OverSubscribe": "NO"}},
        {"name": "p5.48xlarge", "nodegroups": ["p5.48xlarge"], "params": {"OverSubscribe": "NO"}},
        {"name": "compute", "nodegroups": ["compute"], "params": {"OverSubscribe": "NO"}},
        {"name": "c7i_large", "nodegroups": ["c7i_large"], "params": {"OverSubscribe": "NO"}},
    ]
    assert logic.compute_partitions(groups[:1]) == [{"name": "main", "nodegroups": ["p5.48xlarge"], "params": {"Default": "YES"}}]


def test_a_measured_group_has_the_gpus_of_its_type_and_the_hardware_of_its_nodes():
    [typed] = logic.compute_groups(["a", "c"], GROUPS)
    [made] = logic.node_groups([typed], {"compute": HARDWARE}, 1)
    assert made["lines"] == [{"nodes": ["a", "c"], "keys": f"{LINE} Features=p5.48xlarge Gres=gpu:h100:8"}]
    assert made["gres"] == {"Name": "gpu", "Type": "h100", "File": "/dev/nvidia[0-7]"}
    with pytest.raises(logic.SlurmConfError, match="The node group compute has no hardware"):
        logic.node_groups([typed], {}, 1)


def test_nodes_of_an_ultraserver_are_a_block():
    hosts = [f"g{number}" for number in range(1, 21)]
    of_type = {"muster_type_p6e_gb200_36xlarge": hosts}
    blocks = logic.nvlink_blocks(hosts, of_type)
    # 72 GPUs share NVLink, which are 18 nodes.
    assert [(each["name"], each["nodes"]) for each in blocks["blocks"]] == [("nvlink-1", hosts[:18]), ("nvlink-2", hosts[18:])]
    assert blocks["block_sizes"] == [2]
    known = {**of_type, "muster_ultraserver_cb_2": hosts[::2], "muster_ultraserver_cb_1": hosts[1::2]}
    blocks = logic.nvlink_blocks(hosts, known)
    assert {each["name"]: each["nodes"] for each in blocks["blocks"]} == {"cb_2": hosts[::2], "cb_1": hosts[1::2]}
    assert blocks["block_sizes"] == [10]


def test_nodes_without_shared_nvlink_have_no_blocks():
    assert logic.nvlink_blocks(["a", "c"], GROUPS) == {}
    assert logic.nvlink_blocks(["a", "g1"], GROUPS) == {}
    assert logic.nvlink_blocks([], GROUPS) == {}


@pytest.mark.parametrize("kind", logic.catalogue.names())
def test_every_type_makes_a_group_that_the_templates_take(kind):
    group = f"muster_type_{kind.replace('.', '_').replace('-', '_')}"
    [made] = logic.compute_groups(["n"], {group: ["n"]})
    assert made["instance_type"] == kind
    assert logic.node_groups([made], {"compute": HARDWARE}, 1)
