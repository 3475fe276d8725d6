# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The programs of a cluster, at exact versions, and where they lie. tools/get_kubernetes.py puts them there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ansible_collections.muster.fleet.plugins.module_utils.paths import cache_dir
from localkube import LocalKubeError

KUBERNETES = "1.34.2"
CLUSTER = ("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubectl")
COREDNS = "1.14.7"
PAUSE = "1"
DEVICE_PLUGIN = "2"


class Operator(NamedTuple):
    """A program that runs as its own pod: the Go module that has its source and its manifests."""

    version: str
    module: str
    package: str
    kustomization: str


STANDALONE = "manifests/overlays/standalone"
OPERATORS = {
    "training-operator": Operator("1.9.3", "github.com/kubeflow/training-operator", "./cmd/training-operator.v1", STANDALONE),
    "jobset": Operator("0.11.1", "sigs.k8s.io/jobset", ".", "config/default"),
    "mpi-operator": Operator("0.8.0", "github.com/kubeflow/mpi-operator", "./cmd/mpi-operator", STANDALONE),
    "trainer": Operator("2.2.0", "github.com/kubeflow/trainer/v2", "./cmd/trainer-controller-manager", "manifests/overlays/manager"),
    "kueue": Operator("0.17.0", "sigs.k8s.io/kueue", "./cmd/kueue", "config/default"),
}
VERSIONS = {
    **dict.fromkeys(CLUSTER, KUBERNETES),
    "coredns": COREDNS,
    "pause": PAUSE,
    "device-plugin": DEVICE_PLUGIN,
    **{name: each.version for name, each in OPERATORS.items()},
}
# Debian packages that have what is not built -> their programs.
DEBIAN = {
    "containerd": ("containerd", "containerd-shim-runc-v2", "ctr"),
    "containernetworking-plugins": ("host-local", "loopback", "portmap"),  # its bridge has the name of a program of iproute2
    "etcd-server": ("etcd",),
    "runc": ("runc",),
    "iptables": ("iptables",),
    "iproute2": ("ip",),
}
CNI = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")


def folder(env: Mapping[str, str]) -> Path:
    return cache_dir(env) / "kubernetes"


def built(name: str, env: Mapping[str, str]) -> Path:
    """Where a program of VERSIONS lies, whether it is there or not."""
    return folder(env) / f"{name}-{VERSIONS[name]}"


def manifest(name: str, env: Mapping[str, str]) -> Path:
    """Where an operator's manifest lies."""
    return folder(env) / f"{name}-{VERSIONS[name]}.yaml"


def search_path(env: Mapping[str, str]) -> str:
    """Where programs of Debian's packages are looked for: this machine's own first."""
    unpacked = folder(env) / "debian"
    own = [*env.get("PATH", os.defpath).split(os.pathsep), "/usr/sbin", "/sbin", *CNI]
    return os.pathsep.join([*own, *(str(unpacked / each) for each in ("usr/bin", "usr/sbin", "usr/lib/cni"))])


def find(name: str, env: Mapping[str, str]) -> Path:
    """The program `name`. Raises LocalKubeError."""
    if name in VERSIONS:
        path = built(name, env)
        if path.exists():
            return path
        raise LocalKubeError(f"{path} is not there; run make kubernetes.")
    found = shutil.which(name, path=search_path(env))
    if not found:
        package = next(package for package, names in DEBIAN.items() if name in names)
        raise LocalKubeError(f"This machine has no {name}; run make kubernetes, or install {package}.")
    return Path(found)


def cni_folder(env: Mapping[str, str]) -> Path:
    """The folder of the network plugins."""
    return find("host-local", env).parent
