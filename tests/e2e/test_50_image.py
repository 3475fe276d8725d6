# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""From template to trained model: Packer builds an AMI, a fleet is launched from it, site.yml trains on it, and nothing is left."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from local_cloud import LocalCloud, ami_of, with_packer

pytestmark = pytest.mark.engine

NAME = f"image{os.getpid()}"
FLEET = "tests/e2e/image_fleet"
COMPONENTS = ["common", "slurm", "node_health", "trainer"]
# These variables decide what is installed, so builder and nodes get the same ones; else the nodes install again.
VARIABLES = {
    "common_ca_certificates": "{{ query('ansible.builtin.fileglob', '/usr/local/share/ca-certificates/*.crt') }}",
    "trainer_venv": "/var/cache/muster/venv-trixie-{{ lookup('muster.fleet.tree_sha256', 'roles/trainer/files')[:12] }}",
}


@pytest.fixture(scope="module")
def cloud(artifacts) -> Iterator[LocalCloud]:
    yield from with_packer(NAME, artifacts)


@pytest.fixture(scope="module")
def signing_key(cloud: LocalCloud) -> str:
    """A key in KMS, with one alias in both regions, and a bucket for signatures."""
    cloud.client("s3").create_bucket(Bucket="images")
    for region in ("us-east-1", "us-west-2"):
        kms = cloud.client("kms", region)
        made = kms.create_key(KeyUsage="SIGN_VERIFY", KeySpec="ECC_NIST_P256")["KeyMetadata"]["KeyId"]
        kms.create_alias(AliasName="alias/image-signing", TargetKeyId=made)
    return "alias/image-signing"


@pytest.fixture(scope="module")
def ami(cloud: LocalCloud, signing_key: str) -> str:
    said, code = cloud.build("slurm-cpu", cloud.folder / "results", components=COMPONENTS, ansible_variables=json.dumps(VARIABLES),
                             copy_to_regions=["us-west-2"], ssm_parameter="/muster/slurm-cpu",
                             provenance={"location": "s3://images/provenance", "kms_key_id": signing_key})  # fmt: skip
    assert code == 0, said[-5000:]
    return ami_of(said)


@pytest.fixture(scope="module")
def inventory(cloud: LocalCloud) -> tuple[tuple[str, ...], dict[str, str]]:
    """The arguments and variables with which a playbook reaches the fleet."""
    known = f"-o UserKnownHostsFile={cloud.folder / 'known_hosts'} -o StrictHostKeyChecking=accept-new"
    variables = {"muster_fleet": NAME, "ansible_ssh_private_key_file": str(cloud.folder / "key"), "ansible_ssh_extra_args": known}
    return ("-i", f"{FLEET}/inventory"), variables


@pytest.fixture(scope="module")
def site(cloud: LocalCloud, ami: str, signing_key: str, inventory: tuple[tuple[str, ...], dict[str, str]]) -> str:
    """The output of site.yml over a fleet of that AMI."""
    key = cloud.folder / "key"
    launch = {"key_file": str(key), "muster_provenance_kms_key_id": signing_key}
    said, code = cloud.play(f"{FLEET}/launch.yml", ami="ami-0deb13000000000d1", **launch)
    assert (code, cloud.running()) == (2, []), said[-5000:]
    assert "has no provenance (no tag muster:provenance); sign it, or do not launch it." in " ".join(said.split())
    said, code = cloud.play(f"{FLEET}/launch.yml", ami=ami, **launch, log="launch.txt")
    assert code == 0, said[-5000:]
    argv, variables = inventory
    said, code = cloud.play("site.yml", *argv, log="site.txt", **variables)
    assert code == 0, said[-8000:]
    return said


