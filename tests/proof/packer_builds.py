# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: builds of the smallest image on the local cloud; two at once, what was made verified, a builder that is lost or fails.

Run by `make proofs`, or `pytest --engine tests/proof/packer_builds.py` where `make packer` was; about five minutes on two cores.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from http.server import ThreadingHTTPServer

import pytest
from apt_proxy import AptProxy
from download_server import serving
from local_cloud import ROOT, LocalCloud, ami_of, build_argv, with_packer

from localcloud.__main__ import order
from localcloud.machines import Machines

pytestmark = pytest.mark.engine

NAME = f"packer{os.getpid()}"


@pytest.fixture(scope="module")
def cloud(artifacts) -> Iterator[LocalCloud]:
    yield from with_packer(NAME, artifacts)


def begin(
    cloud: LocalCloud, results: str, path: str = os.environ["PATH"], options: Sequence[str] = (), **variables: object
) -> subprocess.Popen:
    argv, env = build_argv("base", cloud.folder / results, **variables), {**cloud.env, "PATH": path, "TMPDIR": str(cloud.folder / "tmp")}
    (cloud.folder / "tmp").mkdir(exist_ok=True)
    argv[2:2] = options
    with (cloud.folder / f"{results}.txt").open("w") as output:
        return subprocess.Popen(argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)


