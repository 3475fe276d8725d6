# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: the roles on a node that calls itself Amazon Linux 2023, with Debian's dnf and stub RPMs, and under Python 3.9.

Run by `make proofs`, or `pytest --engine tests/proof/dnf_systems.py`; about ten minutes on two cores.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import amazon_linux as amazon
import pytest
from e2e_fleet import Fleet

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import find_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet as Containers
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
NAME, NODE = "dnf", "compute-1"
PYTHON = "/usr/local/bin/python3"
ROLES = [
    *(
        "common",
        "kernel",
        "lustre_client",
        "local_nvme",
        "nvidia_driver",
        "nvidia_fabric",
        "cuda",
        "gdrcopy",
        "efa",
        "nccl",
        "aws_ofi_nccl",
    ),
    *("nccl_tests", "docker", "nvidia_container_toolkit", "dcgm", "cloud_tools", "storage"),
]
# A type whose fabric manager needs a subnet manager.
TYPE = {"instance_type": "p6-b200.48xlarge", "kernel_modules_extra": True}


class Node:
    """The node, and playbooks on it."""

    def __init__(self, folder: Path) -> None:
        inventory = folder / "inventory"
        inventory.mkdir()
        options = {"plugin": "muster.fleet.local_fleet", "fleet": NAME, "compute": 1, "cpus": 2, "memory": "4096"}
        (inventory / "local_fleet.yml").write_text(json.dumps(options))
        # Its file server is the node itself.
        (inventory / "storage.json").write_text(json.dumps({"muster_storage": {"hosts": {NODE: {}}}}))
        (inventory / "group_vars").symlink_to(ROOT / "inventory/local/group_vars")
        self.fleet = Fleet(folder, NAME, inventory)
        self.containers = Containers(NAME, find_engine(), self.fleet.state_dir, cache_dir(self.fleet.env))
        self.folder = folder / "mirror"
        self.stack = Path()

    def sh(self, script: str) -> str:
        """Run a script on the node and return its output; fail when it fails."""
        done = self.containers.run_in(NODE, ["bash", "-ec", script], timeout=600)
        assert done.code == 0, done
        return done.stdout.strip()

    def put(self, folder: Path, path: str, *exclude: str) -> None:
        """Copy a folder to the node."""
        archive = folder.parent / "copied.tar"
        subprocess.run(["tar", "-C", str(folder), *(f"--exclude={each}" for each in exclude), "-cf", str(archive), "."], check=True)
        engine, container = self.containers.engine, self.containers.container_name(NODE)
        engine.change("cp", str(archive), f"{container}:/var/tmp/copied.tar")
        self.sh(f"mkdir -p {path}; tar -C {path} --no-same-owner -xf /var/tmp/copied.tar; rm /var/tmp/copied.tar")
        archive.unlink()

    def become_amazon_linux(self, python: Path) -> None:
        install = "DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Options::=--force-unsafe-io install --no-install-recommends"
        self.sh(f"apt-get -qq update; {install} {' '.join(amazon.DEBIAN + amazon.TOOLS)} >/dev/null 2>&1")
        self.put(python, str(python), "test", "__pycache__", "share", "idlelib", "site-packages")
        self.sh(f"ln -s {python}/bin/python3.9 {PYTHON}")
        # Not before, because local_up.yml waits for a Python on the node.
        variables = self.fleet.folder / "inventory/host_vars" / f"{NODE}.yml"
        variables.parent.mkdir()
        variables.write_text(json.dumps({"ansible_python_interpreter": PYTHON}))
        self.stack = amazon.mirror(self.folder, self.sh, self.put)
        self.sh(amazon.BECOME)
        self.sh(f"dnf --quiet --assumeyes install {' '.join(amazon.BASE)}")

    def play(self, *phases: str, components: list[str], **variables: object) -> subprocess.CompletedProcess:
        asked = {
            "muster_phases": list(phases),
            "muster_components": components,
            "muster_stack_name": str(self.stack),
            "muster_mirror": str(self.folder),
            "muster_cache_dir": str(self.folder.parent / "cache"),
            **variables,
        }
        return self.fleet.run("playbooks/stack.yml", "--limit", NODE, "-e", json.dumps(asked), timeout=900)

    def module(self, name: str, **arguments: object) -> None:
        """Run one module on the node."""
        argv = [".venv/bin/ansible", NODE, "-i", str(self.fleet.inventory), "-b", "-m", name, "-a", json.dumps(arguments)]
        done = subprocess.run(argv, cwd=ROOT, env=self.fleet.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def succeeded(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def changed(output: str) -> int:
    found = re.search(rf"^{NODE} .* changed=(\d+) ", output, re.MULTILINE)
    assert found
    return int(found[1])


@pytest.fixture(scope="module")
def node(artifacts) -> Node:
    python = amazon.python39()
    if python is None:
        pytest.exit("no Python 3.9 on this machine; name one in PYTHON39", returncode=75)
    made = Node(artifacts.folder(NAME))
    artifacts.leave(f"fleet {NAME}", lambda: made.fleet.run("playbooks/local_down.yml").check_returncode())
    assert made.fleet.run("playbooks/local_up.yml").returncode == 0
    made.become_amazon_linux(python)
    return made


@pytest.fixture(scope="module")
def installed(node: Node) -> list[str]:
    """The install phase of all roles, twice."""
    return [succeeded(node.play("install", components=ROLES, **TYPE)) for _again in range(2)]


def test_the_second_install_of_all_roles_changes_nothing(node: Node, installed: list[str]) -> None:
    assert [changed(each) > 0 for each in installed] == [True, False]
    carried = json.loads(node.sh("cat /etc/muster/manifest.json"))["components"]
    assert set(carried) == set(ROLES)


def test_the_modules_ran_under_python_3_9(node: Node, installed: list[str]) -> None:
    assert node.sh("python3 -c 'import sys; print(sys.version_info[:2])'") == "(3, 9)"
    assert "discovered_interpreter" not in installed[0]


def test_full_builds_replace_the_minimal_ones_that_they_conflict_with(node: Node, installed: list[str]) -> None:
    names = node.sh("rpm -qa --qf '%{NAME}\\n'").split()
    assert {"curl", "gnupg2"} <= set(names)
    assert not {"curl-minimal", "gnupg2-minimal"} & set(names)


def test_the_driver_has_the_stacks_version_although_its_stream_has_a_later_one(node: Node, installed: list[str]) -> None:
    packages = [each.name for each in amazon.driver(amazon.DRIVER) if each.name != "nvidia-imex"]
    versions = node.sh(f"rpm -q --qf '%{{VERSION}}\\n' {' '.join(packages)}").split()
    assert versions == [amazon.DRIVER] * len(packages)
    assert "stream=595-open" in node.sh("cat /etc/dnf/modules.d/nvidia-driver.module").splitlines()
    # Without module_hotfixes the stream hides that version.
    query = "dnf --quiet repoquery --qf '%{version}\\n' kmod-nvidia-open-dkms"
    assert node.sh(f"{query} --setopt='*.module_hotfixes=0'").split() == [amazon.NEWER_DRIVER]
    assert amazon.DRIVER in node.sh(query).split()


def test_held_packages_stay_in_an_upgrade(node: Node, installed: list[str]) -> None:
    locked = node.sh("cat /etc/dnf/plugins/versionlock.list").splitlines()
    assert f"kmod-nvidia-open-dkms-3:{amazon.DRIVER}-1.amzn2023.*" in locked
    assert {f"{name}-0:{amazon.KERNEL}.*" for name in ("kernel", "kernel-devel", "kernel-modules-extra")} <= set(locked)
    assert "nvidia" not in node.sh("dnf --assumeno upgrade 2>&1 || :")


def test_another_version_of_the_driver_replaces_a_held_one(node: Node, installed: list[str]) -> None:
    """The packages are those of the driver; the stack document names the version."""
    wanted = [f"{name}={amazon.NEWER_DRIVER}*" for name in ("kmod-nvidia-open-dkms", "nvidia-driver-cuda")]
    there = [each.replace(amazon.NEWER_DRIVER, amazon.DRIVER) for each in wanted]
    for names, version in ((wanted, amazon.NEWER_DRIVER), (there, amazon.DRIVER)):
        node.module("muster.fleet.packages", names=names)
        assert node.sh("rpm -q --qf '%{VERSION}\\n' kmod-nvidia-open-dkms nvidia-driver-cuda").split() == [version] * 2


def test_modules_are_built_for_the_kernel_that_boots_next(node: Node, installed: list[str]) -> None:
    built = node.sh("dkms status").splitlines()
    assert [f"nvidia/{amazon.DRIVER}, {amazon.RELEASE}, x86_64: installed", f"gdrdrv/2.6, {amazon.RELEASE}, x86_64: installed"] == built[:2]


def test_fabric_manager_starts_only_where_the_switches_are(node: Node, installed: list[str]) -> None:
    assert node.sh("systemctl is-enabled nvidia-fabricmanager") == "enabled"
    assert node.sh("cat /etc/modules-load.d/muster-nvlsm.conf").splitlines()[-1] == "ib_umad"
    assert node.sh("rpm -q --qf '%{NAME} ' infiniband-diags nvlsm").split() == ["infiniband-diags", "nvlsm"]
    state = node.sh("systemctl start nvidia-fabricmanager; systemctl show -P ActiveState -P Result nvidia-fabricmanager")
    assert set(state.split()) == {"inactive", "exec-condition"}, "there is no switch here, and that is no failure"


def test_a_timer_that_upgrades_packages_is_found_and_switched_off(node: Node, installed: list[str]) -> None:
    node.sh("dnf --quiet --assumeyes install dnf-automatic; systemctl enable --now dnf-automatic.timer 2>/dev/null")
    failed = node.play("verify_image", components=["common"])
    assert failed.returncode != 0
    assert "dnf-automatic.timer" in failed.stdout
    succeeded(node.play("install", "verify_image", components=["common"], muster_install_again=["common"]))
    assert node.sh("systemctl is-enabled dnf-automatic.timer || :") == "disabled"


def test_neuron_has_the_versions_of_its_release(node: Node, installed: list[str]) -> None:
    """On a node of its own it would be; here it comes after NVIDIA's driver, because a second node takes minutes."""
    runs = [succeeded(node.play("install", components=["neuron"], instance_type="trn2.48xlarge")) for _again in range(2)]
    assert changed(runs[1]) == 0
    packages = {each.name: each.version for each in amazon.neuron()[0]}
    found = node.sh(f"rpm -q --qf '%{{NAME}} %{{VERSION}}\\n' {' '.join(packages)}").splitlines()
    assert dict(line.split() for line in found) == packages


@pytest.mark.parametrize("role", ["slurm", "users"])
def test_a_role_without_packages_for_this_system_says_so(node: Node, installed: list[str], role: str) -> None:
    refused = node.play("install", components=[role], users_servers=["ldap://directory"], users_base="dc=example")
    said = re.sub(r"\s+", " ", refused.stdout)
    assert refused.returncode != 0
    assert (
        f"Role {role} does not know the packages of Amazon; use Debian or Ubuntu for {NODE}, or leave {role} out of its muster_components."
        in said
    )
