# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The install of stack debian-13 beside a bare shell script, and provision.yml of a baked node beside that of a fresh one.

    python -m tests.bench stack         everything, with CUDA and the real sources, in half an hour; writes docs/performance.md
    python -m tests.bench.stack small   without CUDA and with stub archives as sources: a build takes a second, so Muster's own work shows
    python -m tests.bench.stack [small] bare|ours|fresh|baked    some of its parts, when the machine is free for some minutes only

The last two print seconds as JSON. Real sources come from the cache of downloads, or are fetched first.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir
from ansible_collections.muster.fleet.plugins.module_utils.stack import document as stack
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files
from ansible_collections.muster.fleet.plugins.plugin_utils.downloads import cached

from .fleets import ROOT, Fleet
from .table import Row, row

PARTS = ["bare", "ours", "fresh", "baked"]
SOURCES = ("gdrcopy", "aws_ofi_nccl", "nccl_tests", "pyxis")
# The roles whose install is measured, in the stack's order. Slurm is among them because pyxis is built against it.
ROLES = ["common", "kernel", "cuda", "gdrcopy", "nccl", "aws_ofi_nccl", "nccl_tests", "docker", "slurm", "enroot_pyxis"]
# What those roles install on a compute node, from their own defaults and the stack's distro packages.
PACKAGES = (
    "ca-certificates curl jq numactl pciutils tzdata linux-headers-amd64 libnccl2 libnccl-dev docker.io docker-cli "
    "libfabric1 libfabric-dev openmpi-bin libopenmpi-dev autoconf automake libtool libhwloc-dev make g++ binutils "
    "munge logrotate libpmix2t64 libpam-slurm-adopt slurm-client slurm-wlm-basic-plugins slurmd libslurm-dev "
)
NOT_RUN = [
    "kernel.running",
    "gdrcopy.copies",
    "aws_ofi_nccl.network",
    "nccl_tests.all_reduce",
    "enroot_pyxis.enroot",
    "enroot_pyxis.users_import",
    "enroot_pyxis.user_namespaces",
]


def fresh_cache(asked: dict) -> dict:
    """Empty the cache, so that it has no builds yet, and return the variables."""
    shutil.rmtree(asked["muster_cache_dir"], ignore_errors=True)
    return asked


def variables(folder: Path, small: bool) -> dict:
    """Ansible's extra variables. They name a cache of this measurement's own, because the user's may have the builds."""
    asked = {
        "muster_components": [role for role in ROLES if not (small and role == "cuda")],
        "kernel_packages": ["linux-headers-amd64"],
        "nccl_instance_type": "p5.48xlarge",
        "common_ca_certificates": [],
        "muster_cache_dir": str(folder / "cache"),
        "muster_stack_name": "debian-13",
    }
    if small:
        archives = folder / "stub"
        subprocess.run([sys.executable, ROOT / ".config/molecule/stub_archives", archives], check=True, stdout=subprocess.DEVNULL)
        # Leave enroot out, because the bare script does not install it; the rest extends debian-13.
        document = json.loads((archives / "stub.yml").read_text().split("\n", 1)[1])
        document.pop("enroot", None)
        (archives / "bench.yml").write_text(json.dumps(document))
        asked |= {"muster_stack_name": str(archives / "bench.yml"), "muster_mirror": str(archives)}
    return asked


def files(asked: dict, folder: Path) -> dict[str, Path]:
    """The source archives of both sides by component. They go into Ansible's cache too, so that neither side waits for the network."""
    document = stack_files.load(asked["muster_stack_name"])
    found = {}
    for name in SOURCES:
        source = stack.redirected(stack.source_of(document, name, "debian13", "x86_64"), asked.get("muster_mirror", ""))
        kept = cached(source, cache_dir(os.environ))
        found[name] = kept
        there = Path(asked["muster_cache_dir"]) / "downloads"
        there.mkdir(parents=True, exist_ok=True)
        shutil.copy(kept, there)
    return found


