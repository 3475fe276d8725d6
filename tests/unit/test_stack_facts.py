# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What a host really has, from what the script of stack_facts printed; the table, and drift against the manifest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.filter.stack import stack_together
from ansible_collections.muster.fleet.plugins.module_utils.stack import document as stacks
from ansible_collections.muster.fleet.plugins.module_utils.stack import facts as logic
from ansible_collections.muster.fleet.plugins.modules import stack_facts

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/fixtures/stack_facts"
HOST = logic.installed((FIXTURES / "p5-host.txt").read_text())


def entry(version: str = "", **packages: str) -> dict:
    return {"version": version, "packages": {name.replace("_", "-"): value for name, value in packages.items()}, "artefacts": []}


def versions(found: dict) -> dict[str, str]:
    return {name: each["version"] for name, each in found.items()}


def test_a_p5_host_has_what_its_stack_says():
    """Every component of the stack that such a host carries is found, in the version of the stack."""
    stack = yaml.safe_load((ROOT / "stacks/aws-2026.11.yml").read_text())
    carried = [name for name in stacks.components(stack) if name in HOST and stack[name]["version"] != "*"]
    assert {name: stack[name]["version"] for name in carried if not logic.same(stack[name]["version"], HOST[name]["version"])} == {}
    assert len(carried) == 17
    assert (HOST["running_kernel"]["version"], HOST["efa_driver"]["version"], HOST["gdrdrv"]["version"]) == (
        "6.14.0-1017-aws",
        "3.3.1",
        "2.6",
    )
    # What the kernel has loaded is asked before the packages.
    assert HOST["nvidia_driver"] == {"version": "595.112.07", "source": "/proc/driver/nvidia/version"}
    assert HOST["nccl"] == {"version": "2.30.7", "source": "libraries"}
    assert HOST["libfabric"]["version"] == "2.7.0amzn2.0"


def test_recorded_debian_13():
    """Its own packages, in the versions of the stack debian-13."""
    found = logic.installed((FIXTURES / "debian-13.txt").read_text())
    stack = yaml.safe_load((ROOT / "stacks/debian-13.yml").read_text())
    assert set(found) == {"running_kernel", "nccl", "rdma_core", "libfabric", "openmpi", "pmix", "slurm", "docker"}
    assert [name for name in found if name in stack and not logic.same(stack[name]["version"], found[name]["version"])] == []
    assert found["slurm"] == {"version": "24.11.5", "source": "slurmd -V"}
    assert found["pmix"] == {"version": "5.0.7", "source": "packages"}


@pytest.mark.parametrize(
    ("text", "component", "version"),
    [
        (
            "## /proc/driver/nvidia/version\nNVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03 W\n",
            "nvidia_driver",
            "535.261.03",
        ),
        ("## modinfo -F version nvidia\nmodinfo: ERROR: Module nvidia not found.\n", "nvidia_driver", None),
        ("## libraries\n/lib/libnvidia-ml.so.1 /lib/libnvidia-ml.so.580.95.05\n", "nvidia_driver", "580.95.05"),
        ("## packages\nnvidia-open-kernel-dkms 535.261.03-1~deb12u1\n", "nvidia_driver", "535.261.03"),
        ("## packages\nnvidia-fabricmanager-580 580.178.04-1\n", "fabricmanager", "580.178.04"),
        ("## packages\nnvidia-fabric-manager 570.1.2-1\n", "fabricmanager", "570.1.2"),
        ("## packages\nnvidia-imex-570 570.1.2-1\n", "imex", "570.1.2"),
        ("## nvcc --version\nCuda compilation tools, release 12.4, V12.4.131\n", "cuda", "12.4.131"),
        ("## strings\n/opt/x/libnccl-net.so 1.2.3 NET/OFI Initializing aws-ofi-nccl 1.21.1 \n", "aws_ofi_nccl", "1.21.1"),
        ("## strings\n/usr/lib/slurm/spank_pyxis.so v0.24.0 \n", "pyxis", "0.24.0"),
        ("## packages\ndatacenter-gpu-manager-4-core 1:4.7.0-1\n", "dcgm", "4.7.0"),
        ("## lctl --version\nlctl 2.15.6\n", "lustre_client", "2.15.6"),
        ("## packages\naws-neuronx-dkms 2.29.0.0\n", "neuron", "2.29.0.0"),
    ],
)
def test_each_way(text, component, version):
    assert versions(logic.installed(text)).get(component) == version


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("2.6", "2.6.0", True),
        ("v0.24.0", "0.24.0", True),
        ("12.4.131~12.4.1", "12.4.131", True),
        ("26.1.5+dfsg1", "26.1.5", True),
        ("2.7.0amzn2.0", "2.7.0", True),
        ("2.7.0amzn2.0", "2.7.0amzn1.0", False),
        ("2.6", "2.60", False),
        ("2.6", "2.6.1", False),
        ("595.112.07", "595.91.07", False),
    ],
)
def test_same_version(one, other, alike):
    assert logic.same(one, other) is alike
    assert logic.same(other, one) is alike


