# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The local cloud's API over machines that only record their calls; tests/proof/localcloud_machines.py has real ones."""

from __future__ import annotations

import base64
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from local_cloud_api import AMI, Machines

from ansible_collections.muster.fleet.plugins.module_utils.containers.image import NodeImage
from ansible_collections.muster.fleet.plugins.module_utils.containers.ssh import make_key
from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import ec2_interfaces, names
from localcloud import machines as machines_of_containers
from localcloud.metadata import Metadata


def run(ec2, **more: object) -> list[dict]:
    wanted = {"ImageId": AMI, "InstanceType": "c6i.large", "MinCount": 1, "MaxCount": 1, **more}
    return ec2.run_instances(**wanted)["Instances"]


def show(ec2, instance: str) -> dict:
    return ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]


def code(call, *args: object, **kwargs: object) -> str:
    with pytest.raises(ClientError) as error:
        call(*args, **kwargs)
    return error.value.response["Error"]["Code"]


def test_an_instance_of_an_accelerated_type_rehearses_it(ec2, machines: Machines) -> None:
    kinds = {kind: run(ec2, InstanceType=kind)[0]["InstanceId"] for kind in ("p4d.24xlarge", "trn1.32xlarge", "c6i.large")}
    assert machines.kinds == {kinds["p4d.24xlarge"]: "p4d.24xlarge", kinds["trn1.32xlarge"]: "trn1.32xlarge", kinds["c6i.large"]: ""}
    machines.kinds.clear()
    ec2.create_replace_root_volume_task(InstanceId=kinds["p4d.24xlarge"], ImageId=AMI)
    assert machines.kinds == {kinds["p4d.24xlarge"]: "p4d.24xlarge"}


def test_an_instance_is_its_machine(ec2, machines: Machines) -> None:
    key = ec2.create_key_pair(KeyName="me", KeyType="ed25519")
    assert "PRIVATE KEY" in key["KeyMaterial"]
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "a"}]}]
    made = run(ec2, KeyName="me", UserData="#!/bin/sh\ntrue\n", TagSpecifications=tags)[0]
    assert made["State"]["Name"] == "pending"
    _start, image, public, data = machines.done[0]
    assert image.release == "trixie"
    assert public.startswith("ssh-ed25519 ")
    assert data == b"#!/bin/sh\ntrue\n"
    seen = show(ec2, made["InstanceId"])
    assert (seen["State"]["Name"], seen["PrivateIpAddress"], seen.get("PublicIpAddress")) == ("running", "10.213.7.2", None)
    assert seen["Tags"] == [{"Key": "Name", "Value": "a"}]
    console = ec2.get_console_output(InstanceId=made["InstanceId"])["Output"]
    assert console == f"journal of {made['InstanceId']}"


def test_stop_start_reboot_and_terminate_act_on_it(ec2, machines: Machines) -> None:
    one = run(ec2)[0]["InstanceId"]
    ec2.stop_instances(InstanceIds=[one])
    assert (machines.now[one], show(ec2, one)["State"]["Name"]) == ("exited", "stopped")
    ec2.start_instances(InstanceIds=[one])
    ec2.reboot_instances(InstanceIds=[one])
    assert (machines.now[one], show(ec2, one)["State"]["Name"]) == ("running", "running")
    assert show(ec2, one)["PrivateIpAddress"] == "10.213.7.2"
    ec2.terminate_instances(InstanceIds=[one])
    ec2.terminate_instances(InstanceIds=[one])
    assert (machines.now, show(ec2, one)["State"]["Name"]) == ({}, "terminated")


@pytest.mark.parametrize(
    ("behaviour", "ended", "state"), [("stop", "exited", "stopped"), ("stop", "stopped", "stopped"), ("terminate", "exited", "terminated")]
)
def test_a_machine_that_switched_itself_off_is_told(ec2, machines: Machines, behaviour: str, ended: str, state: str) -> None:
    one = run(ec2, InstanceInitiatedShutdownBehavior=behaviour)[0]["InstanceId"]
    machines.now[one] = "stopping"
    assert show(ec2, one)["State"]["Name"] == "running"
    machines.now[one] = ended
    seen = show(ec2, one)
    assert (seen["State"]["Name"], seen["StateReason"]["Code"]) == (state, "Client.InstanceInitiatedShutdown")


