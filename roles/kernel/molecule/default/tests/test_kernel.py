# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Role kernel installs the headers of the kernel that a node is to run and holds its packages."""

from __future__ import annotations

import json
import re


def test_modules_can_be_built_for_the_target(host):
    manifest = json.loads(host.file("/etc/muster/manifest.json").content_string)
    target = manifest["components"]["kernel"]["version"]
    assert manifest["components"]["kernel"]["artefacts"] == [f"/lib/modules/{target}/build"]
    assert f'"{target}"' in host.file(f"/lib/modules/{target}/build/include/generated/utsrelease.h").content_string


def test_its_packages_are_held(host):
    held = host.check_output("apt-mark showhold").split()
    listed = host.check_output("dpkg-query -W -f '${Package} ${Status}\\n' 'linux-headers-*' 'linux-image-*'").splitlines()
    installed = [line.split()[0] for line in listed if line.endswith(" installed")]
    assert [name for name in installed if name not in held] == []
    assert "linux-headers-amd64" in held
    # An upgrade leaves them alone.
    would = host.check_output("LC_ALL=C apt-get --simulate upgrade").splitlines()
    assert re.fullmatch(r"\d+ upgraded, .* not upgraded\.", next(line for line in would if " upgraded, " in line))
    assert [line for line in would if line.startswith("Inst") and "linux-" in line] == []
