# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""One changed line moves an aws_ec2.yml over: over the same API, aws_fleet gives all that amazon.aws.aws_ec2 gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import amazon_aws
import pytest
from ec2_replay import Api, Instance

ROOT = Path(__file__).parents[2]

FILES = {
    "groups by tag, type and zone": """
hostnames: [instance-id]
filters: {instance-state-name: [running]}
keyed_groups:
  - {key: tags.Role, prefix: role}
  - {key: tags, prefix: tag}
  - {key: instance_type, prefix: type, parent_group: types}
  - {key: placement.availability_zone, separator: ""}
  - {key: placement.region, prefix: aws_region}
  - {key: tags.Missing, prefix: none, default_value: x}
  - {key: tags.Empty, prefix: empty, default_value: nothing}
  - {key: tags.Empty, prefix: trailing, trailing_separator: false}
  - {key: "security_groups | map(attribute='group_id') | list", prefix: sg}
  - {key: public_ip_address, prefix: ip}
  - {key: "tags['a b']", prefix: odd}
  - {key: gpu_count | string, prefix: gpus}
compose:
  ansible_host: public_ip_address | default(private_ip_address)
  gpu_count: "{'p5.48xlarge': 8}.get(instance_type, 0)"
  first_card: network_interfaces[0].mac_address
  short: tags.Name.split('-') | first
groups:
  big: instance_type.startswith('p5')
  web: "'Role' in tags and tags.Role == 'web'"
  optimized: ebs_optimized
  mistaken: instance_type
""",
    "names": """
hostnames:
  - name: tag:Name
    prefix: tag:Role
    separator: "-"
  - tag:Name,Role=db
  - network-interface.addresses.private-ip-address
allow_duplicated_hosts: true
leading_separator: false
keyed_groups:
  - key: tags.Role
compose:
  ansible_host: private_ip_address
""",
    "a filter in a name, prefixed variables": """
hostnames: ["tag:Name | upper", dns-name, private-dns-name]
hostvars_prefix: aws_
hostvars_suffix: _ec2
use_contrib_script_compatible_ec2_tag_keys: true
keyed_groups:
  - {key: aws_tags_ec2.Role, prefix: role}
include_filters:
  - tag:Role: [web]
  - tag:Role: [db]
""",
    "the least": "",
}

HOSTS = [
    Instance("0000000000000001", tags={"Name": "web-1", "Role": "web", "Empty": "", "a b": "c d"}, cards=3, ip="10.0.0.1", group="rack"),
    Instance("0000000000000002", "m7i.large", {"Name": "db-1", "Role": "db"}, "us-east-1b", ip="10.0.0.2", public="ec2-2.example.com"),
    Instance("0000000000000003", "g6e.xlarge", {"Name": "bare"}, "us-east-1c", "stopped", "spot", ip="10.0.0.3"),
]


def plain(value: object) -> object:
    """The value without Ansible's mark of unsafe text."""
    if isinstance(value, dict):
        return plain(value["__ansible_unsafe"]) if set(value) == {"__ansible_unsafe"} else {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def listed(path: Path, text: str, collections: Path) -> dict:
    path.write_text(text)
    env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": f"{ROOT}/collections:{collections}", "AWS_EC2_METADATA_DISABLED": "true"}
    program = "from ansible.cli.inventory import main; main()"
    command = [sys.executable, "-c", program, "--list", "--export", "-i", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return plain(json.loads(done.stdout))  # type: ignore[return-value]


@pytest.mark.parametrize("name", FILES)
def test_it_gives_what_aws_ec2_gives(name: str, tmp_path: Path) -> None:
    with Api({"us-east-1": HOSTS}) as api:
        rest = f"regions: [us-east-1]\naccess_key: testing\nsecret_key: testing\nendpoint_url: {api.url}\n{FILES[name]}"
        theirs = listed(tmp_path / "aws_ec2.yml", f"plugin: amazon.aws.aws_ec2\n{rest}", amazon_aws.collections())
        ours = listed(tmp_path / "aws_ec2.yml", f"plugin: muster.fleet.aws_fleet\n{rest}", amazon_aws.collections())
    hostvars = ours["_meta"]["hostvars"]
    assert {name for each in hostvars.values() for name in each if name.startswith("muster_")} == {"muster_launch"}
    ours["_meta"]["hostvars"] = {
        host: {name: value for name, value in each.items() if name != "muster_launch"} for host, each in hostvars.items()
    }
    assert ours["_meta"]["hostvars"] == theirs["_meta"]["hostvars"]
    assert len(theirs["_meta"]["hostvars"]) >= len(HOSTS)
    more = {name for name in ours if name not in theirs}
    assert all(each.startswith("muster_") for each in more)
    ours["all"]["children"] = [each for each in ours["all"]["children"] if not each.startswith("muster_")]
    assert {group: value for group, value in ours.items() if group not in more} == theirs