def test_a_root_volume_is_replaced_by_another_images(ec2, machines: Machines) -> None:
    one, other = (each["InstanceId"] for each in run(ec2, MinCount=2, MaxCount=2, UserData="#!/bin/sh\n"))
    image = ec2.create_image(InstanceId=other, Name="newer")["ImageId"]
    task = ec2.create_replace_root_volume_task(InstanceId=one, ImageId=image, ClientToken="t")["ReplaceRootVolumeTask"]
    assert (task["TaskState"], task["ImageId"]) == ("succeeded", image)
    assert machines.done[-1] == ("replace", one, f"image of {other}", "", b"#!/bin/sh\n")
    again = ec2.create_replace_root_volume_task(InstanceId=one, ImageId=image, ClientToken="t")["ReplaceRootVolumeTask"]
    assert (again["ReplaceRootVolumeTaskId"], len(machines.done)) == (task["ReplaceRootVolumeTaskId"], 3)
    assert show(ec2, one)["PrivateIpAddress"] == "10.213.7.2"
    back = ec2.create_replace_root_volume_task(InstanceId=one)["ReplaceRootVolumeTask"]
    assert back["ImageId"] == AMI
    mine = ec2.describe_replace_root_volume_tasks(Filters=[{"Name": "instance-id", "Values": [one]}])["ReplaceRootVolumeTasks"]
    assert [each["ReplaceRootVolumeTaskId"] for each in mine] == [task["ReplaceRootVolumeTaskId"], back["ReplaceRootVolumeTaskId"]]
    assert code(ec2.create_replace_root_volume_task, InstanceId=one, ImageId="ami-00000000000000000") == "InvalidAMIID.NotFound"
    ec2.stop_instances(InstanceIds=[one])
    assert code(ec2.create_replace_root_volume_task, InstanceId=one) == "IncorrectInstanceState"
    machines.room = 0
    failed = ec2.create_replace_root_volume_task(InstanceId=other)["ReplaceRootVolumeTask"]
    assert failed["TaskState"] == "failed"


def test_a_client_that_asks_again_is_told_of_the_running_task(ec2, machines: Machines, monkeypatch) -> None:
    """A client asks again when it got no answer, and the first call may still be at work."""
    one = run(ec2)[0]["InstanceId"]
    former, told = machines.replace, []

    def replace(*given: object) -> None:
        again = ec2.create_replace_root_volume_task(InstanceId=one, ClientToken="t")
        told.append(again["ReplaceRootVolumeTask"]["TaskState"])
        former(*given)

    monkeypatch.setattr(machines, "replace", replace)
    task = ec2.create_replace_root_volume_task(InstanceId=one, ClientToken="t")["ReplaceRootVolumeTask"]
    assert (told, task["TaskState"]) == (["in-progress"], "succeeded")


def test_the_keys_of_a_machine_are_never_missing(tmp_path: Path) -> None:
    """A call beside it writes the fleet's record, for which it reads the host keys of all machines."""
    locked: list[str] = []

    @contextlib.contextmanager
    def lock() -> Iterator[None]:
        locked.append((folder / "ssh_host_ed25519_key.pub").read_text())
        yield
        locked.append((folder / "ssh_host_ed25519_key.pub").read_text())

    def start(*_given: object) -> None:
        assert len(locked) == 2

    folder = tmp_path / "hostkeys/i-1"
    folder.mkdir(parents=True)
    make_key(folder / "ssh_host_ed25519_key", "i-1")
    fleet = SimpleNamespace(fleet=SimpleNamespace(state=tmp_path, lock=lock), start=start)
    machines_of_containers.Machines.replace(fleet, "i-1", AMI, "", b"")
    assert locked[0] != locked[1]


def test_a_look_at_an_instance_whose_machine_is_being_made_does_no_harm(ec2, client, machines: Machines, monkeypatch) -> None:
    """Two builds at once look at all instances, and an instance of the other build may not have its machine yet."""
    seen: list[str] = []

    def looked_at(former):
        def call(instance: str, *args: object) -> object:
            machines.now.pop(instance, None)
            ec2.describe_instance_status(InstanceIds=[instance])
            seen.append(show(ec2, instance)["State"]["Name"])
            return former(instance, *args)

        return call

    for each in ("start", "replace", "resume"):
        monkeypatch.setattr(machines, each, looked_at(getattr(machines, each)))
    one = run(ec2)[0]["InstanceId"]
    ec2.reboot_instances(InstanceIds=[one])
    machines.now.pop(one)
    ec2.create_replace_root_volume_task(InstanceId=one, ImageId=AMI)
    assert seen == ["running"] * 3


def test_one_that_is_being_stopped_has_not_switched_itself_off(ec2, machines: Machines, monkeypatch) -> None:
    """Packer's builders terminate when they switch themselves off. A look of another build at a stop must not terminate one."""
    former, one = machines.stop, run(ec2, InstanceInitiatedShutdownBehavior="terminate")[0]["InstanceId"]
    seen = []

    def stop(instance: str) -> None:
        former(instance)
        seen.append(show(ec2, instance)["State"]["Name"])

    monkeypatch.setattr(machines, "stop", stop)
    ec2.stop_instances(InstanceIds=[one])
    assert (seen, show(ec2, one)["State"]["Name"]) == (["running"], "stopped")

    ec2.start_instances(InstanceIds=[one])
    monkeypatch.setattr(machines, "stop", former)
    states, began = machines.states, []

    def slow_states() -> dict[str, str]:
        if not began:
            began.append(True)
            ec2.stop_instances(InstanceIds=[one])
        return states()

    monkeypatch.setattr(machines, "states", slow_states)
    assert show(ec2, one)["State"]["Name"] == "stopped"


