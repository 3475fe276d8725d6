# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decisions about AMIs: who may launch them, which are old, and what uses one."""

from __future__ import annotations

import datetime
import re

from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import REGION

ACCOUNT = re.compile(r"\d{12}")
ORGANIZATION = re.compile(r"arn:aws[a-z-]*:organizations::\d{12}:organization/o-[a-z0-9]{10,32}")
UNIT = re.compile(r"arn:aws[a-z-]*:organizations::\d{12}:ou/o-[a-z0-9]{10,32}/ou-[a-z0-9]{4,32}-[a-z0-9]{8,32}")
IMAGE = re.compile(r"ami-([0-9a-f]{8}|[0-9a-f]{17})")
# The tag that marks a copy, and the tags that hold for one AMI only.
SOURCE = "muster:source_ami"
OWN_TAGS = ("aws:", "muster:provenance")
GONE = ("terminated", "shutting-down")


class AmiError(ValueError):
    """Something cannot be done with an AMI; the text is one sentence for the user."""


def check_image_id(image_id):
    """Refuse an invalid AMI id."""
    if not IMAGE.fullmatch(image_id):
        raise AmiError("%r is not the id of an AMI; give one such as ami-0123456789abcdef0." % image_id)


def permissions(accounts, organizations):
    """EC2's launch permissions for account numbers and the ARNs of organisations and their units; everybody is refused."""
    out = []
    for each in accounts:
        if each in ("all", "*"):
            raise AmiError("Account %r would let everybody launch the image; name the accounts." % each)
        if not ACCOUNT.fullmatch(each):
            raise AmiError("Account %r is not twelve digits; quote it when it begins with 0." % each)
        out.append({"UserId": each})
    for each in organizations:
        kind = "OrganizationArn" if ORGANIZATION.fullmatch(each) else "OrganizationalUnitArn" if UNIT.fullmatch(each) else ""
        if not kind:
            raise AmiError(
                "%r is not the ARN of an organisation or organisational unit; write arn:aws:organizations::ACCOUNT:organization/o-ID."
                % each
            )
        out.append({kind: each})
    return sorted(out, key=named)


def named(permission):
    """A launch permission's account, ARN or group."""
    return next(iter(permission.values()))


def permission_change(have, wanted):
    """(to add, to remove); a permission that makes an image public is always removed."""
    return [each for each in wanted if each not in have], [each for each in have if each not in wanted]


def moment(text):
    """A date or time as EC2 stores it, in UTC and to the minute."""
    try:
        found = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise AmiError("%r is not a date; write it as 2027-06-30 or 2027-06-30T12:00:00Z." % text) from None
    if found.tzinfo:
        found = found.astimezone(datetime.timezone.utc)
    return found.strftime("%Y-%m-%dT%H:%M:00Z")


def check_copies(copies, home):
    """Check the regions of option copy_to: each may appear once, and the image's own region may not."""
    seen = [home]
    for each in copies:
        region = each["region"]
        if not REGION.fullmatch(region):
            raise AmiError("copy_to has %r, which is not a region; give one such as us-west-2." % region)
        if region in seen:
            said = "where the image is" if region == home else "twice"
            raise AmiError("copy_to names region %s %s; take it out." % (region, said))
        seen.append(region)


def check_family(family):
    """Refuse a family to which every AMI would belong."""
    if not family["name"].strip("*?") and not family["tags"]:
        raise AmiError("The family has no name and no tags, so every AMI of the account would belong to it; give it a name or tags.")


def family_filters(family):
    """The filters of DescribeImages for a family."""
    tags = [{"Name": "tag:%s" % key, "Values": [str(value)]} for key, value in sorted(family["tags"].items())]
    return ([{"Name": "name", "Values": [family["name"]]}] if family["name"] else []) + tags


def newest_first(images):
    """The images that can be launched, newest first."""
    ready = [each for each in images if each["State"] == "available"]
    return sorted(ready, key=lambda each: (each["CreationDate"], each["ImageId"]), reverse=True)


def tags_of(resource):
    """A resource's tags as a dictionary."""
    return {each["Key"]: each["Value"] for each in resource.get("Tags") or ()}


def copy_tags(image):
    """The tags of a copy: those of its source, and the id of its source."""
    tags = {key: value for key, value in tags_of(image).items() if not key.startswith(OWN_TAGS)}
    return [{"Key": key, "Value": value} for key, value in sorted({**tags, SOURCE: image["ImageId"]}.items())]


def users(image_id, found):
    """The users of an AMI, in words. `found` has, by kind, the answers of EC2, Auto Scaling and Systems Manager in one region."""
    templates = [each for each in found["templates"] if each["LaunchTemplateData"].get("ImageId") == image_id]
    out = ["launch template %s (version %s)" % (each["LaunchTemplateName"], each["VersionNumber"]) for each in templates]
    own = [each["LaunchConfigurationName"] for each in found["configurations"] if each["ImageId"] == image_id]
    versions = {
        (each["LaunchTemplateId"], version) for each in templates for version in (str(each["VersionNumber"]), "$Latest", "$Default")
    }
    for group in found["groups"]:
        if group.get("LaunchConfigurationName") in own or versions.intersection(group_templates(group)):
            out.append("Auto Scaling group %s" % group["AutoScalingGroupName"])
    living = {each["InstanceId"]: each for each in found["instances"] if each["State"]["Name"] not in GONE}
    # After a root volume was replaced, EC2 may still report the AMI that the instance was started from.
    reimaged = [each["InstanceId"] for each in found["tasks"] if each.get("ImageId") == image_id]
    out += ["instance %s" % each for each in sorted(living) if living[each]["ImageId"] == image_id or each in reimaged]
    out += ["SSM parameter %s" % each["Name"] for each in found["parameters"] if image_id in each["Value"].split(",")]
    return sorted(set(out))


def group_templates(group):
    """(id, version) of the launch templates that an Auto Scaling group names."""
    mixed = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
    found = [group.get("LaunchTemplate"), mixed.get("LaunchTemplateSpecification")]
    found += [each.get("LaunchTemplateSpecification") for each in mixed.get("Overrides") or ()]
    return [(each["LaunchTemplateId"], each.get("Version") or "$Default") for each in found if each]
