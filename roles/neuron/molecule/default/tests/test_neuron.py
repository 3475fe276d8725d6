# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Role neuron installs and holds the packages of a stub of AWS' repository. A container has neither devices nor module."""

from __future__ import annotations

import json

PACKAGES = {
    "aws-neuronx-dkms": "2.30.2.0-1a2b3c4d",
    "aws-neuronx-tools": "2.32.28.0-1a2b3c4d",
    "aws-neuronx-collectives": "2.34.10.0-1a2b3c4d",
    "aws-neuronx-runtime-lib": "2.34.10.0-1a2b3c4d",
}


def test_all_packages_are_held_at_their_versions(host):
    assert {name: host.package(name).version for name in PACKAGES} == PACKAGES
    assert set(PACKAGES) <= set(host.check_output("apt-mark showhold").split())


def test_the_tools_are_installed(host):
    assert host.check_output("/opt/aws/neuron/bin/neuron-ls --version") == "neuron-ls 2.32.28.0"


def test_only_its_own_key_signs_the_repository(host):
    source = "/etc/apt/sources.list.d/" + host.check_output("ls /etc/apt/sources.list.d | grep -x 'muster-.*neuron.*\\.sources'")
    lines = dict(line.split(": ", 1) for line in host.file(source).content_string.splitlines() if ": " in line and line[0] != "#")
    assert lines["Signed-By"].startswith("/usr/share/keyrings/muster-")
    assert host.file(lines["Signed-By"]).content_string.startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")


def test_manifest_has_the_packages(host):
    entry = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["neuron"]
    assert (entry["version"], entry["packages"]) == ("2.30.2.0", PACKAGES)


def test_login_shells_have_the_environment_of_the_type(host):
    command = "bash -lc 'echo $FI_PROVIDER $FI_EFA_USE_DEVICE_RDMA'"
    assert host.check_output(command) == "efa 1"
    assert host.check_output("FI_PROVIDER=tcp " + command) == "tcp 1"
