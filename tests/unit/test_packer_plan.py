# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Every purpose of packer/purposes on every base of packer/systems: what the stack would refuse, which no build should reach."""

from __future__ import annotations

import re

import component_table
import pytest
from packer_files import PURPOSES, SYSTEMS, installed, stands, wanted

from ansible_collections.muster.fleet.plugins.filter.stack import stack_refusals
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

# What truly cannot be: (system, component) -> how its reason begins.
CANNOT = {
    ("debian12", "lustre_client"): "FSx for Lustre has no client packages for Debian",
    ("debian13", "lustre_client"): "FSx for Lustre has no client packages for Debian",
}
TAKES = {entry["name"]: list(entry["stack"]) for entry in component_table.TABLE if "stack" in entry and entry["name"] != "slurm"}


def system_of(name: str) -> str:
    """The system as stacks name it: amzn-2023-eks is amzn2023, ubuntu-24.04 is ubuntu24.04."""
    found = re.match(r"(amzn|debian|ubuntu)-([\d.]+)", SYSTEMS[name]["system"])
    assert found, name
    return "".join(found.groups())


def refusals(name: str, purpose: str) -> dict[tuple[str, str], list[str]]:
    """{(system, component): the sentences of the stack that the template takes there}."""
    system = system_of(name)
    stack = stack_files.load(SYSTEMS[name].get("stack", "aws-2026.11"))
    found = {
        (system, component): stack_refusals(stack, TAKES[component], system, SYSTEMS[name]["architecture"])
        for component in installed(name, purpose)
        if component in TAKES
    }
    return {where: said for where, said in found.items() if said}


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_purpose_is_planned_without_a_refusal_wherever_it_stands(system: str, purpose: str) -> None:
    if not stands(system, purpose):
        assert set(PURPOSES[purpose]["needs"]), "only a base that lacks something is refused"
        return
    for where, said in refusals(system, purpose).items():
        assert where in CANNOT, said
        assert [CANNOT[where] in each for each in said] == [True], said


def test_every_purpose_builds_somewhere_without_a_refusal() -> None:
    built = {purpose for purpose in PURPOSES for system in SYSTEMS if stands(system, purpose) and not refusals(system, purpose)}
    assert built == set(PURPOSES)


def test_every_exception_is_met() -> None:
    met = {where for system in SYSTEMS for purpose in PURPOSES if stands(system, purpose) for where in refusals(system, purpose)}
    assert met == set(CANNOT)


def test_slurm_gpu_builds_on_every_system_that_has_all_of_its_components() -> None:
    built = {system_of(name) for name in SYSTEMS if not refusals(name, "slurm-gpu.pkrvars.hcl")}
    assert built == {"amzn2023", "ubuntu22.04", "ubuntu24.04"}


def test_what_a_purpose_needs_is_brought_by_a_base_and_named_as_the_table_names_it() -> None:
    """A base may bring programs that no role installs. Everything else must be a component, else it would be installed again."""
    programs = {"kubelet", "ecs_agent", "parallelcluster"}
    for name, values in SYSTEMS.items():
        assert set(values.get("brings", [])) - programs <= set(component_table.NAMES), name
        assert name.removesuffix(".pkrvars.hcl") == f"{values['system']}-{values['architecture']}"


@pytest.mark.parametrize("purpose", [purpose for purpose in PURPOSES if "muster_compute" in PURPOSES[purpose].get("groups", [])])
def test_an_image_of_slurm_has_what_its_nodes_carry(purpose: str) -> None:
    """A node would install what its image lacks at each boot, and reimage.yml would refuse the image."""
    groups = {"all", *PURPOSES[purpose]["groups"]}
    carried = {
        entry["name"]
        for entry in component_table.TABLE
        if "when" not in entry and isinstance(entry.get("groups"), list) and groups & set(entry["groups"])
    }
    # The fleet shares the trainer's environment through /fsx.
    assert carried - {"trainer"} <= set(wanted(purpose))
