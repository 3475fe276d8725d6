# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: the machine under the local fleet loses its power, and `site.yml`'s playbooks bring the same fleet back, with what Slurm knew.

Podman has a store of its own here, so the machine's images and containers stay. They must not run meanwhile, because podman keeps the
addresses of all stores in one folder. The test removes what a restart removes: every process, without telling podman, the mounts, the
bridge, and everything that podman keeps under /run. It leaves the rules of the packet filter.

Run by `make proofs`, or `pytest --engine tests/proof/machine_restart.py`; about four minutes on two cores.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_fleet import ROOT, Fleet

pytestmark = pytest.mark.engine

NAME = "restart"
ADDRESSES = Path("/run/containers/networks/ipam.db")
HOSTS = ("controller-1", "compute-1", "compute-2")
ONLY_SLURM = json.dumps({"muster_components": ["common", "slurm"]})


class Machine:
    """A podman that shares nothing with the machine's own: its variables, and the end of its power."""

    def __init__(self, folder: Path) -> None:
        self.store, self.run = folder / "store", folder / "run"
        storage, engine = folder / "storage.conf", folder / "containers.conf"
        storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{self.store}"\nrunroot = "{self.run}/storage"\n')
        engine.write_text(
            f'[engine]\ntmp_dir = "{self.run}/libpod"\nlock_type = "file"\n[network]\nnetwork_config_dir = "{folder}/networks"\n'
        )
        self.env = {"CONTAINERS_STORAGE_CONF": str(storage), "CONTAINERS_CONF_OVERRIDE": str(engine), "CONTAINERS_CONF": str(engine)}

    def podman(self, *argv: str) -> str:
        return subprocess.run(["podman", *argv], env={**os.environ, **self.env}, stdout=subprocess.PIPE, text=True, check=True).stdout

    def containers(self) -> list[dict]:
        names = self.podman("ps", "--all", "--quiet").split()
        return json.loads(self.podman("container", "inspect", *names)) if names else []

    def known(self) -> dict[str, tuple[str, str]]:
        """{name: (id, address)} of its containers."""
        return {
            box["Name"]: (box["Id"], box["NetworkSettings"]["Networks"][self.network()["name"]]["IPAddress"]) for box in self.containers()
        }

    def network(self) -> dict:
        """The fleet's network."""
        name = self.podman("network", "ls", "--filter", f"label=muster.fleet={NAME}", "--format", "{{.Name}}").strip()
        return json.loads(self.podman("network", "inspect", name))[0]

    def unmount(self) -> None:
        """Everything that is mounted below its folders, deepest first."""
        below = (f"{self.store}/", f"{self.run}/")
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in sorted(filter(lambda mount: mount.startswith(below), mounts), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=True)

    @staticmethod
    def remove_groups(container: str, patience: float = 20) -> None:
        """The control groups of a container, as soon as its processes are gone."""
        deadline = time.monotonic() + patience
        for group in Path("/sys/fs/cgroup").glob(f"**/libpod-{container}*"):
            for folder, _, _ in os.walk(group, topdown=False):
                while Path(folder).exists():
                    try:
                        os.rmdir(folder)
                    except OSError:
                        if time.monotonic() > deadline:
                            raise
                        time.sleep(0.2)

    def lose_power(self) -> None:
        """End it as a restart does."""
        running = self.containers()
        bridge = self.network()["network_interface"]
        # Kill the monitors first, because they would tell podman that a container ended.
        for process in [box["State"]["ConmonPid"] for box in running] + [box["State"]["Pid"] for box in running]:
            os.kill(process, signal.SIGKILL)
        for box in running:
            subprocess.run(["umount", "--lazy", box["NetworkSettings"]["SandboxKey"]], check=True)
            Path(box["NetworkSettings"]["SandboxKey"]).unlink()
        self.unmount()
        shutil.rmtree(self.run)
        ADDRESSES.unlink()
        for box in running:
            shutil.rmtree(Path("/run/runc") / box["Id"])
            self.remove_groups(box["Id"])
        subprocess.run(["ip", "link", "delete", bridge], check=True)


@pytest.fixture(scope="module")
def machine(artifacts) -> Iterator[Machine]:
    others = subprocess.run(["podman", "ps", "--format", "{{.Names}}"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert others == [], f"Stop {', '.join(others)} first: a restart takes their addresses as well."
    made = Machine(artifacts.folder("restart-podman"))
    before = {name: os.environ.get(name) for name in made.env}
    os.environ.update(made.env)  # for the playbooks, and for code in this process that calls the engine
    yield made
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="module")
def fleet(artifacts, machine: Machine) -> Fleet:
    folder = artifacts.folder(NAME)
    inventory = folder / "inventory"
    inventory.mkdir()
    options = {"plugin": "muster.fleet.local_fleet", "fleet": NAME, "memory": "2048", "engine": "podman"}
    (inventory / "local_fleet.yml").write_text(json.dumps(options))
    (inventory / "group_vars").symlink_to(ROOT / "inventory/local/group_vars")
    made = Fleet(folder, NAME, inventory)

    def remove() -> None:
        made.run("playbooks/local_down.yml").check_returncode()
        machine.podman("system", "reset", "--force")
        machine.unmount()
        ADDRESSES.unlink(missing_ok=True)  # a killed run leaves the addresses of a fleet that lost its power

    artifacts.leave(f"fleet {NAME}", remove)
    return made


def up(fleet: Fleet) -> None:
    for playbook in ("playbooks/local_up.yml", "playbooks/provision.yml"):
        done = fleet.run(playbook, "-e", ONLY_SLURM)
        assert done.returncode == 0, done.stdout[-5000:]


def job(fleet: Fleet, number: str) -> str:
    return fleet.ansible("controller-1", "sacct", "--noheader", "--parsable2", "--allocations", "--format=state", "--jobs", number)


def test_the_same_fleet_comes_back_with_what_slurm_knew(fleet: Fleet, machine: Machine) -> None:
    up(fleet)
    ended, held = (
        fleet.ansible("controller-1", "sbatch", "--parsable", "--output=/dev/null", "--mem=64", *options, "--wrap=true", user="muster")
        for options in ((), ("--hold",))
    )
    fleet.wait_for("the job's end", lambda: job(fleet, ended) == "COMPLETED")
    known = machine.known()
    assert set(known) == {f"muster-{NAME}-{host}" for host in HOSTS}
    # slurmctld writes its state up to five seconds late.
    time.sleep(6)

    machine.lose_power()
    assert {box["State"]["Status"] for box in machine.containers()}.isdisjoint({"running"})

    up(fleet)
    assert machine.known() == known
    assert job(fleet, ended) == "COMPLETED"
    assert "JobState=PENDING Reason=JobHeldUser" in " ".join(fleet.ansible("controller-1", "scontrol", "show", "job", held).split())
    ran = fleet.ansible("controller-1", "srun", "--nodes=2", "--mem=64", "hostname", "-s", user="muster")
    assert sorted(ran.split()) == ["compute-1", "compute-2"]


def test_nothing_stays_of_it(fleet: Fleet, machine: Machine) -> None:
    fleet.run("playbooks/local_down.yml").check_returncode()
    assert machine.containers() == []
    assert machine.podman("network", "ls", "--quiet", "--filter", f"label=muster.fleet={NAME}") == ""