@pytest.fixture(scope="module")
def keys(cloud: LocalCloud) -> tuple[str, str]:
    """The key that signs images and the key that verifies them."""
    private, public = (str(cloud.folder / name) for name in ("sign.pem", "sign.pub.pem"))
    argv = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", private]
    subprocess.run(argv, check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return private, public


@pytest.fixture(scope="module")
def apt_proxy(cloud: LocalCloud) -> Iterator[AptProxy]:
    """A cache that the builders reach, as a site has one."""
    with AptProxy(Machines(cloud.name, cloud.env).gateway(), cloud.folder / "packages") as made:
        yield made


@pytest.fixture(scope="module")
def mirror(cloud: LocalCloud) -> Iterator[ThreadingHTTPServer]:
    """A mirror of a stack's files, with stub archives for them; it counts requests."""
    folder = cloud.folder / "archives"
    subprocess.run([sys.executable, ROOT / ".config/molecule/stub_archives", folder], check=True, stdout=subprocess.DEVNULL)
    with serving() as made:
        made.files = {f"/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}  # type: ignore[attr-defined]
        yield made


@pytest.fixture(scope="module")
def site(cloud: LocalCloud, apt_proxy: AptProxy, mirror: ThreadingHTTPServer) -> dict[str, str]:
    """The variables that say where the images' parts come from."""
    return {
        "muster_image_apt_proxy": apt_proxy.url,
        "muster_stack_name": str(cloud.folder / "archives/stub.yml"),
        "muster_mirror": f"http://127.0.0.1:{mirror.server_port}",
        "muster_cache_dir": str(cloud.folder / "cache"),
    }


@pytest.fixture(scope="module")
def plugin(cloud: LocalCloud) -> str:
    """A folder with a stand-in for AWS's session-manager-plugin."""
    program = cloud.folder / "bin/session-manager-plugin"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{(ROOT / 'tests/support/session_manager_plugin.py').read_text()}")
    program.chmod(0o755)
    return str(program.parent)


@pytest.fixture(scope="module")
def amis(cloud: LocalCloud, keys: tuple[str, str], plugin: str, site: dict[str, str]) -> list[str]:
    """The AMIs of two builds that began in the same second. The first is signed; the second goes through Session Manager."""
    path = f"{plugin}:{os.environ['PATH']}"
    same: dict[str, object] = {"components": ["common", "cloud_tools"], "ansible_variables": json.dumps(site)}
    signed = {**same, "provenance": {"location": "ssm:/provenance", "private_key": keys[0]}}
    builds = {"one": begin(cloud, "one", **signed), "two": begin(cloud, "two", path, **same, session_manager=True)}
    for name, build in builds.items():
        assert build.wait(400) == 0, (cloud.folder / f"{name}.txt").read_text()[-3000:]
    return [ami_of((cloud.folder / f"{name}.txt").read_text()) for name in builds]


def test_two_builds_at_once_make_two_images(cloud: LocalCloud, amis: list[str]) -> None:
    images = cloud.client("ec2").describe_images(ImageIds=amis)["Images"]
    assert len({each["Name"] for each in images}) == 2
    deadline = time.monotonic() + 10
    while left := [each.name for each in (cloud.folder / "tmp").glob("ansible-key*")]:
        assert time.monotonic() < deadline, f"the builder's private key is left in {left}"
        time.sleep(0.5)
    assert cloud.running() == []


def test_what_one_build_fetched_another_does_not_fetch_again(
    cloud: LocalCloud, amis: list[str], apt_proxy: AptProxy, mirror: ThreadingHTTPServer
) -> None:
    files = mirror.asked  # type: ignore[attr-defined]
    assert all(any(name in path for path in files) for name in ("/kubectl", "/awscli-exe-linux-x86_64-"))
    assert set(files.values()) == {1}
    asked, fetched = ([url for url in urls if url.endswith(".deb")] for urls in (apt_proxy.asked, apt_proxy.fetched))
    manifest = json.loads((cloud.folder / "one/manifest.json").read_text())
    assert {"jq", "curl"} <= set(manifest["packages"])
    assert any("/jq_" in url for url in fetched)
    assert len(fetched) == len(set(fetched)) == len(asked) / 2
    # The image must not keep the address of the builders' cache, which its nodes may not reach.
    ssm, ec2 = cloud.client("ssm"), cloud.client("ec2")
    made = ec2.run_instances(ImageId=amis[0], InstanceType="c7i.large", MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    look = {"commands": ["apt-config dump | grep -i proxy"]}
    sent = ssm.send_command(InstanceIds=[made], DocumentName="AWS-RunShellScript", Parameters=look)
    ec2.terminate_instances(InstanceIds=[made])
    done = ssm.get_command_invocation(CommandId=sent["Command"]["CommandId"], InstanceId=made)
    assert (done["StandardOutputContent"], done["ResponseCode"]) == ("", 1)


def test_session_manager_reached_the_builder_without_an_open_port_and_nothing_is_left_of_it(cloud: LocalCloud, amis: list[str]) -> None:
    said = (cloud.folder / "two.txt").read_text()
    assert re.search(r'Starting portForwarding session "localcloud-\w+"', said)
    assert "Using SSH communicator to connect: localhost" in said
    assert "Authorizing access to port 22" in (cloud.folder / "one.txt").read_text()
    assert "Authorizing access to port 22" not in said
    ssm, iam = cloud.client("ssm"), cloud.client("iam")
    assert ssm.describe_sessions(State="Active")["Sessions"] == []
    assert {each["DocumentName"] for each in ssm.describe_sessions(State="History")["Sessions"]} == {"AWS-StartPortForwardingSession"}
    assert (iam.list_instance_profiles()["InstanceProfiles"], iam.list_roles()["Roles"]) == ([], [])


def test_a_signed_image_is_verified_and_its_instance_taken_away(
    cloud: LocalCloud, amis: list[str], keys: tuple[str, str], site: dict[str, str]
) -> None:
    asked = {
        "muster_stack_name": site["muster_stack_name"],
        "muster_provenance_required": True,
        "muster_provenance_public_key": keys[1],
        "muster_allow_not_run": NOT_RUN,
    }
    said, code = cloud.play("playbooks/image_verify.yml", "-i", "localhost,", ami=amis[0], **asked, log="verify.txt")
    assert code == 0, said[-4000:]
    assert "TASK [muster.fleet.common : verify_image" in said
    assert "TASK [muster.fleet.common : verify_node" in said
    assert cloud.running() == []
    assert cloud.client("ec2").describe_key_pairs()["KeyPairs"] == []


# A container shares clock and kernel settings with the machine.
NOT_RUN = ["common.clock_synchronised", "common.hugepages", "common.sysctl_kernel_numa_balancing", "common.sysctl_net_core_somaxconn",
           "common.sysctl_vm_max_map_count"]  # fmt: skip


def test_a_bad_image_fails_and_its_instance_is_taken_away_too(cloud: LocalCloud, amis: list[str], site: dict[str, str]) -> None:
    """The verification fails by the checks that a container cannot run, unless it allows them."""
    asked = {"ami": amis[1], "muster_stack_name": site["muster_stack_name"]}
    said, code = cloud.play("playbooks/image_verify.yml", "-i", "localhost,", **asked, log="verify-bad.txt")
    assert code != 0
    assert "clock_synchronised" in said
    assert cloud.running() == []
    assert cloud.client("ec2").describe_key_pairs()["KeyPairs"] == []


def test_what_nobody_signed_is_not_started_where_that_is_required(cloud: LocalCloud, amis: list[str], keys: tuple[str, str]) -> None:
    for more, sentence in (
        ({"muster_provenance_public_key": keys[1]}, f"AMI {amis[1]} in region us-east-1 has no provenance (no tag muster:provenance);"),
        ({}, f"{amis[1]} is not launched: muster_provenance_required needs the key that images are signed with; set one of"),
    ):
        said, code = cloud.play("playbooks/image_verify.yml", "-i", "localhost,", ami=amis[1], muster_provenance_required=True, **more)
        assert code != 0
        assert sentence in " ".join(said.split())
        assert cloud.running() == []


@pytest.mark.parametrize(
    ("ami", "sentence"),
    [
        ("us-east-1", "us-east-1 is not an AMI id; give one as packer build printed it"),
        ("ami-0123456789abcdef0", "ami-0123456789abcdef0 cannot be verified: "),
        ("ami-0deb13000000000d1", "it has no tag muster:purpose, so packer/ did not make it; give an image of packer/"),
    ],
)
def test_what_cannot_be_verified_is_said_and_nothing_is_started(cloud: LocalCloud, ami: str, sentence: str) -> None:
    said, code = cloud.play("playbooks/image_verify.yml", "-i", "localhost,", ami=ami)
    assert code != 0
    assert sentence in " ".join(said.split())
    assert cloud.running() == []


def test_a_builder_that_is_lost_is_said_and_leaves_nothing(cloud: LocalCloud) -> None:
    before = {each["ImageId"] for each in cloud.client("ec2").describe_images(Owners=["self"])["Images"]}
    build = begin(cloud, "lost")
    deadline = time.monotonic() + 120
    while "Executing Ansible" not in (cloud.folder / "lost.txt").read_text():
        assert build.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.5)
    [builder] = cloud.running()
    assert order(json.dumps({"dies": builder}), cloud.env) == 0
    assert build.wait(300) == 1
    said = (cloud.folder / "lost.txt").read_text()
    assert re.search(r"UNREACHABLE|unreachable", said), said[-3000:]
    assert "Terminating the source AWS instance" in said
    ec2 = cloud.client("ec2")
    assert cloud.running() == []
    assert {each["ImageId"] for each in ec2.describe_images(Owners=["self"])["Images"]} == before
    assert ec2.describe_key_pairs()["KeyPairs"] == []
    assert [each["GroupName"] for each in ec2.describe_security_groups()["SecurityGroups"]] == ["default"]


def test_a_builder_that_fails_is_kept_where_that_is_asked(cloud: LocalCloud) -> None:
    site = {"ansible_variables": json.dumps({"common_packages": ["muster-no-such-package"]})}
    build = begin(cloud, "kept", options=["-on-error=abort"], **site)
    assert build.wait(300) == 1
    said = (cloud.folder / "kept.txt").read_text()
    assert "apt-get cannot install muster-no-such-package" in said
    assert "Terminating the source AWS instance" not in said
    [builder] = cloud.running()
    ssm, ec2 = cloud.client("ssm"), cloud.client("ec2")
    look = {"commands": ["test -e /etc/apt/apt.conf.d/90muster && echo half done"]}
    sent = ssm.send_command(InstanceIds=[builder], DocumentName="AWS-RunShellScript", Parameters=look)
    done = ssm.get_command_invocation(CommandId=sent["Command"]["CommandId"], InstanceId=builder)
    ec2.terminate_instances(InstanceIds=[builder])
    assert done["StandardOutputContent"].split() == ["half", "done"]
    assert cloud.running() == []
