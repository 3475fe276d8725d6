#!/usr/bin/python
# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: ami_lifecycle
short_description: Copy, share, deprecate and retire AMIs
version_added: 0.1.0
description:
  - With O(state=present) copies an AMI to other regions, shares it and its copies with accounts and organisations, gives them a date of
    deprecation and names each region's in a parameter of Systems Manager. What is not asked for stays as it is.
  - With O(state=retired) deregisters an AMI and deletes its snapshots, or those of a family beyond the newest O(keep). One that a launch
    template, an Auto Scaling group, an instance or a parameter of the region uses is not retired.
  - Reads and checks everything before it changes anything.
author:
  - The Muster developers (@muster-fleet)
extends_documentation_fragment:
  - muster.fleet.aws
options:
  image_id:
    description: The AMI.
    type: str
  family:
    description: A family of the account's own AMIs. With O(state=present) the module uses the newest.
    type: dict
    suboptions:
      name:
        description: Their name, with V(*) for the part that differs.
        type: str
        default: ""
      tags:
        description: Tags that all of them have.
        type: dict
        default: {}
  state:
    description: Whether to publish the AMI or to retire it.
    type: str
    choices: [present, retired]
    default: present
  share_accounts:
    description:
      - The numbers of all accounts that may launch it. All others lose the right, also the public.
      - An encrypted AMI also needs a key policy that lets them use its KMS key, which cannot be the one that AWS manages.
    type: list
    elements: str
  share_organizations:
    description: The ARNs of all organisations and organisational units that may launch it.
    type: list
    elements: str
  copy_to:
    description: Regions that get a copy of the same name and tags. Copies are always encrypted.
    type: list
    elements: dict
    default: []
    suboptions:
      region:
        description: The region.
        type: str
        required: true
      kms_key_id:
        description: Id, ARN or alias of a KMS key there. Without it the account's default key for EBS.
        type: str
  deprecate_at:
    description: Date after which others no longer see it, such as V(2027-06-30); V("") removes the date.
    type: str
  ssm_parameter:
    description: Name of a parameter of Systems Manager that gets the id of the AMI, in each region of its copy.
    type: str
  keep:
    description: With O(state=retired) and O(family), how many of the newest stay, in use or not.
    type: int
  wait_timeout:
    description: Seconds to wait for copies.
    type: int
    default: 3600
attributes:
  check_mode:
    description: Reports the changes, but not whether AWS would refuse them.
    support: full
  diff_mode:
    description: Shows shares, copies, dates and parameters.
    support: full
"""

EXAMPLES = r"""
- name: Publish the newest image of the family
  muster.fleet.ami_lifecycle:
    region: us-east-1
    family:
      name: muster-slurm-gpu-*
    copy_to:
      - region: us-west-2
        kms_key_id: alias/images
    share_accounts: ["111122223333"]
    share_organizations: ["arn:aws:organizations::444455556666:ou/o-abcdefghij/ou-ab12-cdefghij"]
    deprecate_at: "2027-06-30"
    ssm_parameter: /muster/ami/slurm-gpu

- name: Keep three of the family, and all that are in use
  muster.fleet.ami_lifecycle:
    region: us-east-1
    family:
      name: muster-slurm-gpu-*
      tags:
        muster:stack: aws-2026.11
    state: retired
    keep: 3

- name: Retire one image
  muster.fleet.ami_lifecycle:
    region: us-east-1
    image_id: ami-0123456789abcdef0
    state: retired
"""

RETURN = r"""
images:
  description: The AMI's id by region; in check mode the id of a new copy is empty.
  returned: with O(state=present)
  type: dict
retired:
  description: The AMIs that were retired, or would be.
  returned: with O(state=retired)
  type: list
  elements: str
in_use:
  description: The AMIs beyond O(keep) that stay, each with its users.
  returned: with O(state=retired)
  type: dict