def test_a_version_that_a_stand_in_says_is_rehearsed(tmp_path):
    """The driver's entry has neither packages nor programs; only what is laid over /proc says that it is a stand-in."""
    program = tmp_path / "dcgmi"
    program.write_text("#!/bin/sh\n# muster rehearsal: dcgmi is a stand-in for the vendor's; it looked at no hardware\n")
    document = {"components": {"nvidia_driver": entry("595.112.07"), "dcgm": entry("4.7.0"), "slurm": entry("24.11.5")}}
    found = {"nvidia_driver": {"source": "/dev/nvidia0"}, "dcgm": {"source": f"{program} --version"}, "slurm": {"source": "uname -r"}}
    node = {"instance_type": "p5.48xlarge", "devices": ["/dev/nvidia0"], "stand_ins": []}
    assert logic.rehearsed(document, found, node) == {"nvidia_driver": ["nvidia0"], "dcgm": ["dcgmi"], "slurm": []}


def test_drift_names_component_expected_and_found():
    document = {
        "components": {
            "nccl": entry("2.31.2"),
            "nvidia_fabric": entry("595.112.07", nvidia_fabricmanager="595.91.07-1"),
            "neuron": entry("2.29"),
        }
    }
    expected = logic.promised(document)
    assert expected == {"nccl": "2.31.2", "fabricmanager": "595.91.07", "neuron": "2.29"}
    assert logic.sentences(logic.drift(HOST, expected)) == [
        "fabricmanager: the manifest has 595.91.07 and the node has 595.112.07.",
        "nccl: the manifest has 2.31.2 and the node has 2.30.7.",
        "neuron: the manifest has 2.29 and the node has none.",
    ]
    as_it_is = {name: each["version"] for name, each in HOST.items()}
    assert logic.drift(HOST, as_it_is) == []
    assert [check["value"] == check["equals"] for check in logic.checks(HOST, {**as_it_is, "nccl": "2.31.2"}, {})].count(False) == 1


def test_the_table_has_host_and_container_side_by_side():
    lines = logic.table(
        {"nccl": "2.30.7"}, {"nccl": HOST["nccl"]}, {"nccl": {"version": "2.29.7", "source": "libraries"}, "cuda": HOST["cuda"]}
    )
    assert lines.splitlines() == [
        "component  manifest  host    container  said by",
        "cuda       -         -       13.2.2     /usr/local/cuda/version.json",
        "nccl       2.30.7    2.30.7  2.29.7     libraries",
    ]
    assert logic.table({}, HOST).splitlines()[0].split() == ["component", "manifest", "host", "said", "by"]


