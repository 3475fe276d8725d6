# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role efa installs from a stub of AWS' installer, which refuses unknown flags and wrong signatures."""

from __future__ import annotations

import json


def test_the_installer_ran_with_the_flags_of_a_container(host):
    record = host.file("/opt/amazon/efa_installed_packages").content_string
    assert record.splitlines()[0] == "# EFA installer version: 1.51.0"
    # --skip-limit-conf leaves the file out. Without --skip-kmod the installer would have asked for kernel headers.
    assert not host.file("/etc/security/limits.d/01_efa.conf").exists
    log = host.file("/var/log/muster-efa-installer.log").content_string
    assert log.index("Signatures of all packages are good") < log.index("EFA installation complete.")


def test_jobs_find_libfabric_and_the_plugin(host):
    assert "libfabric: 2.7.0amzn2.0" in host.check_output("/opt/amazon/efa/bin/fi_info --version")
    assert host.file("/etc/ld.so.conf.d/100_ofinccl.conf").content_string.splitlines()[-1] == "/opt/amazon/ofi-nccl/lib"
    assert host.file("/opt/amazon/ofi-nccl/lib/libnccl-net.so").linked_to.endswith("libnccl-net-ofi.so")


def test_the_installer_is_removed(host):
    assert not host.file("/var/tmp/muster-efa").exists


def test_the_hosts_kernel_is_left_alone(host):
    assert not host.file("/etc/sysctl.d/91-muster-efa.conf").exists


def test_manifest_has_the_version(host):
    entry = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["efa"]
    assert entry["version"] == "1.51.0"