"""

import datetime

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.fleet.plugins.module_utils.aws import ami
from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import ARGUMENTS, Accounts, AwsError, Region

NO_KEY = ("NotFoundException", "InvalidArnException")


def family(region, wanted):
    """The AMIs of a family, newest first."""
    ami.check_family(wanted)
    return ami.newest_first(region.every("ec2", "DescribeImages", "Images", Owners=["self"], Filters=ami.family_filters(wanted)))


def chosen(region, options):
    """The AMI that the options name."""
    if options["family"]:
        found = family(region, options["family"])
        if not found:
            what = options["family"]["name"] or options["family"]["tags"]
            raise ami.AmiError("Region %s has no AMI of family %s; is it the right region and account?" % (region.name, what))
        return found[0]
    return region.image(options["image_id"])


def check_key(region, key):
    """Refuse a KMS key that cannot encrypt copies, because the copy would fail minutes later without a reason."""
    try:
        state = region.call("kms", "DescribeKey", KeyId=key)["KeyMetadata"]["KeyState"]
    except AwsError as error:
        if error.code not in NO_KEY:
            raise
        raise ami.AmiError("Region %s has no KMS key %s; give one of that region." % (region.name, key)) from error
    if state != "Enabled":
        raise ami.AmiError("KMS key %s in region %s is %s; give one that is enabled." % (key, region.name, state))


def copy_of(region, image):
    """The copy of an AMI in another region, or None. Another AMI of its name is an error."""
    names = [{"Name": "name", "Values": [image["Name"]]}]
    for each in region.every("ec2", "DescribeImages", "Images", Owners=["self"], Filters=names):
        if ami.tags_of(each).get(ami.SOURCE) == image["ImageId"] and each["State"] != "failed":
            return each
        raise ami.AmiError(
            "Region %s already has an AMI %s called %s, which is not a copy of %s; retire it first."
            % (region.name, each["ImageId"], image["Name"], image["ImageId"])
        )
    return None


def state_of(region, image, options):
    """The state of an AMI in one region, as far as the options mention it."""
    out = {"image": image["ImageId"] if image else ""}
    if options["share_accounts"] is not None or options["share_organizations"] is not None:
        wanted = {"ImageId": out["image"], "Attribute": "launchPermission"}
        have = region.call("ec2", "DescribeImageAttribute", **wanted)["LaunchPermissions"] if image else []
        out["shared"] = sorted(have, key=ami.named)
    if options["deprecate_at"] is not None:
        out["deprecated"] = ami.moment(image["DeprecationTime"]) if image and image.get("DeprecationTime") else ""
    if options["ssm_parameter"]:
        found = region.call("ssm", "GetParameters", Names=[options["ssm_parameter"]])["Parameters"]
        out["parameter"] = found[0]["Value"] if found else ""
    return out


def wanted_of(have, options):
    """The wanted state. The id of an AMI that does not exist yet is empty."""
    out = {"image": have["image"]}
    if "shared" in have:
        # When only accounts or only organisations are given, the permissions of the other kind stay.
        stays = [each for each in have["shared"] if ("UserId" in each and options["share_accounts"] is None)
                 or ("UserId" not in each and "Group" not in each and options["share_organizations"] is None)]  # fmt: skip
        new = ami.permissions(options["share_accounts"] or [], options["share_organizations"] or [])
        out["shared"] = sorted(stays + new, key=ami.named)
    if "deprecated" in have:
        out["deprecated"] = ami.moment(options["deprecate_at"]) if options["deprecate_at"] else ""
    if "parameter" in have:
        out["parameter"] = have["image"]
    return out


def copy(region, image, home, key):
    """Start a copy and return its id."""
    tags = ami.copy_tags(image)
    more = {"KmsKeyId": key} if key else {}
    return region.call(
        "ec2",
        "CopyImage",
        SourceImageId=image["ImageId"],
        SourceRegion=home.name,
        Name=image["Name"],
        Description=image.get("Description") or "",
        Encrypted=True,
        TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in ("image", "snapshot")],
        **more,
    )["ImageId"]


def wait(region, image_id, timeout):
    """Wait until an AMI is available."""
    import botocore.exceptions

    try:
        # Right after CopyImage EC2 may not know the id yet. The second waiter would end with that error, the first tries again.
        for state in ("image_exists", "image_available"):
            waiter = region.client("ec2").get_waiter(state)
            waiter.wait(ImageIds=[image_id], WaiterConfig={"Delay": 15, "MaxAttempts": max(1, timeout // 15)})
    except botocore.exceptions.WaiterError as error:
        said = "AMI %s in region %s is not available after %s s (%s); run again to wait longer, or deregister it."
        raise ami.AmiError(said % (image_id, region.name, timeout, error)) from error


def change(region, have, want, options):
    """Bring an AMI in one region into its wanted state."""
    if "shared" in want:
        add, remove = ami.permission_change(have["shared"], want["shared"])
        if add or remove:
            permission = {key: value for key, value in (("Add", add), ("Remove", remove)) if value}
            region.call("ec2", "ModifyImageAttribute", ImageId=want["image"], LaunchPermission=permission)
    if want.get("deprecated") != have.get("deprecated"):
        if want["deprecated"]:
            region.call("ec2", "EnableImageDeprecation", ImageId=want["image"], DeprecateAt=want["deprecated"])
        else:
            region.call("ec2", "DisableImageDeprecation", ImageId=want["image"])
    if want.get("parameter") != have.get("parameter"):
        # With this data type Systems Manager checks that the value is an AMI.
        value = {"Name": options["ssm_parameter"], "Value": want["image"], "Type": "String", "DataType": "aws:ec2:image"}
        region.call("ssm", "PutParameter", Overwrite=True, **value)


def present(module, accounts, home):
    """Copy and share an AMI, and set its dates and parameters."""
    options = module.params
    ami.permissions(options["share_accounts"] or [], options["share_organizations"] or [])
    ami.check_copies(options["copy_to"], home.name)
    date = ami.moment(options["deprecate_at"]) if options["deprecate_at"] else ""
    image = chosen(home, options)
    if options["copy_to"] and image["State"] != "available":
        raise ami.AmiError("AMI %s is %s and can be copied when it is available; run again then." % (image["ImageId"], image["State"]))
    images_by_region = [(home, image)]
    keys = {}
    for each in options["copy_to"]:
        region = Region(accounts, each["region"])
        images_by_region.append((region, copy_of(region, image)))
        keys[region.name] = each["kms_key_id"]
        if each["kms_key_id"]:
            check_key(region, each["kms_key_id"])
    before = {region.name: state_of(region, each, options) for region, each in images_by_region}
    after = {name: wanted_of(have, options) for name, have in before.items()}
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:00Z")
    if date and date <= now and any(have["deprecated"] != date for have in before.values()):
        raise ami.AmiError("Date of deprecation %s is past; give one in the future." % date)
    missing = [region for region, each in images_by_region if not each]
    if not module.check_mode:
        for region in missing:
            want = after[region.name]
            want["image"] = copy(region, image, home, keys[region.name])
            if "parameter" in want:
                want["parameter"] = want["image"]
        for region, each in images_by_region:
            if not each or each["State"] == "pending":
                wait(region, after[region.name]["image"], options["wait_timeout"])
            change(region, before[region.name], after[region.name], options)
    changed = bool(missing) or before != after
    images = {name: each["image"] for name, each in after.items()}
    module.exit_json(changed=changed, images=images, diff={"before": before, "after": after})


def users_of(region):
    """Everything that may use an AMI, by kind, for ami.users."""
    out = {
        "templates": region.every("ec2", "DescribeLaunchTemplateVersions", "LaunchTemplateVersions", Versions=["$Latest", "$Default"]),
        "groups": region.every("autoscaling", "DescribeAutoScalingGroups", "AutoScalingGroups"),
        "configurations": region.every("autoscaling", "DescribeLaunchConfigurations", "LaunchConfigurations"),
        "tasks": region.every("ec2", "DescribeReplaceRootVolumeTasks", "ReplaceRootVolumeTasks"),
    }
    reservations = region.every("ec2", "DescribeInstances", "Reservations")
    out["instances"] = [each for reservation in reservations for each in reservation["Instances"]]
    known = {(each["LaunchTemplateId"], str(each["VersionNumber"])) for each in out["templates"]}
    pinned = {each for group in out["groups"] for each in ami.group_templates(group) if each[1].isdigit()}
    for template, version in sorted(pinned - known):
        wanted = {"LaunchTemplateId": template, "Versions": [version]}
        out["templates"] += region.every("ec2", "DescribeLaunchTemplateVersions", "LaunchTemplateVersions", **wanted)
    kinds = [{"Key": "Type", "Values": ["String", "StringList"]}]
    names = [each["Name"] for each in region.every("ssm", "DescribeParameters", "Parameters", ParameterFilters=kinds)]
    out["parameters"] = []
    for begin in range(0, len(names), 10):
        out["parameters"] += region.call("ssm", "GetParameters", Names=names[begin : begin + 10])["Parameters"]
    return out


def retired(module, home):
    """Deregister AMIs that nothing uses."""
    options = module.params
    if options["family"]:
        if not options["keep"] or options["keep"] < 1:
            raise ami.AmiError("The whole family would be retired; set keep to the number that stays.")
        going = family(home, options["family"])[options["keep"] :]
    else:
        going = [each for each in [home.image(options["image_id"], needed=False)] if each]
    found = users_of(home) if going else {}
    in_use = {}
    for each in going:
        users = ami.users(each["ImageId"], found)
        if users:
            in_use[each["ImageId"]] = users
    if in_use and not options["family"]:
        image_id, users = next(iter(in_use.items()))
        raise ami.AmiError("AMI %s in region %s is used by %s; nothing was retired." % (image_id, home.name, ", ".join(users)))
    going = [each for each in going if each["ImageId"] not in in_use]
    for each in () if module.check_mode else going:
        home.call("ec2", "DeregisterImage", ImageId=each["ImageId"])
        for disk in each["BlockDeviceMappings"]:
            if disk.get("Ebs", {}).get("SnapshotId"):
                home.call("ec2", "DeleteSnapshot", SnapshotId=disk["Ebs"]["SnapshotId"])
    names = [each["ImageId"] for each in going]
    lines = "".join("%s %s\n" % (each["ImageId"], each.get("Name", "")) for each in going)
    module.exit_json(changed=bool(names), retired=names, in_use=in_use, diff={"before": lines, "after": ""})


def main():
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "image_id": {"type": "str"},
            "family": {
                "type": "dict",
                "options": {"name": {"type": "str", "default": ""}, "tags": {"type": "dict", "default": {}}},
            },
            "state": {"type": "str", "choices": ["present", "retired"], "default": "present"},
            "share_accounts": {"type": "list", "elements": "str"},
            "share_organizations": {"type": "list", "elements": "str"},
            "copy_to": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"region": {"type": "str", "required": True}, "kms_key_id": {"type": "str"}},
            },
            "deprecate_at": {"type": "str"},
            "ssm_parameter": {"type": "str"},
            "keep": {"type": "int"},
            "wait_timeout": {"type": "int", "default": 3600},
        },
        required_one_of=[("image_id", "family")],
        mutually_exclusive=[("image_id", "family")],
        supports_check_mode=True,
    )
    try:
        if module.params["image_id"]:
            ami.check_image_id(module.params["image_id"])
        accounts = Accounts(module.params, who="ami_lifecycle")
        home = Region(accounts)
        if module.params["state"] == "retired":
            retired(module, home)
        present(module, accounts, home)
    except (ami.AmiError, AwsError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