def test_the_ami_says_what_is_in_it(cloud: LocalCloud, ami: str) -> None:
    results = cloud.folder / "results"
    manifest, parts, made = (json.loads((results / each).read_text()) for each in ("manifest.json", "sbom.cdx.json", "packer.json"))
    assert list(manifest["components"]) == sorted(COMPONENTS)
    assert all(each["seconds"] for each in manifest["components"].values())
    assert {each["name"] for each in parts["components"]} == {*COMPONENTS, *manifest["packages"]}
    [artifact] = [each["artifact_id"] for each in made["builds"]]
    assert f"us-east-1:{ami}" in artifact
    for at in artifact.split(","):
        region, each = at.split(":")
        [image] = cloud.client("ec2", region).describe_images(ImageIds=[each])["Images"]
        tags = {tag["Key"]: tag["Value"] for tag in image["Tags"]}
        assert tags["muster:version:slurm"] == manifest["components"]["slurm"]["version"]
        assert tags["muster:source-ami"] == "ami-0deb13000000000d1"
        assert tags["muster:provenance_at"] == "s3://images/provenance"
        assert [disk["Ebs"]["Encrypted"] for disk in image["BlockDeviceMappings"]] == [True]
        assert image["Public"] is False
        assert image["ImdsSupport"] == "v2.0"
        days = datetime.fromisoformat(image["DeprecationTime"][:10]) - datetime.fromisoformat(image["CreationDate"][:10])
        assert 89 <= days.days <= 91
        assert cloud.client("ssm", region).get_parameter(Name="/muster/slurm-cpu")["Parameter"]["Value"] == each


def test_the_builder_and_its_resources_are_gone(cloud: LocalCloud, ami: str) -> None:
    ec2 = cloud.client("ec2")
    assert cloud.running() == []
    assert ec2.describe_key_pairs()["KeyPairs"] == []
    assert [each["GroupName"] for each in ec2.describe_security_groups()["SecurityGroups"]] == ["default"]
    assert [each["ImageId"] for each in ec2.describe_images(Owners=["self"])["Images"]] == [ami]


def test_a_fleet_of_the_ami_installs_nothing_trains_and_reports(cloud: LocalCloud, site: str) -> None:
    assert "install | Compare the component with the manifest" in site
    assert "install_component" not in site
    report = json.loads((cloud.folder / "runs" / NAME / "latest/report.json").read_text())
    assert report["run"]["verdict"] == "passed"
    assert len(report["fleet"]["hosts"]) == 3
    assert all(re.fullmatch(r"i-[0-9a-f]{17}", host["name"]) for host in report["fleet"]["hosts"])
    assert {entry["component"] for entry in report["fleet"]["versions"]} == set(COMPONENTS)
    assert {entry["verdict"] for entry in report["collectives"]} == {"passed"}
    assert {len(entry["hosts"]) for entry in report["collectives"]} == {2}
    [training] = report["training"]
    assert training["last_loss"] < 0.8 * training["first_loss"]


class Nodes:
    """The fleet's instances, on which Systems Manager runs commands."""

    def __init__(self, cloud: LocalCloud) -> None:
        self.ssm = cloud.client("ssm")
        self.ids: dict[str, list[str]] = {}
        for one in cloud.client("ec2").describe_instances(Filters=[{"Name": "tag:muster:fleet", "Values": ["image"]}])["Reservations"]:
            for each in one["Instances"]:
                role = {tag["Key"]: tag["Value"] for tag in each["Tags"]}["muster:role"]
                self.ids.setdefault(role, []).append(each["InstanceId"])

    def run(self, instance: str, command: str) -> str:
        """The output of a command on an instance."""
        sent = self.ssm.send_command(InstanceIds=[instance], DocumentName="AWS-RunShellScript", Parameters={"commands": [command]})
        done = self.ssm.get_command_invocation(CommandId=sent["Command"]["CommandId"], InstanceId=instance)
        assert done["Status"] == "Success", done
        return done["StandardOutputContent"]

    def slurm(self, command: str) -> str:
        """The output of a Slurm command on the controller."""
        return self.run(self.ids["controller"][0], command)


