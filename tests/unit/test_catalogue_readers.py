# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Every value that derives from the catalogue has a reader in what provisions, checks or runs jobs, or stands in a short list here.
Every module has a caller.

A value that nothing reads does nothing for a user who has nodes of the type. What only imitates a machine (the rehearsal, the local
cloud) and what only prints the catalogue does not count.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.filter.catalogue import FilterModule
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue

ROOT = Path(__file__).parents[2]
UTILS = "plugins/module_utils/"
HARDWARE, RULES = UTILS + "hardware/", UTILS + "stack/rules_"
# Field of instance_type() -> a file that reads it.
READERS = {
    "name": "plugins/plugin_utils/stack_hosts.py",
    "family": RULES + "gpu.py",
    "arch": RULES + "launch.py",
    "vcpus": UTILS + "jobs/fleet.py",
    "cores": HARDWARE + "catalogue.py",
    "sockets": HARDWARE + "catalogue.py",
    "threads_per_core": RULES + "launch.py",
    "memory_mib": HARDWARE + "catalogue.py",
    "markets": UTILS + "aws/hosts.py",
    "boot_mode": RULES + "launch.py",
    "nvme": "roles/local_nvme/defaults/main.yml",
    "wire_gbps": HARDWARE + "catalogue.py",
    "topology_layers": "plugins/plugin_utils/ec2_api.py",
    "accelerator": UTILS + "jobs/fleet.py",
    "gpu_model": HARDWARE + "gpu.py",
    "gpu_arch": HARDWARE + "nvidia_driver.py",
    "compute_capability": RULES + "cuda.py",
    "gpu_pci": HARDWARE + "gpu.py",
    "gpus": UTILS + "jobs/fleet.py",
    "gpu_memory_mib": HARDWARE + "gpu.py",
    "gpu_memory_gib": UTILS + "jobs/fleet.py",
    "nvlink": HARDWARE + "catalogue.py",
    "nvlinks": HARDWARE + "gpu.py",
    "nvswitch": HARDWARE + "nvidia_fabric.py",
    "nvlink_domain": HARDWARE + "nccl_env.py",
    "fabric_pci": HARDWARE + "nvidia_fabric.py",
    "neuron_cores": UTILS + "jobs/target.py",
    "efa": HARDWARE + "nccl_env.py",
    "efa_cards": HARDWARE + "efa.py",
    "efa_counts": HARDWARE + "efa.py",
    "efa_gbps": HARDWARE + "catalogue.py",
    "rdma": HARDWARE + "nccl_env.py",
    "gpudirect_rdma": RULES + "efa.py",
    "network_cards": RULES + "launch.py",
    "interfaces": HARDWARE + "efa.py",
    "full_speed_bytes": UTILS + "jobs/fleet.py",
    "busbw": HARDWARE + "catalogue.py",
    "peak_flops": "tools/catalogue.py",  # which writes trainer/devices.json, from which the trainer computes its MFU
}
# Read by nothing yet, each with what will read it. Whoever connects one moves it to READERS.
UNREAD = {}
FILTERS = {
    "instance_type": "roles/neuron/defaults/main.yml",
    "ec2_interfaces": UTILS + "aws/template.py",  # the function of this name; the filter is for playbooks of users
}
UNREAD_FILTERS: dict[str, str] = {}
# These lead into the catalogue and read nothing of their own: the definitions, and what imitates a machine.
NOT_READERS = (HARDWARE + "catalogue_data.py", UTILS + "containers/rehearsal.py", UTILS + "containers/stand_ins/", "plugins/filter/")


# Modules that no playbook or role calls, each with the page that shows how a user does.
FOR_USERS = {"ami_lifecycle": "docs/images.md", "report": "docs/usage.md"}


def reads(field: str, text: str) -> bool:
    """Whether code takes the field out of a type: have["efa"], kind.get("efa"), case.type("efa"), instance_type(name)["efa"]."""
    taken = r"""((\b(have|kind|each)|\))(\[|\.get\()|\.type\()["']{0}["']|instance_type\)\.{0}\b"""
    return re.search(taken.format(field), text) is not None


def text_of(path: str) -> str:
    """A file, of the catalogue's own code only what derives from a finished type."""
    text = (ROOT / path).read_text()
    return text.split("def model_of")[1] if path == HARDWARE + "catalogue.py" else text


def test_every_field_is_listed_once() -> None:
    fields = {field for name in catalogue.names() for field in catalogue.instance_type(name)}
    assert sorted([*READERS, *UNREAD]) == sorted(fields)
    filters = FilterModule().filters()
    assert sorted([*FILTERS, *UNREAD_FILTERS]) == sorted(filters)


@pytest.mark.parametrize(("field", "path"), READERS.items())
def test_the_reader_reads_the_field(field: str, path: str) -> None:
    assert reads(field, text_of(path)), f"{path} reads {field} no more: name another reader, or delete the field from the catalogue"


@pytest.mark.parametrize(("name", "path"), FILTERS.items())
def test_the_reader_uses_the_filter(name: str, path: str) -> None:
    assert re.search(rf"\b{name}\b", text_of(path))


@pytest.mark.parametrize("field", [*UNREAD, *UNREAD_FILTERS])
def test_what_is_read_by_now_leaves_the_list(field: str) -> None:
    used = rf"muster\.fleet\.{field}\b" if field in UNREAD_FILTERS else None
    for folder in ("plugins", "roles", "playbooks"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if not path.is_file() or path.suffix not in (".py", ".yml", ".j2") or "/molecule/" in name or name.startswith(NOT_READERS):
                continue
            if name == HARDWARE + "catalogue.py":
                continue
            found = re.search(used, path.read_text()) if used else reads(field, path.read_text())
            assert not found, f"{name} reads {field}: move it from UNREAD to READERS"


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "plugins/modules").glob("[a-z]*.py")))
def test_somebody_calls_the_module(name: str) -> None:
    called = re.compile(rf"muster\.fleet\.{name}\b")
    callers = [
        str(path)
        for folder in ("playbooks", "roles", "packer")
        for path in (ROOT / folder).rglob("*.yml")
        if called.search(path.read_text())
    ]
    callers = [path for path in callers if "/molecule/" not in path]
    if name in FOR_USERS:
        assert not callers, f"{callers[0]} calls {name}: take it out of FOR_USERS"
        assert called.search((ROOT / FOR_USERS[name]).read_text())
    else:
        assert callers, f"nothing calls module {name}: connect it, or delete it"
