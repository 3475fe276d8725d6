# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role common sets on a container node, and what it leaves alone there."""

from __future__ import annotations

import json

import pytest

LIMITS = """\
# Written by Muster (role common).
*    -  memlock  unlimited
*    -  nofile   1048576
root -  memlock  unlimited
root -  nofile   1048576
"""


def test_limits_of_sessions(host):
    limits = host.file("/etc/security/limits.d/90-muster.conf")
    assert limits.content_string == LIMITS
    assert (limits.mode, limits.user) == (0o644, "root")


def test_limits_of_services(host):
    """Ask systemd itself: a file that it does not read fails the test."""
    shown = host.check_output("systemctl show --property=DefaultLimitMEMLOCK,DefaultLimitNOFILE")
    assert sorted(shown.splitlines()) == ["DefaultLimitMEMLOCK=infinity", "DefaultLimitNOFILE=1048576"]


@pytest.mark.parametrize(
    "setting",
    [
        'DPkg::Lock::Timeout "300";',
        'APT::Install-Recommends "false";',
        'APT::Periodic::Update-Package-Lists "0";',
        'APT::Periodic::Unattended-Upgrade "0";',
    ],
)
def test_apt_reads_its_settings(host, setting):
    assert setting in host.check_output("apt-config dump").splitlines()


def test_needrestart_restarts_nothing(host):
    assert "$nrconf{restart} = 'l';" in host.file("/etc/needrestart/conf.d/muster.conf").content_string.splitlines()


def test_services_may_start_again(host):
    assert not host.file("/usr/sbin/policy-rc.d").exists


@pytest.mark.parametrize("path", ["/etc/sysctl.d/90-muster.conf", "/etc/chrony/conf.d/muster.conf"])
def test_the_hosts_kernel_and_clock_are_left_alone(host, path):
    assert not host.file(path).exists


def test_the_hosts_kernel_settings_cannot_be_changed_from_here(host):
    refused = host.run("cat /proc/sys/vm/max_map_count | tee /proc/sys/vm/max_map_count")
    assert "Read-only file system" in refused.stderr


def test_packages_are_installed_and_complete(host):
    assert host.check_output("jq --null-input --raw-output '1 + 1'") == "2"
    assert host.check_output("dpkg --audit") == ""


def test_manifest_records_the_install(host):
    manifest = json.loads(host.file("/etc/muster/manifest.json").content_string)
    common = manifest["components"]["common"]
    assert manifest["schema"] == "muster.manifest/1"
    assert common["packages"]["jq"] == manifest["packages"]["jq"] == host.package("jq").version
    assert common["artefacts"] == ["/etc/apt/apt.conf.d/90muster"]
    assert len(common["inputs_sha256"]) == 64


def test_no_file_of_ours_is_writable_by_others(host):
    paths = "/etc/muster /etc/apt/apt.conf.d /etc/needrestart /etc/security /etc/systemd"
    assert host.check_output(f"find {paths} -perm -002 ! -type l") == ""


def test_nothing_failed_at_boot(host):
    assert host.check_output("systemctl list-units --state=failed --no-legend --plain") == ""
