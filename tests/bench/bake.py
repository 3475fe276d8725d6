# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What it costs to bake an AMI of a Slurm node, and what it saves, on the local cloud and a quiet machine.

    python -m tests.bench.bake                  of a node without GPUs: common and slurm
    python -m tests.bench.bake COMPONENT...     of another

Prints JSON: the bake beside provisioning an instance of Debian that is controller and compute node at once, and a baked node that joins
this fleet beside a bare one, each from RunInstances to its last check.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from .fleets import ROOT

sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tools")]

from local_cloud import LocalCloud, ami_of

DEBIAN = "ami-0deb13000000000d1"
COMPONENTS = sys.argv[1:] or ["common", "slurm"]
# The authorities are this machine's own, and the same for the builder and the nodes.
AUTHORITIES = {"common_ca_certificates": []}


class Fleet:
    """Instances that an inventory file names, one by one."""

    def __init__(self, cloud: LocalCloud) -> None:
        self.cloud = cloud
        self.hosts: dict[str, tuple[str, ...]] = {}
        shutil.copytree(ROOT / "tests/integration/image_fleet", cloud.folder / "image_fleet")
        self.inventory = cloud.folder / "image_fleet/inventory"
        (self.inventory / "aws_fleet.yml").unlink()
        self.key = cloud.folder / "key"
        self.key.write_text(cloud.client("ec2").create_key_pair(KeyName="bake", KeyType="ed25519")["KeyMaterial"])
        self.key.chmod(0o600)

    def joins(self, ami: str, *groups: str) -> float:
        """Seconds from the request for an instance to the last check of provision.yml."""
        began = time.monotonic()
        ec2 = self.cloud.client("ec2")
        asked = {"ImageId": ami, "InstanceType": "c7i.xlarge", "KeyName": "bake", "MinCount": 1, "MaxCount": 1}
        made = ec2.run_instances(**asked)["Instances"][0]["InstanceId"]
        found = ec2.describe_instances(InstanceIds=[made])["Reservations"][0]["Instances"][0]
        self.hosts[f"{made} ansible_host={found['PrivateIpAddress']}"] = groups
        text = ""
        for group in sorted({group for of in self.hosts.values() for group in of}):
            text += "\n".join([f"[{group}]", *(host for host, of in self.hosts.items() if group in of), "", ""])
        (self.inventory / "hosts.ini").write_text(text)
        known = f"-o UserKnownHostsFile={self.cloud.folder / 'known_hosts'} -o StrictHostKeyChecking=accept-new"
        variables = {"muster_fleet": self.cloud.name, "muster_components": COMPONENTS, **AUTHORITIES,
                     "ansible_ssh_private_key_file": str(self.key), "ansible_ssh_extra_args": known}  # fmt: skip
        limit = f"muster_controller,{made},localhost"
        said, code = self.cloud.play("playbooks/provision.yml", "-i", str(self.inventory), "--limit", limit, **variables)
        if code:
            raise SystemExit(f"provision.yml ended with {code}:\n{said[-4000:]}")
        return time.monotonic() - began


def measure(cloud: LocalCloud) -> dict:
    """All figures; the first builds of a machine fill its caches, so a bake that does not count comes before."""
    seconds = []
    for name in ("warm", "measured"):
        began = time.monotonic()
        said, code = cloud.build("slurm-cpu", cloud.folder / name, components=COMPONENTS, ansible_variables=json.dumps(AUTHORITIES))
        if code:
            raise SystemExit(f"packer build ended with {code}:\n{said[-4000:]}")
        seconds.append(time.monotonic() - began)
    manifest = json.loads((cloud.folder / "measured/manifest.json").read_text())
    fleet = Fleet(cloud)
    provision = fleet.joins(DEBIAN, "muster_controller", "muster_compute")
    bare, baked = fleet.joins(DEBIAN, "muster_compute"), fleet.joins(ami_of(said), "muster_compute")
    return {
        "bake_s": seconds[-1],
        "provision_s": provision,
        "bake_to_provision": seconds[-1] / provision,
        "bare_joins_s": bare,
        "baked_joins_s": baked,
        "baked_to_bare": baked / bare,
        "installed_s": {name: each["seconds"] for name, each in manifest["components"].items()},
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cloud = LocalCloud("bake", Path(folder)).start()
        try:
            print(json.dumps(measure(cloud), indent=1))
        finally:
            cloud.end()


if __name__ == "__main__":
    main()
