# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Nodes that rehearse instance types, with a real engine: every type of the catalogue, restarts, faults, refusals, and an untouched host.

Run by `make proofs`, or `pytest --engine tests/proof/rehearsed_nodes.py`; about two minutes on two cores.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_settings import kernel_settings

from ansible_collections.muster.fleet.plugins.module_utils.containers import rehearsal
from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError, find_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet
from ansible_collections.muster.fleet.plugins.module_utils.containers.image import NodeImage
from ansible_collections.muster.fleet.plugins.module_utils.containers.plan import Node
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
NAME = f"r{os.getpid()}"
NODES = {
    "compute-1": "p5.48xlarge",
    "compute-2": "p5.48xlarge",
    "compute-3": "p6-b200.48xlarge",
    "compute-4": "trn1.32xlarge",
    "login-1": "",
}
# What a node shows of its devices, by the readers of Muster that modules use.
LOOK = """
import errno, json, os, sys
def count(path): return len(os.listdir(path)) if os.path.isdir(path) else 0
def opens(path):
    try: os.close(os.open(path, os.O_RDWR)); return 0
    except OSError as error: return error.errno
vendors = [open(f"/sys/bus/pci/devices/{each}/vendor").read().strip() for each in os.listdir("/sys/bus/pci/devices")]
devices = [f"/dev/{each}" for each in os.listdir("/dev") if each.startswith(("nvidia", "neuron")) and each[6:].isdigit()]
devices += [f"/dev/infiniband/{each}" for each in os.listdir("/dev/infiniband")] if os.path.isdir("/dev/infiniband") else []
print(json.dumps({
    "gpus": sum(each[5:].startswith("nvidia") for each in devices),
    "neuron": sum(each[5:].startswith("neuron") for each in devices),
    "uverbs": sum("uverbs" in each for each in devices),
    "infiniband": count("/sys/class/infiniband"),
    "vendors": sorted(set(vendors)),
    "opens": sorted({opens(each) for each in devices}),
    "net": count("/sys/class/net"),
}))
"""


def machine() -> dict[str, object]:
    """What a container without bounds could change on this machine."""
    folders = ("/sys/class", "/sys/bus/pci/devices", "/sys/module", "/proc/driver", "/dev")
    return {**{folder: sorted(os.listdir(folder)) for folder in folders if os.path.isdir(folder)}, "settings": kernel_settings()}


def kernel_log() -> str:
    """What this machine's kernel log has."""
    out = []
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            out.append(os.read(log, 8192).decode(errors="replace"))
    except (BlockingIOError, BrokenPipeError):
        return "".join(out)
    finally:
        os.close(log)


@pytest.fixture(scope="module")
def before() -> dict[str, object]:
    return machine()


@pytest.fixture(scope="module")
def fleet(artifacts, before) -> Iterator[Fleet]:
    found = Fleet(NAME, find_engine(), artifacts.folder("state") / "muster" / NAME, cache_dir(os.environ))
    artifacts.leave(f"fleet {NAME}", lambda: found.absent(remove_state=True))
    found.present(nodes(NODES), NodeImage())
    yield found


def nodes(types: dict[str, str]) -> list[Node]:
    return [Node(name, (f"muster_{name.split('-', maxsplit=1)[0]}",), memory_mib=384, type=kind) for name, kind in types.items()]


def look(fleet: Fleet, node: str) -> dict:
    done = fleet.run_in(node, ["python3", "-c", LOOK])
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def expected(kind: str) -> dict:
    have, document = catalogue.instance_type(kind), rehearsal.rehearsal(kind)
    vendors = {"0x1d0f"} if have["efa_cards"] or have["accelerator"] == "neuron" else set()
    vendors |= {"0x10de"} if have["accelerator"] == "nvidia" else set()
    cards = have["efa_cards"] + len(document["switch_ports"])
    return {
        "gpus": have["gpus"] if have["accelerator"] == "nvidia" else 0,
        "neuron": have["gpus"] if have["accelerator"] == "neuron" else 0,
        "uverbs": cards,
        "infiniband": cards,
        "vendors": sorted(vendors | ({"0x15b3"} if document["switch_ports"] else set())),
        "opens": [errno.ENXIO],
    }


@pytest.mark.parametrize("node", [node for node, kind in NODES.items() if kind])
def test_a_node_has_what_its_type_has_and_no_hardware(fleet: Fleet, node: str) -> None:
    seen = look(fleet, node)
    assert seen.pop("net") == 2  # lo and eth0 show through the overlay
    assert seen == expected(NODES[node])


def test_a_node_without_a_type_has_nothing(fleet: Fleet) -> None:
    seen = look(fleet, "login-1")
    assert (seen["gpus"], seen["neuron"], seen["uverbs"]) == (0, 0, 0)
    assert fleet.run_in("login-1", ["ls", "/etc/muster/rehearsal.json"]).code != 0


