# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What role cuda installs with Debian's toolkit: a compiler that works, and no driver."""

from __future__ import annotations

import json


def test_nvcc_compiles_a_kernel_for_a_gpu(host):
    source = "__global__ void add(int *x) { *x += 1; }"
    made = host.check_output("cd /tmp && echo %s >k.cu && nvcc -arch=sm_90 -cubin -o k.cubin k.cu && cuobjdump --dump-sass k.cubin", source)
    assert "sm_90" in made


def test_no_driver_is_installed(host):
    names = host.check_output("dpkg-query --show --showformat '${Package}\\n'").splitlines()
    assert not {"nvidia-driver", "nvidia-kernel-dkms", "nvidia-open-kernel-dkms"} & set(names)


def test_debians_toolkit_needs_no_path_entry(host):
    assert not host.file("/etc/profile.d/muster-cuda.sh").exists


def test_manifest_has_the_version(host):
    entry = json.loads(host.file("/etc/muster/manifest.json").content_string)["components"]["cuda"]
    assert entry["packages"]["nvidia-cuda-toolkit"] == host.package("nvidia-cuda-toolkit").version
    assert entry["artefacts"] == ["/usr/bin/nvcc"]
