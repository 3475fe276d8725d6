# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""AMIs are copied, shared, dated, named and retired; over the local cloud's API, whose machines only record their calls."""

from __future__ import annotations

import pytest
from local_cloud_api import AMI

from ansible_collections.muster.fleet.plugins.module_utils.aws import ami
from ansible_collections.muster.fleet.plugins.modules import ami_lifecycle as module

HOME, WEST = "us-east-1", "us-west-2"
UNIT = "arn:aws:organizations::444455556666:ou/o-abcdefghij/ou-ab12-cdefghij"
ORGANIZATION = "arn:aws:organizations::444455556666:organization/o-abcdefghij"
NOBODY = "ami-00000000000000000"


@pytest.fixture(autouse=True)
def credentials(served, machines, monkeypatch) -> None:
    for key, value in served.env.items():
        monkeypatch.setenv(key, value)


@pytest.fixture
def life(call):
    """The module in one region."""

    def run(**options: object) -> dict:
        given = {"region": HOME, **options}
        return call(module, **{key: value for key, value in given.items() if value is not None})

    return run


@pytest.fixture
def made(ec2):
    """Make an AMI of the account's own."""
    one = ec2.run_instances(ImageId=AMI, InstanceType="c6i.large", MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]

    def make(name: str, **tags: str) -> str:
        more = [{"ResourceType": "image", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}] if tags else []
        return ec2.create_image(InstanceId=one, Name=name, TagSpecifications=more)["ImageId"]

    return make


def shares(ec2, image: str) -> list[str]:
    found = ec2.describe_image_attribute(ImageId=image, Attribute="launchPermission")["LaunchPermissions"]
    return sorted(ami.named(each) for each in found)


def there(ec2, image: str) -> bool:
    return any(each["ImageId"] == image for each in ec2.describe_images(Owners=["self"])["Images"])


def test_everything_at_once_and_nothing_the_second_time(life, client, ec2, made) -> None:
    image = made("slurm-1", stack="s", **{"muster:provenance": "sha256:1"})
    west = client("ec2", WEST)
    key = client("kms", WEST).create_key()["KeyMetadata"]["KeyId"]
    options = {
        "image_id": image,
        "copy_to": [{"region": WEST, "kms_key_id": key}],
        "share_accounts": ["111122223333", "012345678901"],
        "share_organizations": [UNIT],
        "deprecate_at": "2037-06-30",
        "ssm_parameter": "/muster/ami/slurm",
    }
    would = life(**options, check_mode=True)
    assert (would["changed"], would["images"]) == (True, {HOME: image, WEST: ""})
    assert shares(ec2, image) == [] and not west.describe_images(Owners=["self"])["Images"]

    done = life(**options)
    copy = done["images"][WEST]
    assert done["changed"] and done["diff"]["before"][HOME] == {"image": image, "shared": [], "deprecated": "", "parameter": ""}
    assert done["diff"]["after"][WEST]["parameter"] == copy
    seen = west.describe_images(ImageIds=[copy])["Images"][0]
    assert seen["BlockDeviceMappings"][0]["Ebs"]["KmsKeyId"].endswith(f":key/{key}")
    assert ami.tags_of(seen) == {"stack": "s", "muster:source_ami": image}
    for each, region in ((image, HOME), (copy, WEST)):
        assert shares(client("ec2", region), each) == sorted(["012345678901", "111122223333", UNIT])
        assert client("ssm", region).get_parameter(Name="/muster/ami/slurm")["Parameter"]["Value"] == each
        found = client("ec2", region).describe_images(ImageIds=[each])["Images"][0]
        assert found["DeprecationTime"].startswith("2037-06-30T00:00")

    again = life(**options)
    assert (again["changed"], again["diff"]["before"]) == (False, again["diff"]["after"])
    assert len(west.describe_images(Owners=["self"])["Images"]) == 1