def test_a_reboot_within_a_look_changes_nothing(ec2, machines: Machines, monkeypatch) -> None:
    one = run(ec2)[0]["InstanceId"]

    def states() -> dict[str, str]:
        monkeypatch.undo()
        ec2.reboot_instances(InstanceIds=[one])
        return {one: "exited"}

    monkeypatch.setattr(machines, "states", states)
    assert show(ec2, one)["State"]["Name"] == "running"


@pytest.fixture
def ec2_with(served):
    """A client of EC2 with keys and, where it is named, another address of the API."""

    def make(key: str, secret: str, host: str = "127.0.0.1"):
        where = served.env["AWS_ENDPOINT_URL"].replace("127.0.0.1", host)
        keys = {"aws_access_key_id": key, "aws_secret_access_key": secret}
        return boto3.client("ec2", region_name="us-east-1", endpoint_url=where, config=Config(retries={"total_max_attempts": 1}), **keys)

    return make


def test_an_instance_reaches_the_api_at_its_network_with_the_clouds_keys(served, machines: Machines, ec2_with) -> None:
    own = served.env["AWS_ACCESS_KEY_ID"], served.env["AWS_SECRET_ACCESS_KEY"]
    assert ec2_with(*own, machines.gateway()).describe_instances()["Reservations"] == []
    assert code(ec2_with("x", "x", machines.gateway()).describe_instances) == "AuthFailure"


def test_nobody_calls_without_the_clouds_keys(served, machines: Machines, ec2_with) -> None:
    key, url = served.env["AWS_ACCESS_KEY_ID"], served.env["AWS_ENDPOINT_URL"]
    assert code(run, ec2_with(key, "made up")) == "SignatureDoesNotMatch"
    assert code(run, ec2_with("localcloud", "localcloud")) == "AuthFailure"
    for path, body in (
        ("/", b"Action=RunInstances"),
        ("/localcloud/faults", b'{"boots": false}'),
        ("/moto-api/reset", b""),
        ("/moto-api/", None),
    ):
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(urllib.request.Request(url + path, body, {"Origin": "http://evil.example"}), timeout=10)
        assert (error.value.code, error.value.headers["Access-Control-Allow-Origin"]) == (403, None)
    assert machines.now == {}


def test_each_cloud_has_a_key_of_its_own(served) -> None:
    from localcloud.signature import Keys

    others = {served.env["AWS_SECRET_ACCESS_KEY"], *(Keys().secret for _ in range(3))}
    assert len(others) == 4
    assert min(map(len, others)) >= 40


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"QUERY": "?x=1"}, "SignatureDoesNotMatch"),
        ({"BODY": b"Action=TerminateInstances"}, "SignatureDoesNotMatch"),
        ({"HTTP_X_AMZ_DATE": "20200101T000000Z"}, "RequestExpired"),
        ({"HTTP_X_AMZ_DATE": "yesterday"}, "IncompleteSignature"),
        ({"HTTP_AUTHORIZATION": ""}, "MissingAuthenticationToken"),
        ({"HTTP_X_AMZ_CONTENT_SHA256": "0" * 64}, "XAmzContentSHA256Mismatch"),
        ({"SIGNED": "host"}, "IncompleteSignature"),
        ({}, None),
    ],
)
def test_what_was_changed_after_it_was_signed_is_refused(change: dict, expected: str | None) -> None:
    from localcloud.signature import Keys, Refused

    keys, body = Keys(), b"Action=DescribeInstances"
    request = AWSRequest("POST", "http://127.0.0.1:1/", data=body)
    SigV4Auth(Credentials(keys.key, keys.secret), "ec2", "us-east-1").add_auth(request)
    signed = request.headers["Authorization"]
    if "SIGNED" in change:
        signed = signed.replace("SignedHeaders=host;x-amz-date", f"SignedHeaders={change['SIGNED']}")
    environ = {
        "REQUEST_METHOD": "POST", "REQUEST_URI": "/" + change.get("QUERY", ""), "HTTP_HOST": "127.0.0.1:1",
        "HTTP_X_AMZ_DATE": request.headers["X-Amz-Date"], "HTTP_AUTHORIZATION": signed, **change,
    }  # fmt: skip
    if expected is None:
        keys.check(environ, body)
        return
    with pytest.raises(Refused) as error:
        keys.check(environ, change.get("BODY", body))
    assert error.value.code == expected


def test_an_old_request_is_refused_although_its_signature_is_right(served, ec2, monkeypatch) -> None:
    assert ec2.describe_regions()["Regions"]
    monkeypatch.setattr("localcloud.signature.SKEW_S", -1)
    assert code(ec2.describe_regions) == "RequestExpired"


