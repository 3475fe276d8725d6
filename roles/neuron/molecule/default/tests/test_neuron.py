# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Neuron's packages from a contract archive of AWS' repository, held; a container has neither its devices nor its module."""

from __future__ import annotations

import json

PACKAGES = {
    "aws-neuronx-dkms": "2.27.4.0",
    "aws-neuronx-tools": "2.29.18.0",
    "aws-neuronx-collectives": "2.31.24.0",
    "aws-neuronx-runtime-lib": "2.31.24.0",
}


def test_an_upgrade_leaves_all_packages_as_they_are(host):
    assert {name: host.package(name).version for name in PACKAGES} == PACKAGES
    assert set(PACKAGES) <= set(host.check_output("apt-mark showhold").split())


def test_its_tools_are_there(host):
    assert host.check_output("/opt/aws/neuron/bin/neuron-ls --version") == "neuron-ls 2.29.18.0"


def test_the_repository_is_trusted_by_its_own_key_alone(host):
    source = "/etc/apt/sources.list.d/" + host.check_output("ls /etc/apt/sources.list.d | grep -x 'muster-.*neuron.*\\.sources'")
    lines = dict(line.split(": ", 1) for line in host.file(source).content_string.splitlines() if ": " in line and line[0] != "#")
    assert lines["Signed-By"].startswith("/usr/share/keyrings/muster-")
    assert host.file(lines["Signed-By"]).content_string.startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")


def test_manifest_has_the_packages(host):
    entry = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["neuron"]
    assert (entry["version"], entry["packages"]) == ("2.27.4.0", PACKAGES)
