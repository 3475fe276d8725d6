# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What an inventory may call its hosts."""

from __future__ import annotations

import pytest

from ansible_collections.muster.fleet.plugins.filter.inventory_faults import FilterModule

faults = FilterModule().filters()["inventory_faults"]
FLEET = {"all": ["localhost", "head", "n1", "n2"], "muster_controller": ["head"], "muster_compute": ["n1", "n2"]}


def test_an_ordinary_fleet_has_no_fault() -> None:
    assert faults(FLEET) == []
    assert faults({**FLEET, "muster_compute": ["n1.rack_2.example", "10-0-0-7"]}) == []


@pytest.mark.parametrize(
    "name", ["n1;touch${IFS}x;#", "../../x", "-oProxyCommand=x", "n 1", "", "all", "ALL", "localhost", "muster_x", "n1\n", "\u017f1"]
)
def test_what_a_shell_ssh_or_ansible_would_read_otherwise_is_refused(name: str) -> None:
    [said] = faults({**FLEET, "muster_compute": ["n1", name]})
    assert said.startswith(f"Host {name!r} cannot be the name of a node; take letters")


def test_the_name_of_a_group_is_refused() -> None:
    assert faults({**FLEET, "gpu": [], "muster_compute": ["n1", "gpu"]}) == [
        "Host gpu has the name of a group, and Ansible would run on the group's hosts instead; rename one of them."
    ]


@pytest.mark.parametrize("name", ["10.0.0.7", "fd00::7"])
def test_an_address_is_no_nodename(name: str) -> None:
    wanted = f"Host {name} is named by its address; give it a name and set ansible_host to the address."
    assert faults({**FLEET, "muster_compute": ["n1", name]}) == [wanted]
    # A machine beside the fleet may have any address.
    assert faults({**FLEET, "all": [*FLEET["all"], name]}) == []


def test_a_fleet_has_a_controller_and_compute_nodes() -> None:
    assert [said.split(";")[0] for said in faults({"all": ["x"]})] == ["The fleet has no compute nodes", "The fleet has no controller"]


def test_a_fleet_may_have_only_nodes_that_slurm_starts() -> None:
    fleet = {"all": ["head"], "muster_controller": ["head"]}
    cloud = {"name": "gpu", "hosts": ["gpu-1"], "params": {"State": "Cloud"}}
    assert faults(fleet, nodegroups=[{"name": "rest", "hosts": []}, cloud]) == []
    for others in ({**cloud, "hosts": []}, {**cloud, "params": {"State": "FUTURE"}}, {**cloud, "params": None}):
        assert [said.split(";")[0] for said in faults(fleet, nodegroups=[others])] == ["The fleet has no compute nodes"]


def test_two_nodes_cannot_have_one_nodename() -> None:
    assert faults({**FLEET, "muster_compute": ["n1.a", "n1.b", "n2"]}) == [
        "Compute nodes n1.a and n1.b have the same NodeName, which is the inventory name up to its first dot; rename one of them."
    ]


def test_a_fleet_without_slurm_needs_good_names_alone() -> None:
    assert faults({"all": ["n1"], "muster_compute": ["n1"]}, slurm=False) == []
    [said] = faults({"all": ["n1;touch x"], "muster_compute": ["n1;touch x"]}, slurm=False)
    assert said.startswith("Host 'n1;touch x' cannot be the name of a node; ")