def test_every_type_of_the_catalogue_can_be_made(fleet: Fleet) -> None:
    kinds = [kind for kind in catalogue.names() if rehearsal.can_rehearse(kind)]
    for kind in kinds:
        folder = fleet.state / "fsx" / kind
        folder.mkdir()
        (folder / "rehearsal.json").write_bytes(rehearsal.node_files(kind)["rehearsal.json"])
    each = f"for kind in {' '.join(kinds)}; do /run/muster-node/stand-in boot /fsx/$kind && python3 -c '{LOOK}'; done"
    done = fleet.run_in("compute-2", ["sh", "-c", each], timeout=400)
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(seen) == len(kinds), done.stderr
    wrong = {kind: found for kind, found in zip(kinds, seen, strict=True) if not found.items() >= expected(kind).items()}
    assert not wrong
    assert fleet.run_in("compute-2", ["/run/muster-node/stand-in", "boot", "/run/muster-node"]).code == 0


def fault(fleet: Fleet, node: str, faults: object) -> subprocess.CompletedProcess:
    """Run local_fault.yml as a user does."""
    (fleet.state / "local_fleet.yml").write_text("plugin: muster.fleet.local_fleet\n")
    argv = [".venv/bin/ansible-playbook", "-i", str(fleet.state / "local_fleet.yml"), "playbooks/local_fault.yml"]
    extra = json.dumps({"muster_fleet": fleet.name, "muster_fault_node": node, "muster_faults": faults})
    env = {**os.environ, "XDG_STATE_HOME": str(fleet.state.parents[1])}
    return subprocess.run([*argv, "-e", extra], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_a_fault_stays_over_a_restart_and_ends(fleet: Fleet) -> None:
    made = fault(fleet, "compute-1", [{"fault": "gpu_missing", "index": 3}, {"fault": "slow", "factor": 0.5}])
    assert made.returncode == 0, made.stdout
    for _start in range(2):
        assert look(fleet, "compute-1")["gpus"] == 7
        fleet.set_state("stopped", ["compute-1"])
        fleet.set_state("started", ["compute-1"])
    assert '"host": "compute-1"' in fleet.run_in("compute-2", ["cat", "/etc/muster/rehearsal-faults.json"]).stdout
    again = fault(fleet, "compute-1", [{"fault": "gpu_missing", "index": 3}, {"fault": "slow", "factor": 0.5}])
    assert again.stdout.count("changed=0") == len(NODES) + 1
    assert fault(fleet, "compute-1", []).returncode == 0
    assert look(fleet, "compute-1")["gpus"] == 8
    assert fleet.run_in("compute-2", ["cat", "/etc/muster/rehearsal-faults.json"]).stdout == "[]\n"


def test_an_xid_is_in_the_log_of_the_node_only(fleet: Fleet) -> None:
    assert fault(fleet, "compute-1", [{"fault": "xid", "index": 0, "code": 94}]).returncode == 0
    assert "NVRM: Xid (PCI:0000:10:1e): 94" in fleet.run_in("compute-1", ["cat", "/dev/kmsg"]).stdout
    assert "Xid (PCI:0000:10:1e)" not in kernel_log()


@pytest.mark.parametrize(
    ("node", "faults", "sentence"),
    [
        ("compute-1", [{"fault": "gpu_lost", "index": 8}], "Fault gpu_lost cannot have index 8: p5.48xlarge has 8 GPUs, from 0 to 7."),
        ("compute-1", [{"fault": "gpu_lots", "index": 1}], "There is no fault gpu_lots; known are gpu_lost"),
        ("login-1", [], "and login-1 rehearses none; name one of compute-1, compute-2, compute-3, compute-4 in muster_fault_node"),
    ],
)
def test_faults_that_cannot_be(fleet: Fleet, node: str, faults: list, sentence: str) -> None:
    said = fault(fleet, node, faults)
    assert said.returncode != 0
    assert sentence in " ".join(said.stdout.split())


def test_the_type_of_a_live_node_stays(fleet: Fleet) -> None:
    with pytest.raises(NodeContainerError, match=r"Node compute-1 .* \(type is 'p5.48xlarge', wanted 'p5en.48xlarge'\): remove the fleet"):
        fleet.present(nodes({**NODES, "compute-1": "p5en.48xlarge"}), NodeImage())


def test_an_image_of_a_rehearsed_node_does_not_claim_its_devices(fleet: Fleet) -> None:
    image = f"localhost/muster-{NAME}:copy"
    fleet.commit("compute-1", image)
    try:
        fleet.add(Node("copy-1", ("muster_copy",), memory_mib=384), NodeImage(reference=image), {})
        fleet.wait_for_ssh({"copy-1": fleet.address("copy-1")}, 60, fresh=["copy-1"])
        assert look(fleet, "copy-1")["gpus"] == 0
        done = fleet.run_in("copy-1", ["sh", "-c", "ls /etc/muster/rehearsal.json || nvidia-smi"])
        assert done.code != 0
    finally:
        fleet.absent(["copy-1"])
        fleet.remove_images([image])


def test_this_machine_is_untouched(fleet: Fleet, before: dict[str, object]) -> None:
    after = machine()
    assert {key: value for key, value in after.items() if before[key] != value} == {}
    assert "muster-rehearsal" not in Path("/proc/self/mounts").read_text()
