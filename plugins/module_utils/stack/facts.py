# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which components of a stack a host or a container has: one shell script asks for all of them, and this module parses its output."""

from __future__ import annotations

import re

from ansible_collections.muster.fleet.plugins.module_utils.node import rehearsal
from ansible_collections.muster.fleet.plugins.module_utils.node.manifest import upstream_version

# Runs as `sh -c` on a host and, behind `docker exec NAME`, in a container: plain sh, and nothing but coreutils, sed and grep.
# The vendors' folders come first in PATH, as in their profiles. The timeout is for a driver that hangs.
SCRIPT = r"""
PATH=/opt/slurm/current/bin:/opt/slurm/current/sbin:/opt/amazon/efa/bin:/opt/amazon/openmpi5/bin:/opt/amazon/openmpi/bin:/usr/local/cuda/bin:\
/opt/aws/neuron/bin:$PATH:/usr/local/sbin:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL
ask() { command -v "$1" >/dev/null && { echo "## $*"; timeout 10 "$@" 2>&1 </dev/null | head -n 20; }; }
show() { for file do [ -r "$file" ] && { echo "## $file"; head -n 40 "$file"; echo; }; done; }
show /proc/driver/nvidia/version /sys/module/nvidia/version /sys/module/efa/version /sys/module/gdrdrv/version /sys/module/lustre/version \
  /sys/module/neuron/version /opt/amazon/efa_installed_packages /usr/local/cuda/version.json
ask uname -r
ask modinfo -F version nvidia
ask nv-fabricmanager --version
ask nvidia-imex --version
ask nvcc --version
ask fi_info --version
ask ompi_info --version
ask pmix_info --version
ask slurmd -V
ask slurmctld -V
ask docker --version
ask nvidia-ctk --version
ask enroot version
ask lctl --version
ask dcgmi --version
echo "## torch"
# A wheel of torch brings an NCCL of its own, which ldconfig does not know.
for python in python3 python; do
  timeout 60 $python -c 'import torch
print("torch", torch.__version__)
print("nccl", ".".join(map(str, torch.cuda.nccl.version())))' 2>/dev/null && break
done
echo "## packages"
{ dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\n' 2>/dev/null | sed -n 's/^.i *//p'
  rpm -qa --qf '%{NAME} %{VERSION}-%{RELEASE}\n' 2>/dev/null; } |
  grep -E -e '^(aws-neuronx|cuda-|datacenter-gpu|docker|efa|enroot|libfabric|libgdrapi|libibverbs|libnccl|libnvidia-|libpmix)' \
    -e '^(kmod-nvidia|lustre-client|nvidia-|nvlsm|openmpi|pmix|pyxis|rdma-core|slurm)'
libraries() {
  ldconfig -p 2>/dev/null | sed -n 's/.* => //p'
  ls -d /opt/*/lib*/*.so* /opt/*/*/lib*/*.so* /opt/*/*/lib*/*/*.so* /usr/lib*/slurm/*.so /usr/lib/*/slurm*/*.so 2>/dev/null
}
echo "## builds"
cat /opt/*/.muster-build 2>/dev/null
echo "## libraries"
# Unsorted: of two libraries of a name the loader takes the first that ldconfig lists.
libraries | grep -E '/(libnccl|libnccl-net[a-z-]*|libgdrapi|libnvidia-ml|libnvidia-nscq|spank_pyxis)[.]so' |
  while read -r path; do echo "$path $(readlink -f "$path")"; done
echo "## strings"
for path in $(libraries | grep -E '/(libnccl-net[a-z-]*|spank_pyxis)[.]so$' | sort -u) \
  $(command -v all_reduce_perf || ls /opt/nccl-tests*/bin/all_reduce_perf /opt/nccl-tests*/build/all_reduce_perf 2>/dev/null); do
  # A version that stands alone between two zero bytes, or behind the plugin's own name.
  echo "$path $(grep -azoxE 'v?[0-9]+[.][0-9]+[.][0-9]+(-[a-z]+)?|.*aws-ofi-nccl [0-9][0-9.]*.*' "$path" | tr '\0\n' '  ')"
done
"""

