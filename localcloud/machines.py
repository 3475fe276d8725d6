# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The containers behind a cloud's instances and tasks, and the images behind its AMIs."""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Engine, Finished, NodeContainerError, find_engine
from ansible_collections.muster.fleet.plugins.module_utils.containers.fleet import Fleet, available_memory_mib
from ansible_collections.muster.fleet.plugins.module_utils.containers.image import NodeImage, ensure_image
from ansible_collections.muster.fleet.plugins.module_utils.containers.plan import Node
from ansible_collections.muster.fleet.plugins.module_utils.containers.ssh import make_key
from ansible_collections.muster.fleet.plugins.module_utils.containers.state import write_private
from ansible_collections.muster.fleet.plugins.module_utils.containers.systemd import learn_to_start, recall
from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir, state_dir
from localcloud.tasks import Place, Running, Task, env_text

LOST_SECONDS = 10
# What cloud-init does at the first boot of an instance: it makes the default user with the key, and runs the user data.
FIRST_BOOT = """\
set -e
id admin >/dev/null 2>&1 || useradd --create-home --shell /bin/bash admin
echo 'admin ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/90-cloud-init-users
install -d -m 700 -o admin -g admin /home/admin/.ssh
install -m 600 -o admin -g admin /run/muster-node/key /home/admin/.ssh/authorized_keys
"""
# Instances ask the metadata service at an address of their own link, and AWS's libraries find the API of this cloud. It lasts until the
# end of a boot. @API@ is where this cloud answers them.
METADATA = """\
set -e
until systemctl is-system-running | grep -qE 'running|degraded'; do sleep 0.2; done
ip address replace 169.254.169.254/32 dev lo
systemctl set-environment AWS_ENDPOINT_URL=http://@API@
systemd-run --quiet --unit=muster-metadata --socket-property=ListenStream=169.254.169.254:80 /usr/lib/systemd/systemd-socket-proxyd @API@
"""
USER_DATA = """\
systemd-run --no-block --unit=user-data /run/muster-node/user-data
"""


