# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Debian's NCCL finds a plugin that was built from a stub archive, and the checks report broken plugins."""

from __future__ import annotations

import json

PLUGIN = "/opt/aws-ofi-nccl/lib/libnccl-net-ofi.so"


def faults(host) -> dict:
    """The faults that the module reports about the node as it is now."""
    said = host.ansible("muster.fleet.nccl_plugin_facts", "environment_file=/etc/nccl.conf", become=True)
    return {name: text for name, text in said["faults"].items() if text}


def broken(host, script: str) -> dict:
    """The faults while a script has broken the plugin. The plugin is restored afterwards."""
    host.check_output(f"cp --archive {PLUGIN} /tmp/plugin")
    try:
        host.check_output(script)
        return faults(host)
    finally:
        host.check_output(f"mv /tmp/plugin {PLUGIN} && ldconfig")


def test_the_good_plugin(host):
    assert faults(host) == {}
    checks = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]
    assert checks["aws_ofi_nccl"]["version"] == "1.21.1"


def test_a_missing_plugin(host):
    said = broken(host, f"rm {PLUGIN} && ldconfig && cd /opt/aws-ofi-nccl && ! sha256sum --quiet --check .muster-files")
    assert said["found"].startswith("The loader has no libnccl-net-ofi.so, which NCCL will look for")


def test_the_install_phase_notices_that_its_folder_is_missing(host):
    """So the remedy of the check files_as_built is to remove the folder."""
    host.check_output("mv /opt/aws-ofi-nccl /opt/aside")
    try:
        compared = host.ansible("muster.fleet.manifest", "state=compare component=aws_ofi_nccl", become=True)
    finally:
        host.check_output("mv /opt/aside /opt/aws-ofi-nccl")
    assert compared["reasons"] == ["/opt/aws-ofi-nccl/.muster-build is missing"]


def test_a_library_that_is_no_plugin(host):
    said = broken(host, f"cp /lib/*-linux-gnu/libz.so.1 {PLUGIN}")
    assert said == {"interface": f"{PLUGIN} exports no ncclNetPlugin symbol, so it is not a plugin of NCCL."}


def test_a_plugin_of_another_nccl(host):
    source = 'struct { const char *name; } ncclNetPlugin_v99 = {"Libfabric"};'
    said = broken(host, f"echo '{source}' | cc -xc - -shared -fPIC -o {PLUGIN}")
    assert "has versions 99 of the interface and" in said["interface"]


def test_a_plugin_that_lacks_a_library(host):
    source = 'struct { const char *name; } ncclNetPlugin_v8 = {"Libfabric"};'
    lost = "echo 'void lost(void) {}' | cc -xc - -shared -fPIC -Wl,-soname,liblost.so.1 -o /tmp/liblost.so"
    said = broken(host, f"{lost} && echo '{source}' | cc -xc - -x none -shared -fPIC -Wl,--no-as-needed /tmp/liblost.so -o {PLUGIN}")
    assert said == {"libraries": f"{PLUGIN} needs liblost.so.1, which the loader does not find."}


def test_a_plugin_that_cannot_be_loaded(host):
    source = 'void lost(void); struct { const char *name; void (*call)(void); } ncclNetPlugin_v8 = {"Libfabric", lost};'
    said = broken(host, f"echo '{source}' | cc -xc - -shared -fPIC -o {PLUGIN}")
    assert "undefined symbol: lost" in said["loads"]


def test_a_plugin_of_another_name(host):
    source = 'struct { const char *name; } ncclNetPlugin_v8 = {"AWS Libfabric"};'
    said = broken(host, f"echo '{source}' | cc -xc - -shared -fPIC -o {PLUGIN}")
    assert said["transport"].startswith("NCCL_NET is Libfabric and the plugin calls itself AWS Libfabric")
