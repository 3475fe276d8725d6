# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What a local cloud's API is tested over where no container is needed."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.container_engine import Finished, NodeContainerError


class Machines:
    """Stands for containers: states by instance, and a list of what was done."""

    def __init__(self) -> None:
        self.images: dict = {}
        self.now: dict[str, str] = {}
        self.done: list[tuple] = []
        self.room = 40
        self.killed: set[str] = set()

    def start(self, instance: str, ami: str, key: str, user_data: bytes) -> str:
        if len(self.now) >= self.room:
            raise NodeContainerError("Fleet x needs 1536 MiB of memory, 7 MiB are free: ask for fewer nodes.")
        self.now[instance] = "running"
        self.done.append(("start", self.images[ami], key, user_data))
        return f"10.213.7.{len(self.now) + 1}"

    def stop(self, instance: str) -> None:
        self.now[instance] = "exited"

    def resume(self, instance: str) -> None:
        self.now[instance] = "running"

    def kill(self, instance: str) -> None:
        self.killed.add(instance)
        self.now[instance] = "exited"

    def was_killed(self, instance: str) -> bool:
        return instance in self.killed

    def remove(self, instance: str) -> None:
        self.now.pop(instance, None)

    def states(self) -> dict[str, str]:
        return self.now

    def save(self, instance: str, ami: str) -> None:
        self.images[ami] = f"image of {instance}"

    def forget(self, ami: str) -> None:
        del self.images[ami]

    def run(self, instance: str, script: str, timeout: float) -> Finished:
        return Finished(3, f"{instance} ran {script}", "an error")

    def journal(self, instance: str) -> str:
        return f"journal of {instance}"
