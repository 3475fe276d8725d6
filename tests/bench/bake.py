# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What an AMI of a Slurm node costs to bake and what it saves, on the local cloud of a quiet machine.

    python -m tests.bench bake                  a node without GPUs: common and slurm; writes docs/performance.md
    python -m tests.bench bake_gpu              a node with everything that tests.bench.stack installs; writes docs/performance.md
    python -m tests.bench.bake COMPONENT...     a node with these components; prints JSON
    python -m tests.bench.bake gpu [small]      as bake_gpu, `small` as in tests.bench.stack; prints JSON

The bake stands beside provisioning of a Debian instance that is controller and compute node at once. A baked node that joins this fleet
stands beside a bare one, each from RunInstances to its last check. `gpu` compares joins only.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from .fleets import ROOT
from .stack import NOT_RUN, files, fresh_cache, variables
from .table import Row, row

sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tools")]

from local_cloud import LocalCloud, ami_of

DEBIAN = "ami-0deb13000000000d1"
# The builder and the nodes trust the same authorities: none but the image's own.
AUTHORITIES = {"common_ca_certificates": []}


class Fleet:
    """Instances that join one by one, in an inventory file; `asked` are Ansible's extra variables for all of them."""

    def __init__(self, cloud: LocalCloud, asked: dict) -> None:
        self.cloud = cloud
        self.asked = asked
        self.hosts: dict[str, tuple[str, ...]] = {}
        shutil.copytree(ROOT / "tests/e2e/image_fleet", cloud.folder / "image_fleet")
        self.inventory = cloud.folder / "image_fleet/inventory"
        (self.inventory / "aws_fleet.yml").unlink()
        self.key = cloud.folder / "key"
        self.key.write_text(cloud.client("ec2").create_key_pair(KeyName="bake", KeyType="ed25519")["KeyMaterial"])
        self.key.chmod(0o600)

    def joins(self, ami: str, components: list[str], *groups: str) -> float:
        """Seconds from the request for an instance to the last check of provision.yml."""
        began = time.monotonic()
        ec2 = self.cloud.client("ec2")
        asked = {"ImageId": ami, "InstanceType": "c7i.xlarge", "KeyName": "bake", "MinCount": 1, "MaxCount": 1}
        made = ec2.run_instances(**asked)["Instances"][0]["InstanceId"]
        found = ec2.describe_instances(InstanceIds=[made])["Reservations"][0]["Instances"][0]
        wanted = json.dumps(json.dumps(components))
        self.hosts[f"{made} ansible_host={found['PrivateIpAddress']} muster_components={wanted}"] = groups
        text = ""
        for group in sorted({group for of in self.hosts.values() for group in of}):
            text += "\n".join([f"[{group}]", *(host for host, of in self.hosts.items() if group in of), "", ""])
        (self.inventory / "hosts.ini").write_text(text)
        known = f"-o UserKnownHostsFile={self.cloud.folder / 'known_hosts'} -o StrictHostKeyChecking=accept-new"
        ssh = {"ansible_ssh_private_key_file": str(self.key), "ansible_ssh_extra_args": known}
        limit = f"muster_controller,{made},localhost"
        argv = ("-i", str(self.inventory), "--limit", limit)
        said, code = self.cloud.play("playbooks/provision.yml", *argv, muster_fleet=self.cloud.name, **ssh, **self.asked)
        if code:
            raise SystemExit(f"provision.yml ended with {code}:\n{said[-4000:]}")
        wall = time.monotonic() - began
        print(f"{ami} with {' '.join(components)} joined in {wall:.1f} s", file=sys.stderr)
        return wall


def build(cloud: LocalCloud, name: str, components: list[str], asked: dict) -> tuple[str, float]:
    """The AMI that Packer makes, and its seconds."""
    began = time.monotonic()
    given = {"components": components, "volume_size_gib": "60", "ansible_variables": json.dumps(asked)}
    said, code = cloud.build("slurm-cpu", cloud.folder / name, **given)
    if code:
        raise SystemExit(f"packer build ended with {code}:\n{said[-4000:]}")
    return ami_of(said), time.monotonic() - began


