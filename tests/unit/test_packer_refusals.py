# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""How packer build fails, over the local cloud's API: it prints one sentence, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from local_cloud import ROOT, build_argv, need_packer
from local_cloud_api import Machines

from localcloud.__main__ import order
from localcloud.cloud import Cloud
from localcloud.wrapping import CLOUD


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    need_packer()
    with Cloud("packer", machines=Machines()) as made:
        yield made


@pytest.mark.parametrize(
    ("variables", "fault", "sentence"),
    [
        ({"region": "us-east-1a"}, {}, "A region has a name such as us-east-1; one with a letter at its end is an availability zone."),
        ({"region": "us-east-9"}, {}, "Credential should be scoped to a valid region, us-east-9 is none."),
        ({"source_ami": "ami-0123456789abcdef0"}, {}, "The image id '[ami-0123456789abcdef0]' does not exist"),
        ({"source_ami_name": "debian-99-*"}, {}, "No AMI was found matching filters"),
        ({"share_with_accounts": ["12345"]}, {}, "An account to share with is twelve digits."),
        ({"volume_size_gib": 3}, {}, "a disk of 3 GiB: common, slurm, node_health together need 4 GiB; set volume_size_gib"),
        ({"kms_key_id": "alias/none"}, {}, "Client.InvalidKMSKey.InvalidState: The KMS key alias/none does not exist in us-east-1"),
        # RequestExpired ends in such a sentence too, but Packer first asks eleven times in two minutes, because the clock may be wrong.
        *(
            ({}, {"action": action, "error": error}, f"api error {error}: {error}, as ordered.")
            for action, error in (
                ("DescribeImages", "AuthFailure"),
                ("RunInstances", "UnauthorizedOperation"),
                ("RunInstances", "VcpuLimitExceeded"),
            )
        ),
        # Here the machine has no room. If the test ordered AWS's own error instead, Packer would repeat the call ten times in two minutes.
        ({}, {"room": 0}, "api error InsufficientInstanceCapacity: "),
    ],
)
def test_one_sentence_and_nothing_is_left(cloud: Cloud, tmp_path: Path, variables: dict, fault: dict, sentence: str) -> None:
    CLOUD["faults"]._waiting.clear()
    cloud._machines.room = fault.get("room", 40)
    if "action" in fault:
        # The SDK repeats a call, so order the fault for each try.
        assert order(json.dumps({**fault, "times": 20}), cloud.env) == 0
    env = {**cloud.outside(os.environ), **cloud.env, "CHECKPOINT_DISABLE": "1"}
    done = subprocess.run(
        build_argv("slurm-cpu", tmp_path, **variables), cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, timeout=300,
    )  # fmt: skip
    said = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert sentence in said
    assert "goroutine" not in said
    assert list(tmp_path.iterdir()) == []
    keys = {"aws_access_key_id": cloud.env["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": cloud.env["AWS_SECRET_ACCESS_KEY"]}
    ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url=cloud.env["AWS_ENDPOINT_URL"], **keys)
    assert cloud._machines.now == {}
    assert ec2.describe_key_pairs()["KeyPairs"] == []
    assert [each["GroupName"] for each in ec2.describe_security_groups()["SecurityGroups"]] == ["default"]