class Machines:
    """One cloud's containers: a `Fleet` whose nodes are added one by one, each from its AMI's image."""

    def __init__(self, name: str, env: Mapping[str, str] = os.environ, engine: Engine | None = None) -> None:
        self.fleet = Fleet(name, engine or find_engine(), state_dir(name, env), cache_dir(env))
        self.images: dict[str, NodeImage] = {}
        self.api = ""  # host and port at which the cloud answers the machines
        self._killed: set[str] = set()
        self._addresses: dict[str, str] = {}
        self._lock = threading.Lock()
        self.closed = False  # the cloud ends, and its containers are being removed

    def gateway(self) -> str:
        """This machine's address on the machines' network, which is created if need be."""
        return self.fleet.gateway()

    def start(self, instance: str, ami: str, key: str, user_data: bytes, kind: str = "") -> str:
        """Start a machine with the key for its user admin, wait until its sshd answers, and return its address.

        It rehearses the instance type `kind`, if that is not empty.
        """
        files = {"key": key.encode(), "user-data": user_data}
        node = Node(instance, memory_mib=2048, cpus=float(min(2, os.cpu_count() or 1)), type=kind)
        address = self.fleet.add(node, self.images[ami], files)
        self._must(instance, ["sh", "-c", FIRST_BOOT])
        self.fleet.wait_for_ssh({instance: address}, 120, fresh=[instance])
        self._serve_metadata(instance)
        if user_data.startswith(b"#!"):
            self._must(instance, ["sh", "-c", USER_DATA])
        return address

    def replace(self, instance: str, ami: str, key: str, user_data: bytes, kind: str = "") -> None:
        """Give the machine a new root. Name and address stay; the host key is new and the first boot runs again."""
        folder = self.fleet.state / "hostkeys" / instance
        # Whoever writes the fleet's record beside this call reads the keys of all machines.
        with self.fleet.lock():
            for each in folder.glob("ssh_host_*"):
                each.unlink()
            make_key(folder / "ssh_host_ed25519_key", instance)
        self.start(instance, ami, key, user_data, kind)

    def _serve_metadata(self, instance: str) -> None:
        if self.api:
            self._must(instance, ["sh", "-c", METADATA.replace("@API@", self.api)])

    def _must(self, instance: str, argv: list[str]) -> None:
        done = self.fleet.run_in(instance, argv)
        if done.code != 0:
            raise RuntimeError(f"Instance {instance} did not boot ({done.reason}).")

    def stop(self, instance: str) -> None:
        self.fleet.set_state("stopped", [instance])

    def resume(self, instance: str) -> None:
        self.fleet.set_state("started", [instance])
        self._serve_metadata(instance)

    def kill(self, instance: str) -> None:
        """End the machine as a failure of its host would."""
        self._killed.add(instance)
        self.fleet.set_state("killed", [instance])

    def was_killed(self, instance: str) -> bool:
        return instance in self._killed

    def remove(self, instance: str) -> None:
        self.fleet.absent([instance])

    def states(self) -> dict[str, str]:
        """The state of each machine. Wait before one counts as lost, because the engine learns of an end a moment late."""
        deadline = time.monotonic() + LOST_SECONDS
        while True:
            states = {each.node: each.state for each in self.fleet.containers().values()}
            if "lost" not in states.values() or time.monotonic() > deadline:
                return states
            time.sleep(0.2)

    def save(self, instance: str, ami: str) -> None:
        """Save the machine's file system as the image of an AMI."""
        name = f"localhost/muster-cloud-{self.fleet.name}:{ami}"
        self.fleet.commit(instance, name)
        self.images[ami] = NodeImage(reference=name)

    def forget(self, ami: str) -> None:
        """Forget an AMI, and remove its image when no other AMI is a copy of it."""
        image = self.images.pop(ami, None)
        # The engine would remove its containers, too; clean() removes it at the end.
        used = {each.spec.get("image") for each in self.fleet.containers().values()}
        if image and image.reference and image not in self.images.values() and image.reference not in used:
            self.fleet.remove_images([image.reference])

    def run(self, instance: str, script: str, timeout: float) -> Finished:
        """Run a script as root, as SSM's agent would."""
        return self.fleet.run_in(instance, ["bash", "-c", script], timeout=timeout)

    def journal(self, instance: str) -> str:
        # Without the kernel's lines, which a container reads from this machine.
        kinds = [f"_TRANSPORT={each}" for each in ("journal", "stdout", "syslog", "driver")]
        return self.fleet.run_in(instance, ["journalctl", "--boot", "--no-pager", "--lines=400", *kinds]).stdout

    def room_mib(self) -> int:
        """The memory that is free for further containers."""
        return available_memory_mib(Path("/proc/meminfo").read_text(encoding="utf-8"))

    def shared(self, path: str) -> str:
        """Where this machine has a path of a node: /fsx is the cloud's own folder, which its instances see as well."""
        if path != "/fsx" and not path.startswith("/fsx/"):
            return path
        folder = self.fleet.state / path[1:]
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def run_task(self, task: Task) -> Running:
        """Start a task in a container of its own. end_task() removes it."""
        if self.closed:
            raise NodeContainerError(f"The local cloud {self.fleet.name} ends, so {task.name} was not started.")
        engine = self.fleet.engine
        if not recall(engine, self.fleet.cache):
            image = NodeImage()
            ensure_image(engine, image, self.fleet.cache)
            learn_to_start(engine, image.name, self.fleet.cache)
        address = self._address(task.name, self.gateway())
        env_file = self.fleet.state / "tasks" / task.name
        env_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(env_file, env_text(task.env).encode())
        return Running(engine, task, Place(self.fleet.container_name(task.name), self.fleet.network, address, self.fleet.name, env_file))

    def end_task(self, running: Running) -> None:
        """Remove the container of a task that has ended, and give its address back."""
        running.remove()
        with self._lock:
            self._addresses.pop(running.task.name, None)

    def _address(self, name: str, gateway: str) -> str:
        """A free address for a task, from the end of the network on: instances get theirs from its begin on."""
        subnet = ipaddress.ip_network(f"{gateway}/24", strict=False)
        with self._lock:
            taken = set(self._addresses.values())
            self._addresses[name] = next(str(each) for each in reversed(list(subnet.hosts())) if str(each) not in taken)
            return self._addresses[name]

    def clean(self) -> None:
        """Remove everything that clouds of this name made here, except the image that instances start from."""
        self.fleet.absent(remove_state=True)
        self.fleet.remove_images()