def test_the_script_reads_libraries_and_their_strings(tmp_path):
    """The real script, on files of this test: the plugin's version stands inside of its library."""
    for name, content in {
        "libnccl-net-ofi.so": b"\x7fELF\0GLIBC_2.2.5\0NET/OFI Initializing aws-ofi-nccl 1.21.1\0",
        "spank_pyxis.so": b"\x7fELF\0GLIBC_2.2.5\0\x000.24.0\0",
        "libgdrapi.so.2.6": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "libgdrapi.so.2").symlink_to("libgdrapi.so.2.6")
    (tmp_path / "all_reduce_perf").write_bytes(b"\x7fELF\0%s\x002.19.6\0")
    libraries = ["libnccl-net-ofi.so", "spank_pyxis.so", "libgdrapi.so.2"]
    tools = {
        "ldconfig": "".join(f"echo '\tx (libc6,x86-64) => {tmp_path}/{name}'\n" for name in libraries),
        "fi_info": "echo libfabric: 2.1.0",
        "nv-fabricmanager": "sleep 60",
    }
    for name, body in tools.items():
        (tmp_path / name).write_text("#!/bin/sh\n" + body)
    for name in [*tools, "all_reduce_perf"]:
        (tmp_path / name).chmod(0o755)
    script = logic.SCRIPT.replace("timeout 10", "timeout 1")
    done = subprocess.run(
        ["sh", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False, timeout=20
    )
    assert done.stderr == ""
    have = versions(logic.installed(done.stdout))
    wanted = {
        "aws_ofi_nccl": "1.21.1",
        "pyxis": "0.24.0",
        "gdrcopy": "2.6",
        "nccl_tests": "2.19.6",
        "libfabric": "2.1.0",
        "running_kernel": os.uname().release,
    }
    assert {name: have.get(name) for name in wanted} == wanted
    # A tool that hangs costs its seconds and nothing else.
    assert "fabricmanager" not in have


def test_the_torch_of_a_foreign_base_says_which_nccl_it_loads(tmp_path):
    """A stand-in base, whose torch has an NCCL of its own beside the system's, which jobs of that torch do not load."""
    (tmp_path / "torch/cuda").mkdir(parents=True)
    (tmp_path / "torch/__init__.py").write_text("import torch.cuda\n__version__ = '2.10.0a0+b4e4ee81d3.nv25.12'\n")
    (tmp_path / "torch/cuda/__init__.py").write_text("import types\nnccl = types.SimpleNamespace(version=lambda: (2, 28, 9))\n")
    (tmp_path / "libnccl.so.2.22.3").touch()
    (tmp_path / "libnccl.so.2").symlink_to("libnccl.so.2.22.3")
    tools = {"ldconfig": f"echo '\tx (libc6,x86-64) => {tmp_path}/libnccl.so.2'", "python3": f'exec {sys.executable} "$@"'}
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for path, wanted in ((str(tmp_path), ("2.10.0a0+b4e4ee81d3.nv25.12", "2.28.9", "2.22.3")), ("", (None, None, "2.22.3"))):
        done = subprocess.run(
            ["sh", "-c", logic.SCRIPT], env=env | {"PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=60
        )
        have = versions(logic.installed(done.stdout))
        assert (have.get("torch"), have.get("torch_nccl"), have.get("nccl")) == wanted


def test_of_two_nccl_the_host_has_the_one_that_the_loader_takes(tmp_path):
    """As where CUDA's image has the package libnccl2 and role nccl built another one."""
    for place, version in (("opt/nccl/lib", "2.28.9"), ("lib/x86_64-linux-gnu", "2.28.3")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / f"libnccl.so.{version}").touch()
        (tmp_path / place / "libnccl.so.2").symlink_to(f"libnccl.so.{version}")
    places = ("opt/nccl/lib", "lib/x86_64-linux-gnu")
    lines = "".join(f"echo '\tlibnccl.so.2 (libc6,x86-64) => {tmp_path}/{place}/libnccl.so.2'\n" for place in places)
    (tmp_path / "ldconfig").write_text("#!/bin/sh\n" + lines)
    (tmp_path / "ldconfig").chmod(0o755)
    script = logic.SCRIPT[logic.SCRIPT.index("libraries() {") : logic.SCRIPT.index('echo "## strings"')]
    done = subprocess.run(["sh", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    assert logic.installed(done.stdout)["nccl"] == {"version": "2.28.9", "source": "libraries"}


def test_module_compares_with_the_manifest_and_a_container(call, tmp_path, monkeypatch):
    inside = tmp_path / "engine"
    inside.write_text(f"#!/bin/sh\n[ $1 = exec ] || {{ echo no container with name $2 >&2; exit 125; }}\ncat {FIXTURES}/p5-host.txt\n")
    inside.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"schema": "muster.manifest/1", "components": {"neuron": entry("2.29.0.0")}}))
    result = call(stack_facts, manifest=str(manifest), container=["engine", "exec", "training"])
    assert result["host"]["running_kernel"]["version"] == os.uname().release
    assert result["container"] == HOST
    assert result["drift"] == ["neuron: the manifest has 2.29.0.0 and the node has none."]
    assert [check["check"] for check in result["checks"]] == ["drift_neuron"]
    assert not result["changed"] and "595.112.07" in result["text"]
    alone = call(stack_facts, manifest=str(tmp_path / "none"), check_mode=True)
    assert (alone["expected"], alone["drift"], alone["container"]) == ({}, [], None)
    for options, says in [
        ({"container": ["engine", "run", "x"]}, "No command could be run by `engine run x` (no container with name"),
        ({"container": ["no-such-engine"]}, "no-such-engine is not on this host; name in container how a command is run"),
        ({"manifest": str(inside)}, f"The manifest {inside} is not JSON"),
    ]:
        refused = call(stack_facts, **options)
        assert refused["failed"] and refused["msg"].startswith(says)


def test_a_build_without_a_version_in_it_has_one_beside_it():
    said = "## builds\ngdrcopy-2.6-debian13-x86_64-0123456789ab\nnccl_tests-2.19.6-debian13-x86_64-0123456789ab\n"
    found = logic.installed(said)
    assert {name: each["version"] for name, each in found.items()} == {"gdrcopy": "2.6", "nccl_tests": "2.19.6"}


def at(found: dict, **versions: str) -> dict:
    return {**found, **{name: {"version": version, "source": "libraries"} for name, version in versions.items()}}


def test_a_container_that_breaks_a_rule_on_its_host_is_named():
    """The driver is the host's, the libraries are the container's."""

    def says(host: dict, container: dict | None, kind: str = "p5.48xlarge") -> list[str]:
        return stack_together({"host": host, "container": container}, kind)

    old = at(HOST, nvidia_driver="535.1", cuda="12.2")
    assert says(HOST, HOST) == says(HOST, None) == []
    assert says(old, at(HOST, nvidia_driver="595.112.07")) == [
        "nvidia_driver must be 580.65.06 or later and is 535.1, because CUDA 13 runs on driver 580 and later (rule cuda13)."
    ]
    assert any("aws_ofi_nccl must be 1.7.3 or later and is 1.7.0" in each for each in says(HOST, at(HOST, aws_ofi_nccl="1.7.0")))
    assert any("falls back to TCP without it (rule plugin-missing)" in each for each in says(HOST, {"nccl": {"version": "2.30.7"}}))
    # What the host breaks by itself is a matter of its own stack.
    bad = at(HOST, aws_ofi_nccl="1.7.0")
    assert says(bad, bad) == []
    with pytest.raises(AnsibleFilterError, match=r"The catalogue has no instance type p5\.48xlage"):
        says(HOST, HOST, "p5.48xlage")