def test_shares_are_those_that_are_named(life, ec2, made) -> None:
    image = made("slurm-1")
    life(image_id=image, share_accounts=["111122223333"], share_organizations=[ORGANIZATION])
    ec2.modify_image_attribute(ImageId=image, LaunchPermission={"Add": [{"Group": "all"}]})
    assert life(image_id=image, share_accounts=["444455556666"])["changed"]
    assert shares(ec2, image) == ["444455556666", ORGANIZATION]
    assert not life(image_id=image)["changed"]
    assert life(image_id=image, share_organizations=[], deprecate_at="2037-01-01T10:30:00+02:00")["changed"]
    assert shares(ec2, image) == ["444455556666"]
    assert ec2.describe_images(ImageIds=[image])["Images"][0]["DeprecationTime"].startswith("2037-01-01T08:30")
    assert life(image_id=image, deprecate_at="")["changed"]
    assert "DeprecationTime" not in ec2.describe_images(ImageIds=[image])["Images"][0]


def test_the_newest_of_a_family_is_meant(life, client, made) -> None:
    made("slurm-1", kind="a")
    newest = made("slurm-2", kind="a")
    made("slurm-3", kind="b")
    family = {"name": "slurm-*", "tags": {"kind": "a"}}
    backend_order(newest)
    assert life(family=family, ssm_parameter="/p")["images"] == {HOME: newest}
    assert client("ssm").get_parameter(Name="/p")["Parameter"]["Value"] == newest


def backend_order(*newest_last: str) -> None:
    """moto gives all AMIs of one second the same age."""
    import datetime

    from moto.ec2.models import ec2_backends

    for place, each in enumerate(newest_last):
        age = datetime.timedelta(hours=place + 1)
        ec2_backends["123456789012"][HOME].amis[each].creation_date = datetime.datetime(2036, 1, 1) + age


def test_a_family_keeps_its_newest_and_what_is_used(life, ec2, client, made) -> None:
    images = [made(f"slurm-{number}") for number in range(5)]
    backend_order(*images)
    client("ssm").put_parameter(Name="/in/use", Value=images[1], Type="String")
    options = {"state": "retired", "family": {"name": "slurm-*"}, "keep": 2}
    would = life(**options, check_mode=True)
    assert (would["changed"], would["retired"]) == (True, [images[2], images[0]])
    assert all(there(ec2, each) for each in images)
    done = life(**options)
    assert (done["retired"], done["in_use"]) == ([images[2], images[0]], {images[1]: ["SSM parameter /in/use"]})
    assert [there(ec2, each) for each in images] == [False, True, False, True, True]
    assert not life(**options)["changed"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("template", "launch template big (version 1)"),
        ("pinned", "Auto Scaling group g, launch template big (version 1)"),
        ("latest", "Auto Scaling group g, launch template big (version 2)"),
        ("mixed", "Auto Scaling group g, launch template big (version 1)"),
        ("configuration", "Auto Scaling group g"),
        ("instance", "instance "),
        ("reimaged", "instance "),
        ("parameter", "SSM parameter /some/list"),
    ],
)
def test_what_is_used_is_not_retired(life, ec2, client, made, *, kind: str, said: str) -> None:
    image, other = made("slurm-1"), made("slurm-2")
    use(kind, image, other, client)
    result = life(image_id=image, state="retired")
    assert result["failed"]
    assert f"AMI {image} in region {HOME} is used by {said}" in result["msg"]
    assert result["msg"].endswith("; nothing was retired.")
    assert there(ec2, image)