# Component -> where to find its version, best first: a section of the output, and an expression with one group. What the kernel has loaded
# comes before what is installed, and that before what Muster wrote beside its own builds. Without an entry the versions are not compared.
NUMBER = r"(\d+(?:\.\d+)+)"
WAYS = {
    "running_kernel": [("uname -r", r"^(\S+)")],
    "nvidia_driver": [
        ("/proc/driver/nvidia/version", r"NVRM version:.*?\s%s\s" % NUMBER),
        ("/sys/module/nvidia/version", "^" + NUMBER),
        ("modinfo -F version nvidia", r"^%s$" % NUMBER),
        ("libraries", r"/libnvidia-ml\.so\.%s$" % NUMBER),
        ("packages", r"^(?:nvidia-(?:open-)?kernel-dkms|nvidia-dkms-\S+|nvidia-open|kmod-nvidia-open-dkms) (\S+)"),
    ],
    "fabricmanager": [
        ("nv-fabricmanager --version", r"Fabric Manager version is\s*:\s*" + NUMBER),
        ("packages", r"^nvidia-fabric-?manager(?:-\d+)? (\S+)"),
    ],
    "imex": [("nvidia-imex --version", r"IMEX version is\s*:\s*" + NUMBER), ("packages", r"^nvidia-imex(?:-\d+)? (\S+)")],
    "nscq": [("libraries", r"/libnvidia-nscq\.so\.(\d+\.\d+(?:\.\d+)+)$"), ("packages", r"^libnvidia-nscq(?:-\d+)? (\S+)")],
    "nvlsm": [("packages", r"^nvlsm (\S+)")],
    "cuda": [
        ("/usr/local/cuda/version.json", r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"%s"' % NUMBER),
        ("nvcc --version", r"release [\d.]+, V" + NUMBER),
        ("packages", r"^cuda-toolkit(?:-\d+-\d+)? (\S+)"),
    ],
    "nccl": [("libraries", r"/libnccl\.so\.%s$" % NUMBER), ("packages", r"^libnccl2? (\S+)"), ("builds", r"^nccl-%s-" % NUMBER)],
    "torch": [("torch", r"^torch (\S+)")],
    "torch_nccl": [("torch", r"^nccl (\S+)")],
    "gdrcopy": [("libraries", r"/libgdrapi\.so\.%s$" % NUMBER), ("packages", r"^libgdrapi (\S+)"), ("builds", r"^gdrcopy-%s-" % NUMBER)],
    "gdrdrv": [("/sys/module/gdrdrv/version", r"^(\S+)")],
    "efa": [("/opt/amazon/efa_installed_packages", r"EFA installer version:\s*" + NUMBER)],
    "efa_driver": [("/sys/module/efa/version", "^" + NUMBER)],
    "rdma_core": [
        ("packages", r"^rdma-core (\S+)"),
        ("packages", r"^libibverbs1? (\S+)"),
    ],
    "libfabric": [
        ("fi_info --version", r"^libfabric: (\S+)"),
        ("packages", r"^libfabric(?:1|-aws) (\S+)"),
    ],
    "aws_ofi_nccl": [
        ("strings", r"/libnccl-net\S* .*?aws-ofi-nccl %s" % NUMBER),
        ("packages", r"^libnccl-ofi\S* (\S+)"),
        ("builds", r"^aws_ofi_nccl-%s-" % NUMBER),
    ],
    "nccl_tests": [("strings", r"/all_reduce_perf .*?v?%s" % NUMBER), ("builds", r"^nccl_tests-%s-" % NUMBER)],
    "openmpi": [("ompi_info --version", r"Open MPI v" + NUMBER), ("packages", r"^openmpi(?:-bin|\d+-aws) (\S+)")],
    "pmix": [("pmix_info --version", r"PMIx\S* v?" + NUMBER), ("packages", r"^(?:libpmix2(?:t64)?|pmix) (\S+)")],
    "slurm": [
        ("slurmd -V", r"^slurm(?:-wlm)? " + NUMBER),
        ("slurmctld -V", r"^slurm(?:-wlm)? " + NUMBER),
        ("packages", r"^slurm(?:-client|-smd)? (\S+)"),
    ],
    "docker": [("docker --version", r"^Docker version " + NUMBER), ("packages", r"^(?:docker-ce|docker\.io|docker) (\S+)")],
    "nvidia_container_toolkit": [
        ("nvidia-ctk --version", r"CLI version " + NUMBER),
        ("packages", r"^nvidia-container-toolkit (\S+)"),
    ],
    "enroot": [("enroot version", "^" + NUMBER), ("packages", r"^enroot (\S+)")],
    "pyxis": [("strings", r"/spank_pyxis\.so .*?v?%s" % NUMBER), ("packages", r"^pyxis (\S+)")],
    "lustre_client": [
        ("/sys/module/lustre/version", "^" + NUMBER),
        ("lctl --version", r"^lctl " + NUMBER),
        ("packages", r"^lustre-client(?:-utils)? (\S+)"),
    ],
    "dcgm": [("dcgmi --version", r"version: " + NUMBER), ("packages", r"^datacenter-gpu-manager(?:-4-core|-4-cuda\d+)? (\S+)")],
    "neuron": [("/sys/module/neuron/version", "^" + NUMBER), ("packages", r"^aws-neuronx-dkms (\S+)")],
}


def sections(text):
    """What SCRIPT printed, by the command or file that printed it."""
    found: dict = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("## "):
            name = line[3:]
            found[name] = []
        elif name:
            found[name].append(line)
    return {key: "\n".join(lines) for key, lines in found.items()}


def installed(text):
    """The output of SCRIPT -> {component: {version, source}} of those that are there."""
    outputs = sections(text)
    found = {}
    for component, ways in WAYS.items():
        for section, expression in ways:
            match = re.search(expression, outputs.get(section, ""), re.MULTILINE)
            if match:
                version = upstream_version(match.group(1)) if section == "packages" else match.group(1)
                found[component] = {"version": version, "source": section}
                break
    return found


def promised(document):
    """{component: version} that a manifest promises: of its own entry, or of a package that another component's entry recorded."""
    return {component: version for component, (version, _entry) in promises(document).items() if version}


def rehearsed(document, found, node):
    """{component: stand-ins} among what a manifest promises, and what said the version. node: what the node rehearses, {} on a real one."""
    return {
        component: rehearsal.of_entry(entry) + rehearsal.in_command(found.get(component, {}).get("source", "").split(), node)
        for component, (_version, entry) in promises(document).items()
    }


def promises(document):
    """{component: (version, the part of the manifest's entry that promises it)}."""
    out: dict = {}
    entries = document["components"]
    for component, ways in WAYS.items():
        packages = [expression for section, expression in ways if section == "packages"]
        recorded = ["%s %s" % item for name in sorted(entries) for item in sorted(entries[name]["packages"].items())]
        matches = [match for line in recorded for match in (re.search(expression, line) for expression in packages) if match]
        if component in entries:
            out[component] = entries[component]["version"], entries[component]
        elif matches:
            name, version = matches[0].string.split()
            out[component] = upstream_version(matches[0].group(1)), {"packages": {name: version}}
    return out


def same(one, other):
    """Whether two ways to write a version mean the same: 2.6 and v2.6.0, 12.4.131~12.4.1 and 12.4.131; 2.7.0amzn2.0 is not 2.7.0amzn1.0."""

    def parts(text):
        match = re.match(r"v?(\d+(?:\.\d+)*)(?:\.?amzn([\d.]*))?", text)
        return [re.sub(r"(\.0)+$", "", each or "") for each in match.groups()] if match else [text, ""]

    (number, amazon), (number2, amazon2) = parts(one), parts(other)
    return number == number2 and (not amazon or not amazon2 or amazon == amazon2)


def drift(found, expected):
    """The components that differ from the manifest: [{component, expected, found}]."""
    out = []
    for component, version in expected.items():
        have = found.get(component, {}).get("version", "")
        if not have or not same(version, have):
            out.append({"component": component, "expected": version, "found": have or "none"})
    return out


REMEDY = "Run the install phase again, or drain the node and give it the image again; something replaced what the manifest recorded."


def checks(found, expected, stand_ins):
    """One probe for the module `check` for each component that the manifest promises. stand_ins: component -> those that it consists of."""
    wrong = {each["component"]: each["found"] for each in drift(found, expected)}
    return [
        {
            "check": "drift_" + component,
            "value": wrong.get(component, version),
            "equals": version,
            "rehearsed": stand_ins.get(component, []),
            "remedy": REMEDY,
        }
        for component, version in expected.items()
    ]


def sentences(differences):
    message = "%s: the manifest has %s and the node has %s."
    return [message % (each["component"], each["expected"], each["found"]) for each in differences]


def table(expected, host, container=None):
    """The report for a person: one line a component that anybody has or promises, host beside container."""
    names = [name for name in WAYS if name in expected or name in host or name in (container or {})]
    head = ["component", "manifest", "host"] + ([] if container is None else ["container"]) + ["said by"]
    rows = [head]
    for name in names:
        row = [name, expected.get(name, "-"), host.get(name, {}).get("version", "-")]
        if container is not None:
            row.append(container.get(name, {}).get("version", "-"))
        row.append(host.get(name, (container or {}).get(name, {})).get("source", ""))
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(value.ljust(width) for value, width in zip(row, widths)).rstrip() for row in rows)
