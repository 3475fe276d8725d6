# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role cloud_tools installs from stub archives in the vendors' layouts."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("aws --version", "aws-cli/2.36.11 Python/3.13 Linux stub"),
        ("kubectl version --client", "Client Version: v1.36.4\nKustomize Version: v5.8.0"),
        ("eksctl version", "0.230.0"),
        ("helm version --short", "v3.18.4+gstub"),
    ],
)
def test_a_user_finds_the_tools(host, command, answer):
    assert host.check_output(f"runuser -u nobody -- env PATH=/usr/local/bin:/usr/bin:/bin {command}") == answer


def test_archives_and_older_versions_are_removed(host):
    assert not host.file("/var/tmp/muster-cloud-tools").exists
    assert set(host.file("/usr/local/aws-cli/v2").listdir()) == {"2.36.11", "current"}


def test_manifest_has_the_versions(host):
    entry = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["cloud_tools"]
    assert entry["version"] == "aws_cli 2.36.11, kubectl 1.36.4, eksctl 0.230.0, helm 3.18.4"
