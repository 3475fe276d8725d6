# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role gdrcopy builds from a stub archive: a library that the loader finds, and a tool that reports that there is no GPU."""

from __future__ import annotations

import json


def test_the_loader_finds_the_library(host):
    assert "/opt/gdrcopy/lib/libgdrapi.so.2" in host.check_output("ldconfig -p")


def test_the_tool_reports_that_there_is_no_gpu(host):
    assert "no CUDA-capable device is detected" in host.run("/opt/gdrcopy/bin/gdrcopy_sanity").stderr


def test_the_build_brings_the_sources_of_the_module(host):
    """DKMS builds them only where NVIDIA's driver is."""
    conf = host.file("/opt/gdrcopy/src/gdrdrv-2.6/dkms.conf").content_string
    assert 'PACKAGE_VERSION="2.6"' in conf and "@" not in conf
    assert host.file("/opt/gdrcopy/src/gdrdrv-2.6/gdrdrv.c").exists and host.file("/opt/gdrcopy/src/gdrdrv-2.6/scripts").is_directory
    assert not host.file("/usr/src/gdrdrv-2.6").exists


def test_nothing_of_the_build_is_left(host):
    assert not host.file("/var/tmp/muster-build/gdrcopy").exists
    assert host.check_output("cd /opt/gdrcopy && sha256sum --check --quiet .muster-files && cat .muster-build").startswith("gdrcopy-2.6-")


def test_manifest_names_the_stack(host):
    manifest = json.loads(host.file("/etc/muster/manifest.json").content_string)
    assert manifest["stack"]["name"] == "stub"
    assert manifest["components"]["gdrcopy"]["version"] == "2.6"