def test_no_answer_allows_a_web_page_to_read_it(served, machines: Machines) -> None:
    body, url = b"Action=DescribeRegions&Version=2016-11-15", served.env["AWS_ENDPOINT_URL"] + "/"
    headers = {"Origin": "http://evil.example", "Content-Type": "application/x-www-form-urlencoded"}
    request = AWSRequest("POST", url, data=body, headers=headers)
    keys = Credentials(served.env["AWS_ACCESS_KEY_ID"], served.env["AWS_SECRET_ACCESS_KEY"])
    SigV4Auth(keys, "ec2", "us-east-1").add_auth(request)
    with urllib.request.urlopen(urllib.request.Request(url, body, dict(request.headers)), timeout=10) as answer:
        assert answer.status == 200
        assert [name for name in answer.headers if name.lower().startswith("access-control")] == []


def test_the_keys_of_an_assumed_role_are_good(client, ec2_with) -> None:
    role = client("sts").assume_role(RoleArn="arn:aws:iam::111122223333:role/r", RoleSessionName="session")["Credentials"]
    assert ec2_with(role["AccessKeyId"], role["SecretAccessKey"]).describe_regions()["Regions"]
    assert code(ec2_with(role["AccessKeyId"], "other").describe_regions) == "SignatureDoesNotMatch"


