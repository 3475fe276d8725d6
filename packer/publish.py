# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""publish.py RESULTS [PARAMETER]: tags the AMIs of a build in every region with the versions in its manifest.

Tags with the stack, its hash and the version of every component, on the AMIs and their snapshots, and the parameter of Systems Manager
that has the newest id. RESULTS is the folder with packer.json and manifest.json.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

# EC2 allows 50 tags on an AMI, and the template sets some.
MOST_TAGS = 40


class PublishError(Exception):
    """One sentence for the user."""


def image_tags(manifest: dict) -> dict[str, str]:
    """The tags of a manifest: muster:stack, muster:stack-sha256, and muster:version:NAME of each component."""
    stack = manifest.get("stack") or {}
    tags = {"muster:stack": stack.get("name"), "muster:stack-sha256": stack.get("sha256")}
    tags |= {f"muster:version:{name}": each["version"] for name, each in sorted(manifest["components"].items())}
    # EC2 refuses other characters, and a value that is empty says nothing.
    kept = {key: re.sub(r"[^\w .:/=+@-]", "-", value)[:256] for key, value in tags.items() if value}
    return dict(list(kept.items())[:MOST_TAGS])


def read_amis(packer: dict) -> dict[str, str]:
    """Region to AMI of the last build."""
    made = [each for each in packer["builds"] if each["packer_run_uuid"] == packer["last_run_uuid"]]
    return dict(part.split(":", 1) for each in made for part in each["artifact_id"].split(","))


def publish(results: Path, parameter: str) -> dict[str, str]:
    """Tag the AMIs and set the parameter; region to AMI."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise PublishError("boto3, which tags the AMI, is missing; install it for the python3 on PATH.") from error
    amis = read_amis(json.loads((results / "packer.json").read_text()))
    tags = [{"Key": key, "Value": value} for key, value in image_tags(json.loads((results / "manifest.json").read_text())).items()]
    for region, ami in amis.items():
        try:
            ec2 = boto3.client("ec2", region_name=region)
            [image] = ec2.describe_images(ImageIds=[ami])["Images"]
            snapshots = [each["Ebs"]["SnapshotId"] for each in image["BlockDeviceMappings"] if "SnapshotId" in each.get("Ebs", {})]
            ec2.create_tags(Resources=[ami, *snapshots], Tags=tags)
            if parameter:
                ssm = boto3.client("ssm", region_name=region)
                ssm.put_parameter(Name=parameter, Value=ami, Type="String", DataType="aws:ec2:image", Overwrite=True)
        except (BotoCoreError, ClientError) as error:
            raise PublishError(
                f"{ami} in {region} is made and could not be tagged and named ({error}); run packer/publish.py again."
            ) from error
    return amis


def main(argv: list[str]) -> int:
    results, parameter = Path(argv[0]), argv[1] if len(argv) > 1 else ""
    try:
        for region, ami in publish(results, parameter).items():
            print(f"{region} {ami}" + (f" {parameter}" if parameter else ""))
    except PublishError as error:
        print(f"publish.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
