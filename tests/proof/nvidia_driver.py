# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: DKMS builds the open module of Debian 12 for a kernel that does not run here. Debian 13's does not build, and the role says why.

Run by `make proofs`, or `pytest --engine tests/proof/nvidia_driver.py`; about twelve minutes on two cores, mostly the compiler's.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from e2e_fleet import Fleet

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
NODE = "compute-1"
# Debian 13's own stack refuses the driver, so this site's stack asks for it.
ANYWAY = {
    "schema": "muster.stack/1",
    "name": "anyway",
    "extends": "debian-13",
    "nvidia_driver": {"version": "550.163.01", "sources": [{"distro": ["nvidia-open-kernel-dkms"]}]},
}
ALLOWED = [f"nvidia_driver.{check}" for check in ("loaded", "kernel_modules", "gpus", "persistence")]


def fleet(artifacts, name: str, release: str) -> Fleet:
    folder = artifacts.folder(name)
    inventory = folder / "inventory"
    inventory.mkdir()
    options = {"plugin": "muster.fleet.local_fleet", "fleet": name, "compute": 1, "cpus": 2, "memory": "4096", "release": release}
    (inventory / "local_fleet.yml").write_text(json.dumps(options))
    (inventory / "group_vars").symlink_to(ROOT / "inventory/local/group_vars")
    made = Fleet(folder, name, inventory)
    artifacts.leave(f"fleet {name}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    assert made.run("playbooks/local_up.yml").returncode == 0
    return made


def converge(made: Fleet, **variables: object):
    asked = {
        "muster_phases": ["install", "configure", "verify_image", "verify_node"],
        "muster_components": ["kernel", "nvidia_driver"],
        "kernel_packages": ["linux-headers-amd64"],
        "muster_allow_not_run": ["kernel.running", *ALLOWED],
        **variables,
    }
    return made.run("playbooks/stack.yml", "--limit", NODE, "-e", json.dumps(asked), timeout=1500)


def test_debian_12_builds_the_open_module_for_its_own_kernel(artifacts) -> None:
    made = fleet(artifacts, "dkms12", "bookworm")
    # A security update of 2026 brought the change of Debian 13's kernel to its newest kernel; the archive keeps the older ones.
    offered = made.ansible(
        NODE, "sh", "-c", "apt-get -qq update; apt-cache search --names-only '^linux-headers-6.1.0-[0-9]+-amd64$' | sort -V"
    )
    packages = [offered.splitlines()[0].split()[0]]
    done = converge(made, kernel_packages=packages)
    assert done.returncode == 0, done.stdout[-5000:]
    [kernel] = made.ansible(NODE, "sh", "-c", "ls /lib/modules").splitlines()[-1:]
    assert re.fullmatch(r"6\.1\.0-\d+-amd64", kernel)
    status = made.ansible(NODE, "dkms", "status", "-k", kernel)
    assert re.search(rf"nvidia-current-open/535\.261\.03, {kernel}, x86_64: installed", status)
    path = made.ansible(NODE, "sh", "-c", f"modinfo -k {kernel} -F version nvidia-current-open nvidia-current-open-uvm | sort -u")
    assert "535.261.03" in path
    # Debian's archive has two versions of the user libraries, and another version than the module's would not talk to it.
    libraries = made.ansible(
        NODE, "sh", "-c", "readlink -f $(ldconfig -p | sed -n 's/.*(libc6,x86-64) => //p' | grep -E '/lib(cuda|nvidia-ml)[.]so[.]1$')"
    )
    assert sorted(each.rsplit("/", 1)[1] for each in libraries.split()) == ["libcuda.so.535.261.03", "libnvidia-ml.so.535.261.03"]
    assert made.ansible(NODE, "ls", "/usr/bin/nvidia-smi").split() == ["/usr/bin/nvidia-smi"]
    unit = made.ansible(NODE, "systemctl", "cat", "nvidia-persistenced")
    assert "ExecStart=/usr/bin/nvidia-persistenced --verbose --persistence-mode" in unit
    assert made.ansible(NODE, "sh", "-c", "systemctl is-active nvidia-persistenced || true").split() == ["inactive"], "there is no GPU"
    again = converge(made, kernel_packages=packages)
    assert again.returncode == 0, again.stdout[-5000:]
    assert re.search(rf"^{NODE} .* changed=0 ", again.stdout, re.MULTILINE)


def test_debian_13_says_why_there_is_no_module(artifacts) -> None:
    made = fleet(artifacts, "dkms13", "trixie")
    refused = converge(made)
    assert refused.returncode != 0
    assert "nvidia_driver 550.163.01 is refused on debian13: " in re.sub(r"\s+", " ", refused.stdout)
    stack = made.folder / "anyway.yml"
    stack.write_text(json.dumps(ANYWAY))
    failed = re.sub(r"\s+", " ", converge(made, muster_stack_name=str(stack)).stdout)
    assert re.search(
        r"DKMS did not build nvidia-current-open 550\.163\.01 for kernel 6\.12\.\d+\+deb13-amd64: nvidia/nv-pci\.c:\d+:\d+: error: "
        r"too few arguments to function 'pci_resize_resource'; take a driver that knows this kernel, or an older kernel in kernel_packages",
        failed,
    ), failed[-3000:]
    assert "nvidia_driver" not in made.ansible(NODE, "cat", "/etc/muster/manifest.json")
