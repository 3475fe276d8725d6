# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Fixtures: the local cloud's API over machines that only record their calls.

Only tests that use moto import it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import Finished, NodeContainerError

if TYPE_CHECKING:
    from localcloud.cloud import Cloud

AMI = "ami-0deb13000000000d1"


class Machines:
    """Stands for containers: states by instance, and a list of what was done."""

    def __init__(self) -> None:
        self.images: dict = {}
        self.now: dict[str, str] = {}
        self.done: list[tuple] = []
        self.kinds: dict[str, str] = {}
        self.room = 40
        self.killed: set[str] = set()

    def gateway(self) -> str:
        return "127.0.0.2"

    def start(self, instance: str, ami: str, key: str, user_data: bytes, kind: str = "") -> str:
        if len(self.now) >= self.room:
            raise NodeContainerError("Fleet x needs 1536 MiB of memory, 7 MiB are free: ask for fewer nodes.")
        self.now[instance] = "running"
        self.kinds[instance] = kind
        self.done.append(("start", self.images[ami], key, user_data))
        return f"10.213.7.{len(self.now) + 1}"

    def replace(self, instance: str, ami: str, key: str, user_data: bytes, kind: str = "") -> None:
        if not self.room:
            raise RuntimeError(f"Instance {instance} did not come up.")
        self.kinds[instance] = kind
        self.done.append(("replace", instance, self.images[ami], key, user_data))

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


@pytest.fixture(scope="module")
def served() -> Iterator[Cloud]:
    import boto3

    from localcloud.cloud import Cloud

    # A client takes longer to make than its calls take, and each run of a module makes several.
    made, make = {}, boto3.session.Session.client

    def client(session: boto3.session.Session, service: str, **more: object) -> object:
        key = repr([service, sorted((name, getattr(value, "retries", value)) for name, value in more.items())])
        if key not in made:
            made[key] = make(session, service, **more)
        return made[key]

    with pytest.MonkeyPatch.context() as patch, Cloud("unit", machines=Machines()) as cloud:
        patch.setattr(boto3.session.Session, "client", client)
        # boto3's own session would keep the keys of the cloud of another test file.
        patch.setattr(boto3, "DEFAULT_SESSION", None)
        yield cloud


@pytest.fixture
def machines(served: Cloud) -> Machines:
    """The cloud as it is after its start."""
    from moto.moto_api._internal import moto_api_backend

    from localcloud.cloud import AMIS

    moto_api_backend.reset()
    served.stacks.regions.clear()

    made = served._machines
    images = {ami: made.images[ami] for ami in AMIS}
    made.__init__()
    made.images.update(images)
    return made


@pytest.fixture
def client(served: Cloud, machines: Machines):
    """A client of a service, which does not retry."""

    import boto3
    from botocore.config import Config

    def make(service: str, region: str = "us-east-1"):
        config = Config(retries={"total_max_attempts": 1})
        keys = {"aws_access_key_id": served.env["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": served.env["AWS_SECRET_ACCESS_KEY"]}
        return boto3.client(service, region_name=region, endpoint_url=served.env["AWS_ENDPOINT_URL"], config=config, **keys)

    return make


@pytest.fixture
def ec2(client):
    return client("ec2")


@pytest.fixture
def fault(served: Cloud):
    """Order a fault as `python -m localcloud --fault` does; return the exit code."""

    from localcloud.__main__ import order as ordered

    def order(**fault: object) -> int:
        return ordered(json.dumps(fault), served.env)

    return order