def use(kind: str, image: str, other: str, client) -> None:
    ec2, scaling, ssm = (client(each) for each in ("ec2", "autoscaling", "ssm"))
    group = {"AutoScalingGroupName": "g", "MinSize": 0, "MaxSize": 1, "AvailabilityZones": ["us-east-1a"]}
    if kind in ("template", "pinned", "latest", "mixed"):
        ec2.create_launch_template(LaunchTemplateName="big", LaunchTemplateData={"ImageId": other if kind == "latest" else image})
    if kind in ("pinned", "mixed", "latest"):
        data = {"ImageId": image if kind == "latest" else other}
        ec2.create_launch_template_version(LaunchTemplateName="big", LaunchTemplateData=data)
    if kind in ("pinned", "mixed"):
        ec2.modify_launch_template(LaunchTemplateName="big", DefaultVersion="2")
    named = {"LaunchTemplateName": "big", "Version": "$Latest" if kind == "latest" else "1"}
    if kind in ("pinned", "latest"):
        scaling.create_auto_scaling_group(**group, LaunchTemplate=named)
    if kind == "mixed":
        scaling.create_auto_scaling_group(**group, MixedInstancesPolicy={"LaunchTemplate": {"LaunchTemplateSpecification": named}})
    if kind == "configuration":
        scaling.create_launch_configuration(LaunchConfigurationName="c", ImageId=image, InstanceType="c6i.large")
        scaling.create_auto_scaling_group(**group, LaunchConfigurationName="c")
    if kind in ("instance", "reimaged"):
        started = ec2.run_instances(ImageId=image if kind == "instance" else other, InstanceType="c6i.large", MinCount=1, MaxCount=1)
        if kind == "reimaged":
            ec2.create_replace_root_volume_task(InstanceId=started["Instances"][0]["InstanceId"], ImageId=image)
    if kind == "parameter":
        for number in range(12):
            ssm.put_parameter(Name=f"/other/{number}", Value="x", Type="String")
        ssm.put_parameter(Name="/some/list", Value=f"{other},{image}", Type="StringList")