def measure(cloud: LocalCloud, components: list[str]) -> dict:
    """Seconds of everything. The first build of a machine fills its caches, so a bake that does not count comes first."""
    build(cloud, "warm", components, AUTHORITIES)
    ami, bake = build(cloud, "measured", components, AUTHORITIES)
    manifest = json.loads((cloud.folder / "measured/manifest.json").read_text())
    fleet = Fleet(cloud, AUTHORITIES)
    provision = fleet.joins(DEBIAN, components, "muster_controller", "muster_compute")
    bare, baked = fleet.joins(DEBIAN, components, "muster_compute"), fleet.joins(ami, components, "muster_compute")
    return {
        "bake_s": bake,
        "provision_s": provision,
        "bare_joins_s": bare,
        "baked_joins_s": baked,
        "installed_s": {name: each["seconds"] for name, each in manifest["components"].items()},
    }


def measure_gpu(cloud: LocalCloud, small: bool) -> dict:
    """Seconds of three joins of a GPU node: baked; bare, when another node has built the sources; bare, as the first."""
    allowed = yaml.safe_load((ROOT / "inventory/local/group_vars/all.yml").read_text())["muster_allow_not_run"]
    asked = {**variables(cloud.folder, small), "muster_allow_not_run": allowed + NOT_RUN}
    components = asked.pop("muster_components")
    files(asked, cloud.folder)
    ami, bake = build(cloud, "measured", components, asked)
    print(f"baked in {bake:.1f} s", file=sys.stderr)
    fleet = Fleet(cloud, asked)
    # The controller is a compute node too, because a fleet needs one, and it carries pyxis, because Slurm's configuration names it for all.
    fleet.joins(DEBIAN, ["common", "slurm", "enroot_pyxis"], "muster_controller", "muster_compute")
    baked, bare = fleet.joins(ami, components, "muster_compute"), fleet.joins(DEBIAN, components, "muster_compute")
    files(fresh_cache(asked), cloud.folder)
    first = fleet.joins(DEBIAN, components, "muster_compute")
    return {"baked_joins_s": baked, "bare_joins_s": bare, "first_bare_joins_s": first}


@contextmanager
def local_cloud(folder: Path) -> Iterator[LocalCloud]:
    cloud = LocalCloud("bake", folder).start()
    try:
        yield cloud
    finally:
        cloud.end()


def rows(folder: Path) -> list[Row]:
    with local_cloud(folder) as cloud:
        found = measure(cloud, ["common", "slurm"])
    bake, provision, baked, bare = (found[f"{key}_s"] for key in ("bake", "provision", "baked_joins", "bare_joins"))
    return [
        row("Bake of an AMI with common and slurm", f"{bake:.1f} s", f"provisioning, {provision:.1f} s", bake / provision, "≤ 1.2"),
        row("Join of a baked node with common and slurm", f"{baked:.1f} s", f"a bare node, {bare:.1f} s", baked / bare, "≤ 0.2"),
    ]


def rows_gpu(folder: Path) -> list[Row]:
    with local_cloud(folder) as cloud:
        found = measure_gpu(cloud, small=False)
    baked, bare, first = (found[f"{key}_joins_s"] for key in ("baked", "bare", "first_bare"))
    what = "Join of a baked GPU node"
    return [
        row(what, f"{baked:.1f} s", f"the first bare node, {first:.1f} s", baked / first, "≤ 0.2"),
        row(f"{what}, sources built", f"{baked:.1f} s", f"a further bare node, {bare:.1f} s", baked / bare),
    ]


def main(argv: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, local_cloud(Path(folder)) as cloud:
        found = measure_gpu(cloud, "small" in argv) if "gpu" in argv else measure(cloud, argv or ["common", "slurm"])
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
