# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The local cloud with real machines: start, reach, save as an image, start from the image, and nothing left after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import find_engine
from localcloud.machines import Machines

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
NAME = f"lc{os.getpid()}"
USER_DATA = "#!/bin/sh\necho made >/etc/made\n"


@pytest.fixture(scope="module")
def cloud(artifacts) -> Iterator[tuple[subprocess.Popen, dict[str, str]]]:
    """The process of a cloud, and the variables that it prints for export."""
    state = artifacts.folder("localcloud")
    artifacts.leave(f"local cloud {NAME}", lambda: Machines(NAME, {**os.environ, "XDG_STATE_HOME": str(state)}).clean())
    process = subprocess.Popen(
        [sys.executable, "-m", "localcloud", "--name", NAME],
        cwd=ROOT,
        env={**os.environ, "XDG_STATE_HOME": str(state)},
        stdout=subprocess.PIPE,
        text=True,
    )
    said = []
    while (line := process.stdout.readline()).startswith("export "):
        said.append(line[7:].strip())
    assert said, "the cloud did not start"
    yield process, dict(each.split("=", 1) for each in said)
    process.kill()


def wait(what: Callable[[], object], patience: float = 60) -> None:
    deadline = time.monotonic() + patience
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.5)


class Client:
    """A user of the cloud: clients, a key, instances with that key."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        keys = {"aws_access_key_id": env["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": env["AWS_SECRET_ACCESS_KEY"]}
        where = {"region_name": env["AWS_REGION"], "endpoint_url": env["AWS_ENDPOINT_URL"]}
        self.ec2, self.ssm = (boto3.client(each, **where, **keys) for each in ("ec2", "ssm"))
        self.key = folder / "key"
        self.key.touch(0o600)
        self.key.write_text(self.ec2.create_key_pair(KeyName="k", KeyType="ed25519")["KeyMaterial"])
        wanted = [{"Name": "name", "Values": ["debian-13-*"]}]
        self.debian = self.ec2.describe_images(Owners=["136693071363"], Filters=wanted)["Images"][0]["ImageId"]

    def run(self, image: str, **more: object) -> str:
        wanted = {"InstanceType": "c6i.large", "MinCount": 1, "MaxCount": 1, "KeyName": "k", **more}
        started = self.ec2.run_instances(ImageId=image, **wanted)
        return started["Instances"][0]["InstanceId"]

    def show(self, instance: str) -> dict:
        return self.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]

    def ssh(self, instance: str, command: str) -> subprocess.CompletedProcess[str]:
        options = ["-o", "UserKnownHostsFile=/dev/null", "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
        argv = ["ssh", "-F", "none", "-i", str(self.key), *options, f"admin@{self.show(instance)['PrivateIpAddress']}", command]
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)

    def command(self, instance: str, script: str) -> tuple[str, int]:
        """The output and exit code of Run Command."""
        sent = self.ssm.send_command(InstanceIds=[instance], DocumentName="AWS-RunShellScript", Parameters={"commands": [script]})
        done = self.ssm.get_command_invocation(CommandId=sent["Command"]["CommandId"], InstanceId=instance)
        return done["StandardOutputContent"], done["ResponseCode"]


@pytest.fixture(scope="module")
def client(cloud, artifacts) -> Client:
    return Client(cloud[1], artifacts.folder("key"))


def test_a_sealed_machine_becomes_an_image(client: Client, artifacts) -> None:
    results = artifacts.folder("image")
    made = client.run(client.debian)
    variables = {
        "muster_components": ["common"],
        "muster_image_results": str(results),
        "ansible_ssh_private_key_file": str(client.key),
        "ansible_ssh_common_args": "-o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no",
    }
    address = client.show(made)["PrivateIpAddress"]
    argv = ["ansible-playbook", "-i", f"{address},", "playbooks/image.yml", "-u", "admin", "-e", json.dumps(variables)]
    done = subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    manifest, parts = (json.loads((results / each).read_text()) for each in ("manifest.json", "sbom.cdx.json"))
    assert list(manifest["components"]) == ["common"]
    assert {each["name"] for each in parts["components"]} == {"common", *manifest["packages"]}
    left = "ls /etc/ssh/ssh_host_* /home/*/.ssh/authorized_keys /root/.ssh/authorized_keys 2>/dev/null; cat /etc/machine-id"
    assert client.command(made, left)[0] == ""
    assert client.ssh(made, "true").returncode == 255
    client.ec2.stop_instances(InstanceIds=[made])
    image = client.ec2.create_image(InstanceId=made, Name="sealed")["ImageId"]
    one, two = (client.run(image) for _ in range(2))
    seen = [client.ssh(each, "cat /etc/machine-id /etc/muster/manifest.json").stdout.split("\n", 1) for each in (one, two)]
    assert json.loads(seen[0][1]) == json.loads(seen[1][1]) == manifest
    assert len({each[0] for each in seen}) == 2
    client.ec2.terminate_instances(InstanceIds=[made, one, two])


def test_an_instance_of_an_accelerated_type_rehearses_it(client: Client) -> None:
    made = client.run(client.debian, InstanceType="p4d.24xlarge")
    said = client.command(made, "ls /sys/class/infiniband | wc -l; ls /dev/nvidia[0-9] | wc -l; nvidia-smi -L 2>/dev/null | wc -l")
    assert (said[0].split(), said[1]) == (["4", "8", "8"], 0)
    client.ec2.terminate_instances(InstanceIds=[made])


def test_a_machine_from_its_start_to_the_end_of_the_cloud(cloud, client: Client) -> None:
    process, ec2, show, ssh = cloud[0], client.ec2, client.show, client.ssh
    first = client.run(client.debian, UserData=USER_DATA)
    wait(lambda: ssh(first, "sudo cat /etc/made").stdout == "made\n")
    assert "user-data" in ec2.get_console_output(InstanceId=first)["Output"]
    assert client.command(first, "hostname; exit 4") == (f"{first}\n", 4)

    ec2.stop_instances(InstanceIds=[first])
    assert (show(first)["State"]["Name"], ssh(first, "true").returncode) == ("stopped", 255)
    saved = ec2.create_image(InstanceId=first, Name="saved")["ImageId"]
    second = client.run(saved)
    assert ssh(second, "cat /etc/made").stdout == "made\n"

    def replaced(image: str) -> tuple[str, str, str]:
        """Address, host key and the file's content after the root volume was replaced."""
        task = ec2.create_replace_root_volume_task(InstanceId=second, ImageId=image)["ReplaceRootVolumeTask"]
        assert task["TaskState"] == "succeeded"
        seen = ssh(second, "hostname; cat /etc/ssh/ssh_host_ed25519_key.pub; cat /etc/made")
        return show(second)["PrivateIpAddress"], seen.stdout.splitlines()[1], "".join(seen.stdout.splitlines()[2:])

    address, keys = show(second)["PrivateIpAddress"], [ssh(second, "cat /etc/ssh/ssh_host_ed25519_key.pub").stdout.strip()]
    for image, made in ((client.debian, ""), (saved, "made")):
        now, key, content = replaced(image)
        assert (now, content, key in keys) == (address, made, False)
        keys.append(key)
    ssh(second, "sudo systemctl poweroff")
    wait(lambda: show(second)["State"]["Name"] == "stopped")
    ec2.start_instances(InstanceIds=[first])
    assert ssh(first, "hostname").stdout == f"{first}\n"
    ec2.terminate_instances(InstanceIds=[first])

    # Only the cloud's second process can remove what is left.
    engine = find_engine()
    label = f"muster.fleet={NAME}"
    left = ("--all", "--quiet", "--filter", f"label={label}")
    assert engine.ask("ps", *left)
    assert [each for each in engine.image_names(label) if saved in each]
    os.kill(process.pid, signal.SIGKILL)
    wait(lambda: not engine.ask("ps", *left) and not engine.image_names(label), 90)
    wait(lambda: not engine.networks(label))
