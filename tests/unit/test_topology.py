# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""From EC2's network nodes to Slurm's switches and to the order of hosts.

The answers of EC2 are constructed; botocore checks their shape against the service model.
"""

from __future__ import annotations

import itertools
import random
import time

import boto3
import pytest
from ansible.errors import AnsibleFilterError
from botocore.exceptions import ParamValidationError
from botocore.stub import Stubber

from ansible_collections.muster.fleet.plugins.filter.slurm import FilterModule
from ansible_collections.muster.fleet.plugins.module_utils.aws.hosts import fleet_groups
from ansible_collections.muster.fleet.plugins.module_utils.node.network import in_order
from ansible_collections.muster.fleet.plugins.module_utils.slurm import topology
from ansible_collections.muster.fleet.plugins.module_utils.slurm.conf import SlurmConfError
from ansible_collections.muster.fleet.plugins.plugin_utils import ec2_api


def answer(name: str, kind: str, nodes: list[str], block: str = "") -> dict:
    """One instance as DescribeInstanceTopology has it; constructed."""
    more = {"CapacityBlockId": block} if block else {}
    return {"InstanceId": f"i-{name}", "InstanceType": kind, "AvailabilityZone": "us-east-1a", "NetworkNodes": nodes, **more}


def asked(*pages: list[dict]) -> dict[str, dict]:
    """What the inventory makes of these pages, each validated against EC2's service model."""
    client = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
    with Stubber(client) as stub:
        for number, page in enumerate(pages):
            more = {"NextToken": str(number + 1)} if number + 1 < len(pages) else {}
            stub.add_response("describe_instance_topology", {"Instances": page, **more})
        found = ec2_api._topology(client)
        stub.assert_no_pending_responses()
    return found


def groups_of(found: dict[str, dict], kinds: dict[str, str]) -> dict[str, list[str]]:
    """The inventory's groups, made safe as Ansible does it. Hosts have the names of their instances."""
    groups: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        more = {"tags": {}, "placement": {"availability_zone": "us-east-1a"}, "instance_type": kind, "instance_id": name}
        for title in fleet_groups({**more, **found.get(name, {})}, {}):
            groups.setdefault(title.replace("-", "_").replace(".", "_"), []).append(name)
    return groups


P5 = [
    answer("1", "p5.48xlarge", ["nn-a", "nn-b", "nn-c"]),
    answer("2", "p5.48xlarge", ["nn-a", "nn-b", "nn-d"]),
    answer("3", "p5.48xlarge", ["nn-a", "nn-b", "nn-c"]),
    answer("4", "p5.48xlarge", []),  # it does not run yet
]
B200 = [
    answer("5", "p6-b200.48xlarge", ["nn-a", "nn-b", "nn-d", "nn-e"]),
    answer("6", "p6-b200.48xlarge", ["nn-x", "nn-y", "nn-z", "nn-w"]),
]


def network(*pages: list[dict], more: tuple[str, ...] = ()) -> dict:
    kinds = {each["InstanceId"]: each["InstanceType"] for page in pages for each in page} | dict.fromkeys(more, "m7i.large")
    return topology.network([{"name": "compute", "hosts": list(kinds)}], groups_of(asked(*pages), kinds))


def lines(found: dict) -> list[str]:
    return [f"{each['name']}: {' '.join(each.get('switches') or each['nodes'])}" for each in found["switches"]]


def test_a_constructed_answer_that_ec2_could_not_give_is_refused() -> None:
    with pytest.raises(ParamValidationError):
        asked([{**P5[0], "NetworkNode": ["nn-a"]}])


def test_the_network_node_next_to_a_host_is_its_leaf() -> None:
    assert lines(network(P5[:2], P5[2:3])) == ["nn_a: nn_b", "nn_b: nn_c nn_d", "nn_c: i-1 i-3", "nn_d: i-2"]


def test_a_host_without_network_nodes_has_a_leaf_below_the_switch_that_is_above_all() -> None:
    """Slurm gives no job a node that no switch reaches."""
    found = lines(network(P5, more=("cpu-1",)))
    assert found[:2] == ["muster-top: muster-unknown nn_a", "muster-unknown: i-4 cpu-1"]
    assert found[2:] == lines(network(P5[:3]))


def test_types_with_three_and_with_four_layers_share_switches() -> None:
    """i-2 is next to nn_d, and i-5 is below it with another node between; a switch of Slurm has switches or nodes."""
    assert lines(network(P5[:3], B200)) == [
        "muster-top: nn_a nn_x",
        "nn_a: nn_b",
        "nn_b: nn_c nn_d",
        "nn_c: i-1 i-3",
        "nn_d: nn_d-nodes nn_e",
        "nn_d-nodes: i-2",
        "nn_e: i-5",
        "nn_x: nn_y",
        "nn_y: nn_z",
        "nn_z: nn_w",
        "nn_w: i-6",
    ]


def test_one_host_is_a_tree() -> None:
    assert lines(network(P5[:1])) == ["nn_a: nn_b", "nn_b: nn_c", "nn_c: i-1"]


def test_where_nothing_is_known_the_network_is_flat() -> None:
    assert network(P5[3:], more=("cpu-1",)) == {}
    assert topology.network([], {}) == topology.network([{"name": "later", "hosts": []}], {"muster_layer1_nn_a": ["a"]}) == {}


def test_hosts_of_ultraservers_are_blocks_and_no_tree() -> None:
    racks = [answer(f"{rack}{n}", "p6e-gb200.36xlarge", ["nn-a", "nn-b", f"nn-{rack}"], f"cb-{rack}") for rack in "cd" for n in (1, 2)]
    assert network(racks) == {
        "blocks": [{"name": "cb_c", "nodes": ["i-c1", "i-c2"]}, {"name": "cb_d", "nodes": ["i-d1", "i-d2"]}],
        "block_sizes": [2],
    }
    # Beside hosts without shared NVLink their network nodes are a tree.
    assert lines(network(racks, P5[:1]))[1:3] == ["nn_b: nn_c nn_d", "nn_c: i-c1 i-c2 i-1"]


