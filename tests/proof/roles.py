# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""All roles on one node: dry run, first and second run, their own tests, each phase alone, hooks, repairs, the built collection."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_settings import kernel_settings

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import find_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir, state_dir

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
NAME = "roles"
NODE = {"name": "controller-1", "groups": ["muster_controller", "muster_compute"], "memory": "3072"}
# Roles of GPU nodes that need no vendor's host and no 6 GB of CUDA; stub archives (.config/molecule/stub_archives) are their sources.
HARDWARE = ["kernel", "local_nvme", "gdrcopy", "nccl", "aws_ofi_nccl", "nccl_tests"]
NO_GPU = ["kernel.running", "local_nvme.made", "local_nvme.mounted", "gdrcopy.copies", "aws_ofi_nccl.network", "nccl_tests.all_reduce"]
PHASES = ["install", "configure", "verify_image", "verify_node", "verify_fleet"]


class Node:
    """One container that is controller and compute node; runs playbooks on it."""

    def __init__(self, folder: Path, release: str) -> None:
        self.folder = folder
        self.release = release
        self.inventory = folder / "inventory"
        self.inventory.mkdir()
        options = {"plugin": "muster.fleet.local_fleet", "fleet": NAME, "memory": NODE["memory"], "release": release}
        (self.inventory / "local_fleet.yml").write_text(json.dumps(options))
        (self.inventory / "group_vars").symlink_to(ROOT / "inventory/local/group_vars")
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "ANSIBLE_NOCOLOR": "1"}

    def call(self, *argv: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / argv[0]), *argv[1:]]
        environment = {**self.env, **env}
        return subprocess.run(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def play(self, playbook: str, *args: str, cwd: Path = ROOT, env: dict[str, str] | None = None, **variables: object) -> Play:
        extra = ["-e", json.dumps(variables)] if variables else []
        return Play(self.call("ansible-playbook", "-i", str(self.inventory), playbook, *extra, *args, cwd=cwd, **(env or {})))

    def containers(self, **options: object) -> None:
        arguments = json.dumps({"fleet": NAME, "image": {"release": self.release}, **options})
        done = self.call("ansible", "localhost", "-i", str(self.inventory), "-m", "muster.fleet.node_container", "-a", arguments)
        assert done.returncode == 0, done.stdout

    def sh(self, script: str) -> str:
        """Run a script on the node and return its output; fail when it fails."""
        containers = Fleet(NAME, find_engine(), state_dir(NAME, self.env), cache_dir(self.env))
        done = containers.run_in("controller-1", ["sh", "-ec", script])
        assert done.code == 0, done
        return done.stdout.strip()


class Play:
    """The result of a playbook on the node: the numbers of its recap and its tasks."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.output = done.stdout + done.stderr
        recap = re.search(r"^controller-1 +: (.*)$", self.output, re.MULTILINE)
        self.numbers = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", recap[1])} if recap else {}
        self.ok = done.returncode == 0
        self.tasks = re.findall(r"^TASK \[(?:muster\.fleet\.)?(.+?)\] \**$", self.output, re.MULTILINE)

    @property
    def changed(self) -> list[str]:
        """Names of the tasks that changed something."""
        parts = re.split(r"^TASK \[(?:muster\.fleet\.)?(.+?)\] \**$", self.output, flags=re.MULTILINE)
        return [name for name, text in zip(parts[1::2], parts[2::2], strict=True) if re.search(r"^changed: ", text, re.MULTILINE)]

    def succeeded(self) -> Play:
        assert self.ok, self.output[-6000:]
        return self


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return kernel_settings()


@pytest.fixture(scope="module")
def node(artifacts, settings, request) -> Node:
    made = Node(artifacts.folder(NAME), request.config.getoption("--release"))
    artifacts.leave(f"fleet {NAME}", lambda: made.containers(state="absent", remove_state=True))
    made.containers(state="absent", remove_state=True)
    made.containers(nodes=[NODE])
    return made


@pytest.fixture(scope="module")
def dry(node: Node) -> tuple[str, Play, str]:
    """A dry run of the install on a bare node, and the node's state before and after."""
    state = "dpkg-query -W | sha256sum; find /etc /usr /opt /fsx -xdev -newer /run/begin"
    node.sh("touch /run/begin")
    before = node.sh(state)
    return before, node.play("playbooks/stack.yml", "--check", muster_phases=["install"]), node.sh(state)


@pytest.fixture(scope="module")
def first(node: Node, dry) -> Play:
    return node.play("playbooks/stack.yml", muster_phases=PHASES)


@pytest.fixture(scope="module")
def second(node: Node, first: Play) -> Play:
    return node.play("playbooks/stack.yml", muster_phases=PHASES)


def test_a_dry_run_on_a_bare_node_changes_nothing(dry) -> None:
    before, play, after = dry
    play.succeeded()
    assert "common : install | Install the packages" in play.changed
    assert after == before


def test_first_converge_proves_the_node(first: Play) -> None:
    first.succeeded()
    assert first.numbers["failed"] == 0
    assert "slurm : install | Install the packages" in first.changed


def test_second_converge_changes_nothing(second: Play) -> None:
    second.succeeded()
    assert second.changed == []
    assert second.numbers["changed"] == 0


def test_second_converge_installs_nothing(second: Play) -> None:
    """When the manifest matches, phases skips the whole install of a role."""
    assert [name for name in second.tasks if " : install" in name] == [
        f"{role} : install | Compare the component with the manifest" for role in ["phases"] * 4
    ]  # common, slurm, node_health, trainer


@pytest.fixture(scope="module")
def hardware(node: Node, second: Play) -> list[Play]:
    """The first and second run of the roles of GPU nodes; none on Debian 12, where nobody has tried them yet."""
    if node.release != "trixie":
        return []
    archives = node.folder / "stub"
    subprocess.run([sys.executable, str(ROOT / ".config/molecule/stub_archives"), str(archives)], check=True)
    variables = {
        "muster_components": HARDWARE,
        "muster_stack_name": str(archives / "stub.yml"),
        "muster_mirror": str(archives),
        "muster_allow_not_run": NO_GPU,
        "kernel_packages": ["linux-headers-amd64"],
        "nccl_instance_type": "p5.48xlarge",
        "muster_cache_dir": str(node.folder / "cache"),
    }
    return [node.play("playbooks/stack.yml", muster_phases=PHASES, **variables) for _again in range(2)]


def test_roles_of_gpu_nodes_are_built_once_and_then_skipped(hardware: list[Play]) -> None:
    if not hardware:
        pytest.skip("not tried on this release yet")
    first, again = (play.succeeded() for play in hardware)
    built = [name.rsplit(" ", 1)[1] for name in first.changed if "Spend minutes on the build of" in name]
    assert built == ["gdrcopy", "aws_ofi_nccl", "nccl_tests"]
    assert again.changed == []
    assert [name for name in again.tasks if " : install" in name or "source_build" in name or "packages |" in name] == [
        "phases : install | Compare the component with the manifest" for _role in HARDWARE
    ]


def test_a_dry_run_on_a_proven_node_changes_nothing(node: Node, second: Play) -> None:
    play = node.play("playbooks/stack.yml", "--check", muster_phases=["install", "configure"]).succeeded()
    assert play.changed == []


def test_roles_own_tests(node: Node, second: Play, hardware: list[Play]) -> None:
    carried = json.loads(node.sh("cat /etc/muster/manifest.json"))["components"]
    assert {"common", "slurm", "trainer"} <= set(carried)
    files = [str(path) for role in carried for path in ROOT.glob(f"roles/{role}/molecule/default/tests/test_*.py")]
    options = ["-p", "no:cacheprovider", "--hosts=ansible://all", f"--ansible-inventory={node.inventory}"]
    done = node.call("pytest", "-q", *options, *files)
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.parametrize("phase", PHASES)
def test_each_phase_alone(node: Node, second: Play, phase: str) -> None:
    play = node.play("playbooks/stack.yml", muster_phases=[phase]).succeeded()
    assert play.changed == []
    others = [name for name in play.tasks for other in PHASES if other != phase and f" : {other} | " in name]
    assert others == []


def test_hooks_run_around_their_phase(node: Node, second: Play) -> None:
    """A site's task files run in their order; a skipped install runs none of its hooks."""
    moments = [f"{when}_{phase}" for phase in ("install", "configure", "verify_node") for when in ("before", "after")]
    for moment in moments:
        task = {"name": f"hook {moment}", "ansible.builtin.command": {"argv": ["true"]}, "changed_when": False}
        (node.folder / f"{moment}.yml").write_text(json.dumps([task]))
    hooks = {"common": {moment: str(node.folder / f"{moment}.yml") for moment in moments}}
    phases = ["install", "configure", "verify_node"]

    def order(play: Play) -> list[str]:
        marks = re.compile(
            r"hook \w+|common : configure \| Write limits|common : install \| Install the packages|common : verify_node \| .*"
        )
        return [found[0].split(" : ")[-1].split(" | ")[0] for name in play.succeeded().tasks if (found := marks.search(name))]

    skipped = order(node.play("playbooks/stack.yml", muster_phases=phases, muster_hooks=hooks, muster_components=["common"]))
    around = [
        "hook before_configure",
        "configure",
        "hook after_configure",
        "hook before_verify_node",
        "verify_node",
        "hook after_verify_node",
    ]
    assert skipped == around
    node.sh("rm /etc/apt/apt.conf.d/90muster")
    done = node.play("playbooks/stack.yml", muster_phases=phases, muster_hooks=hooks, muster_components=["common"])
    assert order(done) == ["hook before_install", "install", "hook after_install", *around]


def test_missing_files_and_packages_are_installed_again(node: Node, second: Play) -> None:
    """An artefact of one component and a package of another are missing; the third component is left alone."""
    look = "cat /etc/apt/apt.conf.d/90muster; dpkg-query -W python3-venv"
    before = node.sh(look)
    node.sh("rm /etc/apt/apt.conf.d/90muster; dpkg --purge python3-venv")
    play = node.play("playbooks/stack.yml", muster_phases=["install"]).succeeded()
    assert node.sh(look) == before
    assert [name for name in play.tasks if name.endswith("install | Install the packages")] == [
        "common : install | Install the packages",
        "trainer : install | Install the packages",
    ]
    assert node.play("playbooks/stack.yml", muster_phases=["install"]).succeeded().changed == []


def test_a_failed_install_leaves_no_service_guard(node: Node, second: Play) -> None:
    broken = {"common_packages": ["jq", "muster-no-such-package"]}
    play = node.play("playbooks/stack.yml", muster_phases=["install"], muster_components=["common"], **broken)
    assert not play.ok
    node.sh("! test -e /usr/sbin/policy-rc.d")
    # The manifest is still right, so the next run repairs nothing.
    assert node.play("playbooks/stack.yml", muster_phases=["install"]).succeeded().changed == []


def test_a_role_in_a_plain_playbook_from_the_installed_collection(node: Node, second: Play) -> None:
    built, installed, elsewhere = (node.folder / name for name in ("built", "installed", "elsewhere"))
    elsewhere.mkdir()
    done = node.call("ansible-galaxy", "collection", "build", "--output-path", str(built))
    assert done.returncode == 0, done.stderr
    [tarball] = built.glob("muster-fleet-*.tar.gz")
    alone = {"ANSIBLE_COLLECTIONS_PATH": str(installed), "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "false"}
    done = node.call("ansible-galaxy", "collection", "install", str(tarball), "-p", str(installed), "--offline", cwd=elsewhere, **alone)
    assert done.returncode == 0, done.stderr
    (elsewhere / "play.yml").write_text(json.dumps([{"hosts": "all", "become": True, "roles": ["muster.fleet.common"]}]))
    node.sh("rm /etc/security/limits.d/90-muster.conf")
    play = node.play("play.yml", cwd=elsewhere, env=alone).succeeded()
    assert play.changed == ["common : configure | Write limits"]
    assert f"{installed}/ansible_collections/muster/fleet/roles" in play.output
    assert node.play("play.yml", cwd=elsewhere, env=alone).succeeded().changed == []


def test_the_machines_kernel_settings_are_as_before(settings: dict[str, str], second: Play) -> None:
    assert kernel_settings() == settings