@pytest.fixture(scope="module")
def newer(cloud: LocalCloud, ami: str, site: str) -> str:
    """An unsigned AMI that differs from the first by one file."""
    ec2, ssm = cloud.client("ec2"), cloud.client("ssm")
    made = ec2.run_instances(ImageId=ami, InstanceType="c7i.large", MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    ssm.send_command(InstanceIds=[made], DocumentName="AWS-RunShellScript", Parameters={"commands": ["echo newer >/etc/muster/newer"]})
    image = ec2.create_image(InstanceId=made, Name="newer")["ImageId"]
    ec2.terminate_instances(InstanceIds=[made])
    return image


def sign(cloud: LocalCloud, ami: str, key: str) -> None:
    """Sign an AMI by hand, with the files of the first build."""
    folder = cloud.folder / "newer"
    folder.mkdir()
    for name in ("manifest.json", "sbom.cdx.json"):
        (folder / name).write_text((cloud.folder / "results" / name).read_text())
    builds = [{"packer_run_uuid": "1", "artifact_id": f"us-east-1:{ami}"}]
    (folder / "packer.json").write_text(json.dumps({"last_run_uuid": "1", "builds": builds}))
    how = {"results": str(folder), "location": "s3://images/provenance", "kms_key_id": key}
    said, code = cloud.play("playbooks/image_sign.yml", "-i", "localhost,", image_sign=how)
    assert code == 0, said[-3000:]


def reimage(cloud: LocalCloud, ami: str, inventory: tuple, key: str) -> tuple[str, int]:
    argv, variables = inventory
    # An instance reaches the API at the first address of its network.
    network = cloud.client("ec2").describe_instances()["Reservations"][0]["Instances"][0]["PrivateIpAddress"].rpartition(".")[0]
    environment = {name: cloud.env[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    environment["AWS_ENDPOINT_URL"] = cloud.env["AWS_ENDPOINT_URL"].replace("127.0.0", network)
    known = str(cloud.folder / "known_hosts")
    asked = {"ami": ami, "region": "us-east-1", "known_hosts": known, "environment": environment, "timeout": 300}
    return cloud.play("playbooks/reimage.yml", *argv, log=f"reimage-{ami}.txt", muster_reimage=asked, muster_provenance_required=True,
                      muster_provenance_kms_key_id=key, **variables)  # fmt: skip


def test_a_reimage_to_an_unsigned_ami_is_refused(cloud: LocalCloud, newer: str, inventory: tuple, signing_key: str) -> None:
    said, code = reimage(cloud, newer, inventory, signing_key)
    assert code != 0
    assert f"AMI {newer} in region us-east-1 has no provenance" in " ".join(said.split())
    assert "reboot" not in Nodes(cloud).slurm("scontrol show nodes").lower()


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_reimage_loses_no_queued_job(cloud: LocalCloud, ami: str, newer: str, inventory: tuple, signing_key: str, *, way: str) -> None:
    wanted = newer if way == "there" else ami
    if way == "there":
        sign(cloud, newer, signing_key)
    nodes = Nodes(cloud)
    # Two jobs run on each node until its reboot; the others wait in the queue.
    until_asked = "until scontrol show node $SLURMD_NODENAME | grep -q REBOOT; do sleep 1; done"
    submit = "sbatch --parsable --chdir=/ --output=/dev/null --exclusive --mem=64 --wrap='%s'"
    jobs = [nodes.slurm(submit % what).strip() for what in [until_asked] * 4 + ["sleep 2"] * 4]
    boots = "scontrol show nodes | grep -o 'BootTime=[^ ]*' | cut -d= -f2"
    before = nodes.slurm(boots).split()
    said, code = reimage(cloud, wanted, inventory, signing_key)
    assert code == 0, said[-5000:]
    came = [nodes.run(node, "cat /etc/muster/newer 2>/dev/null || echo first").strip() for node in nodes.ids["compute"]]
    assert came == ["newer" if way == "there" else "first"] * 2
    deadline = time.monotonic() + 180
    while nodes.slurm("squeue --noheader").strip():
        assert time.monotonic() < deadline
        time.sleep(1)
    # A resumed node has no BootTime until it registers again; these ones ran jobs since.
    booted = nodes.slurm(boots).split()
    assert len(booted) == 2 and "None" not in booted and min(booted) > max(before)
    shown = nodes.slurm(f"sacct --noheader --parsable2 --allocations --format=JobID,State,Restarts,Start --jobs={','.join(jobs)}").split()
    assert [each.rpartition("|")[0] for each in shown] == [f"{job}|COMPLETED|0" for job in jobs]
    started = [each.rpartition("|")[2] for each in shown]
    assert max(started[:4]) < min(booted) < min(started[4:])


def test_nothing_is_left_of_the_fleet(cloud: LocalCloud, ami: str, newer: str) -> None:
    for each in (newer, ami):
        said, code = cloud.play(f"{FLEET}/end.yml", ami=each)
    assert code == 0, said[-3000:]
    assert cloud.running() == []
    assert cloud.client("ec2").describe_images(Owners=["self"])["Images"] == []
