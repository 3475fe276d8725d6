# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""From template to trained model: packer build of an AMI, a fleet launched from it and found in EC2, site.yml over it, and nothing left."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import datetime

import pytest
from local_cloud import LocalCloud, ami_of, with_packer

pytestmark = pytest.mark.engine

NAME = f"image{os.getpid()}"
FLEET = "tests/integration/image_fleet"
COMPONENTS = ["common", "slurm", "trainer"]
# What decides what is installed must be the same for the builder and for the nodes, or they install it again.
VARIABLES = {
    "common_ca_certificates": "{{ query('ansible.builtin.fileglob', '/usr/local/share/ca-certificates/*.crt') }}",
    "trainer_venv": "/var/cache/muster/venv-trixie-{{ lookup('muster.fleet.tree_sha256', 'roles/trainer/files')[:12] }}",
}


@pytest.fixture(scope="module")
def cloud(artifacts) -> Iterator[LocalCloud]:
    yield from with_packer(NAME, artifacts)


@pytest.fixture(scope="module")
def signing_key(cloud: LocalCloud) -> str:
    """In KMS, and a bucket to keep what it signs; by its alias it is known in both regions."""
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
    """How a playbook reaches the fleet: arguments and variables."""
    known = f"-o UserKnownHostsFile={cloud.folder / 'known_hosts'} -o StrictHostKeyChecking=accept-new"
    variables = {"muster_fleet": NAME, "ansible_ssh_private_key_file": str(cloud.folder / "key"), "ansible_ssh_extra_args": known}
    return ("-i", f"{FLEET}/inventory"), variables


@pytest.fixture(scope="module")
def site(cloud: LocalCloud, ami: str, signing_key: str, inventory: tuple[tuple[str, ...], dict[str, str]]) -> str:
    """What site.yml said over the fleet of that AMI."""
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
    assert list(manifest["components"]) == COMPONENTS
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


def test_the_builder_is_gone_with_all_that_was_made_for_it(cloud: LocalCloud, ami: str) -> None:
    ec2 = cloud.client("ec2")
    assert cloud.running() == []
    assert ec2.describe_key_pairs()["KeyPairs"] == []
    assert [each["GroupName"] for each in ec2.describe_security_groups()["SecurityGroups"]] == ["default"]
    assert [each["ImageId"] for each in ec2.describe_images(Owners=["self"])["Images"]] == [ami]


def test_a_fleet_of_it_installs_nothing_trains_and_reports(cloud: LocalCloud, site: str) -> None:
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


def test_nothing_is_left_of_the_fleet(cloud: LocalCloud, ami: str, site: str) -> None:
    said, code = cloud.play(f"{FLEET}/end.yml", ami=ami)
    assert code == 0, said[-3000:]
    assert cloud.running() == []
    assert cloud.client("ec2").describe_images(Owners=["self"])["Images"] == []