def test_other_services_verify_too(client, served) -> None:
    client("s3").create_bucket(Bucket="mine")
    client("s3").put_object(Bucket="mine", Key="a b/ü?", Body=b"text")
    assert client("s3").get_object(Bucket="mine", Key="a b/ü?")["Body"].read() == b"text"
    assert client("ssm").put_parameter(Name="/a", Value="v", Type="String")["Version"] == 1
    wrong = {
        "aws_access_key_id": served.env["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": "x",
        "endpoint_url": served.env["AWS_ENDPOINT_URL"],
    }
    for service, call in (("s3", "list_buckets"), ("ssm", "describe_parameters"), ("sts", "get_caller_identity")):
        assert code(getattr(boto3.client(service, region_name="us-east-1", **wrong), call)) == "SignatureDoesNotMatch"


def test_an_instance_reads_its_metadata_and_keys_of_its_role(ec2, client, served) -> None:
    """By tokens alone, and only of itself: the address says who asks."""
    client("iam").create_role(RoleName="node", AssumeRolePolicyDocument="{}")
    client("iam").create_instance_profile(InstanceProfileName="node")
    client("iam").add_role_to_instance_profile(InstanceProfileName="node", RoleName="node")
    data = {
        "ImageId": AMI,
        "InstanceType": "c6i.large",
        "IamInstanceProfile": {"Name": "node"},
        "InstanceMarketOptions": {"MarketType": "spot"},
        "MetadataOptions": {"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
    }
    ec2.create_launch_template(LaunchTemplateName="t", LaunchTemplateData=data)
    made = ec2.run_instances(LaunchTemplate={"LaunchTemplateName": "t"}, MinCount=2, MaxCount=2)["Instances"]
    plain = run(ec2)[0]
    second = show(ec2, made[1]["InstanceId"])
    assert second["InstanceLifecycle"] == "spot" and second["IamInstanceProfile"]["Arn"].endswith("instance-profile/node")
    service = Metadata()

    def ask(path: str, address: str = second["PrivateIpAddress"], method: str = "GET", **headers: str) -> tuple[str, str]:
        named = {f"HTTP_X_AWS_EC2_METADATA_{name.upper()}": value for name, value in headers.items()}
        status, text = service.answer({"REMOTE_ADDR": address, "PATH_INFO": f"/latest/{path}", "REQUEST_METHOD": method, **named})
        return status[:3], text.decode()

    assert ask("meta-data/instance-id") == ("401", "")
    assert ask("api/token", method="PUT", token_ttl_seconds="99999")[0] == "400"
    assert ask("api/token", address="10.9.9.9", method="PUT", token_ttl_seconds="60")[0] == "404"
    token = ask("api/token", method="PUT", token_ttl_seconds="60")[1]
    assert ask("meta-data/instance-id", token=token) == ("200", second["InstanceId"])
    assert ask("meta-data/placement/region", token=token) == ("200", "us-east-1")
    assert ask("meta-data/tags/instance/muster:slurm_node", token=token)[0] == "404"
    for each in (second["InstanceId"], plain["InstanceId"]):
        ec2.create_tags(Resources=[each], Tags=[{"Key": "muster:slurm_node", "Value": "gpu-1"}])
    assert ask("meta-data/tags/instance/muster:slurm_node", token=token) == ("200", "gpu-1")
    other = show(ec2, plain["InstanceId"])["PrivateIpAddress"]
    assert ask("meta-data/tags/instance/muster:slurm_node", address=other, token=token)[0] == "404", "its launch asked for no tags"
    assert ask("meta-data/iam/security-credentials/", address=other, token=token)[0] == "404"
    assert ask("meta-data/iam/security-credentials/", token=token) == ("200", "node")
    keys = json.loads(ask("meta-data/iam/security-credentials/node", token=token)[1])
    mine = {"aws_access_key_id": keys["AccessKeyId"], "aws_secret_access_key": keys["SecretAccessKey"], "aws_session_token": keys["Token"]}
    told = boto3.client("sts", region_name="us-east-1", endpoint_url=served.env["AWS_ENDPOINT_URL"], **mine).get_caller_identity()
    assert told["Arn"].endswith(f"assumed-role/node/{second['InstanceId']}")


def test_requests_for_metadata_need_no_signature_and_others_do(served) -> None:
    for path, expected in (("/latest/meta-data/instance-id", 404), ("/meta-data", 403)):
        asked = urllib.request.Request(served.env["AWS_ENDPOINT_URL"] + path)
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(asked, timeout=10)
        assert error.value.code == expected


def test_an_image_that_an_instance_runs_stays_in_the_engine() -> None:
    real = machines_of_containers.Machines.__new__(machines_of_containers.Machines)
    removed: list[str] = []
    running = {"i-1": SimpleNamespace(spec={"image": "localhost/c:ami-1"})}
    real.fleet = SimpleNamespace(containers=lambda: running, remove_images=removed.extend)
    real.images = {each: NodeImage(reference=f"localhost/c:{each}") for each in ("ami-1", "ami-2")}
    real.forget("ami-1")
    real.forget("ami-2")
    assert (removed, real.images) == (["localhost/c:ami-2"], {})


def test_the_console_shows_no_line_of_the_kernel() -> None:
    """A container's journal reads /dev/kmsg, and with it what the kernel says of this machine and of all others on it."""
    kept = {"journal": "systemd[1]: Started sshd", "stdout": "user-data[9]: hello", "syslog": "sshd[7]: Server listening"}
    lines = {
        **kept,
        "driver": "systemd-journald[2]: Journal started",
        "kernel": "kernel: veth7: entered promiscuous mode",
        "audit": "audit: x",
    }
    asked: list[str] = []

    def journalctl(instance: str, argv: list[str]) -> SimpleNamespace:
        """As journalctl: matches of one field are alternatives, and without one every line is shown."""
        asked.append(instance)
        wanted = [each.partition("=")[2] for each in argv if each.startswith("_TRANSPORT=")]
        return SimpleNamespace(stdout="".join(f"{text}\n" for kind, text in lines.items() if not wanted or kind in wanted))

    real = machines_of_containers.Machines.__new__(machines_of_containers.Machines)
    real.fleet = SimpleNamespace(run_in=journalctl)
    console = real.journal("i-1")
    assert asked == ["i-1"]
    assert all(text in console for text in kept.values())
    assert "promiscuous" not in console and "audit" not in console


def test_a_machine_is_lost_when_it_stays_so(monkeypatch) -> None:
    looks = ["lost", "lost", "exited"]
    real = machines_of_containers.Machines.__new__(machines_of_containers.Machines)
    real.fleet = SimpleNamespace(containers=lambda: {"i-1": SimpleNamespace(node="i-1", state=looks.pop(0) if looks else "lost")})
    assert real.states() == {"i-1": "exited"}
    monkeypatch.setattr(machines_of_containers, "LOST_SECONDS", 0)
    assert real.states() == {"i-1": "lost"}


def test_as_many_start_as_the_most_that_is_asked_for(ec2) -> None:
    assert len(run(ec2, MinCount=1, MaxCount=3)) == 3


def test_a_repeated_request_starts_nothing_again(ec2, machines: Machines) -> None:
    first, second = run(ec2, ClientToken="once"), run(ec2, ClientToken="once")
    assert first[0]["InstanceId"] == second[0]["InstanceId"]
    assert len(machines.now) == 1
    assert code(run, ec2, ClientToken="once", InstanceType="c6i.xlarge") == "IdempotentParameterMismatch"


def test_ids_that_are_none_are_malformed(ec2) -> None:
    for call, asked, expected in (
        (ec2.describe_instances, {"InstanceIds": ["i-zzz"]}, "InvalidInstanceID.Malformed"),
        (ec2.describe_instances, {"InstanceIds": ["i-0123456789abcdef0"]}, "InvalidInstanceID.NotFound"),
        (ec2.describe_volumes, {"VolumeIds": ["vol-1"]}, "InvalidVolumeID.Malformed"),
        (ec2.deregister_image, {"ImageId": "i-0123456789abcdef0"}, "InvalidAMIID.Malformed"),
    ):
        assert code(call, **asked) == expected


def volumes(ec2, instance: str) -> dict[str, tuple]:
    found = ec2.describe_volumes(Filters=[{"Name": "attachment.instance-id", "Values": [instance]}])["Volumes"]
    return {each["Attachments"][0]["Device"]: (each["Size"], each["VolumeType"], each.get("KmsKeyId")) for each in found}


def test_the_disks_are_those_of_ami_and_launch(ec2, client, machines: Machines) -> None:
    kms = client("kms")
    key = kms.create_key()["KeyMetadata"]
    kms.create_alias(AliasName="alias/mine", TargetKeyId=key["KeyId"])
    root = {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3", "Encrypted": True, "KmsKeyId": "alias/mine"}}
    plain, other, data = (
        run(ec2, **more)[0]["InstanceId"]
        for more in ({}, {"BlockDeviceMappings": [root]}, {"BlockDeviceMappings": [{"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 33}}]})
    )
    assert {device: size for device, (size, _kind, _key) in volumes(ec2, plain).items()} == {"/dev/xvda": 15}
    assert volumes(ec2, other) == {"/dev/xvda": (20, "gp3", key["Arn"])}
    assert {device: size for device, (size, _kind, _key) in volumes(ec2, data).items()} == {"/dev/xvda": 15, "/dev/sdf": 33}
    made = ec2.create_image(InstanceId=other, Name="larger")["ImageId"]
    disk = ec2.describe_images(ImageIds=[made])["Images"][0]["BlockDeviceMappings"][0]
    assert (disk["DeviceName"], disk["Ebs"]["VolumeSize"], disk["Ebs"]["KmsKeyId"]) == ("/dev/xvda", 20, key["Arn"])
    assert volumes(ec2, run(ec2, ImageId=made)[0]["InstanceId"])["/dev/xvda"][0] == 20


def test_without_room_for_all_none_is_kept(ec2, machines: Machines) -> None:
    machines.room = 2
    assert code(run, ec2, MinCount=3, MaxCount=3) == "InsufficientInstanceCapacity"
    assert machines.now == {}


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"ImageId": "ami-00000000000000000"}, "InvalidAMIID.NotFound"),
        ({"InstanceType": "p9.huge"}, "InvalidParameterValue"),
        ({"KeyName": "nobody"}, "InvalidKeyPair.NotFound"),
        ({"Placement": {"GroupName": "none"}}, "InvalidPlacementGroup.Unknown"),
        ({"ImageId": "ami-nothex"}, "InvalidAMIID.Malformed"),
        ({"MinCount": 3, "MaxCount": 1}, "InvalidParameterValue"),
        ({"InstanceType": "c7g.large"}, "InvalidParameterValue"),
        ({"InstanceType": "t3.micro", "NetworkInterfaces": [{"DeviceIndex": each} for each in range(9)]}, "AttachmentLimitExceeded"),
        ({"InstanceType": "t3.micro", "NetworkInterfaces": [{"DeviceIndex": 0, "InterfaceType": "efa"}]}, "InvalidParameterCombination"),
        ({"InstanceType": "t3.micro", "NetworkInterfaces": [{"DeviceIndex": 0, "SubnetId": "subnet-x"}]}, "InvalidSubnetID.Malformed"),
    ],
)
def test_what_aws_refuses_is_refused(ec2, machines: Machines, wrong: dict, expected: str) -> None:
    assert code(run, ec2, **wrong) == expected
    assert machines.now == {}


def test_an_image_of_an_instance_starts_others(ec2, client, machines: Machines) -> None:
    one = run(ec2)[0]["InstanceId"]
    tags = [{"ResourceType": kind, "Tags": [{"Key": "stack", "Value": "s"}]} for kind in ("image", "snapshot")]
    made = ec2.create_image(InstanceId=one, Name="baked", TagSpecifications=tags)["ImageId"]
    seen = ec2.describe_images(ImageIds=[made])["Images"][0]
    assert (seen["RootDeviceType"], seen["State"], seen["Tags"]) == ("ebs", "available", tags[0]["Tags"])
    snapshot = ec2.describe_snapshots(SnapshotIds=[seen["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]])["Snapshots"][0]
    assert snapshot["Tags"] == tags[0]["Tags"]
    run(ec2, ImageId=made)
    assert machines.done[-1][1] == f"image of {one}"
    assert code(ec2.create_image, InstanceId=one, Name="baked") == "InvalidAMIName.Duplicate"
    west = client("ec2", "us-west-2")
    key = client("kms", "us-west-2").create_key()["KeyMetadata"]["KeyId"]
    copy = {"SourceImageId": made, "SourceRegion": "us-east-1", "Name": "baked"}
    assert code(west.copy_image, **copy, Encrypted=True, KmsKeyId="alias/none") == "InvalidKmsKey.InvalidKeyState"
    copied = west.copy_image(**copy, Encrypted=True, KmsKeyId=key)["ImageId"]
    disk = west.describe_images(ImageIds=[copied])["Images"][0]["BlockDeviceMappings"][0]["Ebs"]
    assert (disk["Encrypted"], disk["KmsKeyId"].rpartition("/")[2]) == (True, key)
    assert disk["KmsKeyId"].startswith("arn:aws:kms:us-west-2:")
    ec2.enable_image_deprecation(ImageId=made, DeprecateAt="2027-01-01T00:00:00Z")
    assert ec2.describe_images(ImageIds=[made])["Images"][0]["DeprecationTime"].startswith("2027-01-01")
    ec2.modify_image_attribute(ImageId=made, ImdsSupport={"Value": "v2.0"})
    assert ec2.describe_images(ImageIds=[made])["Images"][0]["ImdsSupport"] == "v2.0"
    ec2.deregister_image(ImageId=made)
    assert made not in machines.images
    assert copied in machines.images


@pytest.mark.parametrize("service", ["ec2", "sts"])
def test_a_region_that_is_none_is_refused(client, service: str) -> None:
    made = client(service, "us-east-9")
    with pytest.raises(ClientError, match=r"SignatureDoesNotMatch.*us-east-9 is none"):
        made.describe_regions() if service == "ec2" else made.get_caller_identity()


def test_every_type_of_the_catalogue_answers(ec2) -> None:
    wanted = names()
    found = {each["InstanceType"]: each for each in ec2.describe_instance_types(InstanceTypes=wanted)["InstanceTypes"]}
    assert set(found) == set(wanted)
    superchip = found["p6e-gb200.36xlarge"]
    assert superchip["GpuInfo"]["Gpus"][0]["Count"] == 4
    assert superchip["ProcessorInfo"]["SupportedArchitectures"] == ["arm64"]
    assert superchip["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"] == 17 or superchip["NetworkInfo"]["EfaSupported"]


@pytest.mark.parametrize("by_template", [False, True])
def test_interfaces_keep_their_cards_and_kinds(ec2, by_template: bool) -> None:
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    wanted = ec2_interfaces("p5.48xlarge", subnet, [ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]])
    ec2.create_placement_group(GroupName="near", Strategy="cluster")
    data = {"NetworkInterfaces": wanted, "Placement": {"GroupName": "near"}, "MetadataOptions": {"HttpTokens": "required"}}
    if by_template:
        data = {**data, "ImageId": AMI, "InstanceType": "p5.48xlarge"}
        name = ec2.create_launch_template(LaunchTemplateName="t", LaunchTemplateData=data)["LaunchTemplate"]["LaunchTemplateName"]
        made = ec2.run_instances(MinCount=1, MaxCount=1, LaunchTemplate={"LaunchTemplateName": name})["Instances"][0]
    else:
        made = run(ec2, InstanceType="p5.48xlarge", **data)[0]
    seen = show(ec2, made["InstanceId"])
    have = {
        (each["Attachment"]["NetworkCardIndex"], each["Attachment"]["DeviceIndex"], each["InterfaceType"])
        for each in seen["NetworkInterfaces"]
    }
    assert have == {(each["NetworkCardIndex"], each["DeviceIndex"], each["InterfaceType"]) for each in wanted}
    assert len(seen["NetworkInterfaces"]) == len(wanted) > 30
    assert (seen["Placement"]["GroupName"], seen["MetadataOptions"]["HttpTokens"]) == ("near", "required")
    assert code(ec2.delete_placement_group, GroupName="near") == "InvalidPlacementGroup.InUse"
    ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
    ec2.delete_placement_group(GroupName="near")
    ec2.create_placement_group(GroupName="far", Strategy="spread")
    ec2.create_placement_group(GroupName="near", Strategy="cluster")
    of = ec2.describe_placement_groups(Filters=[{"Name": "strategy", "Values": ["spread"]}])["PlacementGroups"]
    assert [each["GroupName"] for each in of] == ["far"]
    assert code(ec2.describe_placement_groups, Filters=[{"Name": "colour", "Values": ["red"]}]) == "InvalidParameterValue"


def test_a_capacity_reservation_is_used_up_and_given_back(ec2) -> None:
    wanted = {"InstanceType": "p5.48xlarge", "InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a", "InstanceCount": 2}
    made = ec2.create_capacity_reservation(**wanted)["CapacityReservation"]
    target = {"CapacityReservationTarget": {"CapacityReservationId": made["CapacityReservationId"]}}
    started = run(ec2, MinCount=2, MaxCount=2, CapacityReservationSpecification=target)

    def free() -> int:
        return ec2.describe_capacity_reservations()["CapacityReservations"][0]["AvailableInstanceCount"]

    assert (made["AvailableInstanceCount"], free()) == (2, 0)
    assert show(ec2, started[0]["InstanceId"])["CapacityReservationId"] == made["CapacityReservationId"]
    assert code(run, ec2, CapacityReservationSpecification=target) == "ReservationCapacityExceeded"
    ec2.terminate_instances(InstanceIds=[started[0]["InstanceId"]])
    assert free() == 1


def test_topology_has_three_layers_and_pages(ec2) -> None:
    run(ec2, MinCount=5, MaxCount=5)
    page = ec2.describe_instance_topology(MaxResults=4)
    rest = ec2.describe_instance_topology(MaxResults=4, NextToken=page["NextToken"])
    nodes = [each["NetworkNodes"] for each in page["Instances"] + rest["Instances"]]
    assert [len(each) for each in nodes] == [3] * 5
    assert len({each[0] for each in nodes}) == 1
    assert len({each[2] for each in nodes}) == 2


def test_ordered_errors_come_as_often_as_ordered(ec2, client, fault) -> None:
    assert fault(action="DescribeInstances", error="RequestLimitExceeded", times=2) == 0
    assert [code(ec2.describe_instances) for _ in range(2)] == ["RequestLimitExceeded"] * 2
    assert ec2.describe_instances()["Reservations"] == []
    fault(action="RunInstances", error="InsufficientInstanceCapacity")
    assert code(run, ec2) == "InsufficientInstanceCapacity"
    fault(action="GetParameter", error="ThrottlingException")
    assert code(client("ssm").get_parameter, Name="x") == "ThrottlingException"


def test_a_slow_api_answers_later(ec2, fault, monkeypatch) -> None:
    slept = []
    monkeypatch.setattr("localcloud.faults.time.sleep", slept.append)
    fault(action="DescribeInstances", delay=2.5)
    ec2.describe_instances()
    ec2.describe_instances()
    assert slept == [2.5]


def test_an_instance_may_never_boot(ec2, machines: Machines, fault) -> None:
    fault(boots=False)
    one = run(ec2)[0]["InstanceId"]
    assert (machines.now, show(ec2, one)["State"]["Name"]) == ({}, "running")
    status = ec2.describe_instance_status(InstanceIds=[one])["InstanceStatuses"][0]
    assert status["InstanceStatus"]["Status"] == "impaired"
    ec2.terminate_instances(InstanceIds=[one])
    run(ec2)
    assert len(machines.now) == 1


def test_an_instance_may_die(ec2, fault) -> None:
    one = run(ec2)[0]["InstanceId"]
    fault(dies=one)
    seen = show(ec2, one)
    assert (seen["State"]["Name"], seen["StateReason"]["Code"]) == ("terminated", "Server.InternalError")


def test_a_fault_that_is_none_is_refused(fault, capsys) -> None:
    assert fault(action="RunInstances", eror="x") == 1
    assert "is no fault; give action and error" in capsys.readouterr().err


def test_run_command_runs_on_the_named_instances_alone(ec2, client) -> None:
    one, _two = (each["InstanceId"] for each in run(ec2, MinCount=2, MaxCount=2))
    ssm = client("ssm")
    listed = ssm.describe_instance_information()["InstanceInformationList"]
    assert len(listed) == 2
    sent = ssm.send_command(InstanceIds=[one], DocumentName="AWS-RunShellScript", Parameters={"commands": ["uptime", "id"]})["Command"]
    assert sent["InstanceIds"] == [one]
    done = ssm.get_command_invocation(CommandId=sent["CommandId"], InstanceId=one)
    assert (done["Status"], done["ResponseCode"]) == ("Failed", 3)
    assert (done["StandardOutputContent"], done["StandardErrorContent"]) == (f"{one} ran uptime\nid", "an error")
    ec2.stop_instances(InstanceIds=[one])
    asked = {"InstanceIds": [one], "DocumentName": "AWS-RunShellScript", "Parameters": {"commands": ["id"]}}
    assert code(ssm.send_command, **asked) == "InvalidInstanceId"


def test_session_manager_opens_sessions_to_what_runs_and_has_no_channel(ec2, client) -> None:
    one, other = (each["InstanceId"] for each in run(ec2, MinCount=2, MaxCount=2))
    ssm = client("ssm")
    opened = [ssm.start_session(Target=each) for each in (one, other)]
    listed = ssm.describe_sessions(State="Active")["Sessions"]
    assert [(each["SessionId"], each["Target"]) for each in listed] == [(opened[0]["SessionId"], one), (opened[1]["SessionId"], other)]
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(opened[0]["StreamUrl"].replace("ws:", "http:"))
    ssm.terminate_session(SessionId=opened[0]["SessionId"])
    ec2.stop_instances(InstanceIds=[other])
    assert ssm.describe_sessions(State="Active")["Sessions"] == []
    assert [each["Status"] for each in ssm.describe_sessions(State="History")["Sessions"]] == ["Terminated"] * 2
    assert code(ssm.start_session, Target=other) == "TargetNotConnected"
    assert code(ssm.terminate_session, SessionId="none") == "DoesNotExistException"


def test_user_data_survives_its_encoding(ec2, machines: Machines) -> None:
    run(ec2, UserData=base64.b64decode("IyEvYmluL3NoCmVjaG8gJ8OkJwo=").decode())
    assert machines.done[-1][3] == "#!/bin/sh\necho 'ä'\n".encode()