def test_the_tree_does_not_depend_on_the_order_of_the_groups() -> None:
    hosts = [f"h-{number}.example.org" for number in range(40)]
    layers = {host: ["t", f"m{number // 20}", f"l{number // 4}"] for number, host in enumerate(hosts)}
    groups: dict[str, list[str]] = {}
    for host, path in layers.items():
        for layer, node in enumerate(path, 1):
            groups.setdefault(f"muster_layer{layer}_{node}", []).append(host)
    wanted = topology.network([{"hosts": hosts}], groups)
    assert wanted["switches"][2] == {"name": "l0", "nodes": ["h-0", "h-1", "h-2", "h-3"]}, "NodeNames are host names up to the first dot"
    for seed in range(5):
        mixed = list(groups.items())
        random.Random(seed).shuffle(mixed)
        assert topology.network([{"hosts": hosts}], {name: members[::-1] for name, members in mixed}) == wanted


def test_a_host_of_two_node_groups_and_a_repeated_network_node_appear_once() -> None:
    groups = {"muster_layer1_a": ["h"], "muster_layer2_a": ["h"], "muster_layer3_b": ["h"]}
    assert topology.network([{"hosts": ["h"]}, {"hosts": ["h"]}], groups) == {
        "switches": [{"name": "a", "switches": ["b"]}, {"name": "b", "nodes": ["h"]}]
    }


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"muster_layer1_a": ["h"], "muster_layer1_b": ["h"]}, "Host h is below two network nodes of layer 1, a and b; correct the groups"),
        (
            {"muster_layer1_a": ["g"], "muster_layer1_b": ["h"], "muster_layer2_c": ["g", "h"]},
            "The network node c is below a and, for host h, below b; correct",
        ),
        # A circle: a above b, and b above a.
        (
            {"muster_layer1_a": ["g"], "muster_layer2_b": ["g"], "muster_layer1_b": ["h"], "muster_layer2_a": ["h"]},
            "The network node b is below a and, for host h, below no other; correct",
        ),
    ],
)
def test_groups_that_are_no_tree(groups: dict, said: str) -> None:
    with pytest.raises(SlurmConfError, match=said):
        topology.network([{"hosts": ["g", "h"]}], groups)
    with pytest.raises(AnsibleFilterError, match=said):
        FilterModule().filters()["slurm_network"]([{"hosts": ["g", "h"]}], groups)


def test_names_that_slurm_would_read_as_several() -> None:
    found = topology.switches(["h"], {"h": ["rack 1", "nn[1-3],x"]})
    assert found == [{"name": "rack_1", "switches": ["nn_1-3__x"]}, {"name": "nn_1-3__x", "nodes": ["h"]}]


def test_neighbours_stand_beside_each_other() -> None:
    layers = {"a": ["t", "m", "1"], "b": ["t", "n", "2"], "c": ["t", "m", "3"]}
    layers |= {"d": layers["a"], "e": layers["b"], "g": layers["c"]}
    assert in_order("abcdeg", layers) == ["a", "d", "c", "g", "b", "e"]
    assert in_order("abcdeg", {}) == list("abcdeg"), "without layers the inventory's order stays"
    assert in_order(["z", "a", "z", "y"], {"a": ["t"]}) == ["a", "z", "y"], "those of which nothing is known come last, each once"
    assert in_order([], {}) == []


def test_a_job_on_some_of_the_hosts_gets_the_most_neighbours() -> None:
    layers = {"a": ["t", "1"], "b": ["t", "2"], "c": ["t", "2"]}
    assert in_order("abc", layers)[:2] == ["b", "c"]


def test_no_network_node_divides_an_nvlink_domain() -> None:
    """Two domains, whose hosts are below two network nodes alike; constructed, nothing says that EC2 places them so."""
    hosts = ["a1", "b1", "a2", "b2", "a3", "x"]
    layers = {"a1": ["t", "1"], "a2": ["t", "2"], "a3": ["t", "1"], "b1": ["t", "1"], "b2": ["t", "2"]}
    domains = {host: host[0] for host in hosts if host != "x"}
    assert in_order(hosts, layers, domains) == ["a1", "a3", "a2", "b1", "b2", "x"]
    # A host whose network nodes are not known yet is still beside those of its domain.
    del layers["a2"]
    assert in_order(hosts, layers, domains)[:3] == ["a1", "a2", "a3"]


def test_a_thousand_nodes_take_less_than_a_second() -> None:
    hosts = [f"h-{number}" for number in range(1000)]
    layers = {host: [f"t{n // 500}", f"m{n // 100}", f"l{n // 20}", f"r{n // 4}"] for n, host in enumerate(hosts)}
    groups: dict[str, list[str]] = {}
    for host, path in layers.items():
        for layer, node in enumerate(path, 1):
            groups.setdefault(f"muster_layer{layer}_{node}", []).append(host)
    began = time.process_time()
    found = topology.network([{"hosts": hosts}], groups)
    order = in_order(random.Random(1).sample(hosts, 1000), layers)
    assert time.process_time() - began < 1
    assert sum(len(each.get("nodes", ())) for each in found["switches"]) == len(order) == 1000
    # Each network node has its hosts in one piece.
    for layer in range(4):
        places = [layers[host][layer] for host in order]
        assert sum(one != other for one, other in itertools.pairwise(places)) == len(set(places)) - 1
