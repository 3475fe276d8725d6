#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Writes cloudformation/: templates under the file names of the AWS reference, from the catalogue and plugins/module_utils/aws/.

With --check nothing is written; the exit code says whether the templates are current. --batch TYPE prints the template of Batch for any
other type, --policy the policy of IAM for cloud.yml.
--publish s3://BUCKET/PREFIX copies all to a bucket and prints links that open them in CloudFormation's console.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.muster.fleet.plugins.module_utils.aws import (
    permissions,
    plan,
    template_batch,
    template_observe,
    template_storage,
    template_vpc,
)
from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import CatalogueError

HEAD = "# Made by tools/cloudformation.py; `make docs` writes it anew. docs/architectures.md says how to use it.\n"
FILES: dict[str, Callable[[], dict[str, Any]]] = {
    "0.private-bucket.yaml": template_storage.bucket,
    "1.vpc-multi-az.yaml": template_vpc.several_zones,
    "2.vpc-one-az.yaml": template_vpc.one_zone,
    "fsx.yaml": template_storage.file_systems,
    "observability.yaml": template_observe.observability,
    "0.aws-batch-distributed-training.yaml": lambda: template_batch.build("p4d.24xlarge", vpc_stack="LargeScaleVPC"),
    "0.aws-batch-distributed-training-p5.yaml": lambda: template_batch.build("p5.48xlarge"),
    "aws-batch-distributed-training-p6.yaml": lambda: template_batch.build("p6-b200.48xlarge"),
    "aws-batch-distributed-training-trn.yaml": lambda: template_batch.build("trn2.48xlarge", command="neuron-ls"),
}


class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Scripts stand as blocks, and nothing refers to another part of the file."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def as_block(dumper: Dumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


Dumper.add_representer(str, as_block)


def text_of(template: dict[str, Any]) -> str:
    return HEAD + yaml.dump(template, Dumper=Dumper, sort_keys=False, width=140)


def publish(where: str) -> int:
    """Copy the committed templates and print a link for each."""
    import boto3

    bucket, _, prefix = where.removeprefix("s3://").partition("/")
    region = boto3.session.Session().region_name or "us-east-1"
    client = boto3.client("s3", region_name=region)
    for name in FILES:
        key = "/".join(part for part in (prefix.strip("/"), name) if part)
        client.upload_file(str(ROOT / "cloudformation" / name), bucket, key, ExtraArgs={"ContentType": "text/yaml"})
        url = f"https://{bucket}.s3.{region}.amazonaws.com/{urllib.parse.quote(key)}"
        stack = Path(name).stem.replace(".", "-").lstrip("0123456789-")
        query = urllib.parse.urlencode({"templateURL": url, "stackName": stack})
        print(f"{name}: https://console.aws.amazon.com/cloudformation/home?region={region}#/stacks/quickcreate?{query}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--batch", metavar="TYPE", help="print the template of Batch for an instance type")
    parser.add_argument("--policy", action="store_true", help="print the policy of IAM that cloud.yml needs")
    parser.add_argument("--publish", metavar="s3://BUCKET/PREFIX", help="copy the templates to a bucket and print their links")
    options = parser.parse_args()
    if options.publish:
        return publish(options.publish)
    if options.policy:
        print(json.dumps(permissions.policy(plan.MADE_HERE), indent=1))
        return 0
    if options.batch:
        try:
            print(text_of(template_batch.build(options.batch)), end="")
        except CatalogueError as error:
            sys.exit(str(error))
        return 0
    folder = ROOT / "cloudformation"
    texts = {folder / name: text_of(build()) for name, build in FILES.items()}
    others = sorted(set(folder.glob("*.yaml")) - set(texts))
    old = [path for path, text in texts.items() if not path.exists() or path.read_text() != text] + others
    if options.check:
        for path in old:
            print(f"{path.relative_to(ROOT)} is not current; run `make docs`")
        return 1 if old else 0
    folder.mkdir(exist_ok=True)
    for path, text in texts.items():
        path.write_text(text)
    for path in others:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