def test_what_nothing_uses_is_retired_with_its_snapshots_and_once(life, ec2, made) -> None:
    image = made("slurm-1")
    snapshot = ec2.describe_images(ImageIds=[image])["Images"][0]["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    done = life(image_id=image, state="retired")
    assert (done["changed"], done["retired"], done["diff"]["before"]) == (True, [image], f"{image} slurm-1\n")
    assert snapshot not in [each["SnapshotId"] for each in ec2.describe_snapshots()["Snapshots"]]
    assert life(image_id=image, state="retired")["changed"] is False


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share_accounts": ["12345"]}, "Account '12345' is not twelve digits; quote it when it begins with 0."),
        ({"share_accounts": ["all"]}, "Account 'all' would let everybody launch the image; name the accounts."),
        ({"share_organizations": ["o-abc"]}, "'o-abc' is not the ARN of an organisation or organisational unit; write arn:aws:"),
        ({"image_id": NOBODY}, f"Region {HOME} has no AMI {NOBODY}; is it the right region and account?"),
        ({"image_id": "slurm"}, "'slurm' is not the id of an AMI; give one such as ami-0123456789abcdef0."),
        ({"region": "us_east"}, "'us_east' is not a region; give one such as us-east-1."),
        ({"region": WEST}, f"Region {WEST} has no AMI ami-"),
        ({"copy_to": [{"region": "moon"}]}, "copy_to has 'moon', which is not a region; give one such as us-west-2."),
        ({"copy_to": [{"region": HOME}]}, f"copy_to names region {HOME} where the image is; take it out."),
        ({"copy_to": [{"region": WEST}, {"region": WEST}]}, f"copy_to names region {WEST} twice; take it out."),
        (
            {"copy_to": [{"region": WEST, "kms_key_id": "alias/none"}]},
            f"Region {WEST} has no KMS key alias/none; give one of that region.",
        ),
        ({"deprecate_at": "next year"}, "'next year' is not a date; write it as 2027-06-30 or 2027-06-30T12:00:00Z."),
        ({"deprecate_at": "2020-01-01"}, "Date of deprecation 2020-01-01T00:00:00Z is past; give one in the future."),
        ({"profile": "nobody"}, "The config profile (nobody) could not be found; see ~/.aws/config or AWS_PROFILE."),
        ({"image_id": None, "family": {"name": "none-*"}}, f"Region {HOME} has no AMI of family none-*; is it the right region"),
        ({"image_id": None, "family": {"name": "*"}}, "The family has no name and no tags, so every AMI of the account would belong"),
        (
            {"image_id": None, "family": {"name": "slurm-*"}, "state": "retired"},
            "The whole family would be retired; set keep to the number that stays.",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_one_sentence_and_changes_nothing(
    life, client, made, monkeypatch, *, options: dict, said: str
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID" if "profile" in options else "NOTHING", raising=False)
    image = made("slurm-1")
    result = life(**{"image_id": image, "share_accounts": ["111122223333"], **options})
    assert result["failed"] and result["msg"].startswith(said)
    assert shares(client("ec2"), image) == []
    assert not client("ec2", WEST).describe_images(Owners=["self"])["Images"]


def test_a_disabled_key_and_another_image_of_the_name_are_refused(life, client, made) -> None:
    image = made("slurm-1")
    kms = client("kms", WEST)
    key = kms.create_key()["KeyMetadata"]["KeyId"]
    kms.disable_key(KeyId=key)
    options = {"image_id": image, "copy_to": [{"region": WEST, "kms_key_id": key}]}
    assert life(**options)["msg"] == f"KMS key {key} in region {WEST} is Disabled; give one that is enabled."
    west = client("ec2", WEST)
    other = west.copy_image(SourceImageId=image, SourceRegion=HOME, Name="slurm-1")["ImageId"]
    del options["copy_to"][0]["kms_key_id"]
    said = f"Region {WEST} already has an AMI {other} called slurm-1, which is not a copy of {image}; retire it first."
    assert life(**options)["msg"] == said


def test_without_a_region_nothing_is_guessed(life, monkeypatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    assert life(region=None, image_id=NOBODY)["msg"] == "No region is given; set the option region, or AWS_REGION."


def test_a_throttled_call_is_tried_again(life, ec2, made, fault, monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("botocore.endpoint.time.sleep", slept.append)
    image = made("slurm-1")
    fault(action="ModifyImageAttribute", error="RequestLimitExceeded", times=2)
    assert life(image_id=image, share_accounts=["111122223333"])["changed"]
    assert (shares(ec2, image), len(slept)) == (["111122223333"], 2)
    fault(action="DescribeImages", error="RequestLimitExceeded", times=10)
    said = f"EC2 still throttled DescribeImages in region {HOME} after all retries (RequestLimitExceeded); try again later."
    assert life(image_id=image)["msg"] == said


def test_a_copy_that_ec2_does_not_know_yet_is_waited_for(life, made, fault, monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("botocore.waiter.time.sleep", slept.append)
    image, copy = made("slurm-1"), module.copy

    def late(*words: object) -> str:
        new = copy(*words)
        fault(action="DescribeImages", error="InvalidAMIID.NotFound", times=2)
        return new

    monkeypatch.setattr(module, "copy", late)
    done = life(image_id=image, copy_to=[{"region": WEST}])
    assert done["images"][WEST].startswith("ami-") and slept == [15, 15]


@pytest.mark.parametrize("action", ["DescribeImages", "ModifyImageAttribute", "CopyImage", "DeregisterImage"])
def test_a_denied_call_is_named(life, made, fault, action: str) -> None:
    image = made("slurm-1")
    fault(action=action, error="UnauthorizedOperation")
    options = {"state": "retired"} if action == "DeregisterImage" else {"share_accounts": ["111122223333"]}
    where = WEST if action == "CopyImage" else HOME
    if action == "CopyImage":
        options["copy_to"] = [{"region": WEST}]
    said = life(image_id=image, **options)["msg"]
    assert said.startswith(f"{action} is denied in region {where} (UnauthorizedOperation: ")
    assert said.endswith("; allow the action to this identity or leave the region or account out.")
