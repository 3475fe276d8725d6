# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role lustre_client installs from a stub archive of FSx's repository. A container cannot mount Lustre."""

from __future__ import annotations

import json


def test_the_modules_fit_the_kernel(host):
    kernel = host.check_output("uname -r")
    assert host.package(f"lustre-client-modules-{kernel}").is_installed
    assert not host.package("lustre-client-modules-6.8.0-9999-stub").is_installed
    assert host.file("/usr/sbin/mount.lustre").exists


def test_the_first_use_mounts_the_file_system_before_slurm(host):
    mount = host.file("/etc/systemd/system/lustre-data.mount").content_string.splitlines()
    assert {
        "Wants=network-online.target",
        "After=network-online.target",
        "Before=slurmd.service slurmctld.service",
        "What=fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com@tcp:/abcdefgh",
        "Where=/lustre/data",
        "Type=lustre",
        "Options=noatime,flock,_netdev,localflock",
        "TimeoutSec=90",
    } <= set(mount)
    automount = host.file("/etc/systemd/system/lustre-data.automount").content_string.splitlines()
    assert {"Where=/lustre/data", "Before=slurmd.service slurmctld.service", "WantedBy=multi-user.target"} <= set(automount)
    units = "/etc/systemd/system/lustre-data.mount /etc/systemd/system/lustre-data.automount"
    assert host.run(f"systemd-analyze verify {units}").stderr.count("lustre-data") == 0


def test_manifest_names_the_packages(host):
    entry = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["lustre_client"]
    assert entry["packages"]["lustre-client-utils"] == "2.15.6-1"
    assert entry["verified"] == "https", "nobody publishes the fingerprint of FSx's key"