def bare_s(fleet: Fleet, folder: Path, asked: dict) -> float:
    """Seconds of the shell script on a fresh node."""
    bundle = folder / "bare"
    bundle.mkdir()
    sums = ""
    for name, kept in files(asked, folder).items():
        shutil.copy(kept, bundle / f"{name}.tar.gz")
        digest = subprocess.run(["sha256sum", f"{name}.tar.gz"], cwd=bundle, capture_output=True, text=True, check=True).stdout
        sums += digest
        [script] = ROOT.glob(f"roles/*/files/build-{name}.sh")
        shutil.copy(script, bundle)
    (bundle / "sums").write_text(sums)
    shutil.copy(ROOT / "tests/bench/stack.sh", bundle)
    packed = subprocess.run(["tar", "-C", bundle, "-c", "."], capture_output=True, check=True).stdout
    ssh = fleet.ssh("compute-1")
    subprocess.run([*ssh, "mkdir -p /var/tmp/bare && tar -x -C /var/tmp/bare"], input=packed, check=True)
    packages = PACKAGES + ("nvidia-cuda-toolkit" if "cuda" in asked["muster_components"] else "")
    began = time.monotonic()
    done = subprocess.run([*ssh, f"sh /var/tmp/bare/stack.sh /var/tmp/bare {packages}"], capture_output=True, text=True, check=False)
    wall = time.monotonic() - began
    if done.returncode != 0:
        logs = subprocess.run([*ssh, "tail -n 5 /var/tmp/bare/*.log"], capture_output=True, text=True, check=False).stdout
        raise SystemExit(f"stack.sh ended with {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}{logs}")
    return wall


def ours_s(fleet: Fleet, folder: Path, asked: dict, host: str) -> float:
    """Seconds of the install phase on these hosts."""
    files(asked, folder)
    extra = json.dumps({**asked, "muster_phases": ["install"]})
    return fleet.playbook("playbooks/stack.yml", "--limit", host, "-e", extra).wall_s


def provision_s(fleet: Fleet, folder: Path, asked: dict, baked: bool) -> float:
    """Seconds of all tasks of provision.yml, its verify included, from its report; the compute node is baked or bare."""
    files(asked, folder)
    components = {"muster_controller": ["common", "slurm", "enroot_pyxis"], "muster_compute": asked["muster_components"]}
    asked = {key: value for key, value in asked.items() if key != "muster_components"}
    for group, wanted in components.items():
        with (fleet.inventory / f"group_vars/{group}.yml").open("a") as file:
            file.write(f"muster_components: {json.dumps(wanted)}\n")
    ours_s(fleet, folder, asked, "all" if baked else "muster_controller")
    allowed = yaml.safe_load((ROOT / "inventory/local/group_vars/all.yml").read_text())["muster_allow_not_run"]
    fleet.playbook("playbooks/provision.yml", "-e", json.dumps({**asked, "muster_allow_not_run": allowed + NOT_RUN}))
    report = json.loads((folder / "runs" / fleet.name / "latest/report.json").read_text())
    return sum(each["seconds"] for each in report["timings"]["roles"])


def measure(folder: Path, small: bool, parts: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    asked = variables(folder, small)
    for part in parts:
        with Fleet(f"bench-stack-{part}", 1, folder, memory="3072") as fleet:
            if part == "bare":
                found[part] = bare_s(fleet, folder, asked)
            elif part == "ours":
                found[part] = ours_s(fleet, folder, fresh_cache(asked), "compute-1")
            else:
                found[part] = provision_s(fleet, folder, fresh_cache(asked), baked=part == "baked")
            print(f"{part}: {found[part]:.2f} s", file=sys.stderr)
    return found


def rows(folder: Path) -> list[Row]:
    found = measure(folder, False, PARTS)
    ours, bare, baked, fresh = (f"{found[part]:.1f} s" for part in ("ours", "bare", "baked", "fresh"))
    return [
        row("Install of stack debian-13", ours, f"a bare shell script, {bare}", found["ours"] / found["bare"], "≤ 1.2"),
        row("Provisioning with a baked GPU node", baked, f"with a bare one, {fresh}", found["baked"] / found["fresh"], "≤ 0.15"),
    ]


def main(argv: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        found = measure(Path(folder), "small" in argv, [word for word in argv if word != "small"] or PARTS)
    print(json.dumps({part: round(seconds, 2) for part, seconds in found.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
